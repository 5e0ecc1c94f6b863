"""Questions about autograd graphs: what backward keeps, and whether a backward or a caller will use it."""
from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.model.events import Event
from torchlint.model.values import UNKNOWN, Grad, Value

if TYPE_CHECKING:
    from torchlint.knowledge import Overload
    from torchlint.model import FileModel


def outermost(key: Hashable) -> Hashable:
    """The node of this function that a member of `Value.graph` belongs to: for (call, inner) the call."""
    while isinstance(key, tuple) and key and isinstance(key[0], ast.AST):
        key = key[0]
    return key


def graph_of(value: Value) -> frozenset[Hashable]:
    """The graphs of a value and of the members of a container, together."""
    found = value.graph
    for part in value.parts():
        found |= part.graph
        for inner in part.parts():
            found |= inner.graph
    return found


def grows_from(value: Value, node: ast.AST) -> bool:
    """Whether the operation at `node` of this function is part of the value's graph, in the same iteration."""
    return any(outermost(key) is node for key in graph_of(value))


def ends(model: FileModel, function: ast.AST) -> Iterator[tuple[ast.AST, Value]]:
    """Where graphs of a function go: (place, value) of every backward, return and yield, in no special order."""
    flow = model.flow(function)
    for event in flow.of("backward"):
        yield event.node, event.target
    for event in flow.of("yield"):
        yield event.node, event.target
    yield from flow.return_values


def used_after(model: FileModel, function: ast.AST, operation: ast.AST, place: ast.AST) -> bool:
    """Whether, after `place`, a backward, return or yield uses the graph of an operation before it.

    A graph that was already backwarded between the two is used up, so that nothing later needs it.
    """
    here, made = model.position(place), model.position(operation)
    for event in model.flow(function).of("backward"):
        at = model.position(event.node)
        if made < at < here and grows_from(event.target, operation) and not retains(event.node):
            return False
    return any(not runs_before(model, node, place) and grows_from(value, operation)
               for node, value in ends(model, function))


def retains(call: ast.AST) -> bool:
    """Whether a backward or autograd.grad call keeps the graph, as far as can be seen."""
    if not isinstance(call, ast.Call):
        return False
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg in ("retain_graph", "create_graph"):
            match keyword.value:
                case ast.Constant(value=False | None):
                    continue
            return True
    return False


def kept_by(model: FileModel, function: ast.AST, value: Value, place: ast.AST) -> Iterator[ast.expr]:
    """Operations before `place` that keep the storage of a value for backward, as operand or as their result."""
    if value.storage is None:
        return
    for node, result in model.flow(function).values.items():
        if not isinstance(node, (ast.Call, ast.BinOp)) or not result.attached or not runs_before(model, node, place):
            continue
        overload = overload_at(node, result)
        if overload is not None and _keeps(model, node, result, overload, value.storage):
            yield node


def runs_before(model: FileModel, first: ast.AST, second: ast.AST) -> bool:
    """Whether one expression is computed before another: what an expression is made of comes before itself."""
    if first is second or first in model.ancestors(second):
        return False
    return second in model.ancestors(first) or model.position(first) < model.position(second)


def overload_at(node: ast.expr, result: Value) -> Overload | None:
    """The operator that an expression ran: a torch function, Tensor method, torch Module or arithmetic operator."""
    name = result.name
    module = knowledge.module_class(name)
    if module is not None:
        name = module.functional
    if isinstance(node, ast.Call) and name.startswith("torch.Tensor."):
        entry = knowledge.method(name.rpartition(".")[2])
    else:
        entry = knowledge.function(name)
    return entry.overloads[0] if entry is not None else None


def operands(model: FileModel, node: ast.expr, overload: Overload) -> dict[str, Value]:
    """The values that an operation takes, by the names of the operator's parameters."""
    names = [param.name for param in overload.params]
    given: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, right=right):
            given = [left, right]
        case ast.Call(func=ast.Attribute(value=receiver), args=args) if names and names[0] == "self":
            given = [receiver, *args]
        case ast.Call(args=args):
            given = list(args)
    found = {name: model.value(expr) for name, expr in zip(names, given, strict=False)}
    if isinstance(node, ast.Call):
        found.update((k.arg, model.value(k.value)) for k in node.keywords if k.arg)
    return found


def _keeps(model: FileModel, node: ast.expr, result: Value, overload: Overload, storage: Hashable) -> bool:
    values = operands(model, node, overload)
    for name, because in overload.saved_for.items():
        held = result if name == "result" else values.get(name, UNKNOWN)
        if held.storage == storage and any(
            values.get(each, UNKNOWN).is_tensor and values[each].grad is not Grad.NO for each in because
        ):
            return True
    return False


def calls_before(model: FileModel, function: ast.AST, idents: set[Hashable], place: ast.AST) -> Iterator[Event]:
    """Calls of modules with one of the identities, before `place`, with gradients recorded."""
    here = model.position(place)
    for event in model.flow(function).of("call"):
        if event.grad is not False and event.target.ident in idents and model.position(event.node) < here:
            yield event
