"""How a file breaks its lines: how long they get, and where what stands in brackets goes."""
from __future__ import annotations

import configparser
import functools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

from torchlint.fixes.layout import CLOSING, OPENING, Layout

COMMON = (79, 88, 100, 120)  # line lengths that formatters and projects choose
UNKNOWN = 100  # for a file whose lines are all short: long enough not to wrap what nobody would
NEAR = 10  # a line this close to a limit shows that lines are let grow up to it


@dataclass(frozen=True)
class Brackets:
    """How a file lays out what stands in brackets and is too long for one line."""

    hanging: bool = True  # the first item goes to a line of its own; else the others stand below the first
    step: str = "    "  # how much further a hanging item is indented than the line of its bracket
    own_line: bool = True  # the closing bracket has a line of its own
    comma: bool = True  # and a comma before it


def brackets(place: Layout) -> Brackets:
    """The style of most bracketed things that take several lines, of signatures only where there are no others."""
    found = [(vote, comma) for vote, comma, signature in _bracketed(place) if not signature]
    found = found or [(vote, comma) for vote, comma, _ in _bracketed(place)]
    if not found:
        return Brackets(step=place.indent_unit)
    commas = Counter(comma for _, comma in found)
    hanging, step, own_line = Counter(vote for vote, _ in found).most_common(1)[0][0]
    return Brackets(hanging, step or place.indent_unit, own_line, own_line and commas[True] >= commas[False])


def _bracketed(place: Layout) -> Iterator[tuple[tuple[bool, str, bool], bool | None, bool]]:
    """Of each thing in brackets on several lines its style, whether it ends in a comma, and whether it is a signature.

    None for the comma where it does not show: the items stand on one line, or the bracket has none of its own.
    """
    stack: list[int] = []
    tokens = [token for token in place.tokens if not token.comment]
    lines = [place.line_of(token.start) for token in tokens]
    for index, token in enumerate(tokens):
        if token.text in OPENING:
            stack.append(index)
        elif token.text in CLOSING and stack:
            first = stack.pop()
            if lines[first] == lines[index] or index == first + 1:
                continue
            hanging = lines[first + 1] > lines[first]
            inner, outer = place.indent(tokens[first + 1].start), place.indent(tokens[first].start)
            step = inner[len(outer) :] if hanging and inner.startswith(outer) else ""
            own_line = hanging and lines[index] > lines[index - 1]
            comma = tokens[index - 1].text == "," if own_line and lines[index - 1] > lines[first + 1] else None
            yield (hanging, step, own_line), comma, first > 1 and tokens[first - 2].text in ("def", "class")


def line_length(place: Layout, path: str = "") -> tuple[int, bool]:
    """How long the lines of a file may get, and whether it keeps to that or this is a guess.

    What its project says and it keeps to, else what it does.
    """
    lengths = [end - place.line_start(end) for end in code_ends(place)]
    said = _said(str(Path(path).absolute().parent)) if path else None
    if said is not None and _kept(lengths, said):
        return said, True
    for limit in COMMON:
        if _kept(lengths, limit):
            near = sum(limit - NEAR < length <= limit for length in lengths) >= 2
            return limit if near else max(limit, UNKNOWN), near
    return COMMON[-1], False


def code_ends(place: Layout) -> list[int]:
    """For each line with code, the offset where its last token but comments ends."""
    ends: dict[int, int] = {}
    for token in place.tokens:
        if not token.comment:
            ends[place.line_of(token.end - 1)] = token.end
    return list(ends.values())


def _kept(lengths: list[int], limit: int) -> bool:
    """Whether hardly any line is longer."""
    return sum(length > limit for length in lengths) <= max(1, len(lengths) // 200)


@functools.lru_cache(maxsize=256)
def _said(folder: str) -> int | None:
    """The line length that the nearest configuration of a formatter or style checker names."""
    here = Path(folder)
    for place in (here, *here.parents):
        for name in ("ruff.toml", ".ruff.toml", "pyproject.toml"):
            found = _from_toml(place / name)
            if found is not None:
                return found
        for name in ("setup.cfg", ".flake8", "tox.ini"):
            found = _from_ini(place / name)
            if found is not None:
                return found
        if (place / ".git").exists():
            break
    return None


def _from_toml(file: Path) -> int | None:
    try:
        data: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    tables = [data] if file.name != "pyproject.toml" else []
    tool = data.get("tool")
    if isinstance(tool, dict):
        tables += [tool.get("ruff"), tool.get("black")]
    for table in tables:
        if isinstance(table, dict) and isinstance(length := table.get("line-length"), int):
            return length
    return None


def _from_ini(file: Path) -> int | None:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return None
    for section in ("flake8", "pycodestyle", "pep8"):
        for key in ("max-line-length", "max_line_length"):
            if (value := parser.get(section, key, fallback="").strip()).isdigit():
                return int(value)
    return None
