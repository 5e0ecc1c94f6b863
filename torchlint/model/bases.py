"""What the bases of a class statement stand for, through aliases, branches, calls and other files."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo

MAX_DEPTH = 5  # aliases of aliases


def bases_of(model: FileModel, node: ast.ClassDef) -> tuple[ClassInfo | str, ...]:
    """Each base as a project class, or the canonical dotted name of an outside one ("" if unknown).

    A base that depends on a test (`Base = Metric if installed else Module`) gives every choice, in order.
    """
    found: list[ClassInfo | str] = []
    for base in node.bases:
        choices = list(dict.fromkeys(meant(model, base, node, 0)))
        found.extend(choices or [""])
    return tuple(found)


def meant(model: FileModel, expr: ast.expr, inside: ast.ClassDef | None, depth: int) -> Iterator[ClassInfo | str]:
    """The classes that an expression may stand for."""
    if depth > MAX_DEPTH:
        return
    match expr:
        case ast.Subscript(value=value):  # Generic[T]
            yield from meant(model, value, inside, depth)
        case ast.IfExp(body=body, orelse=orelse):
            yield from meant(model, body, inside, depth + 1)
            yield from meant(model, orelse, inside, depth + 1)
        case ast.Call():
            yield from _made_by_call(model, expr, inside, depth)
        case ast.Name() | ast.Attribute():
            yield from _named(model, expr, inside, depth)
        case ast.Constant():
            return
        case _:
            yield ""


def _named(model: FileModel, expr: ast.Name | ast.Attribute, inside: ast.ClassDef | None,
           depth: int) -> Iterator[ClassInfo | str]:
    name = model.name_of(expr)
    if name:
        yield from _by_name(model, name, depth)
        return
    scope = next((s for s in model.scopes(expr) if expr.id in s.bindings), None) if isinstance(expr, ast.Name) else None
    if scope is None or not isinstance(expr, ast.Name):
        yield ""
        return
    for node in scope.bindings[expr.id]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from _by_name(model, model.canonical(scope.imports[expr.id]), depth)
            case ast.ClassDef() if node is not inside:
                yield model.class_info(node)
            case ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=ast.expr() as value):
                yield from meant(model, value, inside, depth + 1)
            case ast.ClassDef():
                continue
            case _:
                yield ""


def _by_name(model: FileModel, name: str, depth: int) -> Iterator[ClassInfo | str]:
    found = model.definition(name)
    if found is not None:
        other, node = found
        if isinstance(node, ast.ClassDef):
            yield other.class_info(node)
            return
        if isinstance(node, (ast.IfExp, ast.Call)):
            yield from meant(other, node, None, depth + 1)
            return
    yield name


def _made_by_call(model: FileModel, expr: ast.Call, inside: ast.ClassDef | None,
                  depth: int) -> Iterator[ClassInfo | str]:
    """`with_metaclass(Meta, Base)`, `partial(Base, ...)`, `namedtuple(...)`, a project's function."""
    name = model.name_of(expr.func)
    if name.endswith("with_metaclass") and expr.args:
        yield from meant(model, expr.args[-1], inside, depth + 1)
        return
    if name == "functools.partial" and expr.args:
        yield from meant(model, expr.args[0], inside, depth + 1)
        return
    if name in ("collections.namedtuple", "typing.NamedTuple"):
        yield "builtins.tuple"
        return
    factory = model.function_named(expr.func)
    if factory is None:
        yield ""
        return
    # Only what its `return` statements spell: a class' bases must not wait for an analysis that is under way.
    params = {arg.arg: arg for arg in factory.params}
    for node in factory.own_nodes:
        match node:
            case ast.Return(value=ast.Name(id=name)) if name in params:
                given = factory.argument(expr, params[name])
                if given is not None:
                    yield from meant(model, given, inside, depth + 1)
            case ast.Return(value=ast.expr() as value):
                yield from meant(factory.model, value, inside, depth + 1)
