"""ModeLeaks: grad, autocast, training or another mode is different after the call from before.

Modes are noted when the function around the flagged statement is entered and each time it is left, be it
by a `yield`; for a program, before and after the whole. For a rule about training they are compared from one
optimizer step to the next, if any is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import graphs, train_contract
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast
from runtime_check.trace import owner_of

FLAG = "training flag"
CONTRACT = "TL415"  # about the methods that switch the mode themselves
STEPS = {"TL515"}  # about the mode in which a model is trained, wherever it was set
GRADIENT = {"TL211", "TL212"}  # about modes of autograd: a model that stays in eval mode is not their business


@dataclass
class Modes:
    """Modes at entry and exit that differ: name -> (before, after)."""

    run: Run
    calls: int = 0
    leaks: dict[str, tuple[str, str]] = field(default_factory=dict)


def modes(modules: list[torch.nn.Module]) -> dict[str, str]:
    """The process-wide modes, and the training flag of modules."""
    found = {
        "grad mode": str(torch.is_grad_enabled()),
        "inference mode": str(torch.is_inference_mode_enabled()),
        "autocast": str(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "anomaly mode": str(torch.is_anomaly_enabled()),
    }
    for number, module in enumerate(modules, 1):
        found[f"{FLAG} of {type(module).__name__} {number}"] = str(module.training)
    return found


def in_sight(frame: FrameType) -> list[torch.nn.Module]:
    """Modules among the arguments of a call, and in objects among them."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: list[torch.nn.Module] = []
    for name in names:
        value = frame.f_locals.get(name)
        candidates = [value, *graphs.parts(value)] if not isinstance(value, torch.nn.Module) else [value]
        found += [item for item in candidates if isinstance(item, torch.nn.Module) and hasattr(item, "training")]
    return found


class Watch:
    """Follows the calls of the function around the flagged statement."""

    def __init__(self, program: Program, found: Modes) -> None:
        self.found, self.path = found, program.path
        self.owners = [owner_of(program.text, spot.first) for spot in program.spots]
        self.open: dict[FrameType, tuple[list[torch.nn.Module], dict[str, str]]] = {}
        self.ended: dict[FrameType, None] = {}

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        """The profiler."""
        if event not in ("call", "return") or frame.f_code.co_filename != self.path or not self.mine(frame):
            return
        if event == "call":
            if frame not in self.open:
                seen = in_sight(frame)
                self.open[frame] = seen, modes(seen)
                self.found.calls += 1
        elif frame in self.open:
            seen, before = self.open[frame]
            compare(self.found, before, modes(seen))

    def mine(self, frame: FrameType) -> bool:
        """Whether a frame is of one of the functions."""
        code = frame.f_code
        return any(
            code.co_name == name and a <= code.co_firstlineno <= b for name, a, b in self.owners if name != "<module>"
        )


def compare(found: Modes, before: dict[str, str], after: dict[str, str]) -> None:
    """Adds the modes that differ."""
    for name, old in before.items():
        if name in after and after[name] != old:
            found.leaks.setdefault(name, (old, after[name]))


@contextmanager
def watched(program: Program, found: Modes) -> Iterator[None]:
    """Collects while it lasts."""
    old = sys.getprofile()
    before = modes([])
    sys.setprofile(Watch(program, found).profile)
    try:
        yield
    finally:
        sys.setprofile(old)
        compare(found, before, modes([]))


@contextmanager
def trained(found: Modes) -> Iterator[None]:
    """Compares the training flags of modules from one optimizer step to the next, while it lasts."""
    now: dict[torch.nn.Module, bool] = {}
    before: dict[torch.nn.Module, bool] = {}

    def called(module: torch.nn.Module, args: object) -> None:
        if torch.is_grad_enabled():
            now[module] = module.training

    def stepped(optimizer: object, args: object, kwargs: object) -> None:
        found.calls += 1
        for module, flag in now.items():
            if before.get(module) and not flag:
                found.leaks.setdefault(f"{FLAG} of {type(module).__name__} in a training step", ("True", "False"))
        before.update(now)
        now.clear()

    handles = [register_module_forward_pre_hook(called), register_optimizer_step_pre_hook(stepped)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure(bench: Bench, program: Program, way: Way) -> Modes:
    """Runs a program and compares modes."""
    found = Modes(Run(way.label))
    if bench.case.code in STEPS:
        steps = Modes(found.run)
        found.run = steps.run = bench.run(program, way, trained(steps), watched(program, found))
        return steps if steps.calls else found
    found.run = bench.run(program, way, watched(program, found))
    if bench.case.code in GRADIENT:
        found.leaks = {name: pair for name, pair in found.leaks.items() if not name.startswith(FLAG)}
    return found


def probe(bench: Bench) -> Outcome:
    """Confirmed when a mode leaks from the flagged program and none from the corrected one."""
    if bench.case.code == CONTRACT:
        return train_contract.probe(bench)
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Modes, good: Modes | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.leaks:
        row = Evidence("modes changed after the call", "0", "calls", str(bad.calls))
        return Outcome(Verdict.REFUTED, "every mode is as before when the function is left", (row,))
    name, (before, after) = next(iter(bad.leaks.items()))
    rows = [Evidence(f"{name} after", after, "before", before)]
    if good is not None:
        rows.append(Evidence("modes that stay changed", str(len(bad.leaks)), bench.against, str(len(good.leaks))))
        if name in good.leaks:
            return cannot_tell(f"{name} stays changed in the corrected program as well", rows)
    return Outcome(Verdict.CONFIRMED, f"{name} is {before} before the call and {after} after it", tuple(rows))
