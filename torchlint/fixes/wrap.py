"""Lines that fixes have made too long are laid out over several, the way the file does it."""
from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import pairwise

from torchlint.files import Source
from torchlint.findings import Edit
from torchlint.fixes.layout import CLOSING, OPENING, Layout, Token
from torchlint.fixes.realign import realigned
from torchlint.fixes.style import Brackets, brackets, line_length

_TRIES = 24  # breaks in one statement
_WORTH = 12  # characters in brackets that are worth lines of their own
_KEYWORDS = frozenset({"in", "not", "and", "or", "if", "else", "return", "yield", "lambda", "is", "await", "assert",
                       "for", "while", "with", "elif", "del", "raise", "from", "import", "except"})


def wrapped(place: Layout, edits: Sequence[Edit], path: str = "") -> tuple[Edit, ...]:
    """The same edits, made longer where a statement that they change has to be laid out anew.

    ValueError if the edits overlap or lie outside the text.
    """
    edits = realigned(place, edits)
    ranges = sorted((*place.offsets(edit.span), edit.text) for edit in edits)
    text = place.apply(edits)
    if max(map(len, re.split(r"\r\n|\r|\n", text)), default=0) <= 79:
        return tuple(edits)
    limit, kept = line_length(place, path)
    new = Layout(Source("", text))
    regions = _regions(ranges)
    was = {_texts(place.tokens_in(*line)) for line in place.logical_lines if _overlong(place, *line, limit)}
    changes: list[tuple[int, int, str]] = []
    style = brackets(place)
    for start, end in new.logical_lines:
        touched = any(first <= end and last >= start for _, _, first, last in regions)
        if not touched or not _overlong(new, start, end, limit) or not new.first_on_line(start):
            continue
        if _texts(new.tokens_in(start, end)) not in was:
            laid = _laid_out(new, start, end, limit, style)
            if not laid and kept:
                laid = _in_parentheses(new, start, end, limit, style)
            if laid:
                changes.append((start, end, laid))
    made = _composed(place, ranges, regions, new, changes)
    return made if changes and _same(Layout(Source("", place.apply(made))), new) else tuple(edits)


Region = tuple[int, int, int, int]  # of one edit: start and end in the old text, start and end in the new one


def _regions(ranges: Sequence[tuple[int, int, str]]) -> list[Region]:
    found, shift = [], 0
    for start, end, text in ranges:
        found.append((start, end, start + shift, start + shift + len(text)))
        shift += len(text) - (end - start)
    return found


def _composed(
    place: Layout, ranges: Sequence[tuple[int, int, str]], regions: Sequence[Region], new: Layout,
    changes: Sequence[tuple[int, int, str]],
) -> tuple[Edit, ...]:
    """Edits of the old text that make the edited one and then change that."""
    used: set[int] = set()
    made: list[Edit] = []
    for start, end, text in changes:
        mine = [i for i, (_, _, first, last) in enumerate(regions) if first <= end and last >= start]
        first = min([start, *(regions[i][2] for i in mine)])
        last = max([end, *(regions[i][3] for i in mine)])
        if used & set(mine) or any(other != (start, end, text) and other[0] < last and other[1] > first
                                   for other in changes):
            continue  # an edit over several statements: they stay as they are
        used.update(mine)
        at = min([regions[i][0] for i in mine if regions[i][2] == first], default=first - _shift(regions, first))
        to = max([regions[i][1] for i in mine if regions[i][3] == last], default=last - _shift(regions, last))
        made.append(place.edit(at, to, new.text[first:start] + text + new.text[end:last]))
    kept = [place.edit(start, end, text) for i, (start, end, text) in enumerate(ranges) if i not in used]
    return tuple(sorted(kept + made, key=lambda edit: place.offsets(edit.span)))


def _shift(regions: Sequence[Region], offset: int) -> int:
    """By how much edits that end before it have moved a place of the new text."""
    return next((last - end for _, end, _, last in reversed(regions) if last <= offset), 0)


def _overlong(place: Layout, start: int, end: int, limit: int) -> bool:
    """Whether a line of a statement has code beyond the limit."""
    return _first_overlong(place, start, end, limit, set()) is not None


def _first_overlong(place: Layout, start: int, end: int, limit: int, hopeless: set[int]) -> int | None:
    """The first line, by its index, that is too long without its comment."""
    for token in place.tokens_in(start, end):
        line = place.line_of(token.start)
        if not token.comment and token.end - place.starts[line] > limit and line not in hopeless:
            if place.line_of(token.end - 1) == line or token.start - place.starts[line] > limit:
                return line
    return None


