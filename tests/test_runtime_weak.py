"""Verdicts that one input, or one number, would get wrong: confirmed, refuted or left open for the right reason."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest

pytest.importorskip("torch")

from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import claim_of, from_example, from_finding
from runtime_check.pool import Pool
from runtime_check.probes.bench import OVER, Bench, Way
from runtime_check.sandbox import Guard
from torchlint.claims import Equivalent, Warns, WrongGradient
from torchlint.engine import lint_source
from torchlint.findings import Severity
from torchlint.rule import Example, Meta, Rule, all_rules

RULES = {rule.meta.code: rule for rule in all_rules()}


def outcomes(pool: Pool, text: str, code: str) -> list[Outcome]:
    """The outcomes of the findings of a rule in a file, in order."""
    text = textwrap.dedent(text).lstrip("\n")
    rule = RULES[code]
    cases = []
    for key, finding in enumerate(lint_source(text, rules=[rule])):
        claim = claim_of(finding, rule.claim)
        assert claim is not None
        cases.append(from_finding(finding, claim, text, key, seconds=25, path="file.py"))
    found = dict(pool.run(cases))
    return [outcome for _, outcome in sorted((case.key, outcome) for case, outcome in found.items())]


def outcome(pool: Pool, text: str, code: str) -> Outcome:
    """The outcome of the one finding of a rule in a file."""
    (found,) = outcomes(pool, text, code)
    return found


def test_a_refusal_of_backward_that_the_code_catches_is_heard(pool: Pool) -> None:
    found = outcome(
        pool,
        """
        import torch
        from torch import nn

        net = nn.Linear(2, 3)


        def step(x, y):
            net(x).sum().backward()
            predicted = net(x).argmax(dim=1)
            loss = 1 - (predicted == y).float().mean()
            try:
                loss.backward()
            except RuntimeError as error:
                print("skipped", error)


        step(torch.ones(2, 2), torch.tensor([0, 2]))
        """,
        "TL207",
    )
    assert found.verdict is Verdict.CONFIRMED, found
    assert "`argmax` ends the graph" in found.why


DATASET = """
import torch
from torch.utils.data import Dataset


class Stored(Dataset):
    def __init__(self, n):
        self.samples = {samples}

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        item = self.samples[index]
        {change}
        return {returned}


