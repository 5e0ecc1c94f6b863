"""Probes: each claim is confirmed on a program that has the fault and refuted on one that has not."""

from __future__ import annotations

import sys
import textwrap
from types import FrameType

import pytest
from claim_programs import GRAPH, PROGRAMS

from torchlint import claims
from torchlint.claims import Claim, GraphGrows, Raises, WrongGradient
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Severity, Span
from torchlint.rule import Example, Meta, Rule

torch = pytest.importorskip("torch")

from runtime_check import advice, trace  # noqa: E402
from runtime_check.evidence import Outcome, Verdict  # noqa: E402
from runtime_check.plan import (  # noqa: E402
    Case,
    Lines,
    apply_fixes,
    correct,
    followed,
    from_example,
    from_finding,
    mapped,
    statement_lines,
    with_steps,
)
from runtime_check.pool import Pool  # noqa: E402
from runtime_check.probes import MODULES  # noqa: E402
from runtime_check.probes.graphs import held, numbers, saved_bytes  # noqa: E402
from runtime_check.probes.storages import Storages  # noqa: E402


def rule(claim: Claim, code: str) -> Rule:
    """A rule that exists for its claim only."""
    meta = Meta(code or "TL999", "test", Severity.ERROR)
    return Rule(meta, lambda model: iter(()), "", "graph", "test", claim)


def run(pool: Pool, claim: Claim, code: str, bad: str, good: str) -> dict[str, Outcome]:
    """Outcomes of both programs, each compared with the good one."""
    example, one = Example(bad, good), rule(claim, code)
    cases = [from_example(one, example, kind, key, seconds=40) for key, kind in enumerate(("bad", "good"))]
    return {("bad", "good")[case.key]: outcome for case, outcome in pool.run(cases)}


IDS = [f"{claim.name}-{code}" for claim, code, _, _ in PROGRAMS]


@pytest.mark.parametrize(("claim", "code", "bad", "good"), PROGRAMS, ids=IDS)
def test_probe(claim: Claim, code: str, bad: str, good: str, pool: Pool) -> None:
    outcomes = run(pool, claim, code, bad, good)
    assert outcomes["bad"].verdict is Verdict.CONFIRMED, outcomes["bad"]
    assert outcomes["good"].verdict is Verdict.REFUTED, outcomes["good"]
    for outcome in outcomes.values():
        assert outcome.evidence and all(row.compared and row.against for row in outcome.evidence)
        assert outcome.why and "\n" not in outcome.why


def test_every_claim_has_a_probe_and_programs() -> None:
    known = {name for name, kind in vars(claims).items() if isinstance(kind, type) and issubclass(kind, Claim)}
    assert set(MODULES) == known - {"Claim", "Either"}
    assert {claim.name for claim, *_ in PROGRAMS} == set(MODULES)


# -- what must not be confirmed -----------------------------------------------------------------


def finding(line: int, code: str = "TL999", fix: Fix | None = None) -> Finding:
    """A finding on a line."""
    place = Span(line, 1, line, 2)
    return Finding("file.py", place, code, "test", Severity.ERROR, Confidence.SURE, "message", fix=fix)


def single(pool: Pool, text: str, claim: Claim, *, code: str = "TL999", fix: Fix | None = None) -> Outcome:
    """The outcome for a finding in a file that is cut up, not run as a whole; `#!` marks the line."""
    text = textwrap.dedent(text).lstrip("\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "#!" in row)
    case = from_finding(finding(line, code, fix), claim, text, 0, seconds=20)
    ((_, outcome),) = pool.run([case])
    return outcome


def test_a_graph_that_a_later_backward_uses_is_kept_on_purpose(pool: Pool) -> None:
    program = """
    import torch

    def train(net, batches):
        losses = []
        for x in batches:
            losses.append(net(x).sum())  #!
        torch.stack(losses).mean().backward()

    if __name__ == "__main__":
        train(torch.nn.Linear(3, 1), torch.ones(6, 2, 3))
    """
    outcome = single(pool, program, GraphGrows(), code="TL201")
    assert outcome.verdict is Verdict.REFUTED and "later backward" in outcome.why


def test_a_graph_in_a_local_name_without_a_backward_shows_nothing(pool: Pool) -> None:
    program = """
    import torch

    def predict(net, batches):
        outputs = []
        for x in batches:
            outputs.append(net(x))  #!
        return outputs

    if __name__ == "__main__":
        predict(torch.nn.Linear(3, 1), torch.ones(6, 2, 3))
    """
    outcome = single(pool, program, GraphGrows(), code="TL201")
    assert outcome.verdict is not Verdict.CONFIRMED


def test_two_executions_are_too_few_for_growth(pool: Pool) -> None:
    example = Example(GRAPH.replace("STEPS = 4", "N = 2").replace("STEPS", "N"), GRAPH.replace("#!", ""))
    ((_, outcome),) = pool.run([from_example(rule(GraphGrows(), ""), example, "bad", 0)])
    assert outcome.verdict is Verdict.CANNOT_TELL and "too few" in outcome.why


def test_growth_is_not_confirmed_when_the_corrected_program_grows_as_well(pool: Pool) -> None:
    outcomes = run(pool, GraphGrows(), "", GRAPH, GRAPH.replace("  #!", "").replace("sum()", "mean()"))
    assert outcomes["bad"].verdict is Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    "body",
    [
        "return x.view(len(x) + 1)  #!",  # raises, but not what is claimed
        "y = x.nowhere\n    return y.view(3)  #!",
    ],
)
def test_another_exception_confirms_nothing(pool: Pool, body: str) -> None:
    program = f"import torch\n\ndef f(x):\n    {body}\n\nif __name__ == '__main__':\n    f(torch.ones(6))\n"
    outcome = single(pool, program, Raises("RuntimeError", "modified by an inplace operation"))
    assert outcome.verdict in (Verdict.CANNOT_TELL, Verdict.NOT_REACHED)


