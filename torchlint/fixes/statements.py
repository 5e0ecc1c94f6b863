"""Edits of statements: remove, insert, replace, move. Blocks keep their shape, comments stay.

Statements that share a line (`a; b`, `if x: a`) get lines of their own where the new text needs it.
"""
from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from torchlint.files import Source
from torchlint.findings import Edit
from torchlint.fixes.expressions import Edits
from torchlint.fixes.layout import Layout, layout

if TYPE_CHECKING:
    from torchlint.model import FileModel

# Comments that speak to a tool about the statement they follow: they go where it goes.
PRAGMA = re.compile(
    r"#\s*(noqa|type:|torchlint:|pylint:|pyright:|mypy:|ruff:|fmt:|yapf:|isort:|pragma:|nosec)", re.IGNORECASE
)


def siblings(model: FileModel, stmt: ast.stmt) -> list[ast.stmt]:
    """The block (body, orelse, ...) that holds a statement."""
    for _, value in ast.iter_fields(model.parent(stmt) or model.tree):
        if isinstance(value, list) and any(item is stmt for item in value):
            return value
    raise ValueError("the statement is in no block of this file")


def block_indent(model: FileModel, stmt: ast.stmt) -> str:
    """The indentation of the block that holds a statement, also where it shares a line with its header."""
    place = layout(model.source)
    for sibling in siblings(model, stmt):
        start = place.whole(sibling)[0]
        if place.first_on_line(start):
            return place.indent(start)
    parent = model.parent(stmt)
    if isinstance(parent, ast.match_case):
        parent = parent.pattern
    start = place.range(parent)[0] if parent is not None and hasattr(parent, "lineno") else 0
    return place.indent(start) + place.indent_unit


def indented(text: str, indent: str, newline: str = "\n") -> str:
    """Code `text`, written without indentation, with every line moved in (not those inside strings)."""
    place = Layout(Source("", text))
    found = []
    for index, line in enumerate(place.lines):
        kept = index in place.inside_strings or not line.strip()
        found.append(line if kept else indent + line)
    return "".join(found)


def dedented(place: Layout, start: int, end: int, indent: str) -> str:
    """Whole lines of the file between two offsets, moved out by `indent`."""
    found = []
    for index in range(place.line_of(start), place.line_of(max(start, end - 1)) + 1):
        line = place.lines[index]
        found.append(line if index in place.inside_strings else line.removeprefix(indent))
    return "".join(found)


def alone(place: Layout, stmt: ast.stmt) -> bool:
    """Whether nothing but a comment shares the lines of a statement."""
    start, end = place.whole(stmt)
    rest = place.text[end : place.line_end(end)].strip()
    return place.first_on_line(start) and (not rest or rest.startswith("#"))


def attached_comments(place: Layout, start: int, indent: str) -> int:
    """The offset of the first comment line directly above a statement that starts at `start`.

    Comments at the top of the file (encoding, licence) belong to the file.
    """
    first = line = place.line_of(start)
    while line > 0 and line - 1 not in place.inside_strings:
        text = place.lines[line - 1]
        if not text.startswith(indent + "#"):
            return place.starts[line]
        line -= 1
    return place.starts[first] if line == 0 and first > 0 else place.starts[line]


# -- removing --------------------------------------------------------------------------------


def remove(model: FileModel, *stmts: ast.stmt) -> Edits:
    """Remove statements. A block left empty gets `pass`; comments behind a statement stay in its place."""
    place = layout(model.source)
    chosen = {id(stmt) for stmt in stmts}
    edits: list[Edit] = []
    for stmt in stmts:
        block = siblings(model, stmt)
        if not chosen.isdisjoint(map(id, block)) and id(stmt) in chosen:
            gone = chosen & set(map(id, block))
            chosen -= gone
            if len(gone) == len(block) and not isinstance(model.parent(stmt), ast.Module):
                edits += _emptied(place, block)
            else:
                edits += [edit for line in _lines(place, block) for edit in _removals(place, line, gone)]
    return tuple(edits)


def _lines(place: Layout, block: list[ast.stmt]) -> list[list[ast.stmt]]:
    """The statements of a block, those that share a line together."""
    found: list[list[ast.stmt]] = []
    for stmt in block:
        if found and not place.first_on_line(place.whole(stmt)[0]):
            found[-1].append(stmt)
        else:
            found.append([stmt])
    return found


