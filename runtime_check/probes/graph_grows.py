"""GraphGrows: what outlives an iteration keeps more and more of the autograd graph alive.

Each time the flagged statement has run, the autograd nodes are counted that can be reached from what it
stores into. Growth from one execution to the next is the symptom. A graph that a later backward runs
through was kept on purpose.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import FEW
from runtime_check.probes import again, graphs
from runtime_check.probes.bench import Bench, Program, Run, Way, doubtful, first_decisive
from runtime_check.probes.targets import stores, value_of

LEAST = 4  # executions needed before growth can be told from a start
FREED = "backward through the graph a second time"
EVALUATION = "TL210"  # an evaluation's graph is a fault although it does not outlive the step


@dataclass
class Growth:
    """What was counted after each execution of the flagged statement."""

    run: Run
    nodes: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    local: bool = False  # counted were names of one call, which its caller cannot see
    kept: set[int] = field(default_factory=set)  # nodes in reach after the last execution
    used: set[int] = field(default_factory=set)  # nodes that backwards ran through afterwards
    backwards: int = 0
    ended: int = 0  # calls of the function that came to their end
    handed: bool = False  # one of them returned what was kept

    @property
    def span(self) -> tuple[int, int]:
        """The longest stretch of executions without a drop, if it is long enough, else all of them.

        What is emptied from time to time, as a sum over one epoch is, grows between two drops.
        """
        starts = [0, *(i for i in range(1, len(self.nodes)) if self.nodes[i] < self.nodes[i - 1]), len(self.nodes)]
        longest = max(pairwise(starts), key=lambda pair: pair[1] - pair[0], default=(0, 0))
        return longest if longest[1] - longest[0] >= LEAST else (0, len(self.nodes))

    @property
    def last(self) -> int:
        """How many executions that stretch has."""
        start, end = self.span
        return end - start

    def at(self, execution: int) -> int:
        """Nodes after an execution, counted from 1."""
        return self.nodes[self.span[0] + min(execution, self.last) - 1]

    def bytes_at(self, execution: int) -> int:
        """Bytes after an execution, counted from 1."""
        return self.bytes[self.span[0] + min(execution, self.last) - 1]

    @property
    def grows(self) -> bool:
        """Whether nodes were added in most executions after the first."""
        return rising(self.nodes[slice(*self.span)])

    @property
    def gain(self) -> float:
        """Nodes added per execution."""
        return (self.at(self.last) - self.at(FEW)) / max(1, self.last - FEW)

    @property
    def consumed(self) -> bool:
        """Whether backwards after the last execution ran through most of what was kept by then."""
        return bool(self.kept) and len(self.used & self.kept) > len(self.kept) / 2


def rising(counts: list[int]) -> bool:
    """Whether a series grows by at least one in four of five steps, the start left out."""
    steps = [b - a for a, b in pairwise(counts[1:])]
    return len(steps) >= LEAST - 2 and sum(step >= 1 for step in steps) >= 0.8 * len(steps)


def in_reach(frame: FrameType, targets: list[ast.expr]) -> tuple[list[object], bool]:
    """What a statement stores into; where that is not plain, everything in sight of its frame."""
    try:
        found = [value_of(target, frame) for target in targets]
    except LookupError:
        found = []
    if found:
        return [value for value, _ in found], all(local for _, local in found)
    return [*frame.f_locals.values(), *graphs.own(frame.f_globals)], frame.f_code.co_name != "<module>"


def measure(bench: Bench, program: Program, way: Way) -> Growth:
    """Runs a program and counts after each execution of the flagged statement."""
    growth = Growth(Run(way.label))
    targets = [stores(program.text, spot) for spot in program.spots]

    def count(frame: FrameType, index: int) -> None:
        values, growth.local = in_reach(frame, targets[index])
        tensors = list(graphs.held(values, classes=True))
        growth.kept = graphs.numbers(tensors)
        growth.used = set()
        growth.nodes.append(len(growth.kept))
        growth.bytes.append(graphs.saved_bytes(tensors))

    def used(roots: list[torch.Tensor]) -> None:
        growth.backwards += 1
        growth.used |= graphs.numbers(roots)

    def returned(name: str, value: object) -> None:
        growth.ended += 1
        growth.handed |= bool(growth.kept & graphs.numbers(graphs.held([value])))

    with backwards_seen(used):
        growth.run = bench.run(program, way, after=count, returned=returned)
    return growth


@contextmanager
def backwards_seen(note: Callable[[list[torch.Tensor]], None]) -> Iterator[None]:
    """Tells of every backward, before it runs, with the tensors it starts from."""
    plain = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        note([root for root in roots if isinstance(root, torch.Tensor)])
        return plain(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = plain


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program's count grows and the corrected one's does not."""
    judge = judge_evaluation if bench.case.code == EVALUATION else judge_growth
    outcome = first_decisive(bench, bench.ways(bench.flagged), lambda way: judge(bench, way))
    return outcome if bench.case.code == EVALUATION else again.judged(bench, outcome, lambda way: judge(bench, way))


