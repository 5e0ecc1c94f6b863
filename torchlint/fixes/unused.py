"""Imports of torch that fixes leave without a use go away with the last one: `from torch.autograd import Variable`.

Only names that are read nowhere else in the file, not even in a string, and that no other file of the project may
take from it. `import torch` itself loads these modules, so nothing else depends on the import.
"""
from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchlint.files import Source
from torchlint.findings import Edit
from torchlint.fixes.guard import Moved
from torchlint.fixes.imports import MODULES
from torchlint.fixes.layout import Layout, layout
from torchlint.fixes.statements import alone, line_removal
from torchlint.project import INSTALLED, MARKERS

_MOST = 5000  # files looked at for imports; in a larger project an import is rather left
_IMPORTING = re.compile(r"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(r"\w+")


def without_unused(source: Source, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The same edits, with those that take away the imports that the file would no longer need after them.

    ValueError if they overlap or lie outside the text.
    """
    place = layout(source)
    ranges = [place.offsets(edit.span) for edit in edits]
    removed = {word for start, end in ranges for word in _WORD.findall(place.text[start:end])}
    found = [(stmt, [alias for alias in stmt.names if (alias.asname or alias.name) in removed])
             for stmt in ast.walk(source.tree) if isinstance(stmt, (ast.Import, ast.ImportFrom)) and _of_torch(stmt)]
    if not any(aliases for _, aliases in found):
        return tuple(edits)
    scopes = dict(_scopes(source.tree))
    after, moved = Layout(Source("", place.apply(edits))), Moved(place, edits)
    made = list(edits)
    for stmt, aliases in found:
        scope = scopes.get(stmt)
        if scope is None or not aliases:
            continue
        first, last = (0, len(place.text)) if isinstance(scope, ast.Module) else place.range(scope)
        names = {alias: alias.asname or alias.name for alias in aliases}
        gone = [alias for alias in aliases if _uses(after, moved.offset(first), moved.offset(last), names[alias]) == 1
                and not (isinstance(scope, ast.Module) and _for_others(source.path, names[alias]))]
        if gone and alone(place, stmt) and not place.comments(*_lines(place, stmt)):
            _take_away(place, stmt, gone, edits, made)
    return tuple(made)


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The statements of the file's and functions' own blocks, and blocks of several in them, with what binds names."""
    stack: list[tuple[ast.AST, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef]] = [(tree, tree)]
    while stack:
        node, scope = stack.pop()
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            block = block if isinstance(block, list) else []
            for stmt in block:
                inner = stmt if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
                if not isinstance(stmt, ast.Try):  # which is there to see whether an import works
                    stack.append((stmt, inner))
                if len(block) > 1 and (node is scope or not isinstance(scope, ast.Module)):
                    yield stmt, scope


def _lines(place: Layout, stmt: ast.stmt) -> tuple[int, int]:
    start, end = place.range(stmt)
    return start, place.line_end(end)


def _of_torch(stmt: ast.stmt) -> bool:
    """Whether a statement imports from a module that `import torch` loads, under names of its own."""
    match stmt:
        case ast.ImportFrom(module=str(module), level=0, names=names):
            return module in MODULES and names[0].name != "*"
        case ast.Import(names=[ast.alias(name=name, asname=str())]):
            return name in MODULES
    return False


def _uses(after: Layout, start: int, end: int, name: str) -> int:
    """How many tokens of a part of the text have a name in them, but attributes: the import, and what reads it."""
    tokens = [token for token in after.tokens_in(start, end) if not token.comment]
    return sum(name in _WORD.findall(token.text) for before, token in zip([None, *tokens], tokens, strict=False)
               if before is None or before.text != ".")


def _for_others(path: str, name: str) -> bool:
    """Whether a name of a file may be there for other files."""
    return os.path.basename(path) == "__init__.py" or taken_from(path, name)


def _take_away(
    place: Layout, stmt: ast.Import | ast.ImportFrom, gone: list[ast.alias], given: Sequence[Edit], made: list[Edit]
) -> None:
    """Take names of an import away, or all of it; those that the `given` edits put behind them take their place."""
    start, end = place.range(stmt)
    first, last = place.range(stmt.names[0])[0], place.range(stmt.names[-1])[1]
    spans = {edit: place.offsets(edit.span) for edit in given}
    mine = [edit for edit, (begin, stop) in spans.items() if begin <= end and stop > start]
    if any(spans[edit][0] < last or spans[edit][0] < spans[edit][1] for edit in mine):
        return
    if len(gone) < len(stmt.names):
        made += _without(place, stmt.names, gone)
    elif mine:
        made[:] = [edit for edit in made if edit not in mine]
        text = "".join(edit.text for edit in mine).lstrip(", \t\r\n")
        made.append(place.edit(first, max(spans[edit][1] for edit in mine), text))
    else:
        removal = line_removal(place, start, end)
        begin, stop = place.offsets(removal.span)
        if any(begin < one < stop for span in spans.values() for one in span):  # another import takes its line
            removal = place.edit(place.line_start(start), place.next_line(end), "")
        made.append(removal)


def _without(place: Layout, names: list[ast.alias], gone: list[ast.alias]) -> Iterator[Edit]:
    """The removal of some names, but not all, with their commas."""
    kept = [index for index, alias in enumerate(names) if alias not in gone]
    for index, alias in enumerate(names[: kept[-1]]):
        if alias in gone:
            yield place.edit(place.range(alias)[0], place.range(names[index + 1])[0], "")
    if kept[-1] + 1 < len(names):
        yield place.edit(place.range(names[kept[-1]])[1], place.range(names[-1])[1], "")


# -- other files ----------------------------------------------------------------------------------


def taken_from(path: str, name: str) -> bool:
    """Whether another file may take the name from this one."""
    if path.startswith("<") or not os.path.exists(path):
        return False
    here = Path(path).absolute()
    importers = _importers(str(_top(here.parent)))
    if importers is None:
        return True
    others = [other for other in importers.get(here.stem, ()) if other != str(here)]
    return any(name in _WORD.findall(_text(other)) for other in others)


@functools.lru_cache(maxsize=8)
def _importers(folder: str) -> dict[str, list[str]] | None:
    """For each word of an import, the files that have it there; None where there are too many files."""
    found: dict[str, list[str]] = {}
    for count, path in enumerate(_files(folder)):
        if count == _MOST:
            return None
        for word in {word for line in _IMPORTING.findall(_text(path)) for word in _WORD.findall(line)}:
            found.setdefault(word, []).append(path)
    return found


def _files(folder: str) -> Iterator[str]:
    """All Python files below a folder but hidden ones and installed packages."""
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in (*INSTALLED, "__pycache__")]
        yield from (os.path.join(here, name) for name in names if name.endswith((".py", ".pyi", ".ipynb")))


def _top(folder: Path) -> Path:
    """The folder of the project, or where nothing marks one, that of the file."""
    for here in (folder, *list(folder.parents)[:7]):
        if any((here / marker).exists() for marker in MARKERS):
            return here
    package = folder
    while (package / "__init__.py").exists() and package != package.parent:
        package = package.parent
    return package


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