data = Stored(3)
print(data[0], data[0])
"""
COUNTED = '[{"x": torch.ones(2), "hits": 0} for _ in range(n)]'


def test_zeros_that_stay_zeros_refute_nothing(pool: Pool) -> None:
    text = DATASET.format(samples="torch.zeros(n, 3, 4)", change="item.mul_(2)", returned="item")
    found = outcome(pool, text, "TL525")
    assert found.verdict is Verdict.CONFIRMED, found
    assert any("given other values" in row.text for row in found.evidence)


@pytest.mark.parametrize(
    ("returned", "said"), [("item", "the next read gives another item['hits']"), ('item["x"]', "the dataset keeps")]
)
def test_it_is_said_of_the_next_read_what_it_gives(pool: Pool, returned: str, said: str) -> None:
    text = DATASET.format(samples=COUNTED, change='item["hits"] += 1', returned=returned)
    found = outcome(pool, text, "TL525")
    assert found.verdict is Verdict.CONFIRMED and said in found.why, found


def test_a_limit_that_no_gradient_reaches_is_lowered(pool: Pool) -> None:
    found = outcome(
        pool,
        """
        import torch

        model = torch.nn.Linear(3, 1)
        params = model.parameters()
        optimizer = torch.optim.SGD(params, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).sum().backward()
            torch.nn.utils.clip_grad_norm_(params, 1000.0)
            optimizer.step()
        """,
        "TL511",
    )
    assert found.verdict is Verdict.CONFIRMED, found
    assert any("never reached" in row.text for row in found.evidence)


@pytest.mark.parametrize(
    ("code", "line", "double"),
    [
        ("TL610", "torch.log(1 + x)", False),
        ("TL610", "(torch.exp(x) + 1).log()", False),
        ("TL611", "(torch.exp(x) - 1) - x", False),
        ("TL612", "torch.log(torch.sum(torch.exp(x), dim=-1))", False),
        ("TL610", "torch.log(1 + x)", True),
    ],
)
def test_formulas_are_tried_with_the_values_that_they_fail_for(
    pool: Pool, code: str, line: str, double: bool
) -> None:
    text = f"import torch\n\n\ndef f(x):\n    return {line}\n\n\nprint(f(torch.rand(4, dtype=torch.float64)))\n"
    found = outcome(pool, text if double else text.replace("64", "32"), code)
    assert found.verdict is (Verdict.REFUTED if double else Verdict.CONFIRMED), found
    assert "values of about 1" in found.why


SUM, SOFT = "torch.log(torch.exp({}).sum(dim=1))", "torch.log(torch.softmax({}, dim=1))"


@pytest.mark.parametrize(
    ("code", "line", "size"),
    [
        ("TL612", SUM.format("torch.tanh(x)"), 1),
        ("TL612", SUM.format("x.clamp(-10, 10)"), 10),
        ("TL612", SUM.format("torch.nn.functional.normalize(x) @ x.t().clamp(-1, 1) / 0.5"), 0),
        ("TL612", SUM.format("-torch.cdist(x.sigmoid(), x.tanh())"), 0),
        ("TL612", SUM.format("x.log_softmax(1).clamp(min=-20)"), 20),
        ("TL613", SOFT.format("torch.sigmoid(x) * 3"), 3),
        ("TL613", "torch.log(torch.sigmoid(torch.tanh(x)))", 1),
    ],
)
@pytest.mark.parametrize("way", ["", "torch.tensor([[0.5, 90.0], [-90.0, 2.0]])"])
def test_bounded_operands_are_given_no_sizes_that_no_input_makes(
    pool: Pool, code: str, line: str, size: int, way: str
) -> None:
    head = "import torch\n\n\ndef f(x: torch.Tensor):\n    x = x.reshape(-1, x.shape[-1])\n"
    text = f"{head}    return {line}\n"
    found = outcome(pool, text + (f"\n\nprint(f({way}))\n" if way else ""), code)
    assert found.verdict is (Verdict.REFUTED if way else Verdict.CANNOT_TELL), found
    assert "no input that was tried makes the operand larger than" in found.why, found
    assert not size or f"larger than {size}" in found.why or way, found


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("TL612", SUM.format("torch.nn.functional.relu(x) * 0.5 - 1")),
        ("TL612", SUM.format("-x.pow(2)")),
        ("TL613", SOFT.format("x + 1")),
        ("TL613", "torch.log(torch.sigmoid(x / 3))"),
    ],
)
def test_operands_that_inputs_make_large_are_confirmed(pool: Pool, code: str, line: str) -> None:
    text = f"import torch\n\n\ndef f(x: torch.Tensor):\n    return {line}\n"
    for more in ("", "\n\nprint(f(torch.randn(2, 4)))\n"):
        assert (found := outcome(pool, text + more, code)).verdict is Verdict.CONFIRMED, found


def test_a_table_that_no_input_changes_is_said_nothing_of(pool: Pool) -> None:
    found = outcome(
        pool,
        """
        import torch
        from torch import nn


        class Bias(nn.Module):
            def __init__(self, window=4):
                super().__init__()
                far = torch.arange(window, dtype=torch.float32)
                self.register_buffer("table", torch.log(1.0 + far.sqrt()))
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return x + self.scale * self.table.sum()
        """,
        "TL610",
    )
    assert found.verdict is Verdict.CANNOT_TELL and "whatever the input" in found.why, found


def test_code_that_seeds_itself_takes_other_values_all_the_same(pool: Pool) -> None:
    found = outcome(
        pool,
        """
        import torch


        def train(seed=1):
            torch.manual_seed(seed)
            ratio = torch.rand(4)
            return (torch.exp(ratio) - 1).mean()


        print(train())
        """,
        "TL611",
    )
    assert found.verdict is Verdict.CONFIRMED, found


@pytest.mark.parametrize("clip", ["torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "pass"])
def test_scaled_gradients_hide_no_old_ones(pool: Pool, clip: str) -> None:
    found = outcome(
        pool,
        f"""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(6):
            scaler.scale(model(torch.ones(2, 3)).pow(2).mean()).backward()
            {clip}
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        """,
        "TL501",
    )
    assert found.verdict is Verdict.CONFIRMED, found
    assert any("scale of the gradient scaler: 1" in row.text for row in found.evidence)


EVALUATED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return self.drop(self.fc(x))


def main():
    net = Net({p})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        net.train()
        optimizer.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            error = net(torch.ones(3, 4)).sum()
        print(epoch, error.item())


main()
"""


@pytest.mark.parametrize(("p", "verdict"), [("0.5", Verdict.CONFIRMED), ("0.0", Verdict.REFUTED)])
def test_a_flag_that_changes_no_output_confirms_nothing(pool: Pool, p: str, verdict: Verdict) -> None:
    found = outcome(pool, EVALUATED.format(p=p), "TL514")
    assert found.verdict is verdict, found


