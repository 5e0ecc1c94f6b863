"""Lists, dicts and sets that change: what is put into them, and under which names that is seen."""
from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import TYPE_CHECKING

from torchlint.model.values import CONTAINERS, MUTABLE_CONTAINERS, Kind, Value, join_optional, unsure

if TYPE_CHECKING:
    from torchlint.model.events import Flow
    from torchlint.model.functions import FunctionInfo
    from torchlint.model.interp import Run

# Code that leaves the lists and dicts alone that it is given.
HARMLESS = ("torch.", "torchvision.", "numpy.", "math.", "logging.", "json.", "wandb.", "os.", "pickle.")


def put(run: Run, container: ast.expr, base: Value, value: Value, key: Hashable = None) -> None:
    """Remember that a container now holds a value too, under a literal key if that is given."""
    if base.kind not in CONTAINERS:
        return
    fields = base.fields
    if base.kind is Kind.DICT and fields:
        fields = () if key is None else (*((name, part) for name, part in fields if name != key), (key, value))
    changed(run, container, base, base.but(item=join_optional(base.item, value), elements=None, fields=fields))


def changed(run: Run, container: ast.expr, before: Value, after: Value) -> None:
    """A container is not what it was: neither under the name at hand nor under others."""
    from torchlint.model.evaluate import path_of

    path = path_of(container)
    if path:
        run.set(path, after)
    rename(run, before, after, path)


def rename(run: Run, before: Value, after: Value, path: str) -> None:
    """Every name of an object, but for `path`, now stands for what has become of it."""
    if before.ident is None or run.env is None:
        return
    for name in [name for name, value in run.env.items() if value.ident == before.ident and name != path]:
        if run.env[name].kind is before.kind:
            run.set(name, after)


def hand_back(run: Run, func: FunctionInfo, env: dict[str, Value], flow: Flow) -> None:
    """What the function did to the containers that it was given, the caller sees."""
    for arg in (*func.params, *func.args.kwonlyargs):
        given, after = env.get(arg.arg), flow.end.get(arg.arg)
        if given is None or after is None or given.kind not in MUTABLE_CONTAINERS or given.ident is None:
            continue
        if after.ident == given.ident and after is not given and after != given:
            rename(run, given, after, "")


def loose(value: Value) -> Value:
    """A container that other code may have changed: what was in it is likely still there."""
    elements = None if value.elements is None else tuple(unsure(part) for part in value.elements)
    item = None if value.item is None else unsure(value.item)
    return value.but(elements=elements, item=item, fields=tuple((key, unsure(part)) for key, part in value.fields))
