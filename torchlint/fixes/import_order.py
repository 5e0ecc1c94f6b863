"""Where an import goes in a file whose imports are sorted, section by section, the way isort and ruff sort them."""
from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torchlint.fixes.layout import Layout
from torchlint.fixes.statements import attached_comments

Import = ast.Import | ast.ImportFrom
Key = Callable[[Import], tuple[object, ...]]


class Place(NamedTuple):
    """The start of a line, and what sets a new import there off from the lines around it."""

    offset: int
    before: str = ""
    after: str = ""


def top_of(stmt: ast.stmt) -> str:
    """The package that an import takes from; "." for one of the file's own."""
    if isinstance(stmt, ast.ImportFrom):
        return "." if stmt.level else (stmt.module or "").partition(".")[0]
    return stmt.names[0].name.partition(".")[0] if isinstance(stmt, ast.Import) else ""


def sorted_place(place: Layout, leading: Sequence[Import], wanted: Import) -> Place | None:
    """Where an import belongs among those that a file starts with; None if they are in no order that shows."""
    sections = _sections(place, leading)
    key = next((key for key in (_kind_first, _name_first) if all(_in_order(one, key) for one in sections)), None)
    if key is None or max(map(len, sections), default=0) < 2:
        return None
    mine = _rank(wanted)
    ranks = [{_rank(stmt) for stmt in section} for section in sections]
    for section, kinds in zip(sections, ranks, strict=True):
        if kinds == {mine} and (mine == 0 or len(section) > 1) and _fits(section, ranks, mine, wanted):
            return _among(place, section, key, wanted)
    if mine or any(0 in kinds for kinds in ranks):
        return None
    return Place(attached_comments(place, place.range(leading[0])[0], ""), after="\n")


def _fits(section: Sequence[Import], ranks: Sequence[set[int]], mine: int, wanted: Import) -> bool:
    """Whether a section is the one of its kind, or holds the package already."""
    return ranks.count({mine}) == 1 or any(top_of(stmt) == top_of(wanted) for stmt in section)


def _sections(place: Layout, leading: Sequence[Import]) -> list[list[Import]]:
    """The imports between blank lines."""
    found: list[list[Import]] = []
    for stmt in leading:
        line = place.line_of(place.range(stmt)[0])
        if found and place.lines[line - 1].strip():
            found[-1].append(stmt)
        else:
            found.append([stmt])
    return found


def _rank(stmt: Import) -> int:
    """Which section an import belongs to: Python's own modules, packages, the project's relative ones."""
    top = top_of(stmt)
    return 2 if top == "." else int(top not in sys.stdlib_module_names)


def _module(stmt: Import) -> str:
    return (stmt.module or "").lower() if isinstance(stmt, ast.ImportFrom) else stmt.names[0].name.lower()


def _kind_first(stmt: Import) -> tuple[object, ...]:
    return isinstance(stmt, ast.ImportFrom), _module(stmt)


def _name_first(stmt: Import) -> tuple[object, ...]:
    return _module(stmt), isinstance(stmt, ast.ImportFrom)


def _in_order(section: Sequence[Import], key: Key) -> bool:
    """Whether a section is sorted; sections of one kind may follow each other without a blank line."""
    keys = [(_rank(stmt), *key(stmt)) for stmt in section]
    return keys == sorted(keys)


def _among(place: Layout, section: Sequence[Import], key: Key, wanted: Import) -> Place:
    """Before the first import of a section that comes after it in the order, else at its end."""
    for stmt in section:
        if key(stmt) > key(wanted):
            start = place.range(stmt)[0]
            above = place.line_start(start) if stmt is section[0] else attached_comments(place, start, "")
            return Place(above)
    end = place.range(section[-1])[1]
    return Place(place.next_line(end))
