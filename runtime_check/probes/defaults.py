"""Aliased for defaults: instances hold the very tensors that a default argument or the class body holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import graphs
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast
from runtime_check.probes.instances import instances


@dataclass
class Held:
    """Instances of the flagged class."""

    run: Run
    modules: list[torch.nn.Module] = field(default_factory=list)

    @property
    def shared(self) -> int:
        """How many tensors of instances are those of a default."""
        count = 0
        for module in self.modules:
            common = {tensor.untyped_storage().data_ptr() for tensor in graphs.held(defaults(type(module)))} - {0}
            mine = {tensor.untyped_storage().data_ptr() for tensor in graphs.held([module])}
            found = {t.untyped_storage().data_ptr() for value in unowned(module) for t in graphs.held([value])}
            count += len(common & mine) + len(found - {0})
        return count


def defaults(cls: type) -> Iterator[object]:
    """Default arguments of the constructors of a class."""
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        yield from getattr(init, "__defaults__", None) or ()
        yield from (getattr(init, "__kwdefaults__", None) or {}).values()


def unowned(module: torch.nn.Module) -> Iterator[object]:
    """Modules and Parameters that the class body holds and the instance has not replaced."""
    own = {*module.__dict__, *module._modules, *module._parameters, *module._buffers}
    for base in type(module).__mro__:
        for name, value in vars(base).items():
            if isinstance(value, (torch.nn.Module, torch.nn.Parameter)) and name not in own:
                yield value


def measure(bench: Bench, program: Program, way: Way) -> Held:
    """Runs a program and keeps the instances that it makes."""
    held = Held(Run(way.label))

    def note(module: torch.nn.Module) -> None:
        if all(module is not known for known in held.modules):
            held.modules.append(module)

    held.run = bench.run(program, way, instances(program, note))
    return held


def probe(bench: Bench) -> Outcome:
    """Confirmed when instances of the flagged class hold what a default holds."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Held, good: Held | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.modules:
        return cannot_tell("the program makes no instance of the class")
    rows = [Evidence("tensors of instances that a default holds", str(bad.shared), "instances", str(len(bad.modules)))]
    if not bad.shared:
        return Outcome(Verdict.REFUTED, "no instance holds a tensor of a default", tuple(rows))
    if good is not None and good.modules:
        rows.append(Evidence("tensors of instances that a default holds", str(bad.shared), bench.against,
                             str(good.shared)))
        if good.shared >= bad.shared:
            return cannot_tell("the corrected program shares as much", rows)
    why = f"{bad.shared} tensors of {len(bad.modules)} instances belong to a default that every instance gets"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
