"""Anomaly: a NaN or an infinity appears in results or gradients; anomaly mode names the operation."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

import torch

from runtime_check import specs
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import graphs, scaled, values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful, first_decisive
from runtime_check.probes.gradients import Record, backward_from, recorded
from runtime_check.probes.targets import stores, value_of
from runtime_check.trace import owner_of

#: Rules about functions of logits that fail for large ones, which small made-up models rarely give.
LOGITS = {"TL613"}
#: Rules about derivatives that are infinite at zero, which random numbers never are.
AT_ZERO = {"TL220"}
SQUASHING = frozenset({"softmax", "log_softmax", "softmin", "sigmoid", "logsigmoid", "expit"})
NEAR = 103.0  # from here on a probability may be 0 in float32


@dataclass
class Numbers:
    """How many elements of results and gradients are not finite."""

    run: Run
    results: int = 0
    gradients: int = 0
    finite: int = 0
    operation: str = ""
    here: bool = False  # that operation was recorded by the flagged function
    born: int = 0  # executions of the flagged statement that made it of finite values


def bad_elements(tensor: torch.Tensor) -> int:
    """Elements that are NaN or infinite."""
    return int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() or tensor.is_complex() else 0


def all_finite(found: list[object]) -> bool:
    """Whether no tensor among some values has a NaN or an infinity."""
    return not any(bad_elements(tensor) for tensor in graphs.held(found))


def measure(bench: Bench, program: Program, way: Way, *watches: AbstractContextManager[object]) -> Numbers:
    """Runs a program with a backward and counts; then again in anomaly mode to name the operation."""
    numbers, record = Numbers(Run(way.label)), Record(Run(way.label))

    def finish(value: object) -> None:
        if not record.backwards:
            backward_from(value)
        for path, item in values.collect(value, program, way, "").items():
            if isinstance(item, torch.Tensor) and not path.endswith(".grad"):
                numbers.results += bad_elements(item)
                numbers.finite += item.numel() - bad_elements(item)

    before: dict[FrameType, bool] = {}
    targets = [stores(program.text, spot) for spot in program.spots]
    leaving: list[bool] = []

    def begin(frame: FrameType, index: int) -> None:
        before[frame] = all_finite(list(frame.f_locals.values()))
        leaving[:] = [before[frame]]

    def end(frame: FrameType, index: int) -> None:
        stored = []
        for target in targets[index]:
            with suppress(LookupError):
                stored.append(value_of(target, frame)[0])
        numbers.born += before.pop(frame, False) and bool(stored) and not all_finite(stored)

    def returned(name: str, value: object) -> None:
        # A `return` that is flagged itself stores nothing.
        numbers.born += bool(leaving) and leaving[0] and not any(targets) and not all_finite([value])

    watched = (recorded(record), *watches)
    numbers.run = bench.run(program, way, *watched, inspect=finish, before=begin, after=end, returned=returned)
    for gradients in record.backwards:
        for gradient in gradients.values():
            numbers.gradients += bad_elements(gradient)
            numbers.finite += gradient.numel() - bad_elements(gradient)
    if numbers.gradients:
        name_operation(numbers, bench, program, way, watches)
    return numbers


def name_operation(
    numbers: Numbers, bench: Bench, program: Program, way: Way, watches: tuple[AbstractContextManager[object], ...]
) -> None:
    """Finds the operation whose backward first returns NaN; anomaly mode names it and its place."""

    def finish(value: object) -> None:
        backward_from(value)

    with torch.autograd.detect_anomaly(check_nan=True):  # torchlint: ignore[anomaly-left-on]
        run = bench.run(program, way, *watches, inspect=finish, fresh=False)
    found = re.search(r"Function '(\w+)' returned nan", str(run.error or ""))
    numbers.operation = found.group(1).removesuffix("Backward0") if found else ""
    stacks = "".join(str(warning.message) for warning in run.warnings)
    owners = [owner_of(program.text, spot.first) for spot in program.spots]
    places = [(path, int(line)) for path, line in re.findall(r'File "([^"]+)", line (\d+)', stacks)]
    numbers.here = any(path == program.path and a <= line <= b for path, line in places for _, a, b in owners)


def probe(bench: Bench) -> Outcome:
    """Confirmed when numbers of the flagged program are not finite and all of the corrected one's are."""
    outcome = contrast(
        bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))
    if bench.case.code in AT_ZERO and outcome.verdict is not Verdict.CONFIRMED:
        return at_zero(bench, outcome)
    if bench.case.code not in LOGITS or outcome.verdict not in (Verdict.REFUTED, Verdict.CANNOT_TELL):
        return outcome
    return with_larger(bench, outcome)


