"""Takes a softmax or sigmoid away from what a loss is given, or makes a logarithm of it.

The value is traced back from the loss to the call that squashes it: in the same function, in the `forward` of a
class of the file, or in the last layer of a Sequential. It is changed there if nothing but losses, and `argmax`,
which gives the same either way, looks at the result; else the loss is given what was squashed, or the change is
only shown.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.findings import Edit, Safety
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.fixes.statements import remove
from torchlint.model.losses import loss_calls
from torchlint.model.values import Kind, Value
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

FUNCTIONS = {
    "torch.softmax", "torch.nn.functional.softmax", "torch.special.softmax", "torch.sigmoid",
    "torch.nn.functional.sigmoid", "torch.special.expit",
}
LAYERS = {"torch.nn.Softmax", "torch.nn.Sigmoid", "torch.nn.Softmax2d"}
LOGS = {
    "torch.softmax": "torch.log_softmax", "torch.nn.functional.softmax": "torch.nn.functional.log_softmax",
    "torch.special.softmax": "torch.special.log_softmax", "torch.nn.Softmax": "torch.nn.LogSoftmax",
}
PASSING = {
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "float", "double", "to", "cuda", "cpu", "contiguous", "half",
    "permute", "transpose", "detach", "clone",
}
RANKING = {"argmax", "argsort", "topk", "shape", "size", "device", "dtype"}
STEPS = 8


@dataclass(frozen=True)
class Squash:
    """The call that squashes, with its argument; `layer` is the constructor of a Sequential's last layer instead."""

    call: ast.Call
    argument: ast.expr | None
    layer: ast.Call | None = None


def without(model: FileModel, given: ast.expr, losses: tuple[str, ...], *, log: bool = False) -> Repair | None:
    """A repair that hands a loss what was squashed, or with `log` the logarithm of it; None if it cannot be found.

    `given` is the input of a loss, `losses` are the functional names of those that want it that way.
    """
    found = squash_of(model, given)
    if found is None:
        return None
    changed, imports = change(model, found, log)
    title = "Use log_softmax" if log else "Pass the logits"
    if not changed:
        return None
    place = found.call
    inputs = {id(loss.input) for loss in loss_calls(model, *losses)}
    here = model.owner(place) is model.owner(given)
    single = found.layer is None or called_once(model, place)
    if single and (scored(model, place, inputs) if here else all_scored(model, place, inputs)):
        return edits.repair(title, changed, imports=imports)
    instead = in_place(model, given, found, log) if here else ()
    if instead:
        return edits.repair(title, instead)
    return edits.repair(title, changed, imports=imports, safety=Safety.SHOW)


# -- tracing ----------------------------------------------------------------------------------------


def squash_of(model: FileModel, expr: ast.expr) -> Squash | None:
    """The call of this file that made a value a probability."""
    node: ast.AST | None = expr
    for _ in range(STEPS):
        if not isinstance(node, ast.expr) or not model.has(node):
            return None
        found = squashing(model, node) if isinstance(node, ast.Call) else None
        if found is not None:
            return found
        site = model.value(node).site
        match node:
            case _ if site is not None and site is not node:
                node = site
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in PASSING and model.value(base).squash:
                node = base
            case ast.Call(args=[first, *_]) if model.value(first).squash:
                node = first
            case _:
                return None
    return None


def squashing(model: FileModel, call: ast.Call) -> Squash | None:
    """The squashing call that a node is, whichever way it is written."""
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "input"), None)
    name = model.name_of(call.func)
    if name in FUNCTIONS:
        return Squash(call, first) if first is not None else None
    callee = model.value(call.func)
    if callee.kind is Kind.MODULE and callee.name in LAYERS:
        return Squash(call, first) if first is not None else None
    if callee.kind is Kind.MODULE and callee.name == "torch.nn.Sequential" and callee.elements:
        layer = callee.elements[-1].site
        if callee.elements[-1].name in LAYERS and isinstance(layer, ast.Call) and model.has(layer):
            return Squash(call, None, layer)
    match call.func:
        case ast.Attribute(value=base, attr="softmax" | "sigmoid") if not name and model.value(base).is_tensor:
            return Squash(call, base)
    return None


# -- changing ---------------------------------------------------------------------------------------


