"""Keep a value without its graph."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.fixes.expressions import append_method_call
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel


def detach(model: FileModel, expr: ast.expr) -> Repair | None:
    """Put `.detach()` behind the tensor that an expression keeps the graph of.

    `loss * n` becomes `loss.detach() * n` where only `loss` is a tensor, else `(a * b).detach()`. None for what may be
    something else: a list, or a number in some case.
    """
    found = tensor_in(model, expr)
    value = model.value(found)
    other = value.known and not value.is_tensor
    if other or "maybe_number" in value.facts or isinstance(found, (ast.BoolOp, ast.List, ast.Tuple)):
        return None
    edits = append_method_call(model, found, ".detach()")
    return Repair("Keep the value without its graph", edits) if edits else None


def tensor_in(model: FileModel, expr: ast.expr) -> ast.expr:
    """The one operand of an arithmetic expression that is a tensor with a graph; else the expression."""
    while True:
        match expr:
            case ast.BinOp(left=left, right=right):
                graphs = [side for side in (left, right) if _may_hold_graph(model, side)]
                if len(graphs) != 1 or not model.value(graphs[0]).attached:
                    return expr
                expr = graphs[0]
            case ast.UnaryOp(operand=operand) if model.value(operand).attached:
                expr = operand
            case _:
                return expr


def _may_hold_graph(model: FileModel, expr: ast.expr) -> bool:
    from torchlint.model.values import Grad, Kind

    if isinstance(expr, ast.Constant):
        return False
    value = model.value(expr)
    if value.kind in (Kind.NUMBER, Kind.STRING, Kind.SIZE):
        return False
    return not (value.is_tensor and value.grad is Grad.NO)


def detach_accumulated(model: FileModel, stmt: ast.stmt) -> Repair | None:
    """`total += loss` -> `total += loss.detach()`; also `total = total + loss` and `losses.append(loss)`.

    None for a statement of another form.
    """
    match stmt:
        case ast.AugAssign(op=ast.Add() | ast.Sub(), value=value):
            return detach(model, value)
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=right)):
            same = ast.dump(target).replace("Store()", "Load()")
            for mine, other in ((left, right), (right, left)):
                if ast.dump(mine) == same:
                    return detach(model, other)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append" | "appendleft"), args=[value])):
            return detach(model, value)
        case ast.Assign(targets=[ast.Subscript()], value=value):
            return detach(model, value)
    return None
