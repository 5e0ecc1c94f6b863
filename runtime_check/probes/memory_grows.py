"""MemoryGrows: tensor bytes that are alive grow with every execution of the flagged statement."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import FEW
from runtime_check.probes import again
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.graph_grows import LEAST, rising, times
from runtime_check.probes.storages import Storages
from runtime_check.probes.targets import stores, value_of


@dataclass
class Memory:
    """Live bytes after each execution."""

    run: Run
    bytes: list[int] = field(default_factory=list)
    emptied: bool = False  # the container that is stored into, each time

    def at(self, execution: int) -> int:
        """Bytes after an execution, counted from 1."""
        return self.bytes[min(execution, len(self.bytes)) - 1]


def measure(bench: Bench, program: Program, way: Way, *, emptied: bool = False) -> Memory:
    """Counts storages on the CPU, allocated bytes on an accelerator.

    `emptied` takes everything out of the container that the flagged line stores into, before each execution.
    """
    memory = Memory(Run(way.label))
    storages = Storages()
    cuda = bench.case.device == "cuda"

    targets = [stores(program.text, spot) for spot in program.spots]

    def empty(frame: FrameType, index: int) -> None:
        for target in targets[index] if emptied else ():
            with suppress(LookupError):
                held, _ = value_of(target, frame)
                if isinstance(held, (dict, list, set)):
                    held.clear()
                    memory.emptied = True

    def count(frame: FrameType, index: int) -> None:
        memory.bytes.append(torch.cuda.memory_allocated() if cuda else storages.live())

    watches = () if cuda else (storages,)
    memory.run = bench.run(program, way, *watches, before=empty, after=count)
    return memory


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program's bytes grow and the corrected one's do not."""
    outcome = contrast(
        bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))
    return again.judged(bench, outcome, lambda way: again.outcome(bench, way, measure, judge))


def judge(bench: Bench, bad: Memory, good: Memory | None) -> Outcome:
    """The outcome of one way of running the program."""
    many = len(bad.bytes)
    if many < LEAST:
        return doubtful(bad.run, f"the flagged line ran {times(many)}, too few to see growth")
    rows = [Evidence(f"live tensor bytes after {many} executions", str(bad.at(many)), f"after {FEW}", str(bad.at(FEW)))]
    if not rising(bad.bytes):
        why = f"live tensor bytes do not grow: {bad.at(FEW)} after {FEW} executions, {bad.at(many)} after {many}"
        return Outcome(Verdict.REFUTED, why, tuple(rows))
    if good is None or len(good.bytes) < LEAST:
        emptied = None if bench.way is None else measure(bench, bench.flagged, bench.way, emptied=True)
        if emptied is None or not emptied.emptied or len(emptied.bytes) < LEAST:
            return cannot_tell("live bytes grow, and there is no corrected program to compare with", rows)
        return judge_emptied(bad, emptied, rows)
    numbers = f"{good.at(FEW)} and {good.at(many)}"
    rows.append(Evidence(f"bytes after {FEW} and {many}", f"{bad.at(FEW)} and {bad.at(many)}", bench.against, numbers))
    if rising(good.bytes) and good.at(many) - good.at(FEW) >= (bad.at(many) - bad.at(FEW)) / 2:
        return cannot_tell("live bytes grow in the corrected program as well", rows)
    why = f"live tensor bytes grow with every execution, from {bad.at(FEW)} to {bad.at(many)}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


def judge_emptied(bad: Memory, good: Memory, rows: list[Evidence]) -> Outcome:
    """The outcome where nothing but a container that is emptied each time can be compared with."""
    many = len(bad.bytes)
    numbers = f"{good.at(FEW)} and {good.at(many)}"
    rows.append(Evidence(f"bytes after {FEW} and {many}", f"{bad.at(FEW)} and {bad.at(many)}",
                         "with the container emptied each time", numbers))
    if rising(good.bytes):
        return cannot_tell("live bytes grow as well where the container is emptied each time", rows)
    why = f"the container keeps what each execution puts into it: {bad.at(FEW)} bytes after {FEW}, {bad.at(many)} after"
    return Outcome(Verdict.CONFIRMED, f"{why} {many}", tuple(rows))
