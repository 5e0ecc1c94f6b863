"""Where things are in a file's text: offsets, tokens, lines, and the style that its author uses.

`ast` counts columns in UTF-8 bytes, `Span` in characters from 1, Python's `str` in offsets from 0.
Everything in `torchlint.fixes` works on offsets and turns them into spans at the end.
"""
from __future__ import annotations

import ast
import bisect
import functools
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from torchlint.files import Source
from torchlint.findings import Edit, Span

_SKIPPED = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_FSTRING = {getattr(tokenize, name, -1): step for name, step in
            (("FSTRING_START", 1), ("FSTRING_END", -1), ("TSTRING_START", 1), ("TSTRING_END", -1))}
_BLANK = " \t\f"
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True)
class Token:
    """A name, number, operator, string or comment, with its offsets."""

    kind: int
    text: str
    start: int
    end: int

    @property
    def comment(self) -> bool:
        """Whether this is a comment."""
        return self.kind == tokenize.COMMENT


class Layout:
    """The text of one source, with what is needed to change it in place."""

    def __init__(self, source: Source) -> None:
        self.text = source.text
        self.lines = source.lines
        self.newline = source.newline
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    # -- positions ---------------------------------------------------------------------------

    def at(self, line: int, column: int) -> int:
        """The offset of an `ast` position: line from 1, column in UTF-8 bytes from 0."""
        if line > len(self.lines):
            return len(self.text)
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
        return self.starts[line - 1] + column

    def range(self, node: ast.AST) -> tuple[int, int]:
        """Start and end offset of a node, without decorators and without parentheses around it."""
        start = self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return start, self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def whole(self, stmt: ast.stmt) -> tuple[int, int]:
        """Start and end offset of a statement with its decorators."""
        start, end = self.range(stmt)
        decorators = getattr(stmt, "decorator_list", None)
        if decorators:
            start = self.text.rindex("@", 0, self.range(decorators[0])[0])
        return start, end

    def line_of(self, offset: int) -> int:
        """The index (from 0) of the line that holds `offset`."""
        return max(0, min(bisect.bisect_right(self.starts, offset) - 1, len(self.lines) - 1))

    def column(self, offset: int) -> int:
        """The number of characters before `offset` in its line."""
        return offset - self.starts[self.line_of(offset)]

    def span(self, start: int, end: int) -> Span:
        """The span between two offsets."""
        first, last = self._position(start), self._position(end)
        return Span(*first, *last)

    def _position(self, offset: int) -> tuple[int, int]:
        if not self.lines:
            return 1, 1
        line = self.line_of(offset)
        if offset == len(self.text) and self.lines[-1].endswith(("\n", "\r")):
            return len(self.lines) + 1, 1
        return line + 1, offset - self.starts[line] + 1

    def offsets(self, span: Span) -> tuple[int, int]:
        """Start and end offset of a span. ValueError if it lies outside the text."""
        found = []
        for line, column in ((span.line, span.column), (span.end_line, span.end_column)):
            if not 1 <= line <= len(self.lines) + 1 or column < 1:
                raise ValueError(f"line {line}, column {column} is outside the text")
            offset = self.starts[line - 1] + column - 1
            if offset > (self.starts[line] if line <= len(self.lines) else len(self.text)):
                raise ValueError(f"line {line}, column {column} is outside the text")
            found.append(offset)
        if found[0] > found[1]:
            raise ValueError("a span ends before it starts")
        return found[0], found[1]

    def edit(self, start: int, end: int, text: str) -> Edit:
        r"""An edit of the text between two offsets; "\n" in `text` becomes the file's newline."""
        if self.newline != "\n":
            text = re.sub(r"\r\n|\r|\n", lambda _: self.newline, text)
        return Edit(self.span(start, end), text)

    def apply(self, edits: Iterable[Edit]) -> str:
        """The text with edits made. Those at the same place are made in the order given.

        ValueError if two overlap or one lies outside the text.
        """
        ranges = [(*self.offsets(edit.span), edit.text) for edit in edits]
        ranges.sort(key=lambda item: item[:2])
        pieces, done = [], 0
        for start, end, text in ranges:
            if start < done:
                raise ValueError("two edits overlap")
            pieces += [self.text[done:start], text]
            done = end
        return "".join([*pieces, self.text[done:]])

    # -- lines and tokens --------------------------------------------------------------------

    def line_start(self, offset: int) -> int:
        """The offset where the line of `offset` starts."""
        return self.starts[self.line_of(offset)]

    def line_end(self, offset: int) -> int:
        """The offset where the line of `offset` ends, before its newline."""
        line = self.line_of(offset)
        return self.starts[line] + len(self.lines[line].rstrip("\r\n")) if self.lines else 0

    def next_line(self, offset: int) -> int:
        """The offset where the line after that of `offset` starts (the end of the text for the last)."""
        return self.starts[self.line_of(offset) + 1] if self.lines else 0

    def indent(self, offset: int) -> str:
        """The white space that starts the line of `offset`."""
        start = self.line_start(offset)
        end = start
        while end < len(self.text) and self.text[end] in _BLANK:
            end += 1
        return self.text[start:end]

    def first_on_line(self, offset: int) -> bool:
        """Whether only white space stands before `offset` in its logical line."""
        start = self.line_start(offset)
        if self.text[start:offset].strip(_BLANK):
            return False
        before = self.lines[self.line_of(offset) - 1] if start else ""
        return not before.rstrip("\r\n").endswith("\\") or "#" in before

    def comment_after(self, offset: int) -> Token | None:
        """The comment on the rest of the line of `offset`, if only white space stands before it."""
        end = self.line_end(offset)
        rest = self.text[offset:end]
        stripped = rest.lstrip(_BLANK)
        if not stripped.startswith("#"):
            return None
        start = end - len(stripped)
        return Token(tokenize.COMMENT, self.text[start:end], start, end)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens that are not layout, comments included; () if the tokenizer gives up."""
        return self._read[0]

    @cached_property
    def logical_lines(self) -> tuple[tuple[int, int], ...]:
        """Start and end offset of each simple statement's line(s), or header of a compound one, with comments."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[tuple[Token, ...], tuple[tuple[int, int], ...]]:
        """Tokens and logical lines, from one reading."""
        lines = iter([line.rstrip("\r\n") + "\n" for line in self.lines])
        found: list[Token] = []
        logical: list[tuple[int, int]] = []
        first: int | None = None
        try:
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                if token.type not in _SKIPPED:
                    (line, column), (end_line, end_column) = token.start, token.end
                    start, end = self.starts[line - 1] + column, self.starts[end_line - 1] + end_column
                    found.append(Token(token.type, token.string, start, end))
                    if first is None and token.type != tokenize.COMMENT:
                        first = start
                elif token.type == tokenize.NEWLINE and first is not None:
                    logical.append((first, found[-1].end))
                    first = None
        except (tokenize.TokenError, SyntaxError):
            return (), ()
        return tuple(found), tuple(logical)

    @cached_property
    def _token_starts(self) -> list[int]:
        return [token.start for token in self.tokens]

    def tokens_in(self, start: int, end: int) -> tuple[Token, ...]:
        """The tokens that start between two offsets."""
        first = bisect.bisect_left(self._token_starts, start)
        return self.tokens[first : bisect.bisect_left(self._token_starts, end)]

    def before(self, offset: int) -> Token | None:
        """The last token that is no comment and ends at or before `offset`."""
        index = bisect.bisect_left(self._token_starts, offset) - 1
        while index >= 0 and (self.tokens[index].comment or self.tokens[index].end > offset):
            index -= 1
        return self.tokens[index] if index >= 0 else None

    def after(self, offset: int) -> Token | None:
        """The first token that is no comment and starts at or after `offset`."""
        index = bisect.bisect_left(self._token_starts, offset)
        while index < len(self.tokens) and self.tokens[index].comment:
            index += 1
        return self.tokens[index] if index < len(self.tokens) else None

    def closing(self, opener: Token) -> Token | None:
        """The bracket that closes another one."""
        depth = 0
        for token in self.tokens[bisect.bisect_left(self._token_starts, opener.start) :]:
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if depth == 0:
                return token
        return None

    def comments(self, start: int, end: int) -> list[Token]:
        """The comments between two offsets."""
        return [token for token in self.tokens_in(start, end) if token.comment]

    @cached_property
    def inside_strings(self) -> frozenset[int]:
        """Indexes of the lines that start inside a string: indenting them would change it."""
        found: set[int] = set()
        depth, opened = 0, 0
        for token in self.tokens:
            if token.kind == tokenize.STRING:
                found.update(range(self.line_of(token.start) + 1, self.line_of(token.end - 1) + 1))
            elif token.kind in _FSTRING:
                opened = token.start if depth == 0 else opened
                depth += _FSTRING[token.kind]
                if depth == 0:
                    found.update(range(self.line_of(opened) + 1, self.line_of(token.end - 1) + 1))
        return frozenset(found)

    # -- style -------------------------------------------------------------------------------

    @cached_property
    def indent_unit(self) -> str:
        """One step of indentation, as most blocks of the file have it; four spaces if there is none."""
        steps: Counter[str] = Counter()
        stack = [""]
        lines = iter([line.rstrip("\r\n") + "\n" for line in self.lines])
        try:
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                if token.type == tokenize.INDENT:
                    outer = stack[-1]
                    if token.string.startswith(outer):
                        steps[token.string[len(outer) :]] += 1
                    stack.append(token.string)
                elif token.type == tokenize.DEDENT:
                    stack.pop()
        except (tokenize.TokenError, SyntaxError):
            pass
        return steps.most_common(1)[0][0] if steps else "    "

    @cached_property
    def quote(self) -> str:
        """The quote character of most short strings in the file; the double one if there is none."""
        marks: Counter[str] = Counter()
        for token in self.tokens:
            if token.kind == tokenize.STRING or _FSTRING.get(token.kind) == 1:
                mark = token.text.lstrip("rRbBuUfFtT")[:1]
                if not token.text.lstrip("rRbBuUfFtT").startswith(mark * 3):
                    marks[mark] += 1
        return "'" if marks["'"] > marks['"'] else '"'

    @cached_property
    def width(self) -> int:
        """How long lines may get: the longest code line, but at least 79 and at most 120."""
        longest = max((len(line.rstrip()) for line in self.lines), default=0)
        return min(max(longest, 79), 120)


@functools.lru_cache(maxsize=32)
def layout(source: Source) -> Layout:
    """The layout of a source; made once."""
    return Layout(source)


# Before Python 3.12 the positions of nodes inside an f-string are not to be trusted.
FSTRING_POSITIONS = sys.version_info >= (3, 12)
