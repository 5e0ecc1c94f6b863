"""NoGradient: parameters that should learn get no gradient, or backward cannot run at all.

Where no corrected program shows that it should run, the flagged line may: what it is given has a graph, and what it
gives has none.
"""

from __future__ import annotations

import re
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import graphs
from runtime_check.probes.bench import Bench, Program, Way, doubtful, first_decisive
from runtime_check.probes.gradients import Record, measure, norm
from runtime_check.probes.not_registered import attributes, owners
from runtime_check.trace import frames_of

UNUSED_LAYER = "TL421"
WITHOUT_DERIVATIVE = {"TL207"}  # about operations that end a graph
CUT = re.compile(r"does not require grad|not have been used in the graph")
FREED = re.compile(r"backward through the graph a second time")


class Ends(TorchFunctionMode):  # type: ignore[misc]
    """Counts, while the flagged line runs, operations on tensors with a graph, and those whose results have none."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.given = self.ended = 0
        self.name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.inside and torch.is_grad_enabled() and getattr(func, "__name__", "") not in ("detach", "item"):
            made = graphs.flat(result)
            if made and any(tensor.requires_grad for tensor in graphs.flat((args, kwargs))):
                self.given += 1
                if not any(tensor.requires_grad for tensor in made):
                    self.ended += 1
                    self.name = self.name or func.__name__.strip("_")
        return result

    def begin(self, frame: FrameType, index: int) -> None:
        """The flagged line begins."""
        self.inside = True

    def end(self, frame: FrameType, index: int) -> None:
        """It has ended."""
        self.inside = False


def probe(bench: Bench) -> Outcome:
    """Confirmed when gradients are missing that the corrected program, or the other layers, have."""
    return first_decisive(bench, bench.ways(bench.flagged), lambda way: judge(bench, way))


def size(record: Record, leaf: str) -> float:
    """The norm of the last gradient of a leaf; 0 if it has none."""
    for gradients in reversed(record.backwards):
        if leaf in gradients:
            return norm(gradients[leaf])
    return 0.0


def cut_off(record: Record) -> str:
    """torch's words when backward found nothing to do, or an empty string."""
    for error in (record.run.error, *record.errors):
        if isinstance(error, RuntimeError) and CUT.search(str(error)):
            return str(error).splitlines()[0]
    return ""


def freed(bench: Bench, record: Record) -> str:
    """torch's words when a backward of the program itself came to a graph that its `autograd.grad` has freed."""
    error = record.run.error
    own = error is not None and any(path == bench.flagged.path for path, _, _ in frames_of(error))
    return str(error).splitlines()[0] if own and FREED.search(str(error)) else ""


