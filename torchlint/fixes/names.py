"""Rename a parameter where it is meant, and nowhere else."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.fixes.expressions import Edits, editable
from torchlint.fixes.layout import layout

if TYPE_CHECKING:
    from torchlint.model import FileModel

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SEES_NAMES = {"locals", "vars", "eval", "exec", "dir"}


def parameters(node: Function) -> list[ast.arg]:
    """All parameters of a function, in the order they are written."""
    args = node.args
    found = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg for arg in found if arg is not None]


def body_of(node: Function) -> list[ast.AST]:
    """What runs in a function's own scope."""
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)


def names_bound(nodes: list[ast.AST]) -> Iterator[str]:
    """Every identifier that the nodes hold other than attributes and keywords."""
    for top in nodes:
        for node in ast.walk(top):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    yield name
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    yield name
                case ast.MatchMapping(rest=str(name)):
                    yield name
                case ast.alias(name=name, asname=asname):
                    yield asname or name.partition(".")[0]
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    yield from names


class _Unclear(Exception):
    """The name is bound in a way that a simple rename cannot follow."""


def _binds(nodes: list[ast.AST], name: str) -> bool:
    """Whether statements of one scope bind a name (nested functions and classes looked at by name only)."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        match node:
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                if found == name:
                    return True
                continue
            case ast.Lambda():
                continue
            case ast.Name(id=found, ctx=ast.Store() | ast.Del()) if found == name:
                return True
            case ast.ExceptHandler(name=found) | ast.MatchAs(name=found) | ast.MatchStar(name=found) | \
                    ast.MatchMapping(rest=found) if found == name:
                return True
            case ast.alias(name=full, asname=asname) if (asname or full.partition(".")[0]) == name:
                return True
        stack.extend(ast.iter_child_nodes(node))
    return False


def names_meant(nodes: list[ast.AST], name: str) -> Iterator[ast.Name]:
    """The Name nodes that mean the variable `name` of the scope that `nodes` run in.

    Raises _Unclear where the name is bound by something else than a Name, or `nonlocal`.
    """
    for node in nodes:
        match node:
            case ast.Name(id=found):
                if found == name:
                    yield node
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if getattr(node, "name", "") == name:
                    raise _Unclear
                yield from _in_function(node, name)
            case ast.ClassDef():
                if node.name == name or _binds(list(node.body), name):
                    raise _Unclear
                yield from names_meant(list(ast.iter_child_nodes(node)), name)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets: list[ast.AST] = [generator.target for generator in node.generators]
                hidden = _binds(targets, name)
                yield from names_meant(
                    [node.generators[0].iter] if hidden else list(ast.iter_child_nodes(node)), name)
            case ast.ExceptHandler(name=found) | ast.MatchAs(name=found) | ast.MatchStar(name=found) | \
                    ast.MatchMapping(rest=found) if found == name:
                raise _Unclear
            case ast.alias(name=full, asname=asname) if (asname or full.partition(".")[0]) == name:
                raise _Unclear
            case ast.Global(names=names) | ast.Nonlocal(names=names) if name in names:
                raise _Unclear
            case _:
                yield from names_meant(list(ast.iter_child_nodes(node)), name)


def _in_function(node: Function, name: str) -> Iterator[ast.Name]:
    """The same inside a nested function: its own variable of that name hides the outer one."""
    outside: list[ast.AST] = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default]
    if not isinstance(node, ast.Lambda):
        outside += [*node.decorator_list, *([node.returns] if node.returns else [])]
        outside += [arg.annotation for arg in parameters(node) if arg.annotation]
    yield from names_meant(outside, name)
    if any(arg.arg == name for arg in parameters(node)):
        return
    body = body_of(node)
    declared = [n for n in _own_declarations(body) if name in n.names]
    if any(isinstance(n, ast.Global) for n in declared):
        return
    if declared:
        raise _Unclear
    if not _binds(body, name):
        yield from names_meant(body, name)


def _own_declarations(body: list[ast.AST]) -> Iterator[ast.Global | ast.Nonlocal]:
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield node
        elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


def rename_parameter(model: FileModel, node: Function, old: str, new: str) -> Edits:
    """Rename a parameter and every use that means it. Callers that pass it by keyword are left alone.

    () where that cannot be done by changing names only: `new` is in use, `old` is bound again by an
    import, `except` or pattern, `locals()` is read, or a use stands inside an f-string that has no
    reliable positions (before Python 3.12).
    """
    place = layout(model.source)
    arg = next((arg for arg in parameters(node) if arg.arg == old), None)
    body = body_of(node)
    used = set(names_bound(body)) | {other.arg for other in parameters(node)}
    if arg is None or new in used or used & _SEES_NAMES:
        return ()
    try:
        found = list(names_meant(body, old))
    except _Unclear:
        return ()
    edits = []
    for item in (arg, *found):
        start = place.range(item)[0]
        if place.text[start : start + len(old)] != old or not editable(model, item, new):
            return ()
        edits.append(place.edit(start, start + len(old), new))
    return tuple(edits)
