"""NotOptimized: parameters that get gradients are in no optimizer, because they came after it was made."""

from __future__ import annotations

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, contrast, doubtful
from runtime_check.probes.training import Training, measure


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program has such parameters and the corrected one has none."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Training, good: Training | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.steps:
        return doubtful(bad.run, "no optimizer made a step")
    orphans = bad.orphans
    label = "parameters with gradients that no optimizer has"
    rows = [Evidence(label, str(len(orphans)), "parameters with gradients", str(len(bad.leaves)))]
    if not orphans:
        return Outcome(Verdict.REFUTED, "every parameter made after the optimizer is in one", tuple(rows))
    if good is not None and good.steps:
        rows.append(Evidence(label, str(len(orphans)), bench.against, str(len(good.orphans))))
        if len(good.orphans) >= len(orphans):
            return cannot_tell("the corrected program has as many", rows)
    why = f"{orphans[0]} and {len(orphans) - 1} more" if len(orphans) > 1 else orphans[0]
    return Outcome(Verdict.CONFIRMED, f"{why} get gradients and are in no optimizer: they never move", tuple(rows))
