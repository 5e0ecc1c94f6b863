"""Two ranks on this machine: whether their gradients agree, and whether they share the data between them.

The ranks are started as for `deadlocks`; each writes what it saw to a file, which is read when both are done. Made-up
data is the same in each: all ranks but the first add something to what is given to their modules.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import translated
from runtime_check.probes.bench import Bench, Program, Run, Way, first_decisive
from runtime_check.probes.deadlocks import ENTRY, RANKS, Ranks, call_as_rank, run_ranks, ways

MOST = 8  # tensors by which the data of two ranks is told apart
STEP = 0.5


@dataclass
class Seen:
    """What the ranks of a run wrote down, by rank."""

    ranks: Ranks
    gradients: list[list[torch.Tensor]] = field(default_factory=list)  # of DDP's parameters, at the last backward
    samples: list[list[int]] = field(default_factory=list)  # of the training data, in order
    data: list[list[float]] = field(default_factory=list)  # a number for each of the first tensors given to modules

    @property
    def complete(self) -> bool:
        """Whether both ranks ended by themselves and wrote something."""
        return self.ranks.finished == RANKS and len(self.samples) == RANKS


def recorded(path: str, action: Callable[[], object]) -> object:
    """Runs an action as one rank and writes down the gradients and the samples that it used."""
    wrappers: list[DistributedDataParallel] = []
    gradients: list[torch.Tensor] = []
    samples: list[int] = []
    data: list[float] = []
    init, backward, fetch = DistributedDataParallel.__init__, torch.Tensor.backward, _MapDatasetFetcher.fetch

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        wrappers.append(self)

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        backward(self, *args, **kwargs)
        gradients[:] = [
            p.grad.detach().clone() for w in wrappers for p in w.parameters() if p.grad is not None
        ]
        torch.save((gradients, samples, data), path)

    def fetched(self: Any, index: Any) -> Any:
        samples.extend(index if isinstance(index, list) else [index])
        return fetch(self, index)

    def given(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        mine = tuple(of_this_rank(value) for value in args)
        if len(data) < MOST:
            data.extend(float(value.double().sum()) for value in mine if is_data(value))
        return mine

    register_module_forward_pre_hook(given)
    torch.manual_seed(int(os.environ["RANK"]))
    DistributedDataParallel.__init__ = made
    torch.Tensor.backward = counted
    _MapDatasetFetcher.fetch = fetched
    return action()


def is_data(value: object) -> bool:
    """Whether a value is a tensor of real numbers that no layer has computed."""
    return isinstance(value, torch.Tensor) and not value.requires_grad and not value.is_complex()


def of_this_rank(value: Any) -> Any:
    """Data that is another in each rank."""
    if not is_data(value) or not value.is_floating_point():
        return value
    return value + int(os.environ["RANK"]) * STEP


def measure(program: Program, way: Way) -> Seen:
    """Runs a program, or one of its functions, as two ranks."""
    seen = Seen(Ranks(Run(way.label)))
    function = way.run() if way.kind == ENTRY else way.run
    if not callable(function):
        return seen
    folder = tempfile.mkdtemp()
    paths = [os.path.join(folder, f"{rank}.pt") for rank in range(RANKS)]
    actions = [partial(call_as_rank, function, rank) if way.kind == ENTRY else function for rank in range(RANKS)]
    pairs = zip(paths, actions, strict=True)
    recorders: list[Callable[[], object]] = [partial(recorded, *pair) for pair in pairs]
    run_ranks(seen.ranks, recorders, program, joined=way.made_up)
    for path in paths:
        if os.path.exists(path):
            gradients, samples, data = torch.load(path)
            seen.gradients.append(gradients)
            seen.samples.append(samples)
            seen.data.append(data)
    return seen


def compared(bench: Bench, judge: Callable[[Bench, Seen, Seen | None], Outcome]) -> Outcome:
    """The first way of running flagged and corrected code as two ranks that says something."""

    def one(way: Way) -> Outcome | None:
        bad = measure(bench.flagged, way)
        if not bad.complete:
            why = bad.ranks.run.trouble or bad.ranks.why or "not both ranks came to a backward"
            bench.note(f"{why} ({way.label})")
            return None
        if not bad.ranks.reached:
            bench.note(f"no rank came to the flagged line ({way.label})")
            return None
        corrected = bench.corrected
        others = ways(bench, corrected) if corrected is not None else iter(())
        label = translated(way.label, bench.case.text, bench.case.corrected or "")
        other = next((o for o in others if o.label == label), None)
        good = None if corrected is None or other is None else measure(corrected, other)
        return replace(judge(bench, bad, good), how=way.label)

    return first_decisive(bench, ways(bench, bench.flagged), one)


def distance(seen: Seen) -> float:
    """The largest difference between gradients of the two ranks; infinite if only one has some."""
    left, right = seen.gradients
    if len(left) != len(right) or not left:
        return float("inf") if left or right else 0.0
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


def probe_gradients(bench: Bench) -> Outcome:
    """Confirmed when gradients differ between the ranks, and with the correction do not."""
    return compared(bench, judge_gradients)


def judge_gradients(bench: Bench, bad: Seen, good: Seen | None) -> Outcome:
    """The outcome for gradients."""
    label = "largest difference of a gradient between the ranks"
    rows = [Evidence(label, f"{distance(bad):.3g}", "ranks", str(RANKS))]
    if distance(bad) == 0.0 and bad.data[0] == bad.data[1]:
        return cannot_tell("the ranks have worked on the same data, which gives the same gradients anyway", rows)
    if distance(bad) == 0.0:
        return Outcome(Verdict.REFUTED, "the ranks have the same gradients", tuple(rows))
    if good is not None and good.complete:
        rows.append(Evidence(label, f"{distance(bad):.3g}", bench.against, f"{distance(good):.3g}"))
        if distance(good) > 0.0:
            return cannot_tell("the ranks of the corrected program differ as well", rows)
        return Outcome(Verdict.CONFIRMED, "each rank steps on its own gradients, which were not averaged", tuple(rows))
    return cannot_tell("the gradients differ, and there is no corrected program to compare with", rows)


def shared(seen: Seen) -> int:
    """How many samples both ranks read."""
    return len(set(seen.samples[0]) & set(seen.samples[1]))


def probe_samples(bench: Bench) -> Outcome:
    """Confirmed when both ranks read the same samples, and with the correction do not."""
    return compared(bench, judge_samples)


def judge_samples(bench: Bench, bad: Seen, good: Seen | None) -> Outcome:
    """The outcome for samples."""
    label = "samples that both ranks read"
    rows = [Evidence(label, str(shared(bad)), "samples read by one", str(len(set(bad.samples[0]))))]
    if not shared(bad):
        return Outcome(Verdict.REFUTED, "no sample is read by both ranks", tuple(rows))
    if good is not None and good.complete:
        rows.append(Evidence(label, str(shared(bad)), bench.against, str(shared(good))))
        if shared(good):
            return cannot_tell("the ranks of the corrected program share samples as well", rows)
        return Outcome(Verdict.CONFIRMED, "every rank goes through the whole data", tuple(rows))
    return cannot_tell("both ranks read the same, and there is no corrected program to compare with", rows)
