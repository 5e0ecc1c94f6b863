"""Edits of a call's arguments that keep its layout: trailing comma, one per line, comments."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from torchlint.findings import Edit
from torchlint.fixes.expressions import Edits, editable, outer_range
from torchlint.fixes.layout import Layout, Token, layout

if TYPE_CHECKING:
    from torchlint.model import FileModel


class Item(NamedTuple):
    """One argument, with the offsets of its text (parentheses of its own included)."""

    node: ast.AST
    start: int
    end: int


def _items(model: FileModel, call: ast.Call) -> list[Item]:
    """The arguments in source order."""
    place = layout(model.source)
    found = [Item(arg, *outer_range(model, arg)) for arg in call.args]
    for keyword in call.keywords:
        start, end = place.range(keyword)
        found.append(Item(keyword, start, max(outer_range(model, keyword.value)[1], end)))
    return sorted(found, key=lambda item: item.start)


def _comma(place: Layout, end: int, close: int) -> Token | None:
    """The comma behind an argument."""
    token = place.after(end)
    return token if token is not None and token.text == "," and token.start < close else None


def _gap(place: Layout, start: int) -> str:
    """What separates an argument from the next: a space, or a new line with the same indentation."""
    return "\n" + place.indent(start) if place.first_on_line(start) else " "


def add_keyword_argument(model: FileModel, call: ast.Call, text: str) -> Edits:
    """Add an argument such as "dim=1" behind the others (before `**kwargs`), in the call's own layout.

    () inside f-strings before Python 3.12.
    """
    if not editable(model, call, text):
        return ()
    place = layout(model.source)
    items = _items(model, call)
    close = place.range(call)[1] - 1
    if not items:
        left = place.before(close)
        start = left.end if left is not None and not place.comments(left.end, close) else close
        return (place.edit(start, close, text),)
    last = items[-1]
    if last.end > close:  # a generator that shares the call's parentheses
        return place.edit(last.start, last.start, "("), place.edit(close, close, f"), {text}")
    for item in items:
        if isinstance(item.node, ast.keyword) and item.node.arg is None:
            return (place.edit(item.start, item.start, f"{text},{_gap(place, item.start)}"),)
    return _append(place, last, _comma(place, last.end, close), len(items), text)


def _append(place: Layout, last: Item, comma: Token | None, count: int, text: str) -> Edits:
    """Add an argument behind the last one: on a line of its own if that is how the last two stand."""
    end = comma.end if comma is not None else last.end
    if not (place.first_on_line(last.start) and (comma is not None or count > 1)):
        return (place.edit(end, end, f" {text}," if comma is not None else f", {text}"),)
    gap = _gap(place, last.start)
    comment = place.comment_after(end)
    if comma is not None:
        end = comment.end if comment is not None else end
        return (place.edit(end, end, f"{gap}{text},"),)
    if comment is not None:
        return place.edit(end, end, ","), place.edit(comment.end, comment.end, f"{gap}{text}")
    return (place.edit(end, end, f",{gap}{text}"),)


def remove_argument(model: FileModel, call: ast.Call, argument: ast.expr | ast.keyword) -> Edits:
    """Take an argument (one of `call.args` or `call.keywords`) away, with its comma.

    Whether the arguments behind a positional one still mean the same is for the caller to know.
    () if it is no argument of the call, or inside f-strings before Python 3.12.
    """
    place = layout(model.source)
    items = _items(model, call)
    index = next((i for i, item in enumerate(items) if item.node is argument), -1)
    if index < 0 or not editable(model, call):
        return ()
    _, start, end = items[index]
    close = place.range(call)[1] - 1
    if end > close:  # a generator that shares the call's parentheses
        return (place.edit(start + 1, close, ""),)
    comma = _comma(place, end, close)
    end = comma.end if comma is not None else end
    if len(items) == 1:
        left = place.before(start)
        return (_cut(place, left.end if left is not None else start, close, start, end),)
    if index + 1 == len(items):
        # Its own trailing comma stays: it then trails the argument before.
        previous = items[index - 1].end
        return (_cut(place, previous, items[index].end, start, end),)
    following = items[index + 1].start
    if place.first_on_line(start) and place.first_on_line(following):
        return (_cut(place, place.line_start(start), place.line_start(following), start, end),)
    return (_cut(place, start, following, start, end),)


def _cut(place: Layout, first: int, last: int, start: int, end: int) -> Edit:
    """Remove the wider range if no comment is in it, else only the argument (with its line, if alone)."""
    if not place.comments(first, last):
        return place.edit(first, last, "")
    if place.first_on_line(start) and not place.text[end : place.line_end(end)].strip():
        return place.edit(place.line_start(start), place.next_line(end), "")
    return place.edit(start, end, "")