ACCUMULATED = """
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    loss = {loss}
    loss.backward()  #!
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        ("model(torch.ones(2, 3)).pow(2).mean() * 3", Verdict.CONFIRMED),
        ("torch.nn.functional.mse_loss(model(torch.ones(2, 3)), torch.ones(2, 1))", Verdict.CONFIRMED),
        ("torch.nn.MSELoss(reduction='sum')(model(torch.ones(2, 3)), torch.ones(2, 1))", Verdict.REFUTED),
        ("model(torch.ones(2, 3)).pow(2).sum()", Verdict.REFUTED),
        ("model(torch.ones(2, 3)).pow(2).sum() / 2", Verdict.CANNOT_TELL),
    ],
)
def test_micro_batches_are_wrong_for_a_mean_alone(pool: Pool, loss: str, verdict: Verdict) -> None:
    bad = ACCUMULATED.format(loss=loss)
    good = bad.replace("loss.backward()  #!", "(loss / 2).backward()")
    rule = Rule(Meta("TL504", "test", Severity.ERROR), lambda model: iter(()), "", "graph", "test", WrongGradient())
    ((_, found),) = pool.run([from_example(rule, Example(bad, good), "bad", 0, seconds=40)])
    assert found.verdict is verdict, found


INITIALISED = """
import math
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            m.weight.data.normal_(0, math.sqrt(2.0 / 4))
            m.bias.data.mul_(0.5)

    def forward(self, x):
        return self.fc(x)
"""


def test_what_the_correction_stores_elsewhere_is_compared(pool: Pool) -> None:
    for fixed in outcomes(pool, INITIALISED, "TL102"):
        assert fixed.verdict is Verdict.CONFIRMED and "with the fix" in fixed.why, fixed


def test_memory_that_is_not_set_is_compared_by_its_form(pool: Pool) -> None:
    text = """
    import torch


    def room(n=3):
        return torch.Tensor(n, 2)


    def box(x: float):
        return torch.Tensor([x])
    """
    memory, value = outcomes(pool, text, "TL109")
    assert memory.verdict is Verdict.CONFIRMED and "not set" in memory.why, memory
    assert value.verdict is Verdict.CONFIRMED and "bit for bit" in value.why, value


def test_a_quiet_deprecation_without_a_fix_claims_nothing_that_a_run_could_show() -> None:
    text = "import torch\n\n\ndef size(x, p):\n    return torch.norm(x, p=p, dim=-1)\n"
    (finding,) = lint_source(text, rules=[RULES["TL902"]])
    assert finding.fix is None and claim_of(finding, RULES["TL902"].claim) is None
    loud = "from torch import nn\n\nlayer = nn.utils.weight_norm(nn.Linear(2, 2))\n"
    (finding,) = lint_source(loud, rules=[RULES["TL902"]])
    assert isinstance(claim_of(finding, RULES["TL902"].claim), Warns)


def test_of_a_quiet_deprecation_the_new_name_is_compared(pool: Pool) -> None:
    text = "import torch\n\n\ndef size(x):\n    return torch.norm(x)\n\n\nprint(size(torch.ones(3)))\n"
    (finding,) = lint_source(text, rules=[RULES["TL902"]])
    assert claim_of(finding, RULES["TL902"].claim) == Equivalent()
    found = outcome(pool, text, "TL902")
    assert found.verdict is Verdict.CONFIRMED, found


def test_an_import_is_compared_by_what_it_binds(pool: Pool) -> None:
    text = """
    import sys
    from torch.distributed._tensor import Replicate, Shard

    sys.exit()
    print(Replicate, Shard)
    """
    found = outcome(pool, text, "TL902")
    assert found.verdict is Verdict.CONFIRMED and "`Replicate` is the same object" in found.why, found


def test_an_evaluation_without_a_correction_is_run_without_gradients(pool: Pool) -> None:
    text = textwrap.dedent("""
        import torch


        def evaluate(model, loader):
            model.eval()
            total = 0.0
            for x, y in loader:
                total += (model(x) - y).pow(2).sum().item()
            return total


        model = torch.nn.Linear(3, 1)
        print(evaluate(model, [(torch.ones(2, 3), torch.ones(2, 1))] * 4))
        """)
    (finding,) = lint_source(text, rules=[RULES["TL210"]])
    rule = RULES["TL210"]
    assert rule.claim is not None
    case = from_finding(dataclasses.replace(finding, fix=None), rule.claim, text, 0, seconds=25, path="file.py")
    assert case.corrected is None
    ((_, found),) = pool.run([case])
    assert found.verdict is Verdict.CONFIRMED and "under torch.no_grad()" in found.why, found


def test_a_load_without_a_fix_is_compared_with_a_safe_one(pool: Pool) -> None:
    text = "import torch\n\nstate = torch.load('x.pt', weights_only=False)\n"
    (finding,) = lint_source(text, rules=[RULES["TL904"]])
    rule = RULES["TL904"]
    assert rule.claim is not None
    case = from_finding(dataclasses.replace(finding, fix=None), rule.claim, text, 0, seconds=25, path="file.py")
    assert case.corrected is not None and "weights_only=True" in case.corrected and "False" not in case.corrected
    ((_, found),) = pool.run([case])
    assert found.verdict is Verdict.CONFIRMED, found


def test_code_that_ran_when_the_time_was_over_is_not_said_to_be_unreached() -> None:
    rule = RULES["TL610"]
    bench = Bench(from_example(rule, rule.examples[0], "bad", 0), Guard(()))
    bench.note(OVER)
    assert bench.unreached().verdict is Verdict.NOT_REACHED
    bench.run(bench.flagged, Way("the whole", bench.flagged.execute))
    assert bench.reached and bench.unreached().verdict is Verdict.CANNOT_TELL


OTHERS = """
    import torch
    from torch import nn
    import torch.nn.functional as F


    def right():
        net = nn.Linear(4, 1)
        loss = F.mse_loss(net(torch.ones(1, 4)), torch.zeros(1, 1), reduction="none")
        loss.backward()


    def wrong():
        net = nn.Linear(4, 1)
        loss = F.mse_loss(net(torch.ones(2, 4)), torch.zeros(2, 1), reduction="none")
        loss.backward()


    right()
    wrong()
    """


def test_an_error_of_another_function_is_not_that_of_the_flagged_one(pool: Pool) -> None:
    right, wrong = outcomes(pool, OTHERS, "TL222")
    assert right.verdict in (Verdict.REFUTED, Verdict.CANNOT_TELL), right
    assert wrong.verdict is Verdict.CONFIRMED, wrong


NET = """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))
            self.lin = nn.Linear(4, 4)

        def loss(self, x):
            return (x * self.weight).pow(2).mean()

        def embed(self, x):
            h = self.lin(x)
            self.aux = h.pow(2).mean()
            return h

        def forward(self, x):
            return x * self.weight

        def init_weights(self, x):
