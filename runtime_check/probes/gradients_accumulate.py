"""GradientsAccumulate: an optimizer steps with gradients of earlier steps in, or with those of its own missing.

At every step, what is in `.grad` is compared with the sum of what the backwards since the last step of
that optimizer have added. No corrected program is needed: the two are equal in correct training. A GradScaler
unscales what is left in `.grad`, so that it is little beside the next scaled gradients: then the scale is set to one.
"""

from __future__ import annotations

from dataclasses import replace

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, contrast, doubtful
from runtime_check.probes.training import Step, Training, gap, measure, size

TOLERANCE = 1e-3


def probe(bench: Bench) -> Outcome:
    """Confirmed when most steps use other gradients than those computed since the last step."""
    return contrast(
        bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge_both(bench, bad, good))


def judge_both(bench: Bench, bad: Training, good: Training | None) -> Outcome:
    """The outcome with gradient scalers as they are; where they hide what is left, with a scale of one."""
    outcome = judge(bench, bad, good)
    if outcome.verdict is not Verdict.REFUTED or not bad.scaled or bench.way is None:
        return outcome
    other = bench.same(bench.way) if bench.corrected is not None else None
    better = None if other is None or bench.corrected is None else measure(bench, bench.corrected, other, scale=1.0)
    row = Evidence("scale of the gradient scaler", "1", "with its own scale, steps with other gradients", "0")
    outcome = judge(bench, measure(bench, bench.flagged, bench.way, scale=1.0), better)
    return replace(outcome, evidence=(*outcome.evidence, row))


def odd(step: Step) -> bool:
    """Whether a step uses other gradients than those computed for it."""
    return gap(step.held, step.added) > TOLERANCE


def judge(bench: Bench, bad: Training, good: Training | None) -> Outcome:
    """The outcome of one way of running the program."""
    steps = [step for step in bad.steps if step.held and step.added]
    if len(steps) < 2 and not any(odd(step) for step in steps):
        return doubtful(bad.run, f"{len(steps)} optimizer steps with gradients, too few to see them pile up")
    wrong = [step for step in steps if odd(step)]
    last = (wrong or steps)[-1]
    rows = [
        Evidence(
            "norm of .grad at the last step",
            f"{size(last.held):.6g}",
            "computed since the step before",
            f"{size(last.added):.6g}",
        )
    ]
    if not wrong:
        why = f"each of {len(steps)} steps uses exactly the gradients computed since the step before"
        return Outcome(Verdict.REFUTED, why, tuple(rows))
    if good is not None and good.steps:
        count = sum(odd(step) for step in good.steps)
        rows.append(Evidence("steps with other gradients", str(len(wrong)), bench.against, str(count)))
        if count >= len(wrong):
            return cannot_tell("the steps of the corrected program use other gradients as well", rows)
    if last.backwards > 1:
        why = f"{len(wrong)} of {len(steps)} steps lack gradients of the {last.backwards} backwards before them"
    else:
        why = f"{len(wrong)} of {len(steps)} steps use gradients of earlier steps as well"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
