"""OutputsDiffer: two runs that should agree do not.

Most rules are tested by contrast: the flagged and the corrected program, from the same state. Rules
about randomness that stays on in evaluation call the module twice in eval mode instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.not_registered import owners

#: Rules about modules that should give one output for one input once they are in eval mode.
EVALUATED = {"TL408", "TL411"}
AGAIN = 8  # further calls with other seeds: with few numbers, two calls may drop the same ones


@dataclass
class Twice:
    """Outputs of one module for one input, called with different random states."""

    run: Run
    gap: values.Gap | None = None
    calls: int = 0
    depth: int = 0  # 1 within a call that is doubled
    inside: int = 0  # executions of the flagged statement within the calls that were doubled
    modules: list[torch.nn.Module] = field(default_factory=list)


def probe(bench: Bench) -> Outcome:
    """Confirmed when the results differ, and with the correction do not."""
    if bench.case.code in EVALUATED:
        return contrast(
            bench,
            lambda program, way: evaluate(bench, program, way),
            lambda bad, good: judge_twice(bench, bad, good),
        )
    return contrast(
        bench,
        lambda program, way: values.measure(bench, program, way),
        lambda bad, good: judge(bench, bad, good),
    )


def judge(bench: Bench, bad: values.Result, good: values.Result | None) -> Outcome:
    """The outcome for flagged and corrected results."""
    if good is None:
        return cannot_tell(f"{bench.absent}, to compare the results with")
    if not bad.usable or not bad.all:
        return doubtful(bad.run, "the flagged program gave no result to compare")
    if not good.usable or not good.all:
        return doubtful(good.run, "the corrected program gave no result to compare with")
    # A flag makes no output: what it changes shows in the results.
    found = [gap for gap in values.gaps(bad.all, good.all) if not gap.path.endswith(".training")]
    lasting = values.steady(bench, found, bad)
    if found and not lasting:
        return cannot_tell("the results differ, and so they do between two runs of the flagged program")
    found = lasting
    if not found:
        row = Evidence("results that differ", "0", "compared", str(len(bad.all)))
        return Outcome(Verdict.REFUTED, f"the results are the same {bench.against}", (row,))
    worst = max(found, key=lambda gap: gap.size)
    rows = (
        Evidence(worst.path, worst.one, bench.against, worst.other),
        Evidence("results that differ", str(len(found)), "compared", str(len(bad.all))),
    )
    return Outcome(Verdict.CONFIRMED, f"{worst.path} is {worst.one}, and {worst.other} {bench.against}", rows)


@contextmanager
def in_eval_mode(twice: Twice) -> Iterator[None]:
    """Puts every module that is called from outside into eval mode, and calls it again with other seeds."""
    plain = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if twice.depth:
            return plain(module, *args, **kwargs)
        module.eval()
        torch.manual_seed(1)
        twice.depth = 1
        try:
            output = plain(module, *args, **kwargs)
            first = dict(values.flat(output, "output"))
            twice.calls += 1
            for seed in range(2, 2 + AGAIN):
                if twice.gap is not None:
                    break
                torch.manual_seed(seed)
                found = values.gaps(first, dict(values.flat(plain(module, *args, **kwargs), "output")))
                twice.gap = found[0] if found else None
            return output
        finally:
            twice.depth = 0

    torch.nn.Module.__call__ = call
    try:
        yield
    finally:
        torch.nn.Module.__call__ = plain


def evaluate(bench: Bench, program: Program, way: Way) -> Twice:
    """Runs a program with its modules in eval mode, each outermost call doubled."""
    twice = Twice(Run(way.label))

    def note(frame: FrameType, index: int) -> None:
        twice.modules.extend(owners(frame))
        twice.inside += twice.depth

    twice.run = bench.run(program, way, in_eval_mode(twice), after=note)
    return twice


def judge_twice(bench: Bench, bad: Twice, good: Twice | None) -> Outcome:
    """The outcome for doubled calls."""
    if not bad.calls:
        return doubtful(bad.run, "no module was called as a whole")
    if bad.gap is None and not bad.inside:
        return doubtful(bad.run, "the flagged line ran, but not within a module that was called in eval mode")
    if bad.gap is None:
        row = Evidence("calls in eval mode that differ when repeated", "0", "calls", str(bad.calls))
        return Outcome(Verdict.REFUTED, "in eval mode the same input gives the same output", (row,))
    rows = [Evidence(f"{bad.gap.path} in eval mode, first call", bad.gap.one, "second call", bad.gap.other)]
    if good is not None and good.calls:
        said = "differs" if good.gap else "the same"
        rows.append(Evidence("second call with the same input", "differs", bench.against, said))
        if good.gap is not None:
            return cannot_tell("the corrected program's outputs differ as well", rows)
    return Outcome(Verdict.CONFIRMED, "in eval mode two calls with one input give different outputs", tuple(rows))
