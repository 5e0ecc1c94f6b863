"""What only running the code can show: backwards that are no derivatives, modules that break their contract."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from torchlint.cli import main
from torchlint.confirmed import RUNTIME
from torchlint.engine import lint_source
from torchlint.rule import Rule

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def confirm(text: str, *options: str) -> dict[str, Any]:
    """What confirm says of a program, with verdicts by class."""
    Path("net.py").write_text(text)
    args = ["confirm", "--isolated", "net.py", "--output-format", "json", "--timeout", "30", *options]
    done = CliRunner().invoke(main, args)
    data: dict[str, Any] = json.loads(done.stdout)
    lines = text.splitlines()
    data["verdicts"] = {
        lines[row["line"] - 1].split()[1].partition("(")[0]: (row["verdict"], row["why"]) for row in data["examined"]
    }
    return data


def function(name: str, forward: str, backward: str, arguments: str = "x", doc: str = "") -> str:
    """A Function whose forward and backward end in the given expressions."""
    return textwrap.dedent(f'''
        class {name}(torch.autograd.Function):
            """{doc}"""

            @staticmethod
            def forward(ctx, {arguments}):
                ctx.save_for_backward(x)
                return {forward}

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return {backward}
    ''')


@pytest.mark.parametrize("rule", RUNTIME, ids=lambda rule: rule.meta.code)
def test_examples_are_confirmed_and_corrected_ones_are_not(rule: Rule) -> None:
    for example in rule.examples:
        bad = confirm(example.source, "--select", rule.meta.code)
        (row,) = bad["results"]
        assert (row["code"], row["verdict"], row["line"]) == (rule.meta.code, "confirmed", example.flagged[0])
        assert row["evidence"] and "--select" in row["repeat"]
        good = confirm(example.corrected, "--select", rule.meta.code)
        assert good["results"] == [] and [one["verdict"] for one in good["examined"]] == ["refuted"]


def test_the_check_alone_reports_none_of_it() -> None:
    for rule in RUNTIME:
        text = rule.examples[0].source
        assert rule.meta.code not in {finding.code for finding in lint_source(text)}
        silenced = text.replace("#!", "").replace(":\n", f":  # noqa: {rule.meta.code}\n", 1)
        assert "TL001" not in {finding.code for finding in lint_source(silenced)}


def test_a_wrong_backward_is_told_from_one_that_is_meant_to_differ() -> None:
    text = HEAD + "\n\n".join([
        function("Right", "x.sin()", "grad * x.cos()"),
        function("WrongSign", "x.cos()", "grad * x.sin()"),
        function("WrongOfTwo", "x * y", "grad * x, grad * x", "x, y"),
        function("Steps", "torch.floor(x)", "grad"),
        function("Turned", "x.view_as(x)", "-grad"),
        function("Soft", "x.abs()", "grad * torch.tanh(x)", doc="The gradient is a surrogate."),
        function("Chance", "x * torch.rand_like(x)", "grad"),
        function("Counted", "x.long()", "grad"),
    ])
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert {name for name, (verdict, _) in found.items() if verdict == "confirmed"} == {"WrongSign", "WrongOfTwo"}
    assert found["Right"][0] == "refuted"
    assert "-1 times" in found["WrongSign"][1]
    assert "`x`" in found["WrongOfTwo"][1]
    assert "constant" in found["Steps"][1] and "changes nothing" in found["Turned"][1]
    assert "surrogate" in found["Soft"][1] and "same arguments differ" in found["Chance"][1]
    assert found["Counted"][0] == "cannot-tell"


def test_going_back_twice_is_checked_where_backward_allows_it() -> None:
    once = function("Once", "x ** 3", "grad * 3 * x ** 2")
    text = HEAD + "\n\n".join([
        function("Smooth", "x ** 3", "grad * 3 * x ** 2"),
        function("Half", "x ** 3", "grad * 3 * x.detach() * x"),
        once.replace("    @staticmethod\n    def backward", "    @staticmethod\n    @torch.autograd.function."
                     "once_differentiable\n    def backward"),
    ])
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert [found[name][0] for name in ("Smooth", "Half", "Once")] == ["refuted", "confirmed", "refuted"]
    assert "going back through it" in found["Half"][1] and "0.5 times" in found["Half"][1]


def test_a_second_derivative_without_a_graph_is_missing_something() -> None:
    """The gradient that comes in has a graph, so that nothing raises, and the backward's own part has none."""
    kept = """

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.cos())
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]
    """
    text = HEAD + function("Detached", "x ** 3", "grad * 3 * x.detach() ** 2") + textwrap.dedent(kept)
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert [found[name][0] for name in ("Detached", "Kept")] == ["confirmed", "confirmed"], found


