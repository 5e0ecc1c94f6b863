"""Questions about where values go: whether a name is only read as a number, or handed on with its graph."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.evaluate import path_of
from torchlint.model.values import Grad, Kind

if TYPE_CHECKING:
    from torchlint.model import FileModel

READ = "read"  # as a number or text, so that no graph is needed
RETURNED = "returned"
USED = "used"  # in any other way

READING_METHODS = {"item", "detach", "tolist", "numpy", "data_ptr", "size", "dim", "numel", "detach_", "clear"}
# Methods of loggers, writers and progress bars: they print what they are given.
SHOWING = {
    "info", "debug", "warning", "print", "write", "log", "add_scalar", "add_scalars", "set_postfix",
    "set_description", "format", "set_postfix_str", "add_text", "writerow", "log_metrics",
}
READING_CALLS = {
    "builtins.float", "builtins.int", "builtins.len", "builtins.print", "builtins.str", "builtins.bool",
    "builtins.repr", "builtins.format", "builtins.isinstance", "builtins.id",
}
GROWING = {"append", "extend", "appendleft", "extendleft", "add", "insert", "clear", "update", "setdefault", "put"}
PASSING = {"builtins.sum", "builtins.max", "builtins.min", "builtins.sorted", "builtins.list", "builtins.tuple",
           "builtins.enumerate", "builtins.zip", "builtins.reversed", "builtins.abs", "builtins.round"}
DEPTH = 3


def fates(model: FileModel, node: ast.expr, depth: int = 0) -> set[str]:
    """What becomes of an expression's value: a set of READ, RETURNED and USED; empty if nothing does."""
    parent = model.parent(node)
    match parent:
        case ast.Attribute(value=inner, attr=attr) if inner is node:
            return _attribute(model, parent, attr, depth)
        case ast.FormattedValue() | ast.Compare() | ast.Assert() | ast.BoolOp() | ast.Expr():
            return {READ}
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if test is node:
            return {READ}
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
            return {READ}
        case ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.Subscript() | ast.Starred():
            return fates(model, parent, depth)
        case ast.Tuple() | ast.List() | ast.Dict():
            return fates(model, parent, depth)
        case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt) | ast.SetComp(elt=elt) if elt is node:
            return fates(model, parent, depth)
        case ast.DictComp(value=value) if value is node:
            return fates(model, parent, depth)
        case ast.keyword() if isinstance(call := model.parent(parent), ast.Call):
            return _argument(model, call, depth)
        case ast.Call(func=func) if func is not node:
            return _argument(model, parent, depth)
        case ast.Return() | ast.Yield():
            return {RETURNED}
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is node:
            return later(model, name, parent, depth + 1)
        case ast.comprehension(target=ast.Name(id=name), iter=source) if source is node:
            return _in_comprehension(model, parent, name, depth)
        case ast.For(target=ast.Name(id=name), iter=source) if source is node:
            return later(model, name, parent, depth + 1)
    return {USED}


def later(model: FileModel, name: str, place: ast.AST, depth: int = 0) -> set[str]:
    """What becomes of a local name at its loads behind `place`, in the same function (nested ones included)."""
    if depth > DEPTH:
        return {USED}
    here = model.position(place)
    owner = model.place(place).function or model.tree
    found: set[str] = set()
    for load in model.uses(name, owner):
        if model.position(load) > here:
            outside = model.owner(load) is not model.owner(place) and not isinstance(owner, ast.Module)
            found |= {USED} if outside else fates(model, load, depth)
    return found


def _attribute(model: FileModel, node: ast.Attribute, attr: str, depth: int) -> set[str]:
    call = model.parent(node)
    if not (isinstance(call, ast.Call) and call.func is node):
        return {READ} if attr in ("shape", "dtype", "device", "requires_grad", "grad_fn", "data", "ndim") else {USED}
    if attr in READING_METHODS or attr in GROWING:
        return {READ}
    if attr == "backward":
        return {USED}
    return fates(model, call, depth)


def _argument(model: FileModel, call: ast.Call, depth: int) -> set[str]:
    name = model.name_of(call.func)
    if name in READING_CALLS or name.startswith(("math.", "logging.", "numpy.")):
        return {READ}
    if isinstance(call.func, ast.Attribute) and call.func.attr in SHOWING and model.value(call.func.value).kind in (
            Kind.UNKNOWN, Kind.INSTANCE, Kind.STRING, Kind.NAMESPACE, Kind.LIST):
        return {READ}
    if name.startswith("torch.") or name in PASSING:
        value = model.value(call)
        return {READ} if value.is_tensor and value.grad is Grad.NO else fates(model, call, depth)
    return {USED}


def _in_comprehension(model: FileModel, node: ast.comprehension, name: str, depth: int) -> set[str]:
    owner = model.parent(node)
    found: set[str] = set()
    if owner is None or depth > DEPTH:
        return {USED}
    for part in ast.walk(owner):
        if isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load):
            found |= fates(model, part, depth + 1)
    return found


def reads_of_path(model: FileModel, target: ast.expr) -> list[ast.expr]:
    """Where the name or `self.x` that a statement binds is read: in its function, for an attribute in its class."""
    return _occurrences(model, target, ast.Load)


def writes_of_path(model: FileModel, target: ast.expr) -> list[ast.expr]:
    """Where a name or `self.x` is bound, in the same stretch of code."""
    return _occurrences(model, target, ast.Store)


def _occurrences(model: FileModel, target: ast.expr, context: type[ast.expr_context]) -> list[ast.expr]:
    path = path_of(target)
    cls = model.class_of(target) if "." in path else None
    nodes = ast.walk(cls.node if cls is not None else model.owner(target))
    return [
        node for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, context)
        and path_of(node) == path
    ]
