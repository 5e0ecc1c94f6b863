"""Tensors kept as attributes of `ctx` go through `save_for_backward`, which checks and frees them."""
from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from torchlint.findings import Edit
from torchlint.fixes.arguments import add_keyword_argument
from torchlint.fixes.expressions import Edits, replace
from torchlint.fixes.layout import layout
from torchlint.fixes.names import names_bound, parameters
from torchlint.fixes.statements import insert_first_in_body, remove, replace_statement
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

Method = ast.FunctionDef | ast.AsyncFunctionDef
TITLE = "Save it with save_for_backward"


def ctx_to_save_for_backward(
    model: FileModel, forward: Method, backward: Method, attributes: Collection[str]
) -> Repair | None:
    """`ctx.x = x` in forward and `ctx.x` in backward become `save_for_backward` and `saved_tensors`.

    `forward` is the method that writes (setup_context counts), `attributes` the names on `ctx` to move.
    An existing call and its unpacking are made longer. None if an attribute is not set exactly once, by
    a name, in the body of `forward` itself; if that name is bound again before the call; if `backward`
    has no free name for it; or if saved tensors are unpacked in a way that cannot be made longer.
    """
    me, it = _context(forward), _context(backward)
    stores = {name: _store(forward, me, name) for name in attributes}
    found = [(name, stmt) for name, stmt in stores.items() if stmt is not None]
    if not found or len(found) < len(stores) or _used_elsewhere(model, forward, backward, attributes):
        return None
    found.sort(key=lambda item: model.position(item[1]))
    values = [stmt.value.id for _, stmt in found if isinstance(stmt.value, ast.Name)]
    saving = _save(model, forward, me, [stmt for _, stmt in found], values)
    loading = _load(model, backward, it, [name for name, _ in found], bool(_saves(forward, me)))
    return Repair(TITLE, (*saving, *loading)) if saving and loading else None


def _context(method: Method) -> str:
    """The name of the `ctx` parameter."""
    names = [arg.arg for arg in parameters(method)]
    return names[0] if names else ""


def _uses(node: ast.AST, me: str, name: str) -> Iterator[ast.Attribute]:
    """Where `me.name` is read or written inside a node."""
    for child in ast.walk(node):
        match child:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == me and attr == name:
                yield child


def _store(forward: Method, me: str, name: str) -> ast.Assign | None:
    """The statement `ctx.name = value` of the body, if it is the only use of `ctx.name` in forward."""
    if len(list(_uses(forward, me, name))) != 1:
        return None
    for stmt in forward.body:
        match stmt:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=attr)], value=ast.Name()):
                if owner == me and attr == name:
                    return stmt
    return None


def _used_elsewhere(model: FileModel, forward: Method, backward: Method, names: Collection[str]) -> bool:
    """Whether another method of the class touches one of the attributes."""
    cls = model.parent(forward)
    others = [node for node in getattr(cls, "body", []) if node is not forward and node is not backward]
    return any(isinstance(node, ast.Attribute) and node.attr in names for top in others for node in ast.walk(top))


def _saves(forward: Method, me: str) -> list[ast.Call]:
    return [parent for parent in ast.walk(forward) if isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Attribute) and parent.func.attr == "save_for_backward"
            and isinstance(parent.func.value, ast.Name) and parent.func.value.id == me]


def _save(model: FileModel, forward: Method, me: str, stmts: list[ast.Assign], values: list[str]) -> Edits:
    """Replace the assignments by one call, or add their values to the call there is."""
    calls = _saves(forward, me)
    if not calls:
        last = stmts[-1]
        if _bound_between(forward, stmts[0], last, values):
            return ()
        call = replace_statement(model, last, f"{me}.save_for_backward({', '.join(values)})")
        return call + remove(model, *stmts[:-1])
    call_stmt = model.statement(calls[0])
    if len(calls) > 1 or not any(stmt is call_stmt for stmt in forward.body) or not isinstance(call_stmt, ast.Expr):
        return ()
    first = min(stmts[0], call_stmt, key=model.position)
    last_stmt = max(stmts[-1], call_stmt, key=model.position)
    if _bound_between(forward, first, last_stmt, values) or calls[0].keywords:
        return ()
    unbound = any(model.position(stmt) > model.position(call_stmt) and not _parameter(forward, value)
                  and not _assigned_before(forward, call_stmt, value)
                  for stmt, value in zip(stmts, values, strict=True))
    if unbound or any(isinstance(arg, ast.Starred) for arg in calls[0].args):
        return ()
    return add_keyword_argument(model, calls[0], ", ".join(values)) + remove(model, *stmts)


