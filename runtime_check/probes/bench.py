"""Runs a flagged program and its corrected form, watched, from the same state, and keeps the time.

A probe asks the bench for ways of running a program and measures each; the bench never judges.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from runtime_check import again, clock, trace
from runtime_check.evidence import Outcome, Verdict, cannot_tell, not_reached
from runtime_check.learned import Learned
from runtime_check.plan import MANY, Case, Lines, mapped, translated
from runtime_check.probes.idle import Idle
from runtime_check.probes.runs import REPEATED, Program, Run, Way
from runtime_check.sandbox import Guard, shorten
from runtime_check.trace import calls_noted

#: Claims about what happens when a module runs; to have made it refutes none of them.
ABOUT_CALLS = {"Anomaly", "NoGradient", "OutputsDiffer", "WaitsEveryStep", "Warns"}
#: Claims that compare values of both programs, which other made-up arguments would change as well.
COMPARED = {"Equivalent", "NoGradient", "OutputsDiffer", "WrongGradient"}
#: Claims of which an exception in the flagged line says something.
RAISING = {"Raises", "ExecutesCode"}
WHOLE = "the program as a whole"
OVER = "the time was over"
SHARE = 0.85  # of the case's time: the rest is for starting, judging and reporting
REACH = 0.2  # of the case's time that a run may take to come to a watched statement
LONGEST_RUN = 0.4  # of the remaining time that one run may take
RUNS = 40  # executions of a watched statement after which a run has shown enough


class Bench:
    """One case being examined."""

    def __init__(self, case: Case, guard: Guard) -> None:
        self.case, self.guard = case, guard
        self.process = os.getpid()
        self.started = clock.now()
        self.end = self.started + SHARE * case.seconds
        self.flagged = self.program(case.text, case.path, case.flagged)
        self.corrected = None if case.corrected is None else self.program(case.corrected, case.path, case.mended)
        self.tried: list[str] = []
        self.way: Way | None = None  # the one that is being judged
        self.seen = trace.Caught()  # what the current run has printed and warned about
        self.called: set[str] = set()  # classes of modules that were called in its runs
        self.reached = False  # a run has come to a watched statement
        self.learned, self.given = Learned.of(case), Learned()
        self.idle = Idle(self.flagged)

    def program(self, text: str, path: str, spots: tuple[Lines, ...]) -> Program:
        """A program of this case; an example's is given enough iterations to show growth."""
        case = self.case
        return Program(text, path, spots, case.whole, case.roots, case.factories).resized(case.steps, MANY)

    @property
    def against(self) -> str:
        """What numbers of the corrected program are called."""
        return self.case.correction or "with the correction"

    @property
    def absent(self) -> str:
        """Why there is nothing to compare with."""
        return "there is no corrected program" if self.corrected is None else "the corrected program was not run so"

    @property
    def left(self) -> float:
        """Seconds left for further runs."""
        return self.end - clock.now()

    # -- ways ------------------------------------------------------------------------------------

    def ways(self, program: Program, line: int | None = None, *, made: bool = True) -> Iterator[Way]:
        """Ways of running a program that may execute `line` (each watched one), best first.

        After the function come the class around it and the file as a script: a hook is called by its module.
        Without `made`, none with made-up arguments.
        """
        for way in self.all_ways(program, line, made):
            if program is not self.flagged or self.wanted(way):
                yield way

    def wanted(self, way: Way) -> bool:
        """Whether the case asks for a way of running it, or for none in particular."""
        only = self.case.only
        return not only or way.label == only or only.startswith(f"{way.label}, ")

    def all_ways(self, program: Program, line: int | None, made: bool) -> Iterator[Way]:
        """The ways, whatever is asked for."""
        if program.whole:
            yield Way(WHOLE, program.execute)
        seen: set[str] = set()
        for way in self.ordered(program, [line] if line is not None else [spot.first for spot in program.spots], made):
            if way.label not in seen:
                seen.add(way.label)
                yield replace(way, line=line)

    def ordered(self, program: Program, lines: list[int], made: bool) -> Iterator[Way]:
        """What the file does itself, then made-up arguments; some ways more than once."""
        nearest = [*lines, *filter(None, (trace.class_line(program.text, place) for place in lines))]
        late: list[Iterator[Way]] = []
        for place in dict.fromkeys([*nearest, *trace.script_line(program.text)]):
            if place not in nearest and not trace.acts(program.text):
                late.append(self.drives(program, place, made))  # it only defines things
                continue
            ways = self.drives(program, place, made=False)
            for way in ways:
                if way.made_up:
                    late.append(itertools.chain([way], ways))
                    break
                yield way
            if made:  # what takes a search
                late.append(self.drives(program, place, made, called=False))
        yield from itertools.chain.from_iterable(late)

    def drives(self, program: Program, line: int, made: bool, called: bool = True) -> Iterator[Way]:
        """The target around a line, called with arguments that fit. Failures are remembered as reasons."""
        from runtime_check.drive import drives
        from runtime_check.extract import target_at
        from runtime_check.probes.again import again

        try:
            target = target_at(program.text, line)
            # The same search in the corrected program, later, must not end before it has found the same.
            budget = max(0.5, self.left / (4 if program is self.flagged else 2))
            learned = self.learned if program is self.flagged else self.given.copy()
            found = drives(program.space, target, seed=self.case.seed, budget_s=budget, device=self.case.device,
                           made=made, called=called, learned=learned)
            for drive in found:
                if self.left <= 0:
                    return
                repeated = drive.again or again(program, target, drive)
                yield Way(drive.label, drive.run, drive.kind, again=repeated, learned=learned.copy())
        except Exception as error:
            self.note(f"line {line} could not be driven ({type(error).__name__}: {shorten(error)})")

    def same(self, way: Way) -> Way | None:
        """The way of running the corrected program that corresponds to one of the flagged program."""
        if self.corrected is None:
            return None
        texts = self.case.text, self.corrected.text
        label = translated(way.label.removesuffix(REPEATED), *texts)
        line = None if way.line is None else mapped(*texts, Lines(way.line, way.line)).first
        spare: Way | None = None
        self.given = way.learned
        with again.given(way.learned.chosen):
            for other in self.ways(self.corrected, line):
                if other.label == label:
                    return other.repeated if way.label.endswith(REPEATED) else other
                if spare is None and other.made_up and way.made_up and self.case.claim.name not in COMPARED:
                    spare = other
        return spare

    @property
    def only_made(self) -> bool:
        """Whether the claim is about calls of a module in whose constructor the flagged line is, and none was made."""
        if self.case.whole or self.case.claim.name not in ABOUT_CALLS or self.called:
            return False
        return any(
            trace.owner_of(self.flagged.text, spot.first)[0] == "__init__"
            and "forward" in trace.methods_around(self.flagged.text, spot.first)
            for spot in self.flagged.spots
        )

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Ways and runs meanwhile draw other random numbers."""
        case = self.case
        self.case = replace(case, seed=seed)
        try:
            yield
        finally:
            self.case = case

    def note(self, reason: str) -> None:
        """Remembers why an attempt failed."""
        if reason and reason not in self.tried:
            self.tried.append(reason)

    # -- runs ------------------------------------------------------------------------------------

    def run(
        self, program: Program, way: Way, *watches: AbstractContextManager[object], limit: int = RUNS,
        before: trace.Watcher | None = None, after: trace.Watcher | None = None, fresh: bool = True,
        inspect: Callable[[object], None] | None = None, returned: Callable[[str, object], None] | None = None,
        traced: bool = True, patience: float = math.inf,
    ) -> Run:
        """Runs a program one way, from a seeded state. What user code raises ends up in the run.

        `inspect` gets the value that the way returned, while the watches are still in place. A watcher that fails
        raises: that is a failure of the check. A run that has not come to a watched statement after a while, or not
        again for `patience` seconds, is given up. `returned` gets what the functions around these return. An untraced
        run is undisturbed, and knows nothing of them.
        """
        run = Run(way.label)
        lines = self._watched(program, limit=limit, before=before, after=after, returned=returned)
        started, refused = clock.now(), len(self.guard.stopped)
        with ExitStack() as stack:
            if fresh:
                stack.enter_context(trace.pristine(self.case.seed))
            seen = self.seen = stack.enter_context(trace.caught())
            stack.enter_context(calls_noted(self.called))
            for watch in watches:
                stack.enter_context(watch)
            try:
                longest = max(0.2, LONGEST_RUN * self.left)
                first = min(longest, REACH * self.case.seconds) if traced else longest
                with trace.time_limit(first) as timer, lines if traced else contextlib.nullcontext():
                    if timer is not None:
                        lines.hit = partial(timer.restart, min(longest, patience))
                    run.value = way.run()
                    if inspect is not None:
                        inspect(run.value)
            except BaseException as error:  # also what test runners raise to skip or fail a test
                run.error = error
            finally:
                if os.getpid() != self.process:
                    os._exit(0)  # a process that the code has forked: it has nothing to say here
            run.output, run.warnings = seen.output.getvalue(), list(seen.warnings)
        if lines.fault is not None:
            raise lines.fault
        run.hits, run.raised, run.seconds = sum(lines.hits), lines.raised, clock.now() - started
        if len(self.guard.stopped) > refused and not isinstance(run.error, trace.Enough):
            run.stopped = self.guard.stopped[-1]
        self.reached |= run.reached
        return run

    def _watched(self, program: Program, *, before: trace.Watcher | None, **how: Any) -> trace.LineTrace:
        """A trace of the flagged lines of a program."""
        spots = [(spot.first, spot.last) for spot in program.spots]
        parts = {number: spot.part for number, spot in enumerate(program.spots) if spot.part is not None}
        return trace.LineTrace(
            program.path, program.text, spots, before=self.idle.noting(program, before), parts=parts, **how)

    # -- outcomes --------------------------------------------------------------------------------

    def unreached(self) -> Outcome:
        """The outcome when no way executed the flagged code, or the time was over before what it does was measured."""
        if self.reached and OVER in self.tried:
            return cannot_tell("the flagged code ran, and the time was over before it could be compared")
        tried = "; ".join(self.tried[:3]) or "nothing in the file calls it, and no arguments could be made up"
        return not_reached(f"the flagged code was never executed: {tried}")


Judge = Callable[[Way], "Outcome | None"]


def first_decisive(bench: Bench, ways: Iterator[Way], judge: Judge, *, most: int = 3) -> Outcome:
    """Judges ways until one confirms; else the first refutation, else the first doubt, else not reached.

    A judge returns None for a way that did not reach the flagged code, after noting the reason.
    """
    best: list[Outcome] = []
    try:
        with trace.time_limit(bench.left):
            return decide(bench, ways, judge, best, most) or bench.unreached()
    except trace.OutOfTime:
        bench.note(OVER)
        return best[-1] if best else bench.unreached()
    finally:
        if isinstance(ways, types.GeneratorType):
            ways.close()


def decide(bench: Bench, ways: Iterator[Way], judge: Judge, best: list[Outcome], most: int) -> Outcome | None:
    """The outcome for ways in turn; `best` holds the best so far, should the time end in between."""
    judged = 0
    for way in ways:
        bench.way = way
        bench.called.clear()
        bench.idle.clear()
        outcome = judge(way)
        if outcome is None:
            continue
        outcome = bench.learned.tell(outcome, way.label)
        if outcome.verdict is Verdict.CONFIRMED:
            return outcome
        if outcome.verdict is Verdict.REFUTED and bench.idle.said:
            outcome = cannot_tell(f"{bench.idle.said} ({outcome.why})", outcome.evidence, outcome.how)
        elif outcome.verdict is Verdict.REFUTED and bench.only_made:
            outcome = cannot_tell(f"the module was made but not called ({outcome.why})", outcome.evidence, outcome.how)
        elif way.label == WHOLE:
            return outcome
        if not best or (best[-1].verdict, outcome.verdict) == (Verdict.CANNOT_TELL, Verdict.REFUTED):
            best.append(outcome)
        # Doubts are cheap to come by: look further for them than for refutations.
        judged += 2 if outcome.verdict is Verdict.REFUTED else 1
        if judged >= 2 * most:
            break
    return best[-1] if best else None


def doubtful(run: Run, why: str) -> Outcome:
    """A cannot-tell outcome for a run that reached the code, with what ended the run."""
    trouble = f" ({run.trouble})" if run.trouble else ""
    return cannot_tell(why + trouble, how=run.label)


class Measured(Protocol):
    """What a probe's measurement has in common with others."""

    run: Run


M = TypeVar("M", bound=Measured)


def contrast(
    bench: Bench,
    measure: Callable[[Program, Way], M],
    judge: Callable[[M, M | None], Outcome],
    *,
    reached: Callable[[M], bool] = lambda measured: measured.run.reached,
    most: int = 3,
) -> Outcome:
    """Measures the flagged program in ways that reach the flagged code, and the corrected one likewise.

    The judge gets both; the second is None if there is no corrected program or it got nowhere.
    """

    def one(way: Way) -> Outcome | None:
        bad = measure(bench.flagged, way)
        if not reached(bad):
            bench.note(bad.run.trouble)
            return None
        other = bench.same(way)
        good = None if bench.corrected is None or other is None else measure(bench.corrected, other)
        outcome = judge(bad, good)
        if outcome.verdict is Verdict.REFUTED and bad.run.failed and bench.case.claim.name not in RAISING:
            outcome = doubtful(bad.run, "the flagged line did not run to its end")
        return outcome if outcome.how else replace(outcome, how=way.label)

    return first_decisive(bench, bench.ways(bench.flagged), one, most=most)


__all__ = ["OVER", "RUNS", "WHOLE", "Bench", "Judge", "Program", "Run", "Way", "contrast", "doubtful", "first_decisive"]
