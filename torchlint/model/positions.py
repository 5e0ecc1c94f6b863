"""Positions of nodes in characters. `ast` counts UTF-8 bytes, and inside f-strings it can be wrong."""
from __future__ import annotations

import ast
import sys

from torchlint.files import Source
from torchlint.findings import Span

# Before Python 3.12 the parser computes positions inside f-strings from the string's own text and
# gets them wrong for nested, multi-line or triple-quoted ones.
FSTRING_POSITIONS_EXACT = sys.version_info >= (3, 12)


class Positions:
    """Turns the parser's positions into spans."""

    def __init__(self, source: Source) -> None:
        self._lines = source.lines

    def column(self, line: int, byte: int) -> int:
        """The 1-based character column of a byte offset in a 1-based line."""
        if line > len(self._lines):
            return byte + 1
        text = self._lines[line - 1]
        if text.isascii():
            return byte + 1
        return len(text.encode("utf-8", "surrogatepass")[:byte].decode("utf-8", "replace")) + 1

    def span(self, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Span:
        """The span of a node that has a position; of the nearest parent otherwise."""
        if not FSTRING_POSITIONS_EXACT:
            node = outside_fstring(node, parents)
        while not hasattr(node, "lineno"):
            if node not in parents:
                return Span(1, 1, 1, 1)
            node = parents[node]
        line, end_line = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        start = self.column(line, node.col_offset)  # type: ignore[attr-defined]
        end = self.column(end_line, node.end_col_offset)  # type: ignore[attr-defined]
        return Span(line, start, end_line, end)


def outside_fstring(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """The outermost f-string around a node, or the node itself."""
    found = node
    current: ast.AST | None = node
    while current is not None and not isinstance(current, ast.stmt):
        current = parents.get(current)
        if isinstance(current, ast.JoinedStr):
            found = current
    return found
