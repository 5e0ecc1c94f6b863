"""What an experiment needs of a file, as a shorter text: the flagged code, what leads there, what both read.

A text is cut by whole top-level statements and nothing in it is changed, so it can be run in place of
the file. Whether it shows the same is for an experiment to say.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from runtime_check.plan import Case, Lines, mapped
from runtime_check.statements import bound, read, touched

SCRIPT = "script"  # in the description of a run: all statements of the file are run
LINE = re.compile(r"\bline (\d+)")


@dataclass(frozen=True)
class Cut:
    """A shorter text, and where the lines that it keeps have gone."""

    text: str
    lines: dict[int, int]

    def place(self, spot: Lines) -> Lines:
        """A stretch of lines in the shorter text. KeyError if it was left out."""
        part = None
        if spot.part is not None:
            first, start, last, end = spot.part
            part = self.lines[first], start, self.lines[last], end
        return Lines(self.lines[spot.first], self.lines[spot.last], part)

    def described(self, how: str) -> str:
        """A description of a run with its line numbers as they are in the shorter text."""
        return LINE.sub(lambda found: f"line {self.lines.get(int(found[1]), int(found[1]))}", how)


def shorter(case: Case, how: str) -> Case | None:
    """The case with shorter texts, for a run that is described by `how`; None if there is nothing to leave out."""
    spots = [line for spot in case.flagged for line in (spot.first, spot.last)]
    said = [int(number) for number in LINE.findall(how)]
    try:
        cut = cut_out(case.text, [*spots, *said], how)
        new = replace(case, text=cut.text, flagged=tuple(map(cut.place, case.flagged)))
        if case.corrected is not None:
            spots = [line for spot in case.mended for line in (spot.first, spot.last)]
            moved = [mapped(case.text, case.corrected, Lines(line, line)).first for line in said]
            other = cut_out(case.corrected, [*spots, *moved], how)
            new = replace(new, corrected=other.text, mended=tuple(map(other.place, case.mended)))
    except (KeyError, SyntaxError):
        return None
    return replace(new, only=cut.described(how)) if new.text != case.text else None


def cut_out(text: str, lines: list[int], how: str = "") -> Cut:
    """The top-level statements that hold some lines or define a name that `how` mentions, and what these need."""
    body = ast.parse(text).body
    words = set(re.findall(r"\w+", how))
    kept = {
        number
        for number, node in enumerate(body)
        if SCRIPT in words
        or any(first_line(node) <= line <= (node.end_lineno or 0) for line in lines)
        or (isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in words)
        or always(node)
    }
    needed: set[str] = set()
    while True:
        needed |= {name for number in kept for name in read(body[number])}
        more = {number for number, node in enumerate(body) if (bound(node) | touched(node)) & needed} - kept
        if not more:
            return assembled(text, [body[number] for number in sorted(kept)])
        kept |= more


def always(node: ast.stmt) -> bool:
    """Statements whose names are not seen: the doors to other files, and what sets up a whole program."""
    match node:
        case ast.ImportFrom(module="__future__") | ast.ImportFrom(names=[ast.alias(name="*")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))):
            return attr.startswith(("manual_seed", "set_", "use_")) or attr == "seed"
    return False


def first_line(node: ast.stmt) -> int:
    """The first line of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])


def assembled(text: str, nodes: list[ast.stmt]) -> Cut:
    """The text of some of its statements, two empty lines where others were."""
    source = text.splitlines()
    wanted = sorted({n for node in nodes for n in range(first_line(node), (node.end_lineno or node.lineno) + 1)})
    found: list[str] = []
    lines: dict[int, int] = {}
    before = 0
    for number in wanted:
        if before and any(line.strip() for line in source[before : number - 1]):
            found += ["", ""]
        elif before:
            found += source[before : number - 1]
        found.append(source[number - 1])
        lines[number] = len(found)
        before = number
    return Cut("\n".join(found) + "\n", lines)
