"""Rewrites a program so that it means the same and imports torch in another way.

    as       import torch as T            T.nn.Linear
    from     from torch.nn import Linear  Linear
    from-as  from torch.nn import Linear as my_Linear

A rule that matches the spelling `torch.nn.Linear` finds nothing in the result; one that asks the
model for the name does not notice.
"""
from __future__ import annotations

import ast
import functools
import importlib.machinery
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

STYLES = ("as", "from", "from-as")


@functools.cache
def _torch_folder() -> Path:
    """Where torch's Python files are; it is not imported, since that takes seconds."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@functools.cache
def _is_module(dotted: str) -> bool:
    """Whether a dotted name below torch is a module."""
    place = _torch_folder().joinpath(*dotted.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()


@dataclass(frozen=True)
class Reference:
    """A use of something of torch: the chain `nn.Linear` in the source."""

    dotted: str  # of the object to import
    name: ast.Name  # where the chain begins
    origin: str  # what that name stands for
    end: ast.expr  # the node that stands for `dotted`


@dataclass(frozen=True)
class Replacement:
    """New text for a stretch of source; columns count bytes, as `ast` does."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def rewritten(source: str, style: str) -> str:
    """`source` with torch imported in `style`, one of STYLES.

    ValueError if the program cannot be rewritten: a star import, a torch name that is bound again.
    """
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if _of_torch(node)]
    if not imports:
        return source
    bound = dict(pair for node in imports for pair in _bound(node))
    again = _other_names(tree, imports) & {node.id for node in _names(tree, bound) if _stored(node)}
    if "*" in bound or again:
        raise ValueError(f"cannot be rewritten: {', '.join(sorted(again)) or 'a star import'}")
    references = list(_references(tree, bound))
    taken = _other_names(tree, imports) - set(bound)
    if style == "as":
        lines, changes = _as_style(references, taken)
    else:
        lines, changes = _from_style(references, taken, style)
    return _edited(source, [*changes, *_imports(tree, imports, lines)])


def _of_torch(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    """Whether a statement imports something of torch."""
    match node:
        case ast.ImportFrom(module=str(module), level=0):
            return _below_torch(module)
        case ast.Import(names=names):
            return any(_below_torch(alias.name) for alias in names)
    return False


def _below_torch(module: str) -> bool:
    return module.split(".")[0] == "torch"


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Local names and what they stand for."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif _below_torch(alias.name):
            yield alias.asname or "torch", alias.name if alias.asname else "torch"


def _names(tree: ast.AST, names: dict[str, str]) -> list[ast.Name]:
    """Every use of one of `names`."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]


def _stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _other_names(tree: ast.AST, imports: list[ast.Import | ast.ImportFrom]) -> set[str]:
    """All names that the program uses or binds, other than by `imports`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Import() | ast.ImportFrom() if node not in imports:
                found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def _references(tree: ast.AST, bound: dict[str, str]) -> Iterator[Reference]:
    """Every use of something of torch, with the longest chain that one import can stand for."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for name in _names(tree, bound):
        origin = bound[name.id]
        chain: list[ast.expr] = [name]
        while isinstance(parent := parents.get(chain[-1]), ast.Attribute):
            chain.append(parent)
        dotted = [origin] + [node.attr for node in chain[1:] if isinstance(node, ast.Attribute)]
        length = 1
        while length < len(chain) and _is_module(".".join(dotted[:length])):
            length += 1
        if length > 1 and not isinstance(getattr(chain[length - 1], "ctx", ast.Load()), ast.Load):
            length -= 1  # an assignment to an attribute of a module must keep the module
        yield Reference(".".join(dotted[:length]), name, origin, chain[length - 1])


def _as_style(references: list[Reference], taken: set[str]) -> tuple[list[str], list[Replacement]]:
    """`import torch as T`: only the first name of each chain changes."""
    alias = next(name for name in ("T", "th", "pt", "torch_") if name not in taken)
    changes = [
        Replacement(_start(ref.name), _end(ref.name), alias + ref.origin.removeprefix("torch"))
        for ref in references
    ]
    return [f"import torch as {alias}"], changes


def _from_style(refs: list[Reference], taken: set[str], style: str) -> tuple[list[str], list[Replacement]]:
    """`from torch.x import y`: each chain becomes one name."""
    names: dict[str, str] = {}
    lines = []
    for dotted in dict.fromkeys(ref.dotted for ref in refs):
        module, _, last = dotted.rpartition(".")
        name = last if style == "from" else f"my_{last}"
        while name in taken or name in names.values():
            name += "_"
        if not module:  # torch itself, handed around as a value
            name = "torch"
            lines.append("import torch")
        else:
            lines.append(f"from {module} import {last}" + ("" if name == last else f" as {name}"))
        names[dotted] = name
    return lines, [Replacement(_start(ref.name), _end(ref.end), names[ref.dotted]) for ref in refs]


def _imports(
    tree: ast.Module, imports: list[ast.Import | ast.ImportFrom], lines: list[str]
) -> Iterator[Replacement]:
    """The new import lines in place of the first old import, nothing in place of the others."""
    first = next((node for node in tree.body if node in imports), None)
    if first is None:
        place = next((node for node in tree.body if not _must_come_first(node)), tree.body[-1])
        at = (getattr(place, "decorator_list", None) or [place])[0].lineno
        yield Replacement((at, 0), (at, 0), "\n".join(lines) + "\n")
    for node in imports:
        whole = isinstance(node, ast.ImportFrom)
        others = [alias for alias in node.names if not (whole or _below_torch(alias.name))]
        kept = [ast.unparse(ast.Import(others))] if others else []
        text = "\n".join([*lines, *kept] if node is first else kept or ["pass"])
        yield Replacement(_start(node), _end(node), text or "pass")


def _must_come_first(node: ast.stmt) -> bool:
    """A docstring or an import from __future__."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.ImportFrom(module="__future__"):
            return True
    return False


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _edited(source: str, changes: list[Replacement]) -> str:
    """`source` with all changes made."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for change in sorted(changes, key=lambda one: one.start, reverse=True):
        first, last = (starts[line - 1] + column for line, column in (change.start, change.end))
        data = data[:first] + change.text.encode() + data[last:]
    return data.decode()
