"""Questions about what autograd Functions save for backward, and how they read it again."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.model.autograd import context_of, hands_over

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo
    from torchlint.model.functions import FunctionInfo

TUPLE_WORDS = {"count", "index"}
ENDS = (ast.Return, ast.Raise)


@dataclass(frozen=True)
class Saving:
    """The calls of `save_for_backward` of a class, in order; `counts` is None where they cannot all be seen."""

    calls: tuple[ast.Call, ...]
    counts: set[int] | None


@dataclass(frozen=True)
class Read:
    """A place that reads `ctx.saved_tensors`: how many it unpacks, and at least needs.

    `as_tensor` is what the tuple is bound to (or the reading itself), where it is then used like a tensor.
    """

    node: ast.AST
    wanted: int | None = None
    least: int = 0
    as_tensor: ast.expr | None = None


def saved_by(cls: ClassInfo) -> Saving:
    """What forward or setup_context saves."""
    calls: list[ast.Call] = []
    whole = cls.fully_known
    for name in ("forward", "setup_context"):
        method = cls.method(name)
        if method is None:
            whole = whole and name != "forward"
            continue
        context = context_of(cls, method)
        if context is None:
            continue
        whole = whole and not hands_over(method.model, method, context)
        calls += [c for c in method.calls if is_method_of(c, context.arg, "save_for_backward")]
        nested = {c for c in ast.walk(method.node) if isinstance(c, ast.Call)} - set(method.calls)
        whole = whole and not any(is_method_of(c, context.arg, "save_for_backward") for c in nested)
    if not whole or any(isinstance(arg, ast.Starred) for call in calls for arg in call.args):
        return Saving(tuple(calls), None)
    return Saving(tuple(calls), {len(call.args) for call in calls} or {0})


def may_save_none(cls: ClassInfo) -> bool:
    """Whether something that is saved is None by default: `forward(ctx, x, bias=None)`."""
    forward = cls.method("forward")
    if forward is None:
        return False
    args = forward.args
    positional = [*args.posonlyargs, *args.args]
    given = [*zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True),
             *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    names = {arg.arg for arg, value in given if isinstance(value, ast.Constant) and value.value is None}
    saved = [arg for call in saved_by(cls).calls for arg in call.args] if names else []
    return any(isinstance(arg, ast.Name) and arg.id in names for arg in saved)


def is_method_of(call: ast.Call, owner: str, name: str) -> bool:
    """`owner.name(...)`."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=found), attr=attr):
            return found == owner and attr == name
    return False


def exclusive(model: FileModel, first: ast.AST, second: ast.AST) -> bool:
    """Whether the second of two places of a function never runs after the first one in the same call."""
    if model.place(first).excludes(model.place(second)):
        return True
    if model.place(first).tries != model.place(second).tries or model.place(first).handler:
        return True
    around = {model.statement(second), *model.ancestors(model.statement(second))}
    stmt: ast.AST | None = model.statement(first)
    while isinstance(stmt, ast.stmt):
        parent = model.parent(stmt)
        for _, block in ast.iter_fields(parent) if parent is not None else ():
            if isinstance(block, list) and stmt in block:
                rest = block[block.index(stmt) + 1 :]
                if any(isinstance(other, ENDS) for other in rest):
                    return not any(other in around for other in rest)
                if any(other in around for other in rest):
                    return False
        if isinstance(parent, ast.match_case):
            return True
        stmt = parent
    return False


def saved_reads(model: FileModel, cls: ClassInfo, method: FunctionInfo) -> Iterator[Read]:
    """The places of a method that read `ctx.saved_tensors`."""
    context = context_of(cls, method)
    for node in method.own_nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr="saved_tensors") if context and owner == context.arg:
                yield from _read(model, method, node)


def _read(model: FileModel, method: FunctionInfo, node: ast.expr) -> Iterator[Read]:
    match model.parent(node):
        case ast.Assign(targets=[ast.Tuple(elts=elts) | ast.List(elts=elts)]) as stmt if stmt.value is node:
            yield _unpacking(stmt, elts)
        case ast.Assign(targets=[ast.Name() as name]) as stmt if stmt.value is node:
            yield from _through_name(model, method, stmt, name)
        case ast.Subscript(slice=ast.Constant(value=int(index))) as item if index >= 0:
            yield Read(item, least=index + 1)
        case ast.BinOp(op=ast.Mult() | ast.Div() | ast.Sub() | ast.Pow() | ast.MatMult()) as used:
            yield Read(used, as_tensor=node)


def _unpacking(stmt: ast.AST, elts: list[ast.expr]) -> Read:
    starred = any(isinstance(elt, ast.Starred) for elt in elts)
    return Read(stmt, least=len(elts) - 1) if starred else Read(stmt, wanted=len(elts))


def _through_name(model: FileModel, method: FunctionInfo, stmt: ast.Assign, name: ast.Name) -> Iterator[Read]:
    """`saved = ctx.saved_tensors`: what is done with the tuple afterwards."""
    stores = [n for n in method.own_nodes if isinstance(n, ast.Name) and n.id == name.id and n is not name
              and isinstance(n.ctx, ast.Store)]
    if any(isinstance(model.parent(n), ast.Assign) for n in stores) and len(stores) > 0:
        return
    for use in method.own_nodes:
        if not isinstance(use, ast.Name) or use.id != name.id or not isinstance(use.ctx, ast.Load):
            continue
        match model.parent(use):
            case ast.Assign(targets=[ast.Tuple(elts=elts) | ast.List(elts=elts)]) as inner if inner.value is use:
                yield _unpacking(inner, elts)
            case ast.Subscript(slice=ast.Constant(value=int(index))) as item if item.value is use and index >= 0:
                yield Read(item, least=index + 1)
            case ast.BinOp(op=ast.Mult() | ast.Div() | ast.Sub() | ast.Pow() | ast.MatMult()) | ast.UnaryOp(
                    op=ast.USub()):
                yield Read(stmt, as_tensor=name)
                return
            case ast.Attribute(attr=attr) if attr not in TUPLE_WORDS and not attr.startswith("__"):
                yield Read(stmt, as_tensor=name)
                return
