"""Arguments that searches have found: the same search in the corrected program tries them first.

A search of its own may end with others there, be it that less time is left, and two programs that were given
different arguments are not to be compared.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from runtime_check.specs import Assignment, Attributes, Const, Omit, Record, Seq, Spec, Table, Tensor, parts_of

PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

_found: dict[str, Assignment] = {}
_given: dict[str, Assignment] | None = None


def note(key: str, chosen: Assignment) -> None:
    """Remembers what a search for `key` has found, unless it was given what another has found."""
    if key and _given is None:
        _found[key] = chosen


def found() -> dict[str, Assignment]:
    """What each search has found last."""
    return dict(_found)


@contextlib.contextmanager
def given(chosen: dict[str, Assignment]) -> Iterator[None]:
    """While it lasts, searches begin with these."""
    global _given
    before, _given = _given, chosen
    try:
        yield
    finally:
        _given = before


def first(key: str, starts: Iterable[Assignment]) -> Iterable[Assignment]:
    """The starts of a search, before them what it is given."""
    chosen = _given.get(key) if _given is not None else None
    if chosen is None:
        return starts
    known = list(starts)
    moved = taken_over(chosen, known)
    return known if moved is None else [moved, *known]


def taken_over(chosen: Assignment, starts: list[Assignment]) -> Assignment | None:
    """Arguments for another program: what is made from the code of one is replaced by the like of the other."""
    for name, spec in chosen.items:
        if not is_plain(spec):
            like = next((start.get(name) for start in starts if start.get(name) == spec), None)
            if like is None:
                return None
            chosen = chosen.put(name, like)
    return chosen


def is_plain(spec: Spec) -> bool:
    """Whether a recipe makes its value of nothing that belongs to a program."""
    match spec:
        case Tensor() | Omit():
            return True
        case Const(value=value):
            return is_value(value)
        case Record(kind=kind) if kind is not Attributes:
            return False
        case Seq() | Table() | Record():
            return all(is_plain(part) for _, part in parts_of(spec))
    return False


def is_value(value: Any) -> bool:
    """Whether a value is a number, a text or the like, or a container of these."""
    if isinstance(value, dict):
        return all(is_value(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple, set)):
        return all(map(is_value, value))
    return isinstance(value, PLAIN)
