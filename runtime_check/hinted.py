"""Inputs of a structure that an annotation states: lists, tuples and tables of tensors, sizes, objects.

For parameters of `forward` whose annotation names more than a tensor.
"""
from __future__ import annotations

import collections.abc
import dataclasses
import enum
import itertools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

from runtime_check.guess import Asked
from runtime_check.placeholder import Missing
from runtime_check.specs import Const, Record, Seq, Spec, Table
from runtime_check.usage import Usage

LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, set, frozenset)
TABLES = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
PLAIN = (bool, int, float, str, torch.dtype, torch.device)
KEYS = ("a", "b")  # of a table whose keys the code does not name
DEEPEST = 4

#: Candidates for a part with this name, annotation and use.
Inner = Callable[[Asked], Iterator[Spec]]


def is_structure(hint: Any) -> bool:
    """Whether an annotation says something, and that is neither a tensor nor a choice that has one."""
    if hint is None or hint is Any or isinstance(hint, (str, Missing, typing.TypeVar)):
        return False
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return all(part is types.NoneType or is_structure(part) for part in args)
    if origin is not None:
        return origin in (*LISTS, *TABLES, tuple, typing.Literal)
    if isinstance(hint, type):
        return hint in (*PLAIN, list, tuple, dict) or issubclass(hint, enum.Enum) or dataclasses.is_dataclass(hint)
    return False


def hinted(hint: Any, asked: Asked, inner: Inner, depth: int = DEEPEST) -> Iterator[Spec]:
    """Candidates of the structure that an annotation states; `inner` gives those of a part that is none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if depth <= 0:
        return
    if origin in (typing.Union, types.UnionType):
        for part in args:
            if part is not types.NoneType and is_structure(part):
                yield from hinted(part, asked, inner, depth)
        if types.NoneType in args:
            yield Const(None)
    elif origin is typing.Literal:
        yield from map(Const, args)
    elif origin in LISTS or hint is list:
        yield from _list(args[0] if args else None, asked, inner, depth)
    elif origin is tuple or hint is tuple:
        yield from _tuple(args, asked, inner, depth)
    elif origin in TABLES or hint is dict:
        yield from _table(args, asked, inner, depth)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from map(Const, hint)
    elif hint is torch.dtype or hint is torch.device:
        yield Const(torch.float32 if hint is torch.dtype else torch.device("cpu"))
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield from _object(hint, asked, inner, depth)


def _part(hint: Any, asked: Asked, inner: Inner, depth: int) -> Iterator[Spec]:
    """Candidates of one part, of a structure again or not."""
    found = hinted(hint, asked, inner, depth - 1) if is_structure(hint) and hint not in PLAIN[:4] else iter(())
    yield from itertools.chain(found, inner(asked))


def _list(hint: Any, asked: Asked, inner: Inner, depth: int) -> Iterator[Spec]:
    single = asked.name[:-1] if asked.name.endswith("s") and not asked.name.endswith("ss") else asked.name
    item = Asked(single, hint, asked.use.element or Usage())
    found = list(itertools.islice(_part(hint, item, inner, depth), 4))
    for count in (asked.use.unpacked or 2, 1, 3, 4):
        for spec in found[: 4 if count == 2 else 1]:
            yield Seq((spec,) * count, list)


def _tuple(args: tuple[Any, ...], asked: Asked, inner: Inner, depth: int) -> Iterator[Spec]:
    if not args or args[-1] is Ellipsis:
        for spec in _list(args[0] if args else None, asked, inner, depth):
            yield Seq(spec.items, tuple) if isinstance(spec, Seq) else spec
        return
    names = asked.use.parts if len(asked.use.parts) == len(args) else ("",) * len(args)
    plain = [asked.name if hint in PLAIN else "part" for hint in args]  # tensors: their name is that of all together
    asked_for = [Asked(name or other, hint, Usage()) for name, other, hint in zip(names, plain, args, strict=True)]
    columns = [list(itertools.islice(_part(item.hint, item, inner, depth), 4)) for item in asked_for]
    if all(columns):
        for row in range(max(map(len, columns))):
            yield Seq(tuple(column[min(row, len(column) - 1)] for column in columns), tuple)


def _table(args: tuple[Any, ...], asked: Asked, inner: Inner, depth: int) -> Iterator[Spec]:
    hint = args[1] if len(args) == 2 else None
    uses = asked.use.keys or dict.fromkeys(KEYS, asked.use.element or Usage())
    columns = {key: list(itertools.islice(_part(hint, Asked(key, hint, use), inner, depth), 3))
               for key, use in uses.items()}
    if all(columns.values()):
        for row in range(max(map(len, columns.values()))):
            yield Table(tuple((key, column[min(row, len(column) - 1)]) for key, column in columns.items()))


def _object(hint: type, asked: Asked, inner: Inner, depth: int) -> Iterator[Spec]:
    """An instance of a data class: what it wants, and what the code reads of it."""
    hints = typing.get_type_hints(hint)
    parts: list[tuple[str, Spec]] = []
    for item in dataclasses.fields(hint):
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        use = asked.use.attributes.get(item.name)
        if item.init and (needed or (use is not None and item.default is None)):
            kind = hints.get(item.name)
            first = next(_part(kind, Asked(item.name, kind, use or Usage()), inner, depth), None)
            if first is not None:
                parts.append((item.name, first))
    yield Record(tuple(parts), hint)


def record(asked: Asked, inner: Inner) -> Record | None:
    """An object with the attributes that the code reads of a parameter; None if it reads none."""
    parts = [(name, next(inner(Asked(name, None, use)), None)) for name, use in asked.use.attributes.items()]
    found = tuple((name, spec) for name, spec in parts if spec is not None)
    return Record(found) if found else None
