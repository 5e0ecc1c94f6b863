"""ModeLeaks for modules: whether `train()` and `eval()` of a class do what Module's own do.

Instances are noted as their constructor returns, with the children that are in evaluation mode by then. After the
run, `eval()` and `train()` are called on each of them: `eval()` must reach every part and hand the module back, and
parts that the constructor put into evaluation mode must stay there. What a flagged statement freezes must still be
frozen when an optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast
from runtime_check.probes.instances import instances
from runtime_check.probes.targets import stores, value_of

MOST = 4  # instances that are tried


@dataclass
class Contract:
    """What instances of the flagged class do when their mode is switched."""

    run: Run
    modules: list[torch.nn.Module] = field(default_factory=list)
    frozen: dict[int, list[torch.nn.Module]] = field(default_factory=dict)  # of a module, by its id
    broken: list[str] = field(default_factory=list)
    held: dict[torch.nn.Module, None] = field(default_factory=dict)  # what the flagged statements froze
    thawed: int = 0  # of them, the most that were in training mode at one step


@contextmanager
def steps_seen(found: Contract) -> Iterator[None]:
    """Counts frozen parts that are in training mode at an optimizer step, while it lasts."""

    def stepped(optimizer: object, args: object, kwargs: object) -> None:
        found.thawed = max(found.thawed, sum(part.training for part in found.held))

    handle = register_optimizer_step_pre_hook(stepped)
    try:
        yield
    finally:
        handle.remove()


def measure(bench: Bench, program: Program, way: Way) -> Contract:
    """Runs a program, then switches the modes of the instances that it made."""
    found = Contract(Run(way.label))

    def note(module: torch.nn.Module) -> None:
        if all(module is not known for known in found.modules):
            found.modules.append(module)
        found.frozen[id(module)] = [part for part in module.modules() if not part.training]

    def froze(frame: FrameType, index: int) -> None:
        for target in stores(program.text, program.spots[index]):
            try:
                value = value_of(target, frame)[0]
            except LookupError:
                continue
            if isinstance(value, torch.nn.Module):
                found.held.update(dict.fromkeys(part for part in value.modules() if not part.training))

    found.run = bench.run(program, way, instances(program, note), steps_seen(found), after=froze)
    if found.thawed:
        found.broken.append(f"{found.thawed} of {len(found.held)} frozen parts are in training mode at a step")
    for module in found.modules[:MOST]:
        try:
            found.broken += problems(module, found.frozen[id(module)])
        except Exception as error:  # of the code under test
            found.broken.append(f"switching modes raises {type(error).__name__}")
    return found


def problems(module: torch.nn.Module, frozen: list[torch.nn.Module]) -> list[str]:
    """What is not as the contract of `train()` and `eval()` says."""
    said = []
    module.train()
    thawed = [part for part in frozen if part.training and part is not module]
    if thawed and module not in frozen:
        said.append(f"train() puts {len(thawed)} parts back into training mode that the constructor froze")
    returned = module.eval()
    left = sum(part.training for part in module.modules())
    if left:
        said.append(f"{left} of {len(list(module.modules()))} modules are in training mode after eval()")
    if returned is not module:
        said.append(f"eval() returns {type(returned).__name__} instead of the module")
    return said


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged class breaks the contract and the corrected one does not."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Contract, good: Contract | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.modules and not bad.held:
        return cannot_tell("the program makes no instance of the class")
    rows = [Evidence("promises of train() and eval() broken", str(len(bad.broken)), "instances", str(len(bad.modules)))]
    if not bad.broken:
        return Outcome(Verdict.REFUTED, "train() and eval() reach every part and return the module", tuple(rows))
    if good is not None and (good.modules or good.held):
        rows.append(Evidence("promises broken", str(len(bad.broken)), bench.against, str(len(good.broken))))
        if len(good.broken) >= len(bad.broken):
            return cannot_tell("so it is in the corrected program", rows)
    return Outcome(Verdict.CONFIRMED, bad.broken[0], tuple(rows))