MIXED = """

class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        ctx.w = w.detach().clone()
        return x * w

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.w, grad * ctx.saved_tensors[0]


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.sin() * x).exp()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = (x.sin() * x).exp()
        return torch.autograd.grad(y, x, grad)[0]


class Mask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = (x > 0).to(x.dtype)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask
"""


def test_mixed_second_derivatives_and_those_beside_other_terms_are_asked_for() -> None:
    once = MIXED.replace("    def backward", "    @torch.autograd.function.once_differentiable\n    def backward")
    for name in ("Mixed", "Recomputed", "Mask"):
        once = once.replace(f"class {name}", f"class {name}Once")
    found = confirm(HEAD + MIXED + once, "--select", "TL313")["verdicts"]
    assert found["Mixed"][0] == "confirmed" and "going back through it" in found["Mixed"][1], found
    assert found["Recomputed"][0] == "cannot-tell" and "carries no graph" in found["Recomputed"][1], found
    assert {found[name][0] for name in ("Mask", "MixedOnce", "RecomputedOnce", "MaskOnce")} == {"refuted"}, found


def test_an_argument_without_a_gradient_is_asked_about() -> None:
    affine = function("Affine", "x * 2 + bias", "grad * 2, None", "x, bias")
    text = HEAD + affine + function("Unused", "x * 2 + 0 * bias", "grad * 2, None", "x, bias")
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert found["Affine"][0] == "cannot-tell" and "no gradient for `bias`" in found["Affine"][1], found
    assert found["Unused"][0] == "refuted", found
    for trained, verdict in (("nn.Parameter(torch.ones(4))", "confirmed"), ("torch.ones(4)", "cannot-tell")):
        found = confirm(f"{HEAD}{affine}\n\nprint(Affine.apply(torch.randn(2, 4), {trained}))\n", "--select", "TL313")
        assert found["verdicts"]["Affine"][0] == verdict, found


def test_numbers_that_are_none_are_no_chance() -> None:
    text = HEAD + function("Angle", "x.acos() + torch.log(-x.abs())", "-grad / (1 - x * x).sqrt()")
    assert "not finite" in confirm(text, "--select", "TL313")["verdicts"]["Angle"][1]


CLAMP = """

class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo: float, hi: float):
        ctx.save_for_backward(x)
        ctx.lo, ctx.hi = lo, hi
        return x.clamp(lo, hi)

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return {result}, None, None
"""


def test_a_mask_that_is_the_wrong_one_is_told_from_one_that_lets_more_pass() -> None:
    made = {
        "Right": "grad * ((x > ctx.lo) & (x < ctx.hi))",
        "Passes": "grad",
        "BackIn": "grad * ((x > ctx.lo) & (x < ctx.hi) | (x * grad > 0))",
        "Positive": "grad * (x > 0)",
        "Turned": "grad * ((x < ctx.lo) | (x > ctx.hi))",
        "Deconvolved": "grad * (grad > 0)",
    }
    text = HEAD + "".join(CLAMP.format(name=name, result=result) for name, result in made.items())
    found = confirm(text, "--select", "TL313")["verdicts"]
    verdicts = {name: verdict for name, (verdict, _) in found.items()}
    wrong = {"Positive": "confirmed", "Turned": "confirmed"}
    assert verdicts == {**dict.fromkeys(made, "cannot-tell"), "Right": "refuted", **wrong}, found
    assert "where it stands still" in found["Turned"][1]


def test_torch_refuses_gradients_that_fit_no_arguments() -> None:
    text = HEAD + CLAMP.format(name="Short", result="grad * 1").replace(", None, None", "")
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert found["Short"][0] == "confirmed" and "incorrect number of gradients" in found["Short"][1]


def test_a_number_for_which_backward_gives_a_gradient_is_taken_as_a_tensor() -> None:
    text = HEAD + function("Scaled", "x * scale", "grad * ctx.scale, (grad * x).sum(0) * 2", "x, scale")
    text = text.replace("ctx.save_for_backward(x)", "ctx.save_for_backward(x)\n        ctx.scale = scale")
    found = confirm(text, "--select", "TL313")["verdicts"]
    assert found["Scaled"][0] == "confirmed" and "`scale`" in found["Scaled"][1], found


def module(name: str, made: str, forward: str) -> str:
    """A Module with a linear layer `fc`."""
    return textwrap.dedent(f"""
        class {name}(nn.Module):
            def __init__(self, width=8):
                super().__init__()
                self.fc = nn.Linear(width, width)
                {made}

            def forward(self, x):
                return {forward}
    """)


