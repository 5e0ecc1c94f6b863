"""NoEffect: the flagged statement changes nothing that it was written to change.

The tensors, flags and gradients in sight are compared before and after each execution. Rules about
optimizer steps look at what the steps find and move instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any
from unittest import mock

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import exhausted, graphs, training, values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.training import Training

#: Rules about a step that finds no gradient, or other gradients than were meant for it.
CONSUMED = "TL511"  # about any use of parameters, of which a step shows some
CLIPPING = {"TL507", "TL511"}  # of them, those that may be about a clipping whose limit no gradient reaches
FAR = 1e4  # times what gradients have: a limit that is not meant to be reached
STEPS = {"TL502", "TL505", "TL507", "TL508", "TL511"}
#: Rules about statements that bind names or change copies: only the parameters that were in sight before count.
PARAMETERS = {"TL425"}
#: A tensor that is moved: of no effect where it is already there.
MOVES = re.compile(r"\.(to|cuda|cpu)\(")


@dataclass
class Effect:
    """How often the flagged statement ran, and how often it changed something."""

    run: Run
    executions: int = 0
    changed: int = 0
    compared: int = 0
    example: str = ""


def parameters(frame: FrameType) -> list[torch.nn.Parameter]:
    """The Parameters in sight of a statement."""
    return [tensor for tensor in graphs.held([*frame.f_locals.values()]) if isinstance(tensor, torch.nn.Parameter)]


def snapshot(frame: FrameType, only: list[torch.nn.Parameter] | None = None) -> dict[str, object]:
    """Values, gradients and flags of what is in sight of a statement, or the values of some parameters."""
    found: dict[str, object] = {"grad mode": torch.is_grad_enabled()}
    if only is not None:
        return {f"parameter {number} {tuple(p.shape)}": p.detach().clone() for number, p in enumerate(only)}
    for name, value in sorted(frame.f_locals.items()):
        if not name.startswith("__"):
            found.update(values.flat(value, name))
    tensors = graphs.held([*frame.f_locals.values()])
    for number, tensor in enumerate(tensors):
        found[f"requires_grad of tensor {number} {tuple(tensor.shape)}"] = tensor.requires_grad
        if tensor.is_leaf and tensor.grad is not None:
            found[f"gradient of tensor {number} {tuple(tensor.shape)}"] = tensor.grad.detach().clone()
    return found


def measure(bench: Bench, program: Program, way: Way) -> Effect:
    """Runs a program and compares around each execution."""
    effect = Effect(Run(way.label))
    before: dict[tuple[FrameType, int], dict[str, object]] = {}
    watched: dict[tuple[FrameType, int], list[torch.nn.Parameter] | None] = {}
    saved: list[int] = []

    def begin(frame: FrameType, index: int) -> None:
        watched[frame, index] = parameters(frame) if bench.case.code in PARAMETERS else None
        before[frame, index] = snapshot(frame, watched[frame, index])
        saved.clear()

    def end(frame: FrameType, index: int) -> None:
        old, new = before.pop((frame, index), {}), snapshot(frame, watched.pop((frame, index), None))
        found = [gap.path for gap in values.gaps(old, new, exact=True)]
        found += sorted(set(old) ^ set(new)) or [f"{count} tensors in a file" for count in saved if count]
        effect.executions += 1
        effect.compared = max(effect.compared, len(old))
        effect.changed += bool(found)
        effect.example = effect.example or (found[0] if found else "")

    with saves_seen(saved):
        effect.run = bench.run(program, way, before=begin, after=end)
    return effect


@contextmanager
def saves_seen(saved: list[int]) -> Iterator[None]:
    """Counts the tensors that `torch.save` is given: they go where no name shows them."""
    plain = torch.save

    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        saved.append(sum(isinstance(value, torch.Tensor) for _, value in values.flat(obj, "saved")))
        return plain(obj, *args, **kwargs)

    torch.save = save
    try:
        yield
    finally:
        torch.save = plain


def probe(bench: Bench) -> Outcome:
    """Confirmed when the statement changes nothing and the corrected one does."""
    if bench.case.code in STEPS:
        return contrast(
            bench,
            lambda program, way: training.measure(bench, program, way),
            lambda bad, good: judge_parameters(bench, bad, good),
        )
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Effect, good: Effect | None) -> Outcome:
    """The outcome for a single statement."""
    if not bad.executions:
        return doubtful(bad.run, "the flagged statement did not run to its end")
    rows = [Evidence("executions that change something", str(bad.changed), "executions", str(bad.executions))]
    if bad.changed:
        return Outcome(Verdict.REFUTED, f"the statement changes {bad.example}", tuple(rows))
    if good is None or not good.executions:
        return cannot_tell("nothing in sight changes, and there is no corrected program to compare with", rows)
    rows.append(Evidence("executions that change something", "0", bench.against, str(good.changed)))
    if not good.changed:
        why = "the corrected statement changes nothing here either"
        moves = MOVES.search(bench.case.text.splitlines()[bench.flagged.spots[0].first - 1])
        if moves and bench.case.device == "cpu":
            why += ": the tensor is on the CPU already; run it with --device cuda, where it has to move"
        return cannot_tell(why, rows)
    why = f"the statement changes none of {bad.compared} values in sight; {bench.against} it changes {good.example}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


def judge_parameters(bench: Bench, bad: Training, good: Training | None) -> Outcome:
    """The outcome for what optimizer steps find, and for parameters that an earlier line has used up."""
    outcome = judge_steps(bench, bad, good)
    if bench.case.code != CONSUMED or outcome.verdict is Verdict.CONFIRMED:
        return outcome
    return exhausted.used_up(bench, outcome, clipping=clips(bench, bad))


@contextmanager
def limits_reached() -> Iterator[list[float]]:
    """Lowers every limit that gradients are clipped to, to half of what they have, while it lasts.

    One that is far above them, infinity for example, is there for the norm alone and stays as it is. Yields the
    limits that were lowered.
    """
    changed: list[float] = []
    plain_norm, plain_value = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_

    def reachable(limit: float, size: float) -> float:
        if not size / 2 < limit <= FAR * size:
            return limit
        changed.append(limit)
        return size / 2

    def norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        size = float(plain_norm(given, math.inf, *args, **kwargs))
        return plain_norm(given, reachable(float(max_norm), size), *args, **kwargs)

    def value(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        size = max((float(item.grad.abs().max()) for item in given if item.grad is not None), default=0.0)
        plain_value(given, reachable(float(clip_value), size), *args, **kwargs)

    with ExitStack() as stack:
        for place in (torch.nn.utils, torch.nn.utils.clip_grad):
            stack.enter_context(mock.patch.object(place, "clip_grad_norm_", norm))
            stack.enter_context(mock.patch.object(place, "clip_grad_value_", value))
        yield changed


def judge_steps(bench: Bench, bad: Training, good: Training | None, *, lowered: bool = False) -> Outcome:
    """The outcome for what optimizer steps find; without steps, for what the programs leave behind.

    `lowered` says that the limits of clipping have been lowered already, so that they are reached.
    """
    if not bad.steps and good is not None and not good.steps and bad.values and good.values:
        outcome = judge_values(bench, bad, good)
        if outcome.verdict is Verdict.REFUTED and clips(bench, bad):
            return below_limit(bench, lowered)
        return outcome
    if not bad.steps and good is not None and good.steps and bad.leaves:
        row = Evidence("optimizer steps", "0", bench.against, str(len(good.steps)))
        return Outcome(Verdict.CONFIRMED, f"no optimizer steps on the gradients of {len(bad.leaves)} leaves", (row,))
    if not bad.steps:
        return doubtful(bad.run, "no optimizer made a step")
    empty = sum(step.gradient == 0 for step in bad.steps)
    first = bad.steps[0]
    rows = [Evidence("steps without any gradient", str(empty), "steps", str(len(bad.steps)))]
    if good is None or not good.steps:
        if empty == len(bad.steps):
            rows.append(Evidence("distance that the parameters move", f"{first.moved:.6g}", "predicted", "0"))
            return cannot_tell("no step finds a gradient, and there is no corrected program to compare with", rows)
        return cannot_tell("there is no corrected program to compare the steps with", rows)
    found = different(bad, good)
    if found is None and clips(bench, bad):
        return below_limit(bench, lowered)
    if found is None and bench.case.code == CONSUMED and bad.values and good.values:
        return judge_values(bench, bad, good)
    if found is None:
        row = Evidence(
            "norm of the gradient at a step", f"{first.gradient:.6g}", bench.against, f"{good.steps[0].gradient:.6g}"
        )
        return Outcome(Verdict.REFUTED, f"the steps find the same gradients {bench.against}", (*rows, row))
    mine, theirs = bad.steps[found], good.steps[found]
    rows.append(
        Evidence(
            f"norm of the gradient at step {found + 1}", f"{mine.gradient:.6g}", bench.against, f"{theirs.gradient:.6g}"
        )
    )
    rows.append(
        Evidence("distance that the parameters move", f"{mine.moved:.6g}", bench.against, f"{theirs.moved:.6g}")
    )
    why = f"step {found + 1} finds a gradient of norm {mine.gradient:.6g}, {theirs.gradient:.6g} {bench.against}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


def clips(bench: Bench, bad: Training) -> bool:
    """Whether equal gradients say nothing, as none has been changed by what may be a clipping."""
    lines = bench.flagged.text.splitlines()
    return not bad.clipped and bench.case.code in CLIPPING and any(
        "clip" in line for spot in bench.flagged.spots for line in lines[spot.first - 1 : spot.last])


def below_limit(bench: Bench, lowered: bool) -> Outcome:
    """The outcome where no gradient has reached the limit of a clipping: that of runs with a limit that is reached."""
    other = bench.same(bench.way) if bench.way is not None and not lowered else None
    if other is None or bench.way is None or bench.corrected is None:
        return cannot_tell("no gradient reaches the limit here, so nothing is clipped before or after the step")
    with limits_reached() as changed:
        again = training.measure(bench, bench.flagged, bench.way)
        better = training.measure(bench, bench.corrected, other)
    outcome = judge_steps(bench, again, better, lowered=True)
    if not changed:
        return outcome
    row = Evidence("limit of the clipping", "half of each gradient's size", "as it is written", "never reached")
    return replace(outcome, evidence=(*outcome.evidence, row))


def judge_values(bench: Bench, bad: Training, good: Training) -> Outcome:
    """The outcome for two programs without a step."""
    found = [gap.path for gap in values.gaps(bad.values, good.values)]
    found += sorted(set(bad.values) ^ set(good.values))
    row = Evidence("results that differ", str(len(found)), "compared", str(len(bad.values)))
    if not found:
        return Outcome(Verdict.REFUTED, f"the results are the same {bench.against}", (row,))
    return Outcome(Verdict.CONFIRMED, f"{found[0]} is another {bench.against}", (row,))


def different(bad: Training, good: Training) -> int | None:
    """The first step at which two runs find gradients of other size."""
    for number, (a, b) in enumerate(zip(bad.steps, good.steps, strict=False)):
        if abs(a.gradient - b.gradient) > 1e-3 * max(a.gradient, b.gradient):
            return number
    return None
