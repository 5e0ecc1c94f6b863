"""Questions about sizes: which axis of which tensor a size expression is, and whether a view keeps their order."""
from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.model.ranks import SAME

if TYPE_CHECKING:
    from torchlint.model import FileModel

Axis = tuple[Hashable, int]
DEPTH = 6


@dataclass(frozen=True)
class Sizes:
    """What is known of a tensor's sizes: whose axes it has, how many, and whether the last one is another."""

    of: Hashable
    rank: int | None
    last_changed: bool = False


def axis_of(model: FileModel, expr: ast.expr, depth: int = 0) -> Axis | None:
    """The axis whose size an expression is: `x.size(1)`, `x.shape[1]`, or a name bound once to one of these."""
    match expr:
        case ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[index]):
            return _indexed(model, tensor, index)
        case ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=index) | ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[]), slice=index):
            return _indexed(model, tensor, index)
        case ast.Name(id=name) if depth < DEPTH:
            bound = binding(model, expr, name)
            match bound:
                case ast.Assign(targets=[ast.Name()], value=value):
                    return axis_of(model, value, depth + 1)
                case ast.Assign(targets=[ast.Tuple(elts=elts)], value=value):
                    return _unpacked(model, name, elts, value, depth)
    return None


def binding(model: FileModel, at: ast.AST, name: str) -> ast.AST | None:
    """The one statement of a function that binds a name; None if there are several."""
    for scope in model.scopes(at):
        if name in scope.bindings and name not in scope.nonlocals:
            nodes = scope.bindings[name]
            return nodes[0] if len(nodes) == 1 else None
    return None


def _unpacked(model: FileModel, name: str, elts: list[ast.expr], value: ast.expr, depth: int) -> Axis | None:
    places = [i for i, elt in enumerate(elts) if isinstance(elt, ast.Name) and elt.id == name]
    if len(places) != 1 or any(isinstance(elt, ast.Starred) for elt in elts[: places[0]]):
        return None
    if isinstance(value, ast.Tuple) and len(value.elts) == len(elts):
        return axis_of(model, value.elts[places[0]], depth + 1)
    tensor = shape_of(value)
    ident = model.value(tensor).ident if tensor is not None else None
    return (ident, places[0]) if ident is not None else None


def shape_of(expr: ast.expr) -> ast.expr | None:
    """The tensor of `x.shape`, `x.size()` or their first few entries, `x.shape[:2]`."""
    match expr:
        case ast.Attribute(value=tensor, attr="shape"):
            return tensor
        case ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[]):
            return tensor
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=ast.Constant())):
            return shape_of(inner)
    return None


def _indexed(model: FileModel, tensor: ast.expr, index: ast.expr) -> Axis | None:
    ident = model.value(tensor).ident
    try:
        number = ast.literal_eval(index)
    except ValueError:
        return None
    if ident is None or not isinstance(number, int):
        return None
    if number < 0:
        rank = rank_of(model, tensor, ident)
        return (ident, number + rank) if rank is not None else None
    return ident, number


def rank_of(model: FileModel, at: ast.AST, ident: Hashable) -> int | None:
    """How many dimensions the tensor has, by a statement of the function that unpacks all its sizes."""
    owner = model.owner(at)
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[ast.Tuple(elts=elts)], value=value) if model.owner(assign) is owner:
                tensor = shape_of(value)
                if tensor is None or isinstance(value, ast.Subscript) or model.value(tensor).ident != ident:
                    continue
                if not any(isinstance(elt, ast.Starred) for elt in elts):
                    return len(elts)
    return None


def sizes_of(model: FileModel, expr: ast.expr, depth: int = 0) -> Sizes | None:
    """Whose sizes a tensor has: its own, or those of what it was computed from element by element."""
    value = model.value(expr)
    if value.ident is not None:
        rank = rank_of(model, expr, value.ident)
        if rank is not None or _has_axis(model, expr, value.ident):
            return Sizes(value.ident, rank)
    site = value.site if isinstance(value.site, ast.Call) and model.holds(value.site) else None
    if site is None or not value.is_tensor or depth > DEPTH:
        return None
    tail = value.name.rpartition(".")[2]
    method = isinstance(site.func, ast.Attribute) and model.value(site.func.value).is_tensor
    if tail in ("Linear", "linear") and site.args:
        inner = sizes_of(model, site.args[0], depth + 1)
        return Sizes(inner.of, inner.rank, True) if inner is not None else None
    if tail in SAME:
        if method and isinstance(site.func, ast.Attribute):
            return sizes_of(model, site.func.value, depth + 1)
        return sizes_of(model, site.args[0], depth + 1) if site.args else None
    return None


def _has_axis(model: FileModel, at: ast.AST, ident: Hashable) -> bool:
    owner = model.owner(at)
    for node in (*model.attributes_named("shape"), *model.attributes_named("size")):
        if model.owner(node) is owner and model.value(node.value).ident == ident:
            return True
    return False


def tokens(model: FileModel, target: list[ast.expr], sizes: Sizes) -> list[int | None] | None:
    """The target sizes of a view as axes of the tensor, None for any other; products opened, ones left out.

    Factors have no order: `w * h` is as good as `h * w`, and what else is in a product may stand anywhere. The
    whole is None where a name is bound twice, so that it is not clear whose size it is.
    """
    found: list[int | None] = []
    for expr in target:
        if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Mult):
            parts = tokens(model, [expr.left, expr.right], sizes)
            if parts is None:
                return None
            found += sorted(part for part in parts if part is not None) or [None]
            continue
        if isinstance(expr, ast.Constant) and expr.value == 1:
            continue
        if isinstance(expr, ast.Name) and ambiguous(model, expr):
            return None
        axis = axis_of(model, expr)
        mine = axis is not None and axis[0] == sizes.of
        if axis is not None and mine and sizes.last_changed and (sizes.rank is None or axis[1] == sizes.rank - 1):
            mine = sizes.rank is None  # the size of what a layer was given, not of what it returned
        found.append(axis[1] if axis is not None and mine else None)
    return found


def ambiguous(model: FileModel, name: ast.Name) -> bool:
    """Whether several statements bind a name."""
    for scope in model.scopes(name):
        if name.id in scope.bindings and name.id not in scope.nonlocals:
            return len(scope.bindings[name.id]) > 1
    return False


def out_of_order(found: list[int | None], rank: int | None) -> bool:
    """Whether a view with these sizes must mix elements of different rows.

    Its sizes stand in another order than the tensor's, or a new size stands before a whole one although
    nothing between that and the size before it is left to be split.
    """
    present = [axis for axis in found if axis is not None]
    if len(present) < 2 or len(set(present)) < len(present):
        return False
    if present != sorted(present):
        return True
    count = rank if rank is not None else max(present) + 2
    missing = set(range(count)) - set(present)
    last, new = -1, False
    for axis in found:
        if axis is None:
            new = True
            continue
        if new and missing and not any(last < m < axis for m in missing):
            return True
        last, new = axis, False
    return False