def test_each_promise_of_a_module_is_measured() -> None:
    text = HEAD + "\n\n".join([
        module("Kept", "self.drop, self.bn = nn.Dropout(), nn.BatchNorm1d(width)", "self.drop(self.bn(self.fc(x)))"),
        module("Cut", "self.w = nn.Parameter(torch.ones(width))", "self.fc(x) * (self.w * 2).detach()"),
        module("Left", "self.scale = torch.ones(width)", "self.fc(x) * self.scale"),
        module("Drops", "pass", "F.dropout(self.fc(x))"),
        module("Samples", "pass", "self.fc(x) + torch.randn_like(x)"),
        module("Forgets", "self.layers = [nn.Linear(width, width)]", "self.layers[0](self.fc(x))"),
        module("Damages", "pass", "self.fc(x.mul_(2))"),
        module("Keeps", "self.mask = None", "self.fc(x) + self.cached(x)") + textwrap.dedent("""
            def cached(self, x):
                if self.mask is None:
                    self.mask = torch.zeros(x.shape[-1])
                return self.mask
        """).replace("\n", "\n    "),
        module("Asked", "self.act = nn.ReLU(inplace=True)", "self.fc(self.act(x))"),
    ])
    found = confirm(text, "--check-modules", "--select", "TL428")["verdicts"]
    said = {name: why for name, (verdict, why) in found.items() if verdict == "confirmed"}
    assert found["Keeps"][0] == "refuted"
    assert said.keys() == {"Cut", "Left", "Drops", "Forgets", "Damages"}, found
    assert said["Cut"] == "`w` takes part in the forward and gets no gradient"
    assert "`scale` does not follow" in said["Left"] and "`dropout` still draws" in said["Drops"]
    assert "state_dict does not hold" in said["Forgets"] and "changes `x`" in said["Damages"]


def test_modules_are_examined_only_if_asked_for() -> None:
    text = HEAD + module("Drops", "pass", "F.dropout(self.fc(x))")
    assert confirm(text)["examined"] == []
    assert confirm(text, "--select", "ALL", "--preview")["examined"] == []
    assert len(confirm(text, "--select", "module-contract")["examined"]) == 1
    assert len(confirm(text, "--check-modules")["examined"]) == 1


def test_a_comment_silences_what_only_running_shows() -> None:
    text = HEAD + function("Wrong", "x.cos()", "grad * x.sin()")
    assert len(confirm(text, "--select", "TL313")["results"]) == 1
    silenced = text.replace("(torch.autograd.Function):", "(torch.autograd.Function):  # noqa: TL313")
    assert confirm(silenced, "--select", "TL313")["examined"] == []


def test_the_report_counts_what_was_examined() -> None:
    Path("net.py").write_text(HEAD + function("Right", "x.sin()", "grad * x.cos()"))
    done = CliRunner().invoke(main, ["confirm", "--isolated", "net.py"])
    assert done.exit_code == 0
    assert "1 autograd Function held against finite differences: 0 differ, 1 agree, 0 not told" in done.stdout
    text = HEAD + "".join(function(f"Lost{number}", "x.of_no_tensor", "grad") for number in range(12))
    Path("net.py").write_text(text)
    done = CliRunner().invoke(main, ["confirm", "--isolated", "net.py"])
    assert "12 autograd Functions held against finite differences: 0 differ, 0 agree, 12 not told" in done.stdout
    assert "\n    net.py:" in done.stdout and ": Lost9: " in done.stdout and ": Lost10: " not in done.stdout
    assert "\n    and 2 more (--output-format json names them all)\n" in done.stdout
    assert [one["name"] for one in confirm(text)["examined"]] == [f"Lost{number}" for number in range(12)]


APPLIED = """
import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias=None, scale=1.0):
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        y = x.mm(w.t()) * scale
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad.mm(w) * ctx.scale, grad.t().mm(x) * ctx.scale, None, None


def run(x, w):
    return Scaled.apply(x, w, None, 2.0)
"""


def test_a_function_gets_as_many_arguments_as_the_file_gives_it() -> None:
    import ast

    from runtime_check.functions import ArgumentGuesser, applied

    text, given = APPLIED, "None, 2.0"
    space: dict[str, object] = {}
    exec(compile(text, "applied.py", "exec"), space)
    cls = space["Scaled"]
    guesser = ArgumentGuesser(cls.forward, cls, drop_context=True, applied=applied(ast.parse(text), "Scaled"))
    starts, _ = guesser.starts()
    assert starts[0].label.endswith(given)
    fewer, _ = ArgumentGuesser(cls.forward, cls, drop_context=True).starts()
    assert not fewer[0].label.endswith(given)
