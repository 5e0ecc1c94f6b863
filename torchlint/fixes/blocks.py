"""Put statements into a `with` block, or merge them into the one beside them."""
from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchlint.findings import Edit
from torchlint.fixes.expressions import Edits
from torchlint.fixes.layout import Layout, layout
from torchlint.fixes.statements import _end_of_lines, _gap_before, block_indent, siblings

if TYPE_CHECKING:
    from torchlint.model import FileModel


def wrap_in_with(model: FileModel, stmts: Sequence[ast.stmt], header: str, *, merge: bool = True) -> Edits:
    """Put neighbouring statements of one block under `with header:`.

    With `merge`, a `with` block of the same header directly before or after takes them in instead.
    Strings over several lines are left as they are. () if the statements are not neighbours.
    """
    block = siblings(model, stmts[0])
    index = next(i for i, item in enumerate(block) if item is stmts[0])
    run = block[index : index + len(stmts)]
    if len(run) != len(stmts) or any(mine is not theirs for mine, theirs in zip(run, stmts, strict=True)):
        return ()
    before = block[index - 1] if index else None
    after = block[index + len(run)] if index + len(run) < len(block) else None
    wrap = _Wrap(model, run, header)
    if merge and before is not None and wrap.takes(before, header):
        wrap.join_before(before)
    if merge and after is not None and wrap.takes(after, header):
        wrap.join_after(after)
    return wrap.edits(block, after)


class _Wrap:
    """One wrapping, worked out step by step."""

    def __init__(self, model: FileModel, run: list[ast.stmt], header: str) -> None:
        self.model = model
        self.place: Layout = layout(model.source)
        self.run = run
        self.outer = block_indent(model, run[0])
        self.unit = self.place.indent_unit
        self.header: str | None = header
        first = self.place.whole(run[0])[0]
        self.first_line = self.place.line_of(first)
        self.last_line = self._last_line(run[-1])
        self.extra: list[Edit] = []

    def _last_line(self, stmt: ast.stmt) -> int:
        end = _end_of_lines(self.place, stmt, self.outer)
        return self.place.line_of(max(end - 1, 0))

    def takes(self, stmt: ast.stmt, header: str) -> bool:
        """Whether a statement is a `with` block of this header, on lines of its own."""
        match stmt:
            case ast.With(items=[ast.withitem(context_expr=context, optional_vars=None)], body=[first, *_]):
                wanted = ast.parse(header, mode="eval").body
                start = self.place.whole(first)[0]
                return ast.dump(context) == ast.dump(wanted) and self.place.first_on_line(start)
        return False

    def join_before(self, stmt: ast.stmt) -> None:
        """Let the statements follow in the block before them."""
        body = self.place.indent(self.place.whole(stmt.body[0])[0])  # type: ignore[attr-defined]
        self.unit = body.removeprefix(self.outer) or self.unit
        self.header = None
        self.first_line = self._last_line(stmt) + 1

    def join_after(self, stmt: ast.stmt) -> None:
        """Take the block behind over: its header goes away, its body stays as it is."""
        start = self.place.whole(stmt)[0]
        body = self.place.whole(stmt.body[0])[0]  # type: ignore[attr-defined]
        first, last = self.place.line_start(start), self.place.line_start(body)
        if self.place.indent(body) != self.outer + self.unit or self.place.comments(first, last):
            return
        self.extra.append(self.place.edit(first, last, ""))
        self.last_line = self.place.line_of(first) - 1

    def edits(self, block: list[ast.stmt], after: ast.stmt | None) -> Edits:
        """All edits, or () where white space would not mean what it seems to (form feeds)."""
        place = self.place
        lines = range(self.first_line, self.last_line + 1)
        if any("\f" in place.lines[line][: len(place.indent(place.starts[line]))] for line in lines):
            return ()
        found = list(self.extra)
        head = f"{self.outer}with {self.header}:\n" if self.header is not None else ""
        start = place.whole(self.run[0])[0]
        opened = -1  # the line on which the block is opened
        if not place.first_on_line(start):
            opened = place.line_of(start)
            opening = f"\n{head}{self.outer}{self.unit}"
            found.append(place.edit(*_gap_before(self.model, self.run[0]), opening))
        elif head:
            opened = place.line_of(start)
            found.append(place.edit(place.starts[opened], place.starts[opened], head + self.unit))
        for line in lines:
            if line != opened and line not in place.inside_strings and place.lines[line].strip():
                found.append(place.edit(place.starts[line], place.starts[line], self.unit))
        if after is not None and not place.first_on_line(place.whole(after)[0]):
            found.append(place.edit(*_gap_before(self.model, after), "\n" + self.outer))
        if block[0] is not self.run[0] and not place.first_on_line(place.whole(block[0])[0]):
            found.append(place.edit(*_gap_before(self.model, block[0]), "\n" + self.outer))
        return tuple(sorted(found))