def _emptied(place: Layout, block: list[ast.stmt]) -> list[Edit]:
    """Put `pass` where the first statement of a block was, and remove the others."""
    first, *rest = _lines(place, block)
    pass_ = place.edit(place.whole(first[0])[0], _end(place, first[-1]), "pass")
    gone = {id(stmt) for stmt in block}
    return [pass_, *(edit for line in rest for edit in _removals(place, line, gone))]


def _end(place: Layout, stmt: ast.stmt) -> int:
    """The end of a statement that is the last on its line, with a semicolon behind it."""
    end = place.range(stmt)[1]
    token = place.after(end)
    return token.end if token is not None and token.text == ";" else end


def _removals(place: Layout, line: list[ast.stmt], gone: set[int]) -> list[Edit]:
    """Remove some of the statements that share a line."""
    kept = [index for index, stmt in enumerate(line) if id(stmt) not in gone]
    if len(kept) == len(line):
        return []
    if not kept:
        return [line_removal(place, place.whole(line[0])[0], _end(place, line[-1]))]
    edits = []
    for index, stmt in enumerate(line):
        if id(stmt) not in gone:
            continue
        if index < kept[-1]:
            edits.append(place.edit(place.whole(stmt)[0], place.whole(line[index + 1])[0], ""))
        else:  # the last ones take the separator before them away
            end = _end(place, stmt) if index == len(line) - 1 else place.range(stmt)[1]
            edits.append(place.edit(place.range(line[index - 1])[1], end, ""))
    return edits


def line_removal(place: Layout, start: int, end: int) -> Edit:
    """Remove whole lines; a comment behind the statement stays, unless it is meant for a tool."""
    comment = place.comment_after(end)
    if comment is not None and not PRAGMA.match(comment.text):
        return place.edit(start, comment.start, "")
    first, last = place.line_start(start), place.next_line(end)
    if last < len(place.text) and not place.text[last : place.line_end(last)].strip():
        before = place.text[place.line_start(first - 1) : first].strip() if first else ""
        if not before or before.endswith(":"):  # no two gaps where there was one
            last = place.next_line(last)
    if last == len(place.text) and not place.text.endswith(("\n", "\r")) and first:
        first = place.line_end(first - 1)  # the file still ends without a newline
    return place.edit(first, last, "")


# -- inserting -------------------------------------------------------------------------------


def insert_before(model: FileModel, stmt: ast.stmt, text: str) -> Edits:
    """Insert code, written without indentation, before a statement and the comments that belong to it."""
    place = layout(model.source)
    indent = block_indent(model, stmt)
    start = place.whole(stmt)[0]
    if place.first_on_line(start):
        at = attached_comments(place, start, indent)
        return (place.edit(at, at, indented(text.rstrip("\n"), indent) + "\n"),)
    made = place.edit(*_gap_before(model, stmt), "\n" + indented(text.rstrip("\n"), indent) + "\n" + indent)
    first = siblings(model, stmt)[0]
    if first is not stmt and not place.first_on_line(place.whole(first)[0]):
        return place.edit(*_gap_before(model, first), "\n" + indent), made
    return (made,)


def insert_after(model: FileModel, stmt: ast.stmt, text: str) -> Edits:
    """Insert code, written without indentation, after a statement."""
    place = layout(model.source)
    indent = block_indent(model, stmt)
    block = siblings(model, stmt)
    index = next(i for i, item in enumerate(block) if item is stmt)
    code = indented(text.rstrip("\n"), indent)
    edits: list[Edit] = []
    if index + 1 < len(block) and not place.first_on_line(place.whole(block[index + 1])[0]):
        edits.append(place.edit(*_gap_before(model, block[index + 1]), f"\n{code}\n{indent}"))
    else:
        at = _end_of_lines(place, stmt, indent)
        if at == len(place.text) and not place.text.endswith(("\n", "\r")):
            edits.append(place.edit(at, at, "\n" + code))
        else:
            edits.append(place.edit(at, at, code + "\n"))
    if not place.first_on_line(place.whole(block[0])[0]):
        edits.insert(0, place.edit(*_gap_before(model, block[0]), "\n" + indent))
    return tuple(edits)