def counterpart(bench: Bench, way: Way) -> Growth | None:
    """The same measurement of the corrected program; None if there is none or it did not get there."""
    if bench.corrected is None:
        return None
    other = bench.same(way)
    growth = None if other is None else measure(bench, bench.corrected, other)
    return growth if growth is not None and growth.last else None


class Recorded(TorchFunctionMode):  # type: ignore[misc]
    """Counts the operations that record a graph while the flagged line runs, be it that nothing keeps it.

    `grad` false runs the line as under `torch.no_grad()`.
    """

    def __init__(self, *, grad: bool = True) -> None:
        super().__init__()
        self.grad, self.before = grad, True
        self.inside = False
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.inside:
            self.count += any(tensor.grad_fn is not None for tensor in graphs.flat(result))
        return result

    def begin(self, frame: FrameType, index: int) -> None:
        """The flagged line begins."""
        self.inside, self.before = True, torch.is_grad_enabled()
        torch.set_grad_enabled(self.before and self.grad)

    def end(self, frame: FrameType, index: int) -> None:
        """It has ended."""
        self.inside = False
        torch.set_grad_enabled(self.before)


def judge_passing(bench: Bench, way: Way) -> Outcome:
    """The outcome for the line as it is and without gradients, for what keeps nothing or has no corrected program."""
    mine, theirs = Recorded(), Recorded(grad=False)
    bench.run(bench.flagged, way, mine, before=mine.begin, after=mine.end)
    bench.run(bench.flagged, way, theirs, before=theirs.begin, after=theirs.end)
    row = Evidence("operations of the line that record a graph", str(mine.count), "under torch.no_grad()",
                   str(theirs.count))
    if not mine.count and mine.before:
        return cannot_tell("nothing at the flagged line needs a gradient here", (row,), way.label)
    if not mine.count:
        return Outcome(Verdict.REFUTED, "no graph is recorded at the flagged line", (row,), way.label)
    if theirs.count:
        return cannot_tell("a graph is recorded under torch.no_grad() as well", (row,), way.label)
    why = f"{mine.count} operations record a graph that no backward uses, none under torch.no_grad()"
    return Outcome(Verdict.CONFIRMED, why, (row,), way.label)


