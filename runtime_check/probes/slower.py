"""Slower: the flagged program takes longer than the corrected one, by more than the spread of both.

Timed in A B A B order after one warming run each, so that a drift of the machine meets both alike. On a
CPU the processor's time counts, which other programs disturb less than the clock on the wall.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, first_decisive

ROUNDS = 9
LEAST = 4
MARGIN = 1.1  # upper quartile of the corrected runs to lower quartile of the flagged ones


@dataclass
class Times:
    """Seconds of repeated runs."""

    run: Run
    seconds: list[float] = field(default_factory=list)

    @property
    def low(self) -> float:
        """The lower quartile."""
        return statistics.quantiles(self.seconds, n=4)[0]

    @property
    def high(self) -> float:
        """The upper quartile."""
        return statistics.quantiles(self.seconds, n=4)[2]

    @property
    def text(self) -> str:
        """Median and range in milliseconds."""
        low, middle, high = min(self.seconds), statistics.median(self.seconds), max(self.seconds)
        return f"{middle * 1e3:.3g} ms ({low * 1e3:.3g} to {high * 1e3:.3g}, {len(self.seconds)} runs)"


def timed(bench: Bench, program: Program, way: Way) -> tuple[float, Run]:
    """Seconds of one undisturbed run, the device's work included."""
    began = 0.0
    cuda = bench.case.device == "cuda"
    clock = time.perf_counter if cuda else time.process_time

    def call() -> object:
        nonlocal began
        began = clock()
        value = way.run()
        if cuda:
            torch.cuda.synchronize()
        return value

    run = bench.run(program, Way(way.label, call), traced=False)
    return clock() - began, run


def probe(bench: Bench) -> Outcome:
    """Confirmed when three of four flagged runs are slower than three of four corrected ones, by a margin."""
    return first_decisive(bench, bench.ways(bench.flagged), lambda way: judge(bench, way))


def judge(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way of running the program."""
    first = bench.run(bench.flagged, way, limit=0)
    if not first.reached:
        bench.note(first.trouble)
        return None
    other = bench.same(way)
    if bench.corrected is None or other is None:
        return cannot_tell("there is no corrected program to time against", how=way.label)
    bad, good = Times(first), Times(first)
    timed(bench, bench.flagged, way)
    _, control = timed(bench, bench.corrected, other)
    if first.trouble or control.trouble:
        return cannot_tell(f"a run did not end: {first.trouble or control.trouble}", how=way.label)
    for _ in range(ROUNDS):
        if bench.left < 2 * (first.seconds + control.seconds) and len(bad.seconds) >= LEAST:
            break
        bad.seconds.append(timed(bench, bench.flagged, way)[0])
        good.seconds.append(timed(bench, bench.corrected, other)[0])
    row = Evidence("time of the flagged program", bad.text, bench.against, good.text)
    ratio = statistics.median(bad.seconds) / max(statistics.median(good.seconds), 1e-9)
    if bad.low > MARGIN * good.high:
        return Outcome(Verdict.CONFIRMED, f"it takes {ratio:.2f} times as long as {bench.against}", (row,), way.label)
    if bench.flagged.text == bench.corrected.text or bad.high < good.low:
        return Outcome(Verdict.REFUTED, f"it is not slower than {bench.against}", (row,), way.label)
    return cannot_tell("the difference in time is within the spread of repeated runs", (row,), way.label)
