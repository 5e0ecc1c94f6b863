"""MemoryHeld: what was saved for backward is still there after the backward that was to use it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import graphs
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful


@dataclass
class Saved:
    """Bytes saved for backward, in reach of the flagged statement's names after each execution."""

    run: Run
    bytes: list[int] = field(default_factory=list)


def measure(bench: Bench, program: Program, way: Way) -> Saved:
    """Runs a program and counts after each execution of the flagged statement."""
    saved = Saved(Run(way.label))

    def count(frame: FrameType, index: int) -> None:
        saved.bytes.append(graphs.saved_bytes(list(graphs.held([*frame.f_locals.values()]))))

    saved.run = bench.run(program, way, after=count)
    return saved


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program holds more than the corrected one, each time."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Saved, good: Saved | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.bytes:
        return doubtful(bad.run, "the flagged line did not run to its end")
    label = "bytes saved for backward that are left after it"
    rows = [Evidence(label, str(min(bad.bytes)), "executions", str(len(bad.bytes)))]
    if not max(bad.bytes):
        return Outcome(Verdict.REFUTED, "backward leaves nothing of what was saved for it", tuple(rows))
    if good is None or not good.bytes:
        return cannot_tell("saved tensors are left, and there is no corrected program to compare with", rows)
    rows.append(Evidence(label, str(min(bad.bytes)), bench.against, str(max(good.bytes))))
    if min(bad.bytes) <= max(good.bytes):
        return cannot_tell("the corrected program leaves as much", rows)
    why = f"{min(bad.bytes)} bytes saved for backward stay after it, {max(good.bytes)} {bench.against}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
