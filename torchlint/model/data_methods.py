"""Methods of plain Python data: lists, dicts, sets, strings, sizes, numpy arrays and random generators."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.findings import Confidence
from torchlint.model import containers
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Kind, Value, join, join_optional

if TYPE_CHECKING:
    from torchlint.model.interp import Run

Keywords = dict[str, Value]
GROWING = {"append": 0, "appendleft": 0, "add": 0, "insert": 1, "extend": 0, "extendleft": 0, "put": 0, "append_": 0}


def container_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of lists, dicts, sets and deques."""
    assert isinstance(node.func, ast.Attribute)
    from torchlint.model.evaluate import path_of

    if name in GROWING and len(args) > GROWING[name]:
        value = args[GROWING[name]]
        stored = value.item or UNKNOWN if name.startswith("extend") else value
        run.event("store", node, base, value=stored, path=path_of(node.func.value), name=name)
        containers.put(run, node.func.value, base, stored)
        return NONE
    match name:
        case "items" if base.kind in (Kind.DICT, Kind.STATE_DICT):
            item = base.item or UNKNOWN
            return Value(Kind.LIST, item=Value(Kind.TUPLE, elements=(STRING, item)), bound=base)
        case "values" if base.kind in (Kind.DICT, Kind.STATE_DICT):
            return Value(Kind.LIST, item=base.item, bound=base)
        case "keys":
            return Value(Kind.LIST, item=UNKNOWN)
        case "copy":
            return base.but(ident=node, site=node)
        case "pop" | "popleft" | "popitem" | "get":
            return taken(run, node, base, name, args)
        case "setdefault" if len(args) == 2:
            run.event("store", node, base, value=args[1], path=path_of(node.func.value), name=name)
            containers.put(run, node.func.value, base, args[1])
            return join_optional(base.item, args[1]) or UNKNOWN
        case "update":
            value = args[0] if args else Value(Kind.DICT, fields=tuple(keywords.items()))
            run.event("store", node, base, value=value, path=path_of(node.func.value), name=name)
            containers.changed(run, node.func.value, base, updated(base, value))
            return NONE
        case "clear":
            run.event("clear", node, base, path=path_of(node.func.value), name=name)
            empty = base.but(item=None, elements=() if base.kind is Kind.LIST else None, fields=())
            containers.changed(run, node.func.value, base, empty)
            return NONE
        case "index" | "count":
            return NUMBER
        case "sort" | "reverse" | "remove" | "discard":
            containers.changed(run, node.func.value, base, base.but(elements=None))
            return NONE
    return None


def taken(run: Run, node: ast.Call, base: Value, name: str, args: list[Value]) -> Value:
    """What `get`, `pop` and the like hand out."""
    assert isinstance(node.func, ast.Attribute)
    first = args[0].const if args else None
    found = base.field(first) if first is not None else None
    if name != "get" and base.kind is not Kind.DICT:
        containers.changed(run, node.func.value, base, base.but(elements=None))
    if found is not None:
        return found
    found = base.item or UNKNOWN
    if base.kind is not Kind.DICT or name == "popitem" or (name == "pop" and len(args) < 2):
        return found
    if len(args) > 1:
        return join(found, args[1])
    return found.but(optional=True) if found.known else found


def updated(base: Value, other: Value) -> Value:
    """A dict after `update(other)`."""
    item = base.item
    for part in other.parts() or [UNKNOWN]:
        item = join_optional(item, part)
    if other.kind is not Kind.DICT or not (other.fields or other.elements == ()):
        return base.but(item=item, fields=(), elements=None)
    names = {name for name, _ in other.fields}
    fields = (*((name, part) for name, part in base.fields if name not in names), *other.fields)
    return base.but(item=item, fields=fields, elements=None)


def size_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of torch.Size."""
    return NUMBER if name == "numel" else None


def text_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of strings."""
    if name in ("split", "rsplit", "splitlines"):
        return Value(Kind.LIST, item=STRING)
    return NUMBER if name in ("startswith", "endswith", "find", "isdigit", "count") else STRING


def array_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of numpy arrays."""
    if name in ("item", "tolist"):
        return NUMBER if name == "item" else Value(Kind.LIST)
    fresh = name in ("copy", "astype")
    return Value(Kind.NDARRAY, sure=Confidence.LIKELY, ident=node, site=node, storage=node if fresh else base.storage)


def random_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of random generators."""
    if name == "manual_seed":
        return base
    return Value(Kind.NDARRAY, sure=Confidence.LIKELY, ident=node) if base.name.startswith("numpy.") else NUMBER
