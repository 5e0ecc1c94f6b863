"""Modules seen after a run: hooks that pile up, averaged copies, samples that should not mix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import again, graphs, values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.graph_grows import rising, times
from runtime_check.probes.not_registered import owners

REMOVED = re.compile(r"\.remove\(\)")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LEAST = 3


def in_sight(frame: FrameType) -> list[torch.nn.Module]:
    """The modules among a frame's values and the attributes of objects among them."""
    found: list[torch.nn.Module] = []
    for value in [*frame.f_locals.values(), *graphs.own(frame.f_globals)]:
        inner = [] if isinstance(value, torch.nn.Module) else graphs.parts(value)
        for item in (value, *inner):
            if isinstance(item, torch.nn.Module) and all(item is not other for other in found):
                found.append(item)
    return found


# -- hooks --------------------------------------------------------------------------------------


@dataclass
class Hooks:
    """Hooks on the modules in sight, each time the function around the flagged line begins."""

    run: Run
    counts: list[int] = field(default_factory=list)

    def at(self, call: int) -> int:
        """Hooks at a call, counted from 1."""
        return self.counts[min(call, len(self.counts)) - 1]


def count_hooks(frame: FrameType) -> int:
    """All hooks of the modules in sight and below."""
    modules = {id(m): m for top in in_sight(frame) for m in top.modules()}
    return sum(len(getattr(m, name, ())) for m in modules.values() for name in HOOKS)


def measure_hooks(bench: Bench, program: Program, way: Way) -> Hooks:
    """Runs a program; counts where the flagged statement is reached for the first time in a call."""
    hooks = Hooks(Run(way.label))
    last: list[FrameType] = []

    def begin(frame: FrameType, index: int) -> None:
        if not last or last[0] is not frame:
            last[:] = [frame]
            hooks.counts.append(count_hooks(frame))

    hooks.run = bench.run(program, way, before=begin)
    return hooks


def probe_hooks(bench: Bench) -> Outcome:
    """Confirmed when there are more hooks at every call, and with the correction are not."""
    outcome = contrast(
        bench,
        lambda program, way: measure_hooks(bench, program, way),
        lambda bad, good: judge_hooks(bench, bad, good),
    )
    if outcome.verdict is Verdict.CANNOT_TELL and REMOVED.search(bench.flagged.text):
        return outcome  # what calls it may remove the hooks in between
    return again.judged(bench, outcome, lambda way: again.outcome(bench, way, measure_hooks, judge_hooks))


def judge_hooks(bench: Bench, bad: Hooks, good: Hooks | None) -> Outcome:
    """The outcome of counting hooks."""
    many = len(bad.counts)
    if many < LEAST:
        return doubtful(bad.run, f"the function ran {times(many)}, too few to see hooks pile up")
    rows = [Evidence(f"hooks on the modules at call {many}", str(bad.at(many)), "at call 2", str(bad.at(2)))]
    if not rising([bad.counts[0], *bad.counts]):
        return Outcome(Verdict.REFUTED, "the number of hooks stays the same from call to call", tuple(rows))
    if good is not None and len(good.counts) >= LEAST:
        rows.append(Evidence(f"hooks at call {many}", str(bad.at(many)), bench.against, str(good.at(many))))
        if good.at(many) >= bad.at(many):
            return cannot_tell("hooks pile up in the corrected program as well", rows)
    why = f"each call leaves hooks behind: {bad.at(2)} at call 2, {bad.at(many)} at call {many}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


# -- averaged copies ----------------------------------------------------------------------------


@dataclass
class Buffers:
    """Buffers of two modules of one structure: those that moved in one and not in the other."""

    run: Run
    looks: int = 0
    moved: int = 0
    stale: set[str] = field(default_factory=set)
    starts: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    alive: list[torch.nn.Module] = field(default_factory=list)

    def look(self, frame: FrameType) -> None:
        """Compares the modules in sight with how they were at the first look."""
        self.looks += 1
        modules = [m for m in in_sight(frame) if any(True for _ in m.buffers())]
        for module in modules:
            if id(module) not in self.starts:
                self.alive.append(module)
                self.starts[id(module)] = {n: b.detach().clone() for n, b in module.named_buffers()}
        changed = {id(m): self.changed(m) for m in modules}
        self.stale.clear()
        for one in modules:
            for other in modules:
                names = self.starts[id(one)].keys()
                if one is not other and names == self.starts[id(other)].keys():
                    self.stale |= changed[id(one)] - changed[id(other)]
                    self.moved = max(self.moved, len(changed[id(one)]))

    def changed(self, module: torch.nn.Module) -> set[str]:
        """Floating buffers that are other than at the first look."""
        start = self.starts[id(module)]
        return {
            name
            for name, buffer in module.named_buffers()
            if buffer.is_floating_point() and name in start and not torch.equal(buffer, start[name])
        }