def _texts(tokens: Sequence[Token]) -> tuple[str, ...]:
    """What a statement says, whatever its layout: trailing commas do not count."""
    texts = [token.text for token in tokens if not token.comment]
    return tuple(text for text, after in zip(texts, [*texts[1:], ""], strict=True)
                 if text != "," or after not in CLOSING)


def _same(one: Layout, other: Layout) -> bool:
    """Whether two texts say the same, whatever their layout."""
    if _texts(one.tokens) == _texts(other.tokens):
        return True
    try:
        return ast.dump(ast.parse(one.text)) == ast.dump(ast.parse(other.text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _in_parentheses(place: Layout, start: int, end: int, limit: int, style: Brackets) -> str:
    """An assignment or return on one line whose value goes to a line of its own; "" if that fits no better."""
    last = place.before(end)
    code = place.text[start : last.end if last is not None else end]
    match _only_statement(code):
        case (ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Return()) as stmt if stmt.value is not None:
            begin, stop = Layout(Source("", code)).range(stmt.value)
        case _:
            return ""
    indent = place.indent(start)
    if "\n" in code or stop != len(code) or len(indent + style.step) + stop - begin + (not style.own_line) > limit:
        return ""
    close = f"\n{indent})" if style.own_line else ")"
    return f"{code[:begin]}(\n{indent}{style.step}{code[begin:]}{close}{place.text[start + len(code) : end]}"


def _only_statement(code: str) -> ast.stmt | None:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 else None


def _laid_out(place: Layout, start: int, end: int, limit: int, style: Brackets) -> str:
    """A statement over more lines than before; "" if that makes it no shorter."""
    head = place.line_start(start)
    chunk = Layout(Source("", place.text[head:end]))
    before, longest = _texts(chunk.tokens), _longest(chunk)
    hopeless: set[int] = set()
    for _ in range(_TRIES):
        line = _first_overlong(chunk, 0, len(chunk.text), limit, hopeless)
        if line is None:
            break
        text = _Line(chunk, line).broken(limit, style)
        if text:
            chunk = Layout(Source("", text.replace("\n", place.newline) if place.newline != "\n" else text))
        else:
            hopeless.add(line)
    if _texts(chunk.tokens) != before or _longest(chunk) >= longest:
        return ""
    return chunk.text[start - head :]


def _longest(place: Layout) -> int:
    return max((token.end - place.line_start(token.end) for token in place.tokens if not token.comment), default=0)


class _Line:
    """One line of a statement that is too long."""

    def __init__(self, place: Layout, index: int) -> None:
        self.place = place
        self.start = place.starts[index]
        self.end = place.line_end(self.start)
        self.indent = place.indent(self.start)
        stack: list[Token] = []
        self.pairs: list[tuple[Token, Token]] = []  # outermost brackets that open and close on this line
        self.commas: list[Token] = []  # between items of what the line begins inside of
        self.base: list[Token] | None = None
        deeper: list[tuple[Token, int]] = []
        for token in place.tokens:
            if token.start >= self.start and self.base is None:
                self.base = list(stack)
            if token.start >= self.end:
                break
            if token.comment:
                continue
            if token.text in OPENING:
                stack.append(token)
            elif token.text in CLOSING and stack:
                opened = stack.pop()
                if self.base is not None and opened.start >= self.start and len(stack) == len(self.base):
                    self.pairs.append((opened, token))
            elif token.text == "," and self.base and len(stack) == len(self.base):
                self.commas.append(token)
            elif token.text == "," and self.base is not None and len(stack) > len(self.base):
                deeper.append((token, len(stack)))
        last = len(stack)  # of the token that the line ends with
        self.opener = stack[-1] if stack and stack[-1].start >= self.start else None
        self.open_commas = [token for token, depth in deeper if depth == last]

    def broken(self, limit: int, style: Brackets) -> str:
        """The statement with this line broken once; "" if there is no place for it."""
        return (self._between_items(limit, style) or self._at_bracket(limit, style) or self._in_open_bracket(limit)
                or self._hung(limit, style))

    def _between_items(self, limit: int, style: Brackets) -> str:
        """Items of brackets that opened on an earlier line: each on its own, or as many as fit."""
        text, place = self.place.text, self.place
        inner = [c for c in self.commas if text[c.end : self.end].strip() and not place.comment_after(c.end)]
        if not self.base or not inner:
            return ""
        opener, closer = self.base[-1], place.after(self.end)
        alone = place.after(opener.end)
        if closer is not None and closer.text in CLOSING and alone is not None and place.first_on_line(
                alone.start) and alone.start >= self.start:
            pieces = self._split([comma.end for comma in inner])
            last = place.before(closer.start)
            comma = style.comma and last is not None and last.text != "," and self._takes_comma(opener)
            if comma and last is not None:
                pieces[-1] = text[inner[-1].end : last.end].strip() + "," + text[last.end : self.end]
            return self._joined(pieces)
        fitting = [comma.end for comma in inner if comma.end - self.start <= limit]
        return self._joined(self._split(fitting[-1:])) if fitting else ""

    def _split(self, cuts: Sequence[int]) -> list[str]:
        """The line in pieces that end at some offsets."""
        edges = [self.start + len(self.indent), *cuts, self.end]
        return [self.place.text[a:b].strip() for a, b in pairwise(edges)]

    def _joined(self, pieces: Sequence[str]) -> str:
        """The statement with this line replaced by pieces, each indented as the line is."""
        text = self.place.text
        return text[: self.start] + "\n".join(self.indent + piece for piece in pieces) + text[self.end :]

    def _takes_comma(self, opener: Token) -> bool:
        """Whether what a bracket holds may end in a comma and mean the same: arguments, or items of a list."""
        place = self.place
        before = place.before(opener.start)
        value = before is not None and (before.text in (")", "]") or (before.text.isidentifier()
                                                                     and before.text not in _KEYWORDS))
        return value if opener.text == "(" else not value

    def _at_bracket(self, limit: int, style: Brackets) -> str:
        """What stands in the longest brackets goes to lines of its own, or below its first item."""
        text = self.place.text
        fit = [pair for pair in self.pairs
               if pair[0].end - self.start <= limit and len(text[pair[0].end : pair[1].start].strip()) >= _WORTH]
        fit = [pair for pair in fit if pair[0].text == "(" or self._takes_comma(pair[0])]  # but no subscripts
        if not fit:
            return ""
        opener, closer = max(fit, key=lambda pair: pair[1].start - pair[0].end)
        if not style.hanging:
            made = self._below(opener, closer, limit)
            if made:
                return made
        content = text[opener.end : closer.start].strip()
        close = f"\n{self.indent}" if style.own_line else ""
        return f"{text[: opener.end]}\n{self.indent}{style.step}{content}{close}{text[closer.start :]}"

    def _in_open_bracket(self, limit: int) -> str:
        """Items of brackets that close on a later line, whose items stand below each other."""
        text, place = self.place.text, self.place
        inner = [c for c in self.open_commas if c.end - self.start <= limit and text[c.end : self.end].strip()]
        below = place.after(self.end)
        if not inner or below is None or not place.first_on_line(below.start) or below.text in CLOSING:
            return ""
        cut = inner[-1].end
        return f"{text[:cut]}\n{place.indent(below.start)}{text[cut:].lstrip(' ')}"

    def _hung(self, limit: int, style: Brackets) -> str:
        """What stands below the first item of brackets that close on a later line goes to lines below the bracket's."""
        text, place, opener = self.place.text, self.place, self.opener
        closer = place.closing(opener) if opener is not None else None
        if opener is None or closer is None or opener.end - self.start > limit:
            return ""
        column = place.column(opener.end)
        first, *others = re.split(r"\r\n|\r|\n", text[opener.end : closer.start])
        if not first.strip() or any(line[:column].strip() for line in others):
            return ""
        if place.comments(opener.end, closer.start):
            return ""
        if place.inside_strings & set(range(place.line_of(opener.start), place.line_of(closer.start) + 1)):
            return ""
        indent, tail = self.indent + style.step, text[closer.start : place.line_end(closer.start)]
        pieces = [first.strip(), *(line[column:].rstrip() for line in others)]
        whole = " ".join(piece.strip() for piece in pieces)
        own_line = style.own_line and style.hanging
        if len(indent + whole + tail) <= limit:
            pieces = [whole]
        close = f"\n{self.indent}" if own_line else ""
        return text[: opener.end] + "".join(f"\n{indent}{piece}" for piece in pieces) + close + text[closer.start :]

    def _below(self, opener: Token, closer: Token, limit: int) -> str:
        """Items of brackets below the first one; "" if one of them is too long for that."""
        text, depth = self.place.text, 0
        below = re.sub(r"[^\t]", " ", text[self.start : opener.end])
        cuts, last, begin = [], opener.end, len(text[self.start : opener.end])
        width = begin
        for token in self.place.tokens_in(opener.end, closer.end):
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if (token.text == "," and depth == 0) or token is closer:
                width += token.end - last
                if width > limit:
                    if last == opener.end:
                        return ""
                    cuts.append(last)
                    width = begin + len(text[last : token.end].strip())
                last = token.end
        if not cuts or width > limit:
            return ""
        edges = [opener.end, *cuts, closer.start]
        pieces = [text[a:b].strip() for a, b in pairwise(edges)]
        return text[: opener.end] + f"\n{below}".join(pieces) + text[closer.start :]
