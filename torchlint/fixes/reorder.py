"""Moves one statement of a block before or after another one, where that changes the order and nothing else.

A statement moves over others only if it gives no name that they use and uses none that they give, if none of
them may leave the block, and if none of them looks at the object whose method it calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchlint.fixes.expressions import Edits
from torchlint.fixes.layout import layout
from torchlint.fixes.statements import alone, move_statement, siblings

if TYPE_CHECKING:
    from torchlint.model import FileModel

LOOPS = (ast.For, ast.AsyncFor, ast.While)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def reorder(
    model: FileModel,
    node: ast.AST,
    *,
    before: ast.AST | None = None,
    after: ast.AST | None = None,
    never: Iterable[ast.AST] = (),
) -> Edits:
    """Move the statement of `node` before or after the one that holds another node, comments included.

    An `if` that guards nothing but that statement moves as a whole. () where the two are in no common block,
    the lines are shared with other code, the move would change more than the order, or pass one of the nodes
    that it must never pass.
    """
    goal = before if before is not None else after
    moved = model.statement(node)
    if goal is None or not isinstance(moved, (ast.Expr, ast.Assign)):
        return ()
    target = sibling_of(model, moved, goal)
    if target is None and (whole := guard_of(model, moved)) is not None:
        moved = whole
        target = sibling_of(model, moved, goal)
    if target is None or not alone(layout(model.source), target):
        return ()
    block = siblings(model, moved)
    crossed = between(block, moved, target)
    barred = set(never)
    if barred and any(part in barred for stmt in crossed for part in ast.walk(stmt)):
        return ()
    if any(leaves(stmt) for stmt in crossed) or clash(moved, crossed) or watched(model, moved, crossed, target):
        return ()
    if before is not None:
        return move_statement(model, moved, before=target)
    return move_statement(model, moved, after=target)


def sibling_of(model: FileModel, stmt: ast.stmt, node: ast.AST) -> ast.stmt | None:
    """The statement of the block of `stmt` that holds `node`; None if it stands elsewhere, or is `stmt` itself."""
    block = siblings(model, stmt)
    for parent in (node, *model.ancestors(node)):
        found = next((item for item in block if item is parent), None)
        if found is not None:
            return found if found is not stmt else None
    return None


def guard_of(model: FileModel, stmt: ast.stmt) -> ast.If | None:
    """The `if` without another arm that holds this one statement."""
    match model.parent(stmt):
        case ast.If(body=[only], orelse=[]) as guard if only is stmt:
            return guard
    return None


def between(block: list[ast.stmt], moved: ast.stmt, target: ast.stmt) -> list[ast.stmt]:
    """The statements that a move passes, the target's own included."""
    start = next(i for i, item in enumerate(block) if item is moved)
    end = next(i for i, item in enumerate(block) if item is target)
    return block[end:start] if end < start else block[start + 1 : end + 1]


def leaves(stmt: ast.stmt, in_loop: bool = False) -> bool:
    """Whether a statement may end the block around it, or hands over to other code in the midst of it."""
    if isinstance(stmt, (ast.Return, ast.Break, ast.Continue)):
        return isinstance(stmt, ast.Return) or not in_loop
    if isinstance(stmt, DEFINITIONS):
        return False
    if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(stmt)):
        return True
    inner = in_loop or isinstance(stmt, LOOPS)
    for name, value in ast.iter_fields(stmt):
        for part in value if isinstance(value, list) else ():
            arm = part.body if isinstance(part, (ast.ExceptHandler, ast.match_case)) else [part]
            if any(isinstance(s, ast.stmt) and leaves(s, inner if name == "body" else in_loop) for s in arm):
                return True
    return False


def own_nodes(stmt: ast.stmt) -> Iterator[ast.AST]:
    """All nodes of a statement but those of functions and classes defined in it."""
    stack: list[ast.AST] = [stmt]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, DEFINITIONS) or node is stmt:
            stack.extend(ast.iter_child_nodes(node))


# -- names --------------------------------------------------------------------------------------


def clash(moved: ast.stmt, crossed: list[ast.stmt]) -> bool:
    """Whether what a statement gives is used by those it passes, or the other way round."""
    given, used = given_by(moved), used_by(moved)
    for stmt in crossed:
        theirs = given_by(stmt)
        if overlap(given, theirs) or overlap(given, used_by(stmt)) or overlap(theirs, used):
            return True
    return False


def overlap(given: set[str], used: set[str]) -> bool:
    """Whether setting some paths changes what others hold: `a` and `a.b` are not independent."""
    return any(a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.") for a in given for b in used)


def given_by(stmt: ast.stmt) -> set[str]:
    """Names and attribute paths that a statement binds, changes or deletes."""
    found = set()
    for node in own_nodes(stmt):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del()):
                found.add(spelled(node))
            case ast.Subscript(value=held, ctx=ast.Store() | ast.Del()):
                found.add(spelled(held))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found.update((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
    return found - {""}


def used_by(stmt: ast.AST) -> set[str]:
    """Names and attribute paths that a statement or expression reads, the longest that are written out."""
    found = set()
    stack: list[ast.AST] = [stmt]
    while stack:
        node = stack.pop()
        path = spelled(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        if path and isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            found.add(path)
        else:
            stack.extend(ast.iter_child_nodes(node))
    return found


def spelled(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; of one that starts with a call or the like, ""."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = spelled(value)
            return f"{base}.{attr}" if base else ""
        case ast.Subscript(value=value):
            return spelled(value)
    return ""


def watched(model: FileModel, moved: ast.stmt, crossed: list[ast.stmt], target: ast.stmt) -> bool:
    """Whether a statement on the way reads something of the object whose method is called: `scheduler.get_lr()`."""
    called = [node.func for node in ast.walk(moved) if isinstance(node, ast.Call)]
    receivers = {spelled(f.value) for f in called if isinstance(f, ast.Attribute) and not model.name_of(f)} - {""}
    for stmt in crossed:
        if stmt is target:
            continue
        plain: set[ast.AST] = set()
        match stmt:
            case ast.Expr(value=ast.Call(func=func, args=args)):
                plain = {func.value, *args} if isinstance(func, ast.Attribute) else set(args)
        for node in ast.walk(stmt):
            if isinstance(node, (ast.Name, ast.Attribute)) and node not in plain and spelled(node) in receivers:
                return True
    return False