def test_an_exception_that_the_correction_keeps_confirms_nothing(pool: Pool) -> None:
    bad = "import torch\nx = torch.ones(6)\nx.view(4)  #!\n"
    outcomes = run(pool, Raises("RuntimeError", "shape"), "", bad, bad.replace("view(4)  #!", "view(5)"))
    assert outcomes["bad"].verdict is Verdict.CANNOT_TELL


def test_code_that_nothing_calls_is_not_reached(pool: Pool) -> None:
    program = """
    import torch

    def train(net, frobnicator):
        frobnicator.configure().attach(net)[7]
        net.weight.data.zero_()  #!
    """
    outcome = single(pool, program, WrongGradient(), code="TL101")
    assert outcome.verdict is Verdict.NOT_REACHED
    assert outcome.why.startswith("the flagged code was never executed")


def test_an_initialisation_through_data_is_no_wrong_gradient(pool: Pool) -> None:
    program = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.layer.weight.data.zero_()  #!

        def forward(self, x):
            return self.layer(x)

    if __name__ == "__main__":
        Net()(torch.ones(2, 3)).sum().backward()
    """
    assert single(pool, program, WrongGradient(), code="TL101").verdict is Verdict.REFUTED


def test_nothing_else_of_the_file_runs(pool: Pool) -> None:
    program = """
    import torch

    raise SystemExit("the whole file was run")

    def f(x):
        return x.view(4)  #!

    if __name__ == "__main__":
        f(torch.ones(6))
    """
    assert single(pool, program, Raises("RuntimeError", "shape")).verdict is Verdict.CONFIRMED


# -- measuring ----------------------------------------------------------------------------------


def test_storages_are_counted_as_they_are_allocated_and_freed() -> None:
    with Storages() as storages:
        base = storages.live()
        a = torch.zeros(1000)
        assert storages.live() - base == 4000
        b = a[10:20]  # a view has no memory of its own
        assert storages.live() - base == 4000
        c = a.to(torch.float64)
        assert storages.live() - base == 12000
        del a
        assert storages.live() - base == 12000  # held by the view
        del b
        assert storages.live() - base == 8000
        for _ in range(50):
            torch.ones(100) + 1
        assert storages.live() - base == 8000
        del c
        assert storages.live() == base


def test_memory_of_a_backward_is_seen() -> None:
    w = torch.ones(500, requires_grad=True)
    with Storages() as storages:
        base = storages.live()
        loss = w.exp().sum()
        assert storages.live() - base >= 2000  # the output of exp is kept for backward
        loss.backward()
        del loss
        assert storages.live() - base == 2000  # the gradient


def test_graph_nodes_are_counted_without_being_kept() -> None:
    w = torch.ones(4, requires_grad=True)
    y = w.exp().neg()
    assert len(numbers([y])) == 2
    assert saved_bytes([y]) == 16  # exp keeps its output
    y.sum().backward()
    assert saved_bytes([y]) == 0
    assert len(numbers([y])) == 2


def test_tensors_are_found_through_containers_closures_and_slots() -> None:
    a, b, c, d = (torch.ones(1) for _ in range(4))

    class Slotted:
        __slots__ = ("value",)

        def __init__(self) -> None:
            self.value = [{"key": (a,)}]

    def closure() -> object:
        return b

    module = torch.nn.Module()
    module.extra = {c}  # type: ignore[assignment]
    ring: list[object] = [d]
    ring.append(ring)
    found = list(held([Slotted(), closure, module, ring, a]))
    assert [id(t) for t in found].count(id(a)) == 1
    assert {id(t) for t in found} == {id(a), id(b), id(c), id(d)}


# -- tracing ------------------------------------------------------------------------------------


def traced(text: str, line: int, **given: int) -> tuple[trace.LineTrace, list[object]]:
    """Runs a program; the trace of a statement, and the value of `n` after each execution."""
    text = textwrap.dedent(text).lstrip("\n")
    spot = statement_lines(text, line)
    seen: list[object] = []

    def after(frame: FrameType, index: int) -> None:
        seen.append(frame.f_locals.get("n"))

    lines = trace.LineTrace("traced.py", text, [(spot.first, spot.last)], after=after, **given)
    try:
        with lines:
            exec(compile(text, "traced.py", "exec", dont_inherit=True), {})
    except (Exception, trace.Enough):
        pass
    assert sys.gettrace() is None or "traced.py" not in str(sys.gettrace())
    return lines, seen


LOOP = """
def f():
    n = 0
    for i in range(4):
        n += sum(
            [j
             for j in range(3)]
        )
    return n
