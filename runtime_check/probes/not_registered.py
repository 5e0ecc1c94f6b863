"""NotRegistered: a module holds tensors that its parameters, buffers and state_dict do not know.

The module is the one that runs the flagged statement. After the run, everything reachable through its
attributes is compared with what is registered, and again after `.to(float64)`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from runtime_check.amounts import converts
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import Lines
from runtime_check.probes import graphs
from runtime_check.probes.bench import Bench, Program, Run, Way, doubtful, first_decisive

BUFFERS = "TL409"  # about constant tensors; the other rules are about trainable ones
IN_FORWARD = "TL408"
CONVERTED = "TL407"  # about what conversions make of parameters
DEPTH = 6


@dataclass
class Registry:
    """What the modules of a run hold, registered or not."""

    run: Run
    modules: list[torch.nn.Module] = field(default_factory=list)
    strays: dict[str, torch.Tensor] = field(default_factory=dict)
    registered: int = 0
    followed: int = 0  # strays that changed dtype with the module
    moved: int = 0  # registered tensors that did
    dtype: str = ""  # what the module was converted to
    made: list[torch.Tensor] = field(default_factory=list)  # parameters made while the statement ran
    empty: str = ""  # an attribute of the statement with nothing in it

    @property
    def missing(self) -> int:
        """How many elements are unknown to the module."""
        return sum(t.numel() for t in self.strays.values())


def attributes(text: str, spot: Lines) -> set[str]:
    """Names of attributes that a statement mentions as `self.name`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, lineno=line) if spot.first <= line <= spot.last:
                found.add(name)
    return found


def strays(module: torch.nn.Module, constants: bool) -> dict[str, torch.Tensor]:
    """Tensors reachable through attributes that are no parameter or buffer, by their path.

    Trainable tensors, and with `constants` all floating ones. Modules in plain containers are entered.
    """
    known = {id(t) for t in (*module.parameters(), *module.buffers())}
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def visit(path: str, value: object, depth: int) -> None:
        if id(value) in seen or depth > DEPTH or len(seen) > graphs.LIMIT:
            return
        seen.add(id(value))
        match value:
            case torch.Tensor():
                if id(value) not in known and (value.requires_grad or constants) and value.is_floating_point():
                    found[path] = value
            case torch.nn.Module():
                for name, tensor in (
                    *value.named_parameters(recurse=False),
                    *value.named_buffers(recurse=False),
                ):
                    if id(tensor) not in known:
                        found[f"{path}.{name}".lstrip(".")] = tensor
                for name, child in value.named_children():
                    visit(f"{path}.{name}".lstrip("."), child, depth + 1)
                for name, item in vars(value).items():
                    if name not in ("_parameters", "_buffers", "_modules"):
                        visit(f"{path}.{name}".lstrip("."), item, depth + 1)
            case dict():
                for key, item in value.items():
                    visit(f"{path}[{key!r}]", item, depth + 1)
            case list() | tuple() | set() | frozenset():
                for index, item in enumerate(value):
                    visit(f"{path}[{index}]", item, depth + 1)

    visit("", module, 0)
    return found


@contextmanager
def new_parameters(into: list[torch.Tensor]) -> Iterator[None]:
    """Collects every parameter that any module registers."""
    handle = register_module_parameter_registration_hook(lambda module, name, parameter: into.append(parameter))
    try:
        yield
    finally:
        handle.remove()


