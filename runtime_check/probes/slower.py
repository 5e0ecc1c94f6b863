"""Slower: the flagged program takes longer than the corrected one, by more than the spread of both.

Timed in A B A B order after one warming run each, so that a drift of the machine meets both alike. On a
CPU the processor's time counts, which other programs disturb less than the clock on the wall. Where all of
the cost is in the flagged statement, and that takes next to none of its loop's time, nothing need be compared.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, first_decisive

ROUNDS = 9
LEAST = 4
MARGIN = 1.1  # upper quartile of the corrected runs to lower quartile of the flagged ones
IN_ITSELF = {"TL606"}  # rules that flag the statement that costs the time
LITTLE, OFTEN = 0.005, 3  # its share of a loop's time that is nothing even if it becomes ten times as large; executions


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
        unknown = cannot_tell("there is no corrected program to time against", how=way.label)
        return little(bench, way) or unknown
    nothing = little(bench, way)
    if nothing is not None:
        return nothing
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


class Shares:
    """The time of one run in the flagged statement, and from its first execution to the end of its last one."""

    def __init__(self) -> None:
        self.first = self.began = self.ended = 0.0
        self.each: list[float] = []

    @property
    def inside(self) -> float:
        """The time in the statement; what interrupts one of its executions, such as a collection, is none of its."""
        return statistics.median(self.each) * len(self.each)

    def before(self, frame: FrameType, index: int) -> None:
        """The statement begins."""
        self.began = time.thread_time()
        self.first = self.first or self.began

    def after(self, frame: FrameType, index: int) -> None:
        """The statement has ended."""
        self.ended = time.thread_time()
        self.each.append(self.ended - self.began)


def little(bench: Bench, way: Way) -> Outcome | None:
    """A refutation where the flagged statement takes next to nothing of its loop's time, else None.

    Its share grows with the number of iterations: it has to be small enough for ten times as many.
    """
    shares = Shares()
    if bench.case.code not in IN_ITSELF or bench.case.device != "cpu" or bench.left < 0:
        return None
    run = bench.run(bench.flagged, way, before=shares.before, after=shares.after)
    total = shares.ended - shares.first
    if run.trouble or len(shares.each) < OFTEN or total <= 0 or shares.inside > LITTLE * total:
        return None
    row = Evidence("time in the flagged line", f"{shares.inside * 1e3:.3g} ms", "in its loop", f"{total * 1e3:.3g} ms")
    why = f"the flagged line takes {shares.inside / total:.2%} of its loop's time, and little in one ten times as long"
    return Outcome(Verdict.REFUTED, why, (row,), way.label)
