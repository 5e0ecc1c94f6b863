"""Make a tensor where and as what it is wanted: `torch.zeros(n).to(d)` -> `torch.zeros(n, device=d)`."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torchlint.findings import Safety
from torchlint.fixes.arguments import add_keyword_argument
from torchlint.fixes.expressions import Edits, drop_method_call, source_of
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

# Factories that give the same values on every device. With another dtype only CONSTANT ones do.
CONSTANT = frozenset({"zeros", "ones", "empty", "eye", "zeros_like", "ones_like", "empty_like"})
FIXED = CONSTANT | {"full", "arange", "linspace", "logspace", "tensor", "full_like", "tril_indices", "triu_indices"}
RANDOM = frozenset({"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"})
DEFAULT = {f"torch.{name}" for name in ("zeros", "ones", "empty", "eye", "rand", "randn")}  # of 32 bits, on the CPU
CASTS = {"half": "half", "float": "float", "double": "double", "int": "int", "long": "long", "bool": "bool",
         "bfloat16": "bfloat16"}
LIKE = frozenset({"torch.zeros_like", "torch.ones_like", "torch.empty_like", "torch.full_like"})
DTYPES = {"bool": "bool", "long": "int64"}


class Absorbed(NamedTuple):
    """What a factory is told in place of conversions of its result."""

    wanted: dict[str, str]  # keyword -> its text
    added: Edits
    calls: tuple[ast.Call, ...]  # the conversions, inside out
    imports: tuple[str, ...]
    safety: Safety


def factory_device(model: FileModel, call: ast.Call) -> Repair | None:
    """Move what `.to(...)`, `.cuda()` or a cast behind a factory says into the factory's arguments.

    Random factories draw from the generator of their device, so the repair is UNSAFE for them. None if
    the receiver is no factory, already has that argument, or the values would be others (a cast of
    anything but constants), and if what `.to` is given is neither surely a device nor a dtype.
    """
    match call.func:
        case ast.Attribute(value=ast.Call() as made):
            found = absorbed(model, made, call)
        case _:
            return None
    if found is None:
        return None
    dropped = tuple(edit for one in found.calls for edit in drop_method_call(model, one))
    if not dropped:
        return None
    return Repair(f"Pass {' and '.join(found.wanted)} to the factory", (*found.added, *dropped), found.imports,
                  found.safety)


def absorbed(model: FileModel, made: ast.Call, call: ast.Call) -> Absorbed | None:
    """What a factory call can be told of a method call and those behind it in its chain; None for nothing.

    `call` need not be the call behind the factory: it may be behind what wraps it.
    """
    name = model.name_of(made.func).removeprefix("torch.")
    given = {keyword.arg for keyword in made.keywords}
    if name not in FIXED | RANDOM or None in given:
        return None
    wanted: dict[str, str] = {}
    imports: tuple[str, ...] = ()
    calls: list[ast.Call] = []
    for one in _conversions(model, call):
        more, needs = _arguments(model, one, one.func.attr)  # type: ignore[attr-defined]
        if "device" in more and "generator" in given:
            break  # a generator draws on its own device only
        if not more or more.keys() & (wanted.keys() | given) or ("dtype" in more and name not in CONSTANT):
            break
        wanted.update(more)
        imports += needs
        calls.append(one)
    if not calls:
        return None
    added = add_keyword_argument(model, made, ", ".join(f"{key}={text}" for key, text in wanted.items()))
    safety = Safety.UNSAFE if name in RANDOM else Safety.SAFE
    return Absorbed(wanted, added, tuple(calls), imports, safety) if added else None


def is_idle(model: FileModel, made: ast.Call, call: ast.Call) -> bool:
    """Whether a conversion of what a factory makes gives the tensor itself: without arguments for it, it is so already.

    `call` need not be right behind the factory, as `nn.Parameter(torch.zeros(n)).cpu()` shows.
    """
    if not isinstance(call.func, ast.Attribute) or call.keywords:
        return False
    given = {keyword.arg for keyword in made.keywords}
    if model.name_of(made.func) in LIKE and made.args and not call.args and not given & {"dtype", None}:
        return f"dtype:{DTYPES.get(call.func.attr)}" in model.value(made.args[0]).facts
    name = model.name_of(made.func)
    if name not in DEFAULT and not (name == "torch.tensor" and made.args and _is_plain(made.args[0])):
        return False
    match call.func.attr, call.args:
        case ("float", []) if name not in DEFAULT:
            return False
        case ("cpu", []) | ("to", [ast.Constant(value="cpu")]):
            return not given & {"device", None} and not model.calls_named("set_default_device")
        case ("float", []):
            return not given & {"dtype", None} and not model.calls_named("set_default_dtype")
    return False


def _is_plain(data: ast.expr) -> bool:
    """Whether data are numbers written out or listed, which `torch.tensor` puts on the CPU."""
    return isinstance(data, (ast.List, ast.Tuple, ast.Constant, ast.ListComp))


def _conversions(model: FileModel, call: ast.Call) -> Iterator[ast.Call]:
    """A method call, and those that follow it in a chain: `.to(device)`, `.float()`."""
    node: ast.AST | None = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node
        outer = model.parent(node)
        node = model.parent(outer) if isinstance(outer, ast.Attribute) else None


def _arguments(model: FileModel, call: ast.Call, method: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a conversion asks for, as keyword arguments of a factory, and imports; {} if that is unclear."""
    if method in CASTS and not call.args and not call.keywords:
        spelled = spell(model, f"torch.{CASTS[method]}", call)
        return ({"dtype": spelled.text}, spelled.imports) if spelled is not None else ({}, ())
    mark = layout(model.source).quote
    if method == "cuda" and not call.args and not call.keywords:
        return {"device": f"{mark}cuda{mark}"}, ()
    if method != "to":
        return {}, ()
    found: dict[str, str] = {}
    for arg in call.args:
        kind = _kind(model, arg)
        if not kind or kind in found:
            return {}, ()
        found[kind] = source_of(model, arg)
    for keyword in call.keywords:
        if keyword.arg not in ("device", "dtype") or keyword.arg in found:
            return {}, ()
        found[keyword.arg] = source_of(model, keyword.value)
    return found, ()


def _kind(model: FileModel, arg: ast.expr) -> str:
    """Whether an argument of `.to` is a device or a dtype; "" if that is not known."""
    from torchlint.model.values import Kind

    if isinstance(arg, ast.Starred):
        return ""
    kind = model.value(arg).kind
    return {Kind.DEVICE: "device", Kind.STRING: "device", Kind.DTYPE: "dtype"}.get(kind, "")