def with_larger(bench: Bench, outcome: Outcome) -> Outcome:
    """The outcome with larger and larger inputs; as it was if they change nothing.

    Where none makes the logits large, it is told: they are bounded.
    """
    largest = scaled.Largest(bench.flagged, SQUASHING)

    def measured(factor: float, program: Program, way: Way) -> Numbers:
        watches: list[AbstractContextManager[object]] = [scaled.Inputs(factor)]
        if program is bench.flagged:
            watches.append(largest)
        return measure(bench, program, way, *watches)

    for factor in (1.0, *scaled.FACTORS):
        found = contrast(bench, partial(measured, factor), lambda bad, good: judge(bench, bad, good))
        if found.verdict is Verdict.CONFIRMED:
            return replace(found, why=f"{found.why}, with inputs {factor:g} times as large")
    if not 0 < largest.size < NEAR:
        return outcome
    row = Evidence("largest logit of the flagged function", f"{largest.size:.3g}", "needed", f"{NEAR:g}")
    return replace(outcome, why=scaled.too_small(largest.size), evidence=(*outcome.evidence, row))


def with_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """A made-up input that needs a gradient, its first row and every third other element zero."""
    values = tensor.detach().clone()
    values.view(-1)[::3] = 0
    if values.dim():
        values[0] = 0
    return values.requires_grad_() * 1  # no leaf: code may write to it


def at_zero(bench: Bench, outcome: Outcome) -> Outcome:
    """The outcome for made-up inputs that hold zeros; what the program itself gives the line counts for more."""

    def one(way: Way) -> Outcome | None:
        numbers = measure(bench, bench.flagged, way, specs.Changed(with_zeros))
        if not numbers.run.reached:
            return None
        return replace(judge(bench, numbers, None), how=f"{way.label}, with zeros among its inputs")

    found = first_decisive(bench, (way for way in bench.ways(bench.flagged) if way.made_up), one)
    if found.verdict is not Verdict.CONFIRMED:
        return outcome
    if outcome.verdict is Verdict.REFUTED:
        why = "all is finite with the inputs of the program, and gradients are NaN for zeros: can the line get some?"
        return cannot_tell(why, found.evidence, found.how)
    return found


def judge(bench: Bench, bad: Numbers, good: Numbers | None) -> Outcome:
    """The outcome of one way of running the program."""
    total = bad.results + bad.gradients
    rows = [Evidence("elements that are NaN or infinite", str(total), "finite", str(bad.finite))]
    if not total:
        if not bad.finite:
            return doubtful(bad.run, "the run left no numbers to look at")
        if bench.way is not None and bench.way.made_up:
            return cannot_tell("all results and gradients are finite with these made-up inputs", rows)
        return Outcome(Verdict.REFUTED, "all results and gradients are finite with these inputs", tuple(rows))
    if good is None and bad.gradients and not bad.results and bad.here:
        rows.append(
            Evidence("elements of the gradients", f"{bad.gradients} not finite", "of the results", "0 not finite")
        )
        why = f"the results are finite, and {bad.gradients} elements of the gradients are not: {bad.operation}"
        return Outcome(Verdict.CONFIRMED, why, tuple(rows))
    if good is None and bad.born and bench.way is not None and not bench.way.made_up:
        rows.append(
            Evidence("executions that make them of finite values", str(bad.born), "executions", str(bad.run.hits))
        )
        why = f"the flagged line makes NaN or infinity of finite values in {bad.born} of {bad.run.hits} executions"
        return Outcome(Verdict.CONFIRMED, why, tuple(rows))
    if good is None or not good.finite:
        return cannot_tell("numbers are not finite, and there is no corrected program to compare with", rows)
    rows.append(
        Evidence("elements that are NaN or infinite", str(total), bench.against, str(good.results + good.gradients))
    )
    if good.results + good.gradients >= total:
        return cannot_tell("the corrected program has as many", rows)
    where = f" in the backward of {bad.operation}" if bad.operation else ""
    kind = "gradients" if bad.gradients else "results"
    return Outcome(Verdict.CONFIRMED, f"{total} elements of the {kind} are NaN or infinite{where}", tuple(rows))
