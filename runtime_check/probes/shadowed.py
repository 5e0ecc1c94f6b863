"""Raises for what torch, and not the program itself, does with a Module.

A program may run to its end because it never calls `eval()` or `state_dict()`. So the instances that it makes are
put through the calls that torch, a parent or an optimizer makes of the flagged name. And a forward that returns
nothing is told by what it returns, whether the program goes on to use that or not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast
from runtime_check.probes.instances import instances
from runtime_check.sandbox import shorten
from runtime_check.trace import class_around

MOST = 3  # instances that are tried
CALLS: dict[str, tuple[str, Callable[[nn.Module], object]]] = {
    "train": ("eval()", lambda module: module.eval()),
    "eval": ("eval()", lambda module: module.eval()),
    "parameters": ("parameters()", lambda module: list(module.parameters())),
    "named_parameters": ("parameters()", lambda module: list(module.parameters())),
    "modules": ("modules()", lambda module: list(module.modules())),
    "named_modules": ("a parent's modules()", lambda module: list(nn.Sequential(module).modules())),
    "children": ("children()", lambda module: list(module.children())),
    "named_children": ("children()", lambda module: list(module.children())),
    "state_dict": ("a parent's state_dict()", lambda module: nn.Sequential(module).state_dict()),
    "apply": ("a parent's apply(fn)", lambda module: nn.Sequential(module).apply(lambda part: None)),
    "zero_grad": ("zero_grad()", lambda module: module.zero_grad()),
    "to": ("to('cpu')", lambda module: module.to("cpu")),
    "_apply": ("to('cpu')", lambda module: module.to("cpu")),
    "_modules": ("parameters()", lambda module: list(module.parameters())),
    "_parameters": ("state_dict()", lambda module: module.state_dict()),
    "_buffers": ("state_dict()", lambda module: module.state_dict()),
    "__hash__": ("parameters()", lambda module: list(module.parameters())),
}


@dataclass
class Calls:
    """What instances of the flagged class answered."""

    run: Run
    modules: list[nn.Module] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def flagged_names(program: Program) -> set[str]:
    """The names of the methods that the flagged lines define, or of the attributes that they store."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(program.text)):
        if not any(spot.first == getattr(node, "lineno", 0) for spot in program.spots):
            continue
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef():
                found.add("__hash__")  # a dataclass: `parameters()` keeps modules in a set
            case ast.Assign(targets=targets):
                found |= {t.attr if isinstance(t, ast.Attribute) else t.id for t in targets
                          if isinstance(t, (ast.Attribute, ast.Name))}
            case ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name)):
                found.add(name)
    return found


def measure(bench: Bench, program: Program, way: Way, names: set[str]) -> Calls:
    """Runs a program, then makes torch's calls of the instances."""
    found = Calls(Run(way.label))

    def note(module: nn.Module) -> None:
        if all(module is not known for known in found.modules):
            found.modules.append(module)

    found.run = bench.run(program, way, instances(program, note))
    for module in found.modules[:MOST]:
        for name in sorted(names):
            said = trouble(module, name)
            if said:
                found.failed.append(said)
    return found


def trouble(module: nn.Module, name: str) -> str:
    """What goes wrong with a name of Module on an instance, "" if nothing does."""
    registered = module.__dict__.get("_modules")
    if isinstance(registered, dict) and name in registered and getattr(module, name, None) is not registered[name]:
        return f"reading .{name} gives {type(getattr(module, name)).__name__}, not the layer that is registered"
    if name == "training":
        return "training is a flag on the instance" if callable(getattr(type(module), name, None)) else ""
    if name not in CALLS:
        return ""
    what, call = CALLS[name]
    try:
        call(module)
        if name == "train" and module.training:
            return "the module is in training mode after eval()"
    except (TypeError, AttributeError) as error:
        return f"{what} raises {type(error).__name__}: {shorten(str(error), 100)}"
    except Exception:
        return "" if name != "train" else "eval() runs the code of train()"
    return ""


