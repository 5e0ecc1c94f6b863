"""Plain lists and dicts of modules or parameters become the containers of torch that register them."""
from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchlint.findings import Safety
from torchlint.fixes.expressions import Edits, editable, outer_range, replace, spaced
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

# What the containers of torch can do that a list or dict can; the rest of list and dict they cannot.
LIST_METHODS = frozenset({"append", "extend", "insert", "pop"})
DICT_METHODS = frozenset({"items", "keys", "values", "update", "pop", "clear"})
PARAMETER_LIST_METHODS = frozenset({"append", "extend"})
PARAMETER_DICT_METHODS = DICT_METHODS | {"get", "setdefault", "copy", "popitem"}
READERS = frozenset({
    "len", "enumerate", "zip", "reversed", "list", "tuple", "iter", "bool", "sum", "map", "filter", "any",
    "all", "range", "dict", "set", "sorted",
})


def to_registered(
    model: FileModel, value: ast.expr, uses: Iterable[ast.expr] = (), *, element: str = "Module"
) -> Repair | None:
    """Wrap a list, tuple, comprehension or dict in `nn.ModuleList(...)`/`nn.ModuleDict(...)`.

    `value` is what is assigned to the attribute (a name counts as a list); `uses` are the places that
    read it (`self.layers`). `element` is "Module" or "Parameter". The repair is SAFE if all elements are
    in sight and every use is one that torch's container offers, else UNSAFE; None if a use is sure
    to fail (`self.layers.index(x)`), for sets, and for dicts with keys that are no strings.
    """
    kind = "Dict" if isinstance(value, (ast.Dict, ast.DictComp)) or _makes(model, value, "dict") else "List"
    unordered = isinstance(value, (ast.Set, ast.SetComp)) or _makes(model, value, "set", "frozenset")
    if unordered or _other_keys(value):
        return None
    fits = [use_fits(model, use, kind, element) for use in uses]
    spelled = spell(model, f"torch.nn.{element}{kind}", value)
    if spelled is None or None in fits:
        return None
    edits = _wrap(model, value, spelled.text)
    if not edits:
        return None
    known = all(fits) and not isinstance(model.parent(value), ast.AnnAssign)  # else the annotation would lie
    safety = Safety.SAFE if known and not _empty(value) else Safety.UNSAFE
    return Repair(f"Keep them in nn.{element}{kind}", edits, spelled.imports, safety)


def _empty(value: ast.expr) -> bool:
    """Whether a container is empty as it is made: what it gets later may be registered under another name."""
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]) | ast.Call(args=[], keywords=[]):
            return True
    return False


def _makes(model: FileModel, value: ast.expr, *names: str) -> bool:
    return isinstance(value, ast.Call) and model.name_of(value.func).removeprefix("builtins.") in names


def _other_keys(value: ast.expr) -> bool:
    """Whether a dict has a key that is surely no string, or one with a dot, which torch refuses."""
    keys: list[ast.expr | None] = []
    if isinstance(value, ast.Dict):
        keys = value.keys
    elif isinstance(value, ast.DictComp):
        keys = [value.key]
    for key in keys:
        match key:
            case None | ast.Constant(value=(int() | float() | bytes() | None)) | ast.Tuple():
                return True
            case ast.Constant(value=str(text)) if "." in text or not text:
                return True
    return False


def _wrap(model: FileModel, value: ast.expr, name: str) -> Edits:
    place = layout(model.source)
    if not editable(model, value):
        return ()
    start, end = place.range(value)
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]) if not place.comments(start, end):
            return replace(model, value, f"{name}()")
        case ast.Call(func=ast.Name(id="list" | "dict" | "tuple"), args=[], keywords=[]):
            return replace(model, value, f"{name}()")
        case ast.Call(func=ast.Name(id="list" | "tuple") as func, args=[_], keywords=[]):
            return replace(model, func, name)  # `list(x)` -> `nn.ModuleList(x)`
        case ast.Tuple():
            if place.text[start] == "(":
                return (place.edit(start, start + 1, f"{name}(["), *_close_tuple(model, value, end))
            return spaced(model, start, start, f"{name}(["), place.edit(end, end, "])")
    start, end = outer_range(model, value)
    return spaced(model, start, start, f"{name}("), place.edit(end, end, ")")


def _close_tuple(model: FileModel, value: ast.Tuple, end: int) -> Edits:
    """`(a,)` -> `[a])`: the comma that made it a tuple goes away where it stands alone."""
    place = layout(model.source)
    comma = place.before(end - 1)
    if len(value.elts) == 1 and comma is not None and comma.text == "," and comma.end == end - 1:
        return (place.edit(comma.start, end, "])"),)
    return (place.edit(end - 1, end, "])"),)


def use_fits(model: FileModel, use: ast.expr, kind: str, element: str = "Module") -> bool | None:
    """Whether torch's container can be used like this: True, False if unsure, None if it surely cannot."""
    parent = model.parent(use)
    methods = {("List", "Module"): LIST_METHODS, ("Dict", "Module"): DICT_METHODS,
               ("List", "Parameter"): PARAMETER_LIST_METHODS, ("Dict", "Parameter"): PARAMETER_DICT_METHODS}
    match parent:
        case ast.Attribute(attr=name):
            if isinstance(model.parent(parent), ast.Call):
                return True if name in methods[kind, element] else None
            return False
        case ast.Subscript(value=value):
            return value is use
        case ast.For(iter=it) | ast.comprehension(iter=it):
            return it is use
        case ast.Starred():
            return True
        case ast.Call(func=ast.Name(id=name)) if name in READERS:
            return True
        case ast.Call(func=func) if model.name_of(func) in ("torch.nn.Sequential", "torch.nn.ModuleList"):
            return True
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]):
            return right is use
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            return test is use
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.AugAssign(target=target):
            return target is use and kind == "List"
    return False