def judge_growth(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way of running the program."""
    bad = measure(bench, bench.flagged, way)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    if isinstance(bad.run.error, RuntimeError) and FREED in str(bad.run.error):
        return judge_freed(bench, bad, counterpart(bench, way))
    if bad.last < LEAST:
        return doubtful(bad.run, f"the flagged line ran {times(bad.last)}, too few to see growth")
    good = counterpart(bench, way)
    rows = evidence(bench, bad, good)
    if not bad.grows:
        sizes = f"{bad.at(FEW)} nodes after {FEW} executions and {bad.at(bad.last)} after {bad.last}"
        return Outcome(Verdict.REFUTED, f"the graph kept alive has {sizes}", rows, way.label)
    if bad.consumed:
        why = "the graph grows from step to step, and a later backward runs through it: it is kept for that"
        return Outcome(Verdict.REFUTED, why, rows, way.label)
    if bad.local and not bad.backwards and (bad.handed or not bad.ended):
        why = "the graph grows in a local name, and nothing here shows what becomes of it"
        return cannot_tell(why, rows, way.label)
    if good is not None and good.grows and good.gain >= bad.gain / 2:
        return cannot_tell("the graph grows in the corrected program as well", rows, way.label)
    why = f"the graph kept alive grows with every execution, from {bad.at(FEW)} to {bad.at(bad.last)} nodes"
    return Outcome(Verdict.CONFIRMED, why, rows, way.label)


def judge_freed(bench: Bench, bad: Growth, good: Growth | None) -> Outcome:
    """The outcome when a backward ran into the graph of an earlier step, which was kept although it is used up."""
    row = Evidence(
        "autograd nodes kept by the flagged line", str(bad.at(bad.last) if bad.last else 0), "executions", str(bad.last)
    )
    if not bad.last or not bad.nodes[-1]:
        return doubtful(bad.run, "the flagged line keeps no graph")
    if good is None or good.run.error is not None:
        return cannot_tell(
            "a backward runs into the graph of an earlier step, and no corrected program runs on", (row,), bad.run.label
        )
    rows = (
        row,
        Evidence("backward of the next step", "raises", bench.against, f"{good.last} executions without an error"),
    )
    why = "the graph of one step is kept into the next, whose backward fails on it"
    return Outcome(Verdict.CONFIRMED, why, rows, bad.run.label)


def times(count: int) -> str:
    """A number of executions in words."""
    return {0: "never to its end", 1: "once", 2: "twice"}.get(count, f"{count} times")


def evidence(bench: Bench, bad: Growth, good: Growth | None) -> tuple[Evidence, ...]:
    """Both sizes of the flagged program, and the same of the corrected one."""
    few, many = min(FEW, bad.last), bad.last
    after, before = f"after {many} executions", f"after {few}"
    rows = [
        Evidence(f"autograd nodes kept {after}", str(bad.at(many)), before, str(bad.at(few))),
        Evidence(f"bytes kept for backward {after}", str(bad.bytes_at(many)), before, str(bad.bytes_at(few))),
    ]
    if good is not None:
        both = f"nodes kept after {few} and {many} executions"
        numbers = f"{good.at(few)} and {good.at(many)}"
        rows.append(Evidence(both, f"{bad.at(few)} and {bad.at(many)}", bench.against, numbers))
    return tuple(rows)


def judge_evaluation(bench: Bench, way: Way) -> Outcome | None:
    """An evaluation that records a graph: present at the flagged line, absent in the corrected program."""
    bad = measure(bench, bench.flagged, way)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    if not bad.last:
        return doubtful(bad.run, "the flagged line did not run to its end")
    good = counterpart(bench, way)
    most = max(bad.nodes)
    if bad.used & bad.kept:
        return cannot_tell("a backward runs through this graph, so it is used", how=way.label)
    if (not most or good is None) and not bad.backwards:
        return judge_passing(bench, way)
    if not most:
        row = Evidence("autograd nodes in reach", "0", "predicted", "more than 0")
        return Outcome(Verdict.REFUTED, "no graph is recorded at the flagged line", (row,), way.label)
    if good is None:
        return cannot_tell(
            f"{most} autograd nodes are recorded, and there is no corrected program to compare with",
            how=way.label,
        )
    rows = (
        Evidence("autograd nodes recorded", str(most), bench.against, str(max(good.nodes))),
        Evidence("bytes kept for backward", str(max(bad.bytes)), bench.against, str(max(good.bytes))),
    )
    if max(good.nodes) < most:
        why = f"{most} autograd nodes are recorded that no backward uses, {max(good.nodes)} {bench.against}"
        return Outcome(Verdict.CONFIRMED, why, rows, way.label)
    return cannot_tell("the corrected program records a graph as well", rows, way.label)