def owners(frame: FrameType) -> list[torch.nn.Module]:
    """The modules that a statement works on: the method's own, else those with a local name."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if isinstance(first, torch.nn.Module):
        return [first]
    return [value for value in frame.f_locals.values() if isinstance(value, torch.nn.Module)]


def measure(bench: Bench, program: Program, way: Way) -> Registry:
    """Runs a program and looks at the modules that ran the flagged statement."""
    registry = Registry(Run(way.label))
    ids: set[int] = set()
    made: list[torch.Tensor] = []

    def begin(frame: FrameType, index: int) -> None:
        made.clear()

    def look(frame: FrameType, index: int) -> None:
        registry.made.extend(made)
        for module in owners(frame):
            if id(module) not in ids:
                ids.add(id(module))
                registry.modules.append(module)

    with new_parameters(made):
        registry.run = bench.run(program, way, before=begin, after=look)
    named = set().union(*(attributes(program.text, spot) for spot in program.spots))
    constants = bench.case.code == BUFFERS
    for module in registry.modules:
        examine(registry, module, named, constants)
    return registry


def examine(registry: Registry, module: torch.nn.Module, named: set[str], constants: bool) -> None:
    """Adds what one module holds. A module that cannot be asked (no super().__init__) has nothing."""
    try:
        found = strays(module, constants)
        known = [*module.parameters(), *module.buffers()]
    except AttributeError:
        return
    about = {path: t for path, t in found.items() if not named or path.split(".")[0].split("[")[0] in named}
    registry.registered += len(known)
    registry.strays.update({f"{type(module).__name__}.{path}": t for path, t in about.items()})
    for name in sorted(named):
        if isinstance(getattr(module, name, None), (list, tuple, dict, set)) and not getattr(module, name):
            registry.empty = registry.empty or f"{type(module).__name__}.{name}"
    # Something else than what the tensors are now, else nothing could be seen.
    other = torch.float32 if any(t.dtype == torch.float64 for t in about.values()) else torch.float64
    try:
        module.to(other)
    except Exception:
        return
    after = strays(module, constants)
    registry.dtype = str(other).removeprefix("torch.")
    registry.followed += sum(1 for path in about if path in after and after[path].dtype == other)
    registry.moved += sum(1 for t in module.parameters() if t.dtype == other)


def probe(bench: Bench) -> Outcome:
    """Confirmed when tensors are missing in the flagged program and none are in the corrected one."""
    judge = judge_forward if bench.case.code == IN_FORWARD else judge_attributes
    return first_decisive(bench, bench.ways(bench.flagged), lambda way: judge(bench, way))


def unchanged(bench: Bench) -> bool:
    """Whether what the flagged statement converts to depends on where it runs, and on what it is given."""
    text, spots = bench.flagged.text, bench.flagged.spots
    return any(converts(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
               and any(spot.first <= node.lineno <= spot.last for spot in spots))


def judge_attributes(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way, for tensors kept in attributes."""
    bad = measure(bench, bench.flagged, way)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    if not bad.modules:
        return doubtful(bad.run, "no module was found to work on the flagged statement")
    rows = [Evidence("tensors that the module does not know", str(len(bad.strays)), "registered", str(bad.registered))]
    if not bad.strays and bench.case.code == CONVERTED and unchanged(bench):
        return cannot_tell("the conversion changes nothing on this machine: it gives back the parameter itself", rows,
                           way.label)
    if not bad.strays and bad.empty and not bench.idle.said:
        return cannot_tell(f"`{bad.empty}` is empty, so there is nothing to register", rows, way.label)
    if not bad.strays:
        return Outcome(
            Verdict.REFUTED,
            "every trainable tensor that the module holds is registered",
            tuple(rows),
            way.label,
        )
    first = next(iter(bad.strays))
    stay = len(bad.strays) - bad.followed
    rows.append(
        Evidence(
            f"of them still in their dtype after .to({bad.dtype})",
            str(stay),
            "registered that changed",
            str(bad.moved),
        )
    )
    other = bench.same(way)
    if bench.corrected is not None and other is not None:
        good = measure(bench, bench.corrected, other)
        rows.append(
            Evidence(
                "tensors that the module does not know",
                str(len(bad.strays)),
                bench.against,
                str(len(good.strays)),
            )
        )
        if not good.modules or len(good.strays) >= len(bad.strays):
            return cannot_tell("the corrected program does not register them either", rows, way.label)
    elif not stay:
        return cannot_tell("the tensors are not registered, but they follow .to()", rows, way.label)
    why = f"{first} and {len(bad.strays) - 1} more tensors" if len(bad.strays) > 1 else first
    verb = "are" if len(bad.strays) > 1 else "is"
    numbers = f"({bad.missing} elements) {verb} missing in parameters() and state_dict()"
    return Outcome(Verdict.CONFIRMED, f"{why} {numbers}", tuple(rows), way.label)


def loose(registry: Registry) -> list[torch.Tensor]:
    """Parameters that the flagged statement made and no module of the run registers."""
    known = {id(p) for module in registry.modules for p in module.parameters()}
    return [p for p in registry.made if id(p) not in known]


def judge_forward(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way, for layers made while forward runs."""
    bad = measure(bench, bench.flagged, way)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    new, label = len(loose(bad)), "new parameters that the flagged line makes and the module lacks"
    rows = [Evidence(label, str(new), "executions", str(bad.run.hits))]
    if not new:
        why = "the flagged line makes no parameter that the module lacks"
        return Outcome(Verdict.REFUTED, why, tuple(rows), way.label)
    other = bench.same(way)
    if bench.corrected is not None and other is not None:
        good = len(loose(measure(bench, bench.corrected, other)))
        rows.append(Evidence(label, str(new), bench.against, str(good)))
        if good >= new:
            return cannot_tell("the corrected program makes as many", rows, way.label)
    why = f"each execution makes new parameters ({new} in {bad.run.hits}) that the module does not register"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows), way.label)