def judge(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way of running the program."""
    holders: list[torch.nn.Module] = []
    bad = measure(bench, bench.flagged, way, after=lambda frame, index: holders.extend(owners(frame)))
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    other = bench.same(way)
    if bench.case.code == UNUSED_LAYER:
        outcome = judge_layer(bench, bench.flagged, bad, holders)
        if outcome.verdict is not Verdict.CONFIRMED or bench.corrected is None or other is None:
            return outcome
        kept: list[torch.nn.Module] = []
        repeated = measure(bench, bench.corrected, other, after=lambda frame, index: kept.extend(owners(frame)))
        if judge_layer(bench, bench.corrected, repeated, kept).verdict is Verdict.CONFIRMED:
            return cannot_tell("so it is in the corrected program", outcome.evidence, bad.run.label)
        return outcome
    good = None if bench.corrected is None or other is None else measure(bench, bench.corrected, other)
    said = cut_off(bad) or freed(bench, bad)
    if good is None and bench.case.code in WITHOUT_DERIVATIVE:
        cut = ended(bench, way, bad, said)
        if cut is not None:
            return cut
    if said:
        return refused(bench, bad, good, said)
    if not bad.backwards:
        return doubtful(bad.run, "no backward could be run through the flagged code")
    if good is not None and good.backwards:
        return compared(bench, bad, good)
    got = [leaf for leaf in bad.parameters if size(bad, leaf) > 0]
    row = Evidence("parameters with a gradient", str(len(got)), "parameters made", str(len(bad.parameters)))
    if got and len(got) == len(bad.parameters):
        return Outcome(Verdict.REFUTED, "every parameter gets a gradient", (row,), way.label)
    if not got and bad.parameters and not bad.ours:
        return Outcome(Verdict.CONFIRMED, "backward runs, and no parameter gets a gradient", (row,), way.label)
    return cannot_tell("some parameters get no gradient, and there is no corrected program", (row,), way.label)


def ended(bench: Bench, way: Way, bad: Record, said: str) -> Outcome | None:
    """The outcome for an operation that ends a graph, if it does; `said` is torch's refusal to go backward."""
    ends = Ends()
    bench.run(bench.flagged, way, ends, before=ends.begin, after=ends.end)
    if not ends.ended:
        return None
    row = Evidence("operations of the line whose result has no graph", str(ends.ended), "that are given one",
                   str(ends.given))
    if said:
        why = f"`{ends.name}` ends the graph, and backward cannot run: {said[:70]}"
        return Outcome(Verdict.CONFIRMED, why, (row,), way.label)
    if bad.users and bad.parameters and not any(size(bad, leaf) for leaf in bad.parameters):
        why = f"`{ends.name}` ends the graph: no parameter gets a gradient"
        return Outcome(Verdict.CONFIRMED, why, (row,), way.label)
    return cannot_tell(f"`{ends.name}` ends the graph, but no backward of its result was seen", (row,), way.label)


def refused(bench: Bench, bad: Record, good: Record | None, said: str) -> Outcome:
    """The outcome when backward itself says that there is nothing to do."""
    if good is None or not good.backwards or cut_off(good) or freed(bench, good):
        return doubtful(bad.run, "backward cannot run, and no corrected program shows that it should")
    reached = max(len(gradients) for gradients in good.backwards)
    rows = (Evidence("backward", said[:90], f"parameters with a gradient {bench.against}", str(reached)),)
    return Outcome(Verdict.CONFIRMED, f"backward cannot run: {said[:90]}", rows, bad.run.label)


def compared(bench: Bench, bad: Record, good: Record) -> Outcome:
    """The outcome when both programs have gradients."""
    leaves = dict.fromkeys(leaf for gradients in good.backwards for leaf in gradients)
    lost = [leaf for leaf in leaves if size(good, leaf) > 0 and size(bad, leaf) <= 1e-3 * size(good, leaf)]
    less = [leaf for leaf in leaves if abs(size(good, leaf) - size(bad, leaf)) > 1e-3 * size(good, leaf)]
    label = "parameters with a gradient"
    count = str(sum(size(bad, leaf) > 0 for leaf in leaves))
    rows = [Evidence(label, count, bench.against, str(sum(size(good, leaf) > 0 for leaf in leaves)))]
    if not lost and not less:
        why = f"the same parameters get the same gradients {bench.against}"
        return Outcome(Verdict.REFUTED, why, tuple(rows), bad.run.label)
    leaf = (lost or less)[0]
    rows.append(
        Evidence(f"norm of the gradient of {leaf}", f"{size(bad, leaf):.6g}", bench.against, f"{size(good, leaf):.6g}")
    )
    part = "gets no gradient" if lost else "misses a part of its gradient"
    return Outcome(Verdict.CONFIRMED, f"{leaf} {part}", tuple(rows), bad.run.label)


def judge_layer(bench: Bench, program: Program, bad: Record, holders: list[torch.nn.Module]) -> Outcome:
    """The outcome for a layer that no forward uses: it has no gradient while others have."""
    names = set().union(*(attributes(program.text, spot) for spot in program.spots))
    if not bad.backwards:
        return doubtful(bad.run, "no backward could be run from the result")
    layers = [getattr(holder, name, None) for holder in holders for name in names]
    mine = [p for layer in layers if isinstance(layer, torch.nn.Module) for p in layer.parameters()]
    others = [p for p in bad.alive if all(p is not one for one in mine)]
    without = sum(p.grad is None or not bool(p.grad.any()) for p in mine)
    having = sum(p.grad is not None for p in others)
    rows = (
        Evidence(
            "parameters of the layer without a gradient", f"{without} of {len(mine)}", "others with one", str(having)
        ),
    )
    if mine and without == len(mine) and having:
        return Outcome(Verdict.CONFIRMED, "the layer's parameters get no gradient while others do", rows, bad.run.label)
    if mine and not without:
        return Outcome(Verdict.REFUTED, "the layer's parameters get a gradient", rows, bad.run.label)
    return cannot_tell("the layer's parameters could not be told apart", rows, bad.run.label)