def change(model: FileModel, found: Squash, log: bool) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """(edits, imports) that unwrap the squashing call where it stands, or rename it."""
    if log:
        return renamed(model, found)
    if found.layer is not None:
        match model.parent(found.layer):
            case ast.Call(args=args) as outer if found.layer in args and len(args) > 1:
                return edits.remove_argument(model, outer, found.layer), ()
        return (), ()
    assert found.argument is not None
    stmt = model.statement(found.call)
    match stmt, found.argument:
        case ast.Assign(targets=[ast.Name(id=name)], value=value), ast.Name(id=same) if (
            value is found.call and same == name
        ):
            return remove(model, stmt), ()  # `x = softmax(x)`
    match found.call.func:
        case ast.Attribute(value=base) if base is found.argument:
            return edits.drop_method_call(model, found.call), ()
    return edits.replace(model, found.call, edits.source_of(model, found.argument)), ()


def renamed(model: FileModel, found: Squash) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """softmax -> log_softmax, in the function, the method or the layer's constructor."""
    target = found.layer if found.layer is not None else found.call
    func = target.func
    if isinstance(func, ast.Call):  # nn.Softmax(dim=1)(x)
        target, func = func, func.func
    name = model.name_of(func)
    if name in LOGS:
        if isinstance(func, ast.Attribute):
            return edits.rename_attribute(model, func, LOGS[name].rpartition(".")[2]), ()
        spelled = spell(model, LOGS[name], at=target)
        return (edits.replace(model, func, spelled.text), spelled.imports) if spelled is not None else ((), ())
    if isinstance(func, ast.Attribute) and func.attr == "softmax" and func.value is found.argument:
        return edits.rename_attribute(model, func, "log_softmax"), ()
    return (), ()


def in_place(model: FileModel, given: ast.expr, found: Squash, log: bool) -> tuple[Edit, ...]:
    """Edits that hand the loss what was squashed, by its name, and leave the probabilities to others."""
    argument = found.argument
    if log or not isinstance(given, ast.Name) or not isinstance(argument, ast.Name):
        return ()
    if model.value(given).site is not found.call:
        return ()
    start, end = model.position(argument), model.position(given)
    for node in ast.walk(model.owner(given)):
        if isinstance(node, ast.Name) and node.id == argument.id and isinstance(node.ctx, (ast.Store, ast.Del)):
            stmt = model.statement(node)
            if start < model.position(node) < end or stmt is model.statement(found.call):
                return ()
    return edits.replace(model, given, argument.id)


# -- who looks at it --------------------------------------------------------------------------------


def scored(model: FileModel, expr: ast.expr, inputs: set[int], depth: int = 0) -> bool:
    """Whether a value goes to the losses and to functions that only look at its order, and nowhere else."""
    if id(expr) in inputs:
        return True
    match model.parent(expr):
        case ast.Attribute(attr=attr) if attr in RANKING:
            return True
        case ast.Attribute(attr=attr) as outer if attr in PASSING:
            call = model.parent(outer)
            return isinstance(call, ast.Call) and call.func is outer and scored(model, call, inputs, depth)
        case ast.Call(func=func) as call if func is not expr:
            name = model.name_of(func)
            return name.startswith("torch.") and name.rpartition(".")[2] in RANKING and call.args[:1] == [expr]
        case ast.Expr():
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as stmt if value is expr and depth < 4:
            value_ = model.value(expr)
            loads = model.uses(name, model.place(stmt).function or model.tree)
            mine = [load for load in loads if same_value(model.value(load), value_)]
            return bool(mine) and all(scored(model, load, inputs, depth + 1) for load in mine)
    return False


def same_value(one: Value, other: Value) -> bool:
    """Whether two values may be the same tensor."""
    return one.site is other.site or (one.ident is not None and one.ident == other.ident) or not one.known


def called_once(model: FileModel, call: ast.Call) -> bool:
    """Whether a module is called nowhere else in the file."""
    ident = model.value(call.func).ident
    others = [node for node in model.nodes(ast.Call) if node is not call and model.value(node.func).ident == ident]
    return ident is not None and not others


def all_scored(model: FileModel, place: ast.Call, inputs: set[int]) -> bool:
    """Whether `forward` returns the squashed value as it is, and all calls of its class in the file are scored."""
    function = model.function(place)
    if function is None or function.name != "forward" or function.cls is None or not function.cls.is_module:
        return False
    returned = [node.value for node in function.own_nodes if isinstance(node, ast.Return)]
    if len(returned) != 1 or returned[0] is None or not scored(model, place, {id(returned[0])}):
        return False
    calls = [node for node in model.nodes(ast.Call) if calls_class(model.value(node.func), function.cls)]
    return bool(calls) and all(scored(model, call, inputs) for call in calls)


def calls_class(callee: Value, cls: object) -> bool:
    """Whether a value is an instance of a class, perhaps wrapped."""
    while "wrapper" in callee.facts and callee.bound is not None:
        callee = callee.bound
    return callee.kind is Kind.MODULE and callee.cls is cls
