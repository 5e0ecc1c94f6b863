"""Methods of plain Python data: lists, dicts, sets, strings, sizes, numpy arrays and random generators."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.findings import Confidence
from torchlint.model import calls
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Kind, Value, join_optional

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
        calls.put(run, node.func.value, base, stored)
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
            first = args[0].const if args else None
            found = base.field(first) if first is not None else None
            return found or base.item or UNKNOWN
        case "setdefault" if len(args) == 2:
            run.event("store", node, base, value=args[1], path=path_of(node.func.value), name=name)
            calls.put(run, node.func.value, base, args[1])
            return join_optional(base.item, args[1]) or UNKNOWN
        case "update":
            value = args[0] if args else Value(Kind.DICT, fields=tuple(keywords.items()))
            run.event("store", node, base, value=value, path=path_of(node.func.value), name=name)
            for part in value.parts():
                calls.put(run, node.func.value, base, part)
            return NONE
        case "clear":
            run.event("clear", node, base, path=path_of(node.func.value), name=name)
            path = path_of(node.func.value)
            if path:
                run.set(path, base.but(item=None, elements=() if base.kind is Kind.LIST else None, fields=()))
            return NONE
        case "index" | "count":
            return NUMBER
        case "sort" | "reverse" | "remove" | "discard":
            return NONE
    return None


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
