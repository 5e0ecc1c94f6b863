"""CycleLeaks: tensors that only the garbage collector frees, because a reference cycle holds them.

The collector is off while the program runs. Weak references are taken to the tensors and the context in
sight of the flagged statement; those that die in the collection afterwards were held by a cycle.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast


@dataclass
class Leak:
    """Objects of a run by what it takes to free them."""

    run: Run
    watched: int = 0
    cyclic: int = 0  # freed by the collector only
    executions: int = 0


@contextmanager
def collector_off() -> Iterator[None]:
    """Turns garbage collection off."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(bench: Bench, program: Program, way: Way) -> Leak:
    """Runs a program without the collector, then collects and counts."""
    leak = Leak(Run(way.label))
    seen: list[weakref.ref[object]] = []
    known: set[int] = set()

    def look(frame: FrameType, index: int) -> None:
        leak.executions += 1
        for value in frame.f_locals.values():
            kind = isinstance(value, (torch.Tensor, torch.autograd.graph.Node))
            if kind and id(value) not in known and not isinstance(value, torch.nn.Parameter):
                known.add(id(value))
                seen.append(weakref.ref(value))

    with collector_off():
        leak.run = bench.run(program, way, after=look)
        if not program.whole:
            # A program's globals stay, they are alive by right; the result of a call would be dropped.
            leak.run.value = None
        alive = [ref for ref in seen if ref() is not None]
        gc.collect()
        leak.cyclic = sum(ref() is None for ref in alive)
    leak.watched = len(seen)
    return leak


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program leaves objects in cycles and the corrected one does not."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Leak, good: Leak | None) -> Outcome:
    """The outcome of one way of running the program."""
    rows = [Evidence("objects alive after their last reference", str(bad.cyclic), "after a collection", "0")]
    if not bad.watched:
        return cannot_tell("no tensor was in sight of the flagged line", rows)
    if not bad.cyclic:
        why = "every tensor in sight of the flagged line is freed with its last reference"
        return Outcome(Verdict.REFUTED, why, tuple(rows))
    if good is not None:
        rows.append(Evidence("objects freed by the collector alone", str(bad.cyclic), bench.against, str(good.cyclic)))
        if good.cyclic >= bad.cyclic:
            return cannot_tell("the corrected program leaves as many objects in cycles", rows)
    why = f"{bad.cyclic} objects of {bad.executions} executions stay alive until the garbage collector runs"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
