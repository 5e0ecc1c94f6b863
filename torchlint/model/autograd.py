"""Questions about autograd Functions: how the classes of a file are used."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.model.values import Kind

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo


def instance_calls(model: FileModel) -> list[tuple[ast.Call, ClassInfo]]:
    """Calls of instances of Function subclasses, which torch rejects, with the class; in source order."""
    found = []
    for call in model.nodes(ast.Call):
        called = model.value(call.func)
        if called.kind is Kind.INSTANCE and called.cls is not None and called.cls.is_function:
            found.append((call, called.cls))
    return found


def maker_of(model: FileModel, call: ast.Call) -> ast.Call | None:
    """The expression of this file, without arguments, that made the instance which is called."""
    site = model.value(call.func).site
    if isinstance(site, ast.Call) and not site.args and not site.keywords and model.parent(site) is not None:
        return site
    return None


def apply_calls(model: FileModel, cls: ClassInfo) -> Iterator[ast.Call]:
    """The file's calls of `Function.apply`, also through a name: `square = Square.apply`."""
    for node in model.attributes_named("apply"):
        if model.class_named(node.value) is not cls:
            continue
        match model.parent(node):
            case ast.Call(func=func) as call if func is node:
                yield call
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield from (c for c in model.calls_named(name) if model.name_of(c.func) == model.name_of(node))
