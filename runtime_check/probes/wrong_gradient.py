"""WrongGradient: the gradient is not that of the values which the forward computed, or not the corrected one.

A tensor that is overwritten behind autograd's back is found by running twice: once as written, and
once with a copy of every tensor that autograd saves. Equal gradients mean that nothing was lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from operator import mul
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from runtime_check import specs
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import kept_inputs, training
from runtime_check.probes.bench import Bench, Way, contrast, doubtful, first_decisive
from runtime_check.probes.gradients import Difference, Record, difference, measure
from runtime_check.probes.no_effect import judge_steps
from runtime_check.probes.written import FACTORS, Writes
from runtime_check.trace import class_around

#: Rules about tensors that autograd has saved and that change afterwards.
SAVED = {"TL101"}
#: The rule about inputs that a Function keeps without autograd's knowledge.
KEPT = "TL305"
#: Rules about gradients that are right when they are computed and wrong when the optimizer steps.
STEPS = {"TL504", "TL509", "TL510"}
#: Of these, those about gradients that a GradScaler has scaled.
SCALED = {"TL509", "TL510"}
ACCUMULATED = "TL504"
CLIPPED = "TL509"
IDLE = "the flagged write changes no number with these inputs, so whether backward needs what it overwrites is open"
MADE_LOSS = re.compile(r"\bnn\.\w+Loss\(")


def probe(bench: Bench) -> Outcome:
    """Confirmed when the gradient differs from the right one, which is taken twice."""
    if bench.case.code in STEPS:
        return contrast(
            bench,
            lambda program, way: training.measure(bench, program, way),
            lambda bad, good: judge_scaled(bench, bad, good),
        )
    if bench.case.code == KEPT:
        return kept_inputs.probe(bench)
    judge = judge_saved if bench.case.code in SAVED else judge_corrected
    return first_decisive(bench, bench.ways(bench.flagged), lambda way: judge(bench, way))


def judge_scaled(bench: Bench, bad: training.Training, good: training.Training | None) -> Outcome:
    """The outcome for optimizer steps; where no scaler was on, equal gradients say nothing of scaled ones."""
    outcome = judge_steps(bench, bad, good)
    if bench.case.code == ACCUMULATED and outcome.verdict is Verdict.CONFIRMED:
        return judge_reduction(bench, bad, outcome)
    clipped = bad.clipped and good is not None and good.clipped
    if bench.case.code == CLIPPED and outcome.verdict is Verdict.REFUTED and not clipped:
        return cannot_tell("no gradient reaches the limit here, so nothing is clipped", outcome.evidence)
    if outcome.verdict is not Verdict.REFUTED or bench.case.code not in SCALED or bad.scaled:
        return outcome
    why = "every gradient scaler of the run is switched off, so nothing is scaled" if bad.scalers else \
        "the run makes no gradient scaler, so nothing is scaled"
    return cannot_tell(why, outcome.evidence)


def judge_reduction(bench: Bench, bad: training.Training, outcome: Outcome) -> Outcome:
    """The outcome for a sum over micro-batches: too large if each is a mean, and right if each is a sum.

    That the division changes the gradient says nothing of which it should be.
    """
    kinds = ", ".join(sorted(kind or "unknown" for kind in bad.reductions))
    row = Evidence("reduction of what is backwarded", kinds, "for which dividing is right", "mean")
    rows = (*outcome.evidence, row)
    if bench.way is not None and bench.way.made_up and MADE_LOSS.search(bench.way.label):
        return cannot_tell("the loss function is made up here: whether the real one is a mean is not known", rows)
    if bad.reductions == {"sum"}:
        return Outcome(Verdict.REFUTED, "the loss is a sum over its batch, and sums add up to that of all", rows)
    if bad.reductions != {"mean"}:
        return cannot_tell("whether the loss is a mean over its batch cannot be seen", rows)
    return replace(outcome, evidence=rows)


@contextmanager
def attached_inputs(classes: set[str], found: list[str]) -> Iterator[None]:
    """Makes the inputs of some modules need a gradient, as they do behind another layer."""

    def begin(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if type(module).__name__ not in classes or not torch.is_grad_enabled():
            return None
        fit = [isinstance(a, torch.Tensor) and a.is_floating_point() and not a.requires_grad for a in args]
        if any(fit):
            found.append(type(module).__name__)
        return tuple(a.detach().requires_grad_() if f else a for a, f in zip(args, fit, strict=True))

    handle = register_module_forward_pre_hook(begin)
    try:
        yield
    finally:
        handle.remove()


def flagged(bench: Bench, way: Way, *watches: Any, writes: Writes | None = None) -> Record | Outcome | None:
    """The record of the flagged program; None if not reached, an outcome if it says nothing."""
    if writes is None:
        bad = measure(bench, bench.flagged, way, *watches)
    else:
        bad = measure(bench, bench.flagged, way, writes, *watches, before=writes.begin, after=writes.end)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    if not bad.backwards:
        return doubtful(bad.run, "no backward could be run through the flagged code")
    return bad


def judge_saved(bench: Bench, way: Way) -> Outcome | None:
    """Compares with the gradient of the values that the forward saved; then the same behind another layer."""
    outcome = compare_saved(bench, way, "", list)
    if outcome is None or outcome.verdict is Verdict.CONFIRMED:
        return outcome
    found: list[str] = []
    classes = {name for spot in bench.flagged.spots if (name := class_around(bench.flagged.text, spot.first))}
    behind = compare_saved(
        bench, way, ", its input coming from another layer", lambda: [attached_inputs(classes, found)]
    )
    seen = behind if found and behind is not None else outcome
    if seen.why == IDLE and bench.way is not None and bench.way.made_up:
        return larger(bench, way, lambda: [attached_inputs(classes, [])]) or seen
    return seen


def larger(
    bench: Bench, way: Way, watches: Callable[[], list[AbstractContextManager[None]]]
) -> Outcome | None:
    """The outcome with made-up inputs of other sizes, for which the flagged write may change something."""
    def scaled(factor: float) -> list[AbstractContextManager[None]]:
        return [specs.Changed(partial(mul, factor)), *watches()]

    best: Outcome | None = None
    for factor in FACTORS:
        found = compare_saved(bench, way, f", with inputs times {factor:g}", partial(scaled, factor))
        if found is not None and found.verdict is Verdict.CONFIRMED:
            return found
        if found is not None and found.verdict is Verdict.REFUTED:
            best = best or found
    return best


def compare_saved(
    bench: Bench, way: Way, remark: str, watches: Callable[[], list[AbstractContextManager[None]]]
) -> Outcome | None:
    """Compares the gradient as it is with that of a run in which autograd keeps copies."""
    writes = Writes()
    bad = flagged(bench, way, *watches(), writes=writes)
    if not isinstance(bad, Record):
        return bad
    how = way.label + remark
    if difference(bad, measure(bench, bench.flagged, way, *watches())) is not None:
        return cannot_tell("two runs of the flagged code from one seed give different gradients", how=how)
    gap = difference(bad, measure(bench, bench.flagged, way, *watches(), keep_saved=True))
    if gap is None and writes.idle:
        row = Evidence("writes of the flagged line that change a number", "0", "writes", str(writes.count))
        return cannot_tell(IDLE, (row,), how)
    if gap is None:
        why = "the gradient is the same when autograd keeps copies: no value that it needs is overwritten"
        return Outcome(Verdict.REFUTED, why, (agreement(bad, "with copies of all saved tensors"),), how)
    rows = [*numbers(gap, "of the values that the forward computed")]
    other = bench.same(way)
    if bench.corrected is not None and other is not None:
        good = measure(bench, bench.corrected, other, *watches())
        kept = measure(bench, bench.corrected, other, *watches(), keep_saved=True)
        if not good.overwritten and difference(good, kept) is not None:
            return cannot_tell("the corrected program overwrites values that backward needs as well", rows, how)
        said = "raises: a saved tensor was modified" if good.overwritten else good.run.trouble or "runs"
        rows.append(Evidence("autograd's own check", "says nothing", bench.against, said))
    why = f"a value that backward needs is overwritten: the gradient of {gap.leaf} is off by {gap.relative:.0%}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows), how)


def judge_corrected(bench: Bench, way: Way) -> Outcome | None:
    """Compares with the gradient of the corrected program."""
    bad = flagged(bench, way)
    if not isinstance(bad, Record):
        return bad
    if bench.corrected is None:
        return cannot_tell("there is no corrected program to compare the gradient with", how=way.label)
    if difference(bad, measure(bench, bench.flagged, way)) is not None:
        return cannot_tell("two runs of the flagged code from one seed give different gradients", how=way.label)
    other = bench.same(way)
    good = None if other is None else measure(bench, bench.corrected, other)
    if good is None or not good.backwards:
        return cannot_tell("the corrected program gave no gradient to compare with", how=way.label)
    gap = difference(bad, good)
    if gap is None:
        return Outcome(
            Verdict.REFUTED,
            f"the gradients are the same {bench.against}",
            (agreement(bad, bench.against),),
            way.label,
        )
    why = f"the gradient of {gap.leaf} differs by {gap.relative:.0%} from the one {bench.against}"
    return Outcome(Verdict.CONFIRMED, why, numbers(gap, bench.against), way.label)


def numbers(gap: Difference, against: str) -> tuple[Evidence, ...]:
    """Both norms and their distance."""
    return (
        Evidence(f"norm of the gradient of {gap.leaf}", f"{gap.one:.6g}", against, f"{gap.other:.6g}"),
        Evidence("relative difference", f"{gap.relative:.3g}", "between two equal runs", "0"),
    )


def agreement(record: Record, against: str) -> Evidence:
    """One gradient that agrees."""
    first = record.backwards[0]
    leaf = next(iter(first), "")
    size = f"{float(first[leaf].norm()):.6g}" if leaf else "none"
    return Evidence(f"norm of the gradient of {leaf or 'anything'}", size, against, size)