def _parameter(function: Method, name: str) -> bool:
    return any(arg.arg == name for arg in parameters(function))


def _assigned_before(function: Method, stop: ast.stmt, name: str) -> bool:
    for stmt in function.body:
        if stmt is stop:
            return False
        if _binds(stmt, name):
            return True
    return False


def _binds(node: ast.AST, name: str) -> bool:
    return any(isinstance(child, ast.Name) and child.id == name and not isinstance(child.ctx, ast.Load)
               for child in ast.walk(node))


def _bound_between(function: Method, first: ast.stmt, last: ast.stmt, names: list[str]) -> bool:
    """Whether a statement from `first` to `last` binds one of the names again."""
    start, end = function.body.index(first), function.body.index(last)
    return any(_binds(stmt, name) for stmt in function.body[start : end + 1] for name in names)


def _load(model: FileModel, backward: Method, it: str, names: list[str], more: bool) -> Edits:
    """Unpack the saved tensors and use them; `more` says whether others were saved before them."""
    reads = [node for name in names for node in _uses(backward, it, name)]
    alias = _alias(model, backward, reads)
    if alias is not None:
        return _through_alias(model, backward, it, alias, names, more)
    used = set(names_bound(list(backward.body))) | {arg.arg for arg in parameters(backward)}
    if used & set(names) or any(not isinstance(node.ctx, ast.Load) for node in reads):
        return ()
    unpacking = _longer(model, backward, it, names, names) if more else _fresh(model, backward, it, names)
    made: list[Edit] = list(unpacking)
    for node in reads:
        edit = replace(model, node, node.attr)
        if not edit or not unpacking:
            return ()
        made += edit
    return tuple(made)


def _alias(model: FileModel, backward: Method, reads: list[ast.Attribute]) -> ast.Assign | None:
    """`x = ctx.x` of the body, if that is the only read, and the name's only binding."""
    if len(reads) != 1:
        return None
    match model.statement(reads[0]):
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as stmt if value is reads[0]:
            bound = [node for node in ast.walk(backward) if isinstance(node, ast.Name) and node.id == name
                     and not isinstance(node.ctx, ast.Load)]
            if any(stmt is item for item in backward.body) and len(bound) == 1 and not _parameter(backward, name):
                return stmt
    return None


def _through_alias(model: FileModel, backward: Method, it: str, alias: ast.Assign, names: list[str], more: bool,
                   ) -> Edits:
    """Unpack the saved tensor where backward gave it a name of its own."""
    name = alias.targets[0].id if isinstance(alias.targets[0], ast.Name) else ""
    if more:
        longer = _longer(model, backward, it, names, [name])
        return longer + remove(model, alias) if longer else ()
    if any(True for _ in _uses(backward, it, "saved_tensors")):
        return ()
    return replace_statement(model, alias, f"({name},) = {it}.saved_tensors")


def _fresh(model: FileModel, backward: Method, it: str, names: list[str]) -> Edits:
    if any(True for _ in _uses(backward, it, "saved_tensors")):
        return ()
    target = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
    return insert_first_in_body(model, backward, f"{target} = {it}.saved_tensors")


def _longer(model: FileModel, backward: Method, it: str, names: list[str], targets: list[str]) -> Edits:
    """Add targets for names to `a, b = ctx.saved_tensors`, which must be the first statement that reads any."""
    reads = list(_uses(backward, it, "saved_tensors"))
    if len(reads) != 1:
        return ()
    stmt = model.statement(reads[0])
    if not any(stmt is item for item in backward.body):
        return ()
    if any(model.position(node) < model.position(stmt) for name in names for node in _uses(backward, it, name)):
        return ()
    match stmt:
        case ast.Assign(targets=[ast.Tuple(elts=[*elts]) | ast.List(elts=[*elts])], value=value):
            if value is reads[0] and elts and not any(isinstance(elt, ast.Starred) for elt in elts):
                place = layout(model.source)
                end = place.range(elts[-1])[1]
                gap = len(place.text[end:]) - len(place.text[end:].lstrip(" "))
                comma = len(elts) == 1 and place.text[end + gap : end + gap + 1] == ","  # `a, = ...`
                return (place.edit(end, end + gap + 1 if comma else end, "".join(f", {name}" for name in targets)),)
    return ()
