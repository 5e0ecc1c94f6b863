"""Call the parent's `__init__`."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.fixes.statements import insert_first_in_body
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

Method = ast.FunctionDef | ast.AsyncFunctionDef


def add_super_init(model: FileModel, init: Method, cls: ast.ClassDef) -> Repair | None:
    """Start `__init__` with `super().__init__()`, written as the file writes it elsewhere.

    None if the method has no first parameter, or the name `super` is taken.
    """
    args = [*init.args.posonlyargs, *init.args.args]
    if not args or any("super" in scope.bindings for scope in model.scopes(init.body[0])):
        return None
    me = args[0].arg
    own = f"super({cls.name}, {me})" if _old_style(model) else "super()"
    return Repair("Call the parent's __init__ first", insert_first_in_body(model, init, f"{own}.__init__()"))


def _old_style(model: FileModel) -> bool:
    """Whether the file only has `super(Class, self)`."""
    calls = [call for call in model.calls_named("super") if isinstance(call.func, ast.Name)]
    return bool(calls) and all(call.args for call in calls)
