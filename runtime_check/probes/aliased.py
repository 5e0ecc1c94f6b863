"""Aliased: what a statement stores shares its memory with something that should be independent of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import defaults, graphs
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast
from runtime_check.probes.not_registered import owners, strays
from runtime_check.probes.targets import stores, value_of

STALE = "TL410"  # about references that a conversion does not follow
DEFAULTS = "TL413"  # about what a default argument or the class body holds


@dataclass
class Sharing:
    """Tensors of what was stored, and those of them that are reached twice."""

    run: Run
    stored: int = 0
    shared: set[int] = field(default_factory=set)
    examined: int = 0


def pointers(value: object, depth: int = 0) -> list[int]:
    """The memory of every tensor slot in a value; a tensor in two slots is given twice."""
    match value:
        case torch.Tensor():
            return [value.untyped_storage().data_ptr()]
        case torch.nn.Module():
            slots = [t for m in modules(value) for t in (*m._parameters.values(), *m._buffers.values())]
            return [t.untyped_storage().data_ptr() for t in slots if t is not None]
        case dict() if depth < 6:
            return [p for item in value.values() for p in pointers(item, depth + 1)]
        case list() | tuple() | set() if depth < 6:
            return [p for item in value for p in pointers(item, depth + 1)]
        case _ if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
            return [int(value.__array_interface__["data"][0])]
    return []


def modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and all below it, one that is registered twice being given twice."""
    children = [child for child in module._modules.values() if child is not None]
    return [module, *(inner for child in children for inner in modules(child))]


def look(sharing: Sharing, frame: FrameType, targets: list[ast.expr]) -> None:
    """Compares what a statement stored with everything else in sight."""
    scope: dict[str, object] = {**frame.f_globals, **frame.f_locals}
    mine: list[int] = []
    others: list[object] = []
    owners: list[object] = []
    for target in targets:
        try:
            mine += [p for p in pointers(value_of(target, frame)[0]) if p]
            match target:
                case ast.Name(id=name):
                    scope.pop(name, None)
                case ast.Attribute(value=inner, attr=name):
                    # The object stays in sight, the attribute that was assigned does not.
                    owner = value_of(inner, frame)[0]
                    owners.append(owner)
                    others += other_parts(owner, name)
        except LookupError:
            continue
    reach = graphs.held([*others, *graphs.own(scope)], without=owners)
    memory = {t.untyped_storage().data_ptr() for t in reach} - {0}
    memory |= {p for value in [*others, *scope.values()] for p in array_memory(value)}
    sharing.examined += 1
    sharing.stored = max(sharing.stored, len(mine))
    sharing.shared |= {p for p in mine if p in memory or mine.count(p) > 1}


def other_parts(owner: object, name: str) -> list[object]:
    """What an object holds in other attributes than one."""
    found: list[object] = []
    for key, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        if key in ("_parameters", "_buffers", "_modules") and isinstance(value, dict):
            found += [item for inner, item in value.items() if inner != name]
        elif key != name:
            found.append(value)
    return found


def array_memory(value: object) -> list[int]:
    """The memory of a numpy array."""
    return pointers(value) if type(value).__module__ == "numpy" else []


def measure(bench: Bench, program: Program, way: Way) -> Sharing:
    """Runs a program and looks after each execution of the flagged statement."""
    sharing = Sharing(Run(way.label))
    targets = [stores(program.text, spot) for spot in program.spots]

    def returned(name: str, value: object) -> None:
        # A `return` that is flagged itself stores nothing: what is in its value twice is shared.
        if not any(targets):
            mine = [p for p in pointers(value) if p]
            sharing.stored = max(sharing.stored, len(mine))
            sharing.shared |= {p for p in mine if mine.count(p) > 1}

    sharing.run = bench.run(
        program, way, after=lambda frame, index: look(sharing, frame, targets[index]), returned=returned)
    return sharing


@dataclass
class Stale:
    """Second references to registered tensors, and those of them that a conversion leaves behind."""

    run: Run
    modules: list[torch.nn.Module] = field(default_factory=list)
    after: int = 0
    registered: int = 0


def measure_stale(bench: Bench, program: Program, way: Way) -> Stale:
    """Runs a program, then converts the modules that ran the flagged statement."""
    stale = Stale(Run(way.label))

    def note(frame: FrameType, index: int) -> None:
        stale.modules += [m for m in owners(frame) if all(m is not other for other in stale.modules)]

    stale.run = bench.run(program, way, after=note)
    for module in stale.modules:
        # The program itself may have converted it before: then the references are behind already.
        now = {t.dtype for t in module.buffers() if t.is_floating_point()}
        module.to(torch.float32 if torch.float64 in now else torch.float64)
        stale.after += len(strays(module, True))
        stale.registered += sum(t.is_floating_point() for t in module.buffers())
    return stale


def judge_stale(bench: Bench, bad: Stale, good: Stale | None) -> Outcome:
    """The outcome for second references to buffers."""
    left = bad.after
    rows = [Evidence("references left behind by a conversion", str(left), "buffers converted", str(bad.registered))]
    if not bad.modules:
        return cannot_tell("no module was found to work on the flagged statement", rows)
    if left <= 0:
        return Outcome(Verdict.REFUTED, "after a conversion every reference is to a registered tensor", tuple(rows))
    if good is not None and good.modules:
        rows.append(Evidence("references left behind", str(left), bench.against, str(good.after)))
        if good.after >= left:
            return cannot_tell("so it is in the corrected program", rows)
    why = f"after a conversion {left} references are to tensors that the module no longer uses"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program shares memory that the corrected one does not."""
    if bench.case.code == DEFAULTS:
        return defaults.probe(bench)
    if bench.case.code == STALE:
        return contrast(
            bench,
            lambda program, way: measure_stale(bench, program, way),
            lambda bad, good: judge_stale(bench, bad, good),
        )
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Sharing, good: Sharing | None) -> Outcome:
    """The outcome of one way of running the program."""
    rows = [Evidence("tensors that share memory", str(len(bad.shared)), "stored", str(bad.stored))]
    if not bad.stored:
        return cannot_tell("the flagged line stored no tensor", rows)
    if not bad.shared:
        return Outcome(Verdict.REFUTED, "what is stored shares its memory with nothing else in sight", tuple(rows))
    if good is None or not good.examined:
        return cannot_tell("memory is shared, and there is no corrected program to compare with", rows)
    rows.append(Evidence("tensors that share memory", str(len(bad.shared)), bench.against, str(len(good.shared))))
    if len(good.shared) >= len(bad.shared):
        return cannot_tell("the corrected program shares as much", rows)
    why = f"{len(bad.shared)} stored tensors share their memory, {len(good.shared)} {bench.against}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