"""


def of_net(pool: Pool, lines: list[str], code: str = "TL102") -> list[Outcome]:
    """The outcomes of the findings of a rule in a method of a module with these lines."""
    return outcomes(pool, NET + "".join(f"            {line}\n" for line in lines), code)


def test_the_corrected_line_is_not_taken_for_an_equal_one(pool: Pool) -> None:
    again = ["with torch.no_grad():", "    a = self.weight * x"]
    lines = ["self.weight.data.add_(1)", *again, "self.weight.data.add_(10)", "return a"]
    assert [found.verdict for found in of_net(pool, lines)] == [Verdict.CONFIRMED] * 2


@pytest.mark.parametrize("lines", [
    ["self.weight.data.sub_(0.1 * torch.autograd.grad(self.loss(x), self.weight)[0])"],
    ["self.weight.data.copy_(self.embed(x).mean(0).detach())", "self.aux.backward()", "return self.lin.weight.grad"],
    ["loss = self.weight.pow(2).sum()", "self.weight.data.add_(1)", "loss.backward()"],
])
@pytest.mark.parametrize("tail", ["", "\n\nNet().init_weights(torch.ones(8, 4))\n"])
def test_a_fix_after_which_the_program_raises_changes_results(pool: Pool, lines: list[str], tail: str) -> None:
    text = textwrap.dedent(NET + "".join(f"            {line}\n" for line in lines)) + tail
    found = outcome(pool, text, "TL102")
    assert found.verdict is Verdict.REFUTED, found
    assert "only the fixed program raises: RuntimeError" in found.why


def test_a_program_that_raises_either_way_is_not_changed_by_a_fix(pool: Pool) -> None:
    lines = ["self.weight.data.add_(1)", "raise RuntimeError(1)"]
    assert [found.verdict for found in of_net(pool, lines)] == [Verdict.CONFIRMED]


@pytest.mark.parametrize(("line", "verdict"), [
    ("z.requires_grad_()", Verdict.REFUTED), ("print(z.sum())", Verdict.CONFIRMED),
])
def test_a_tensor_that_requires_a_gradient_is_another_result(pool: Pool, line: str, verdict: Verdict) -> None:
    text = f"""
        import torch
        from torch.autograd import Variable

        y = torch.ones(3)
        z = Variable(y)
        {line}
    """
    found = outcome(pool, text, "TL905")
    assert found.verdict is verdict, found
    assert verdict is Verdict.CONFIRMED or "y requires a gradient" in found.why