def measure_buffers(bench: Bench, program: Program, way: Way) -> Buffers:
    """Runs a program and looks after each execution of the flagged statement."""
    buffers = Buffers(Run(way.label))
    buffers.run = bench.run(program, way, after=lambda frame, index: buffers.look(frame))
    return buffers


def probe_buffers(bench: Bench) -> Outcome:
    """Confirmed when buffers of the model move, those of its copy do not, and with the correction do."""
    return contrast(
        bench,
        lambda program, way: measure_buffers(bench, program, way),
        lambda bad, good: judge_buffers(bench, bad, good),
    )


def judge_buffers(bench: Bench, bad: Buffers, good: Buffers | None) -> Outcome:
    """The outcome of comparing buffers."""
    label = "buffers of the model that moved and of its copy did not"
    rows = [Evidence(label, str(len(bad.stale)), "moved in the model", str(bad.moved))]
    if not bad.moved:
        return doubtful(bad.run, "no buffer of a model with a copy moved")
    if not bad.stale:
        return Outcome(Verdict.REFUTED, "the copy's buffers move with the model's", tuple(rows))
    if good is not None and good.moved:
        rows.append(Evidence(label, str(len(bad.stale)), bench.against, str(len(good.stale))))
        if len(good.stale) >= len(bad.stale):
            return cannot_tell("so it is in the corrected program", rows)
    why = f"{min(bad.stale)} moves in the model and stays as it was in the averaged copy"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


# -- samples of a batch -------------------------------------------------------------------------


@dataclass
class Samples:
    """Whether an output depends on other samples of its batch."""

    run: Run
    calls: list[tuple[torch.nn.Module, tuple[object, ...]]] = field(default_factory=list)
    examined: int = 0
    gap: float = 0.0
    own: float = 0.0


@contextmanager
def calls_seen(samples: Samples, modules: list[torch.nn.Module]) -> Iterator[None]:
    """Notes the calls of some modules."""

    def begin(module: torch.nn.Module, args: tuple[object, ...]) -> None:
        if any(module is one for one in modules) and len(samples.calls) < LEAST:
            samples.calls.append((module, args))

    handle = register_module_forward_pre_hook(begin)
    try:
        yield
    finally:
        handle.remove()


def measure_samples(bench: Bench, program: Program, way: Way) -> Samples:
    """Runs a program, then calls the flagged module with its first sample changed."""
    samples = Samples(Run(way.label))
    modules: list[torch.nn.Module] = []
    watch = calls_seen(samples, modules)
    samples.run = bench.run(program, way, watch, after=lambda frame, index: modules.extend(owners(frame)))
    for module, args in samples.calls:
        change_first(samples, module, args)
    return samples


def change_first(samples: Samples, module: torch.nn.Module, args: tuple[object, ...]) -> None:
    """Changes sample 0 of the first input and looks at the outputs of the others."""
    given = args[0] if args else None
    if not isinstance(given, torch.Tensor) or given.dim() < 2 or len(given) < 2:
        return
    other = given.detach().clone()
    if given.is_floating_point():
        other[0] += 1.0
    else:
        other[0] = given[0].roll(1)  # other indices, all of them valid
    if torch.equal(other, given):
        return
    module.eval()
    with torch.no_grad():
        one = values.flat(module(given, *args[1:]), "output")
        two = dict(values.flat(module(other, *args[1:]), "output"))
    for path, a in one:
        b = two.get(path)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() and len(a) == len(given):
            samples.examined += 1
            samples.gap = max(samples.gap, float((a[1:] - b[1:]).abs().max()))
            samples.own = max(samples.own, float((a[0] - b[0]).abs().max()))


def probe_samples(bench: Bench) -> Outcome:
    """Confirmed when one sample changes the outputs of others, and with the correction does not."""
    return contrast(
        bench,
        lambda program, way: measure_samples(bench, program, way),
        lambda bad, good: judge_samples(bench, bad, good),
    )


def judge_samples(bench: Bench, bad: Samples, good: Samples | None) -> Outcome:
    """The outcome of changing one sample."""
    if not bad.examined:
        return doubtful(bad.run, "the module was not called with a batch whose output could be compared")
    label = "change of the other samples' outputs"
    rows = [Evidence(label, f"{bad.gap:.3g}", "change of its own output", f"{bad.own:.3g}")]
    if bad.gap <= values.ABSOLUTE:
        return Outcome(Verdict.REFUTED, "the output of a sample does not depend on other samples", tuple(rows))
    if good is None or not good.examined:
        return cannot_tell("samples of a batch mix, and there is no corrected program to compare with", rows)
    rows.append(Evidence(label, f"{bad.gap:.3g}", bench.against, f"{good.gap:.3g}"))
    if good.gap > values.ABSOLUTE:
        return cannot_tell("samples mix in the corrected program as well", rows)
    return Outcome(Verdict.CONFIRMED, "changing one sample changes the outputs of other samples", tuple(rows))