def _end_of_lines(place: Layout, stmt: ast.stmt, indent: str) -> int:
    """The offset behind the lines of a statement and the comments that its last block ends with."""
    at = place.next_line(place.range(stmt)[1])
    while at < len(place.text):
        line = place.text[at : place.line_end(at)]
        inner = place.indent(at)
        if not (line.strip().startswith("#") and len(inner) > len(indent) and inner.startswith(indent)):
            break
        at = place.next_line(at)
    return at


def _gap_before(model: FileModel, stmt: ast.stmt) -> tuple[int, int]:
    """The separator before a statement that is not first on its line: behind `:` or from the `;` on."""
    place = layout(model.source)
    start = place.whole(stmt)[0]
    token = place.before(start)
    if token is None:
        return start, start
    if token.text == ";":
        previous = place.before(token.start)
        return previous.end if previous is not None else token.start, start
    return token.end, start


def has_docstring(body: list[ast.stmt]) -> bool:
    """Whether the first statement of a body is its docstring."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *_]:
            return True
    return False


def insert_first_in_body(
    model: FileModel, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module, text: str
) -> Edits:
    """Insert code at the start of a body: after the docstring, in a file also after `__future__` imports."""
    body = node.body
    skip = int(has_docstring(body))
    if isinstance(node, ast.Module):
        while skip < len(body) and _is_future(body[skip]):
            skip += 1
        if not body:
            place = layout(model.source)
            end = len(place.text)
            missing = "" if not place.text or place.text.endswith(("\n", "\r")) else "\n"
            return (place.edit(end, end, f"{missing}{text.rstrip()}\n"),)
    if skip < len(body):
        return insert_before(model, body[skip], text)
    return insert_after(model, body[-1], text)


def _is_future(stmt: ast.stmt) -> bool:
    return isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__"


def insert_last_in_body(
    model: FileModel, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, text: str
) -> Edits:
    """Insert code at the end of a body, before its last statement if that returns or raises."""
    last = node.body[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return insert_before(model, last, text)
    return insert_after(model, last, text)


def replace_statement(model: FileModel, stmt: ast.stmt, text: str) -> Edits:
    """Replace a statement by code without indentation; () if it shares its line and `text` has several."""
    place = layout(model.source)
    start, end = place.whole(stmt)
    text = text.rstrip("\n")
    if "\n" in text and not alone(place, stmt):
        return ()
    return (place.edit(start, end, indented(text, block_indent(model, stmt)).lstrip(" \t")),)


def add_decorator(
    model: FileModel,
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    text: str,
    *,
    inner: bool = False,
) -> Edits:
    """Add the line `@text`: above all decorators, or with `inner` directly above `def`."""
    place = layout(model.source)
    start = place.range(node)[0] if inner else place.whole(node)[0]
    at = place.line_start(start)
    return (place.edit(at, at, f"{place.indent(start)}@{text}\n"),)


# -- moving ----------------------------------------------------------------------------------


def move_statement(
    model: FileModel, stmt: ast.stmt, *, before: ast.stmt | None = None, after: ast.stmt | None = None
) -> Edits:
    """Move a statement, with the comments above and behind it, to another place of the file.

    () if the statement shares its line, or no target is given.
    """
    place = layout(model.source)
    target = before if before is not None else after
    if target is None or target is stmt or not alone(place, stmt):
        return ()
    block = siblings(model, stmt)
    indent = block_indent(model, stmt)
    first = attached_comments(place, place.whole(stmt)[0], indent)
    last = place.next_line(place.range(stmt)[1])
    text = dedented(place, first, last, indent)
    text = re.sub(r"\r\n|\r", "\n", text)
    insertion = (insert_after if before is None else insert_before)(model, target, text)
    if len(block) == 1:
        removal = place.edit(place.whole(stmt)[0], place.range(stmt)[1], "pass")
    elif last == len(place.text) and not place.text.endswith(("\n", "\r")) and first:
        removal = place.edit(place.line_end(first - 1), last, "")
    else:
        removal = place.edit(first, last, "")
    return (*insertion, removal)