f()
f()
"""


def test_a_statement_over_several_lines_counts_once_per_execution() -> None:
    lines, seen = traced(LOOP, 4)
    assert lines.hits == [8]
    assert seen == [3, 6, 9, 12] * 2


def test_a_loop_on_one_line_counts_every_round() -> None:
    lines, _ = traced("n = 0\nwhile n < 5: n += 1\n", 2)
    assert lines.hits[0] >= 5


def test_a_trace_ends_after_enough_executions() -> None:
    lines, seen = traced(LOOP, 4, limit=3)
    assert lines.hits == [3] and seen == [3, 6, 9]


def test_exceptions_that_pass_through_are_kept_even_if_caught() -> None:
    lines, seen = traced("n = 0\ntry:\n    n = int('x')\nexcept ValueError:\n    n = 1\n", 3)
    assert [type(error) for error in lines.raised] == [ValueError]
    assert seen == []  # it did not run to its end


def test_generators_and_nested_functions_are_told_apart() -> None:
    text = """
    def outer():
        def inner():
            n = 1
            return n
        n = inner()
        return n
    outer()
    """
    lines, seen = traced(text, 3)
    assert lines.hits == [1] and seen == [1]


# -- planning -----------------------------------------------------------------------------------


def test_the_statement_around_a_line() -> None:
    text = "if x:\n    y = f(\n        1,\n    )\nfor i in (\n    1,\n):\n    pass\n@deco\ndef g():\n    pass\n"
    assert statement_lines(text, 3) == Lines(2, 4)
    assert statement_lines(text, 1) == Lines(1, 1)
    assert statement_lines(text, 6) == Lines(5, 7)
    assert statement_lines(text, 10) == Lines(10, 10)
    assert statement_lines("x = (\n", 1) == Lines(1, 1)


def test_lines_are_found_again_after_an_edit() -> None:
    text = "a = 1\nb = 2\nc = 3\n"
    assert mapped(text, "import x\na = 1\nwith y:\n    b = 2\nc = 3\n", Lines(2, 2)) == Lines(4, 4)
    assert mapped(text, "a = 1\nB = 4\nB += 1\nc = 3\n", Lines(2, 2)) == Lines(2, 3)
    assert mapped(text, "a = 1\n\nc = 3\n", Lines(2, 2)) == Lines(2, 2)
    assert mapped(text, "a = 1\nc = 3\n", Lines(2, 2)) == Lines(1, 1)  # deleted: the line before
    assert mapped("a = 1\n\nb = 2\n", "a = 1\n\n", Lines(3, 3)) == Lines(1, 1)


def test_fixes_are_applied_with_their_imports() -> None:
    text = '"""Doc."""\nx = a.b\ny = a.b\n'
    first = Fix(Safety.UNSAFE, "t", (Edit(Span(2, 5, 2, 8), "c.d"),), ("import torch",))
    second = Fix(Safety.SAFE, "t", (Edit(Span(3, 5, 3, 8), "e"),))
    assert apply_fixes(text, [first, second]) == '"""Doc."""\n\nimport torch\n\nx = c.d\ny = e\n'
    overlapping = Fix(Safety.SAFE, "t", (Edit(Span(2, 1, 2, 6), "z"),))
    assert "c.d" in apply_fixes(text, [first, overlapping])
    with pytest.raises(ValueError, match="outside"):
        apply_fixes(text, [Fix(Safety.SAFE, "t", (Edit(Span(9, 1, 9, 1), "z"),))])
    twice = Fix(Safety.SAFE, "t", (Edit(Span(2, 1, 2, 6), "z"), Edit(Span(2, 3, 2, 7), "z")))
    with pytest.raises(ValueError, match="overlap"):
        apply_fixes(text, [twice])


def test_lines_are_followed_through_the_edits_themselves() -> None:
    text = "def f(w):\n    w.data.add_(1)\n    with no_grad():\n        a = w * 1\n    w.data.add_(1)\n    return a\n"
    block = "with no_grad():\n        "
    first = Fix(Safety.SAFE, "t", (Edit(Span(2, 5, 2, 5), block), Edit(Span(2, 6, 2, 11), "")), ("import torch",))
    new, lines = followed(text, [first], Lines(2, 2))
    assert new.startswith("import torch\n\ndef f(w):\n    with no_grad():\n        w.add_(1)\n    with no_grad():\n")
    assert lines == Lines(4, 5)
    assert followed(text, [first], Lines(5, 5))[1] == Lines(8, 8)
    last = Fix(Safety.SAFE, "t", (Edit(Span(5, 5, 5, 5), block), Edit(Span(5, 6, 5, 11), "")))
    assert followed(text, [last], Lines(5, 5))[1] == Lines(5, 6)
    assert followed(text, [last], Lines(2, 2))[1] == Lines(2, 2)
    before = Fix(Safety.SAFE, "t", (Edit(Span(5, 1, 5, 1), "    w.data.add_(1)\n"),))
    assert followed(text, [before], Lines(5, 5))[1] in (Lines(5, 5), Lines(6, 6))  # two equal lines
    gone = Fix(Safety.SAFE, "t", (Edit(Span(5, 1, 6, 1), ""),))
    assert followed(text, [gone], Lines(5, 5))[1] == Lines(4, 4)  # deleted: the line before
    both = Fix(Safety.SAFE, "t", (Edit(Span(4, 17, 5, 5), "; "),))
    assert followed(text, [both], Lines(5, 5))[1] == Lines(4, 4)


def test_a_broken_fix_falls_back_to_advice() -> None:
    text = "x.data.add_(1)\n"
    broken = Fix(Safety.SAFE, "t", (Edit(Span(9, 1, 9, 1), "z"),))
    assert correct(finding(1, "TL101", broken), text, Lines(1, 1), ()) == (
        "x.detach().add_(1)\n",
        "with the advice followed",
        Lines(1, 1),
    )
    assert correct(finding(1, "TL998", broken), text, Lines(1, 1), ())[0] is None


@pytest.mark.parametrize(
    ("code", "before", "after"),
    [
        ("TL101", "if a:\n    x.data[0] = 1; y = 2\n", "if a:\n    x.detach()[0] = 1; y = 2\n"),
        ("TL101", "x.data = y\n", None),
        ("TL201", "for x in y:\n    log.append(loss)\n", "for x in y:\n    log.append(loss.detach())\n"),
        ("TL201", "for x in y:\n    total += loss\n", "for x in y:\n    total += loss.detach()\n"),
        ("TL201", "s.append((i, 1, loss))\n", "s.append((i.detach(), 1, loss.detach()))\n"),
        ("TL999", "x = 1\n", None),
    ],
)
def test_advice(code: str, before: str, after: str | None) -> None:
    line = 2 if "\n    " in before else 1
    assert advice.advised(code, before, line, line) == after


def test_the_number_of_steps_is_set() -> None:
    assert with_steps("STEPS = 4\nOTHER_STEPS = 4\n", "STEPS", 32) == "STEPS = 32\nOTHER_STEPS = 4\n"
    assert with_steps("STEPS: int = 4  # rounds\n", "STEPS", 9) == "STEPS: int = 9  # rounds\n"
    assert with_steps("N = 4\n", "STEPS", 9) == "N = 4\n"


def test_cases_survive_the_way_to_the_server() -> None:
    import pickle

    case = from_finding(finding(1), Raises("ValueError", "x"), "x = 1\n", 3, roots=("/a",))
    assert pickle.loads(pickle.dumps(case)) == case
    assert isinstance(case, Case) and case.flagged == (Lines(1, 1),)
