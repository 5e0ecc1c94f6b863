"""Call the parent's `__init__`, and call it before anything that needs it."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.fixes.names import names_bound
from torchlint.fixes.statements import has_docstring, insert_first_in_body, move_statement
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

Method = ast.FunctionDef | ast.AsyncFunctionDef


def add_super_init(model: FileModel, init: Method, cls: ast.ClassDef) -> Repair | None:
    """Start `__init__` with `super().__init__()`, written as the file writes it elsewhere.

    None if the method has no first parameter, or the name `super` is taken.
    """
    args = [*init.args.posonlyargs, *init.args.args]
    if not args or "super" in model.scope_of(model.tree).bindings:
        return None
    me = args[0].arg
    own = f"super({cls.name}, {me})" if _old_style(model) else "super()"
    return Repair("Call the parent's __init__ first", insert_first_in_body(model, init, f"{own}.__init__()"))


def _old_style(model: FileModel) -> bool:
    """Whether the file only has `super(Class, self)`."""
    calls = [call for call in model.calls_named("super") if isinstance(call.func, ast.Name)]
    return bool(calls) and all(call.args for call in calls)


def move_super_init(model: FileModel, init: Method, call: ast.stmt) -> Repair | None:
    """Move a `super().__init__(...)` statement to the start of `__init__`.

    None if it is not a statement of the body itself, or uses names that statements before it bind.
    """
    body = init.body
    index = next((i for i, stmt in enumerate(body) if stmt is call), -1)
    first = int(has_docstring(body))
    if index <= first:
        return None
    before: list[ast.AST] = list(body[first:index])
    bound = {name.id for stmt in before for name in ast.walk(stmt)
             if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)}
    if bound & set(names_bound([call])) or _reads_what_they_set(call, before, init):
        return None
    edits = move_statement(model, call, before=body[first])
    return Repair("Call the parent's __init__ first", edits) if edits else None


def _reads_what_they_set(call: ast.AST, before: list[ast.AST], init: Method) -> bool:
    """Whether the call reads `self.x` that a statement before it sets."""
    args = [*init.args.posonlyargs, *init.args.args]
    me = args[0].arg if args else ""
    return bool(_attributes([call], me, ast.Load) & _attributes(before, me, ast.Store))


def _attributes(nodes: list[ast.AST], me: str, context: type[ast.expr_context]) -> set[str]:
    """Names of the attributes of `me` that are loaded or stored."""
    found = set()
    for top in nodes:
        for node in ast.walk(top):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ctx):
                    if owner == me and isinstance(ctx, context):
                        found.add(name)
    return found
