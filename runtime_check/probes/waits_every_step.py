"""WaitsEveryStep: values are read back from the device in every execution of the flagged statement.

Counted are reads of tensors by the host (`item`, `tolist`, `numpy`, `cpu`, `bool`, `float`, `print`) made
while the statement runs. On a CPU nothing waits, but the same reads are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch.overrides import TorchFunctionMode

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import FEW
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.graph_grows import LEAST, rising, times

READS = frozenset({
    "item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__",
    "__array__", "nonzero", "unique", "equal", "allclose", "__contains__",
})  # fmt: skip
MOVES = frozenset({"to", "cuda", "cpu"})  # for TL607: transfers to the device
TRANSFER = "TL607"


class Counter(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Counts calls of some tensor functions."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self.names, self.count = names, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function and counts it."""
        self.count += getattr(func, "__name__", "") in self.names
        return func(*args, **(kwargs or {}))


@dataclass
class Reads:
    """Reads in sum after each execution of the flagged statement."""

    run: Run
    sums: list[int] = field(default_factory=list)
    total: int = 0

    def at(self, execution: int) -> int:
        """Reads after an execution, counted from 1."""
        return self.sums[min(execution, len(self.sums)) - 1]


def measure(bench: Bench, program: Program, way: Way) -> Reads:
    """Runs a program and counts the reads that the flagged statement makes."""
    reads = Reads(Run(way.label))
    counter = Counter(MOVES if bench.case.code == TRANSFER else READS)
    begun: dict[FrameType, int] = {}

    def begin(frame: FrameType, index: int) -> None:
        begun[frame] = counter.count

    def end(frame: FrameType, index: int) -> None:
        reads.total += counter.count - begun.pop(frame, counter.count)
        reads.sums.append(reads.total)

    reads.run = bench.run(program, way, counter, before=begin, after=end)
    return reads


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged statement reads in every execution and the corrected one does not."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Reads, good: Reads | None) -> Outcome:
    """The outcome of one way of running the program."""
    many = len(bad.sums)
    if many < LEAST:
        return doubtful(bad.run, f"the flagged line ran {times(many)}, too few to see growth")
    rows = [Evidence(f"host reads after {many} executions", str(bad.at(many)), f"after {FEW}", str(bad.at(FEW)))]
    if not rising(bad.sums):
        return Outcome(Verdict.REFUTED, "the flagged statement does not read in every execution", tuple(rows))
    if good is not None and len(good.sums) >= LEAST:
        rows.append(
            Evidence(f"host reads after {many} executions", str(bad.at(many)), bench.against, str(good.at(many)))
        )
        if rising(good.sums):
            return cannot_tell("the corrected statement reads in every execution as well", rows)
    where = "" if bench.case.device == "cuda" else "; on an accelerator each read waits"
    why = f"{bad.at(many)} host reads in {many} executions of the statement{where}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
