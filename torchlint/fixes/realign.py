"""Lines that stand below what follows a bracket move along when a fix moves that bracket."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchlint.findings import Edit
from torchlint.fixes.layout import CLOSING, OPENING, Layout, Token

Range = tuple[int, int, str]  # start and end of an edit in the old text, and what it puts there


def realigned(place: Layout, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The same edits, with those of the indentation of lines that were aligned with a bracket that they move.

    ValueError if one lies outside the text.
    """
    parts = {edit: tuple(_parts(place, edit)) for edit in edits}
    ranges = sorted(part for edit in edits for part in parts[edit])
    moving = {place.line_of(start) for start, end, text in ranges if len(text) != end - start}
    moves: list[Edit] = []
    for start, end in place.logical_lines:
        first, last = place.line_of(start), place.line_of(end - 1)
        if first == last or moving.isdisjoint(range(first, last)):
            continue
        mine = [part for part in ranges if part[0] <= end and start <= part[1]]
        if not any("\n" in text or "\n" in place.text[a:b] for a, b, text in mine):
            moves += _moves(place, place.tokens_in(start, end), mine)
    made = list(edits)
    for edit in edits:
        first, last = place.offsets(edit.span)
        if any(first < place.offsets(move.span)[0] < last for move in moves):
            made.remove(edit)
            made += [place.edit(*part) for part in parts[edit]]
    return (*made, *moves)


def _parts(place: Layout, edit: Edit) -> Iterator[Range]:
    """An edit without the text that it leaves as it is, in two where that stands in the middle."""
    start, end = place.offsets(edit.span)
    old, new = place.text[start:end], edit.text
    if new and new in old:
        at = old.index(new)
        yield from (part for part in ((start, start + at, ""), (start + at + len(new), end, "")) if part[0] < part[1])
        return
    while old and new and old[0] == new[0]:
        start, old, new = start + 1, old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        end, old, new = end - 1, old[:-1], new[:-1]
    yield start, end, new


def _moves(place: Layout, tokens: Sequence[Token], ranges: Sequence[Range]) -> Iterator[Edit]:
    """The edits of the indentation of a statement's lines."""
    stack: list[int] = []  # the indexes of the brackets that are open
    moved: dict[int, int] = {}  # by how many columns each line is indented further
    for index, token in enumerate(tokens):
        line = place.line_of(token.start)
        if line not in moved:
            moved[line] = 0
            if stack and line not in place.inside_strings:
                moved[line] = by = _along(place, tokens, stack[-1], token, moved, ranges)
                head = place.starts[line]
                free = not any(start < token.start and head <= end for start, end, _ in ranges)
                if by and free and place.text[head : token.start].strip(" ") == "" and token.start - head + by >= 0:
                    yield place.edit(head, head + max(-by, 0), " " * by)
        if token.text in OPENING:
            stack.append(index)
        elif token.text in CLOSING and stack:
            stack.pop()


def _along(
    place: Layout, tokens: Sequence[Token], bracket: int, token: Token, moved: dict[int, int], ranges: Sequence[Range]
) -> int:
    """By how many columns a line moves whose first token stands in a bracket."""
    opener, item = tokens[bracket], tokens[bracket + 1]
    line, column = place.line_of(opener.start), place.column(token.start)
    if place.line_of(item.start) != line:
        return moved[line]  # the bracket ends its line: what it holds is indented from there
    below = column == place.column(opener.start) if token.text in CLOSING else column == place.column(item.start)
    if not below or "\t" in place.text[place.starts[line] : opener.start]:
        return 0
    shift = moved[line]
    for start, end, text in ranges:
        if place.line_of(start) != line or start > opener.start:
            continue
        if end > opener.start and not (end == opener.end and text.endswith(opener.text)):
            return 0
        shift += len(text) - (end - start)
    return shift