def probe(bench: Bench) -> Outcome:
    """Confirmed when a call of torch's fails on an instance of the flagged class, and not on the corrected one's."""
    names = flagged_names(bench.flagged)
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way, names),
        lambda bad, good: judge(bench, bad, good),
    )


def judge(bench: Bench, bad: Calls, good: Calls | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.modules:
        return cannot_tell("the program makes no instance of the class")
    rows = [Evidence("calls by torch that fail", str(len(bad.failed)), "instances", str(len(bad.modules)))]
    if not bad.failed:
        return Outcome(Verdict.REFUTED, "torch's calls of that name work on every instance", tuple(rows))
    if good is not None and good.modules:
        rows.append(Evidence("calls by torch that fail", str(len(bad.failed)), bench.against, str(len(good.failed))))
        if len(good.failed) >= len(bad.failed):
            return cannot_tell("so it is in the corrected program", rows)
    return Outcome(Verdict.CONFIRMED, bad.failed[0], tuple(rows))


@dataclass
class Outputs:
    """How often the forward of the flagged classes returned, and how often it returned None."""

    run: Run
    calls: int = 0
    nothing: int = 0


@contextmanager
def outputs_seen(program: Program, found: Outputs) -> Iterator[None]:
    """Counts while it lasts."""
    classes = {name for spot in program.spots if (name := class_around(program.text, spot.first))}

    def called(module: nn.Module, args: object, output: object) -> None:
        if type(module).__name__ in classes:
            found.calls += 1
            found.nothing += output is None

    handle = register_module_forward_hook(called)
    try:
        yield
    finally:
        handle.remove()


def returned(bench: Bench, program: Program, way: Way) -> Outputs:
    """Runs a program and looks at what the flagged classes return."""
    found = Outputs(Run(way.label))
    found.run = bench.run(program, way, outputs_seen(program, found))
    return found


def probe_output(bench: Bench) -> Outcome:
    """Confirmed when forward returns None, and the corrected one does not."""
    return contrast(bench, lambda program, way: returned(bench, program, way),
                    lambda bad, good: judge_output(bench, bad, good))


def judge_output(bench: Bench, bad: Outputs, good: Outputs | None) -> Outcome:
    """The outcome of one way of running the program."""
    if not bad.calls:
        return cannot_tell("no instance of the class was called")
    rows = [Evidence("calls of forward that return None", str(bad.nothing), "calls", str(bad.calls))]
    ends = not bench.case.whole and any(may_end(bench.flagged.text, spot.first) for spot in bench.flagged.spots)
    if not bad.nothing and ends:
        return cannot_tell("forward returns something each time, and its end was not come to", rows)
    if not bad.nothing:
        return Outcome(Verdict.REFUTED, "forward returns something each time", tuple(rows))
    if good is not None and good.calls:
        rows.append(Evidence("calls that return None", str(bad.nothing), bench.against, str(good.nothing)))
        if good.nothing >= bad.nothing:
            return cannot_tell("so it is in the corrected program", rows)
    return Outcome(Verdict.CONFIRMED, f"forward returns None in {bad.nothing} of {bad.calls} calls", tuple(rows))


def may_end(text: str, line: int) -> bool:
    """Whether the function around a line can come to its end without a `return`, as far as its form tells."""
    around = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
              and node.lineno <= line <= (node.end_lineno or 0)]
    return bool(around) and goes_on(max(around, key=lambda node: node.lineno).body)


def goes_on(body: list[ast.stmt]) -> bool:
    """Whether what follows a block can be come to."""
    match body[-1]:
        case ast.Return(value=value):
            return value is None
        case ast.Raise():
            return False
        case ast.If(body=first, orelse=second):
            return goes_on(first) or not second or goes_on(second)
        case ast.With(body=inner):
            return goes_on(inner)
        case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
            if last and not goes_on(last):
                return False
            return goes_on(other or inner) or any(goes_on(handler.body) for handler in handlers)
        case ast.While(test=ast.Constant(value=True)):
            return False
        case ast.Match(cases=cases):
            return any(goes_on(case.body) for case in cases)
    return True
