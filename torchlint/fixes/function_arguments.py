"""What instances of an old autograd Function keep from `__init__` becomes arguments of `forward`.

`Scale(2.0)(x)` -> `Scale.apply(x, 2.0)`, with `backward` returning None for each argument that moved. Only where all
uses of the class are in sight: calls of instances that are made on the spot, in this file.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.fixes import edits
from torchlint.fixes.expressions import Edits, outer_range
from torchlint.fixes.layout import layout
from torchlint.fixes.names import names_bound, parameters
from torchlint.fixes.statements import has_docstring
from torchlint.fixes.unused import taken_from
from torchlint.model.values import Kind

if TYPE_CHECKING:
    from torchlint.model import ClassInfo, FileModel

Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Kept:
    """What `__init__` takes and keeps."""

    init: ast.FunctionDef
    params: tuple[tuple[ast.arg, ast.expr | None], ...]  # with defaults
    stores: tuple[tuple[str, ast.expr], ...]  # attribute and value, in order


def moved_to_forward(model: FileModel, cls: ClassInfo, calls: Sequence[ast.Call]) -> list[Edits]:
    """The edits of `__init__`, `forward`, what `backward` returns and the calls; [] if they cannot be made.

    The names of first parameters and `@staticmethod` are left to the caller, but for reads that become arguments.
    """
    node = cls.node
    methods = {stmt.name: stmt for stmt in node.body if isinstance(stmt, ast.FunctionDef)}
    kept = _kept(methods.get("__init__"))
    forward, backward = methods.get("forward"), methods.get("backward")
    if kept is None or forward is None or backward is None or set(methods) != {"__init__", "forward", "backward"}:
        return []
    if not calls or not _all_in_sight(model, node, calls) or not _roomy(forward, kept):
        return []
    groups = [edits.remove(model, kept.init), *_called(model, calls, kept), *_returned(model, forward, backward, kept)]
    groups += _forward(model, forward, backward, kept)
    return groups if all(groups) else []


def _kept(init: ast.FunctionDef | None) -> Kept | None:
    """What an `__init__` keeps, if it does nothing else."""
    if init is None or init.decorator_list or init.args.vararg or init.args.kwarg or init.args.kwonlyargs:
        return None
    me, *params = (*init.args.posonlyargs, *init.args.args)
    missing: list[ast.expr | None] = [None] * (len(params) - len(init.args.defaults))
    stores: list[tuple[str, ast.expr]] = []
    for stmt in init.body[int(has_docstring(init.body)) :]:
        match stmt:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=attr)], value=value) if (
                owner == me.arg and me.arg not in _names(value)
            ):
                stores.append((attr, value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="__init__"))) | ast.Pass():
                pass
            case _:
                return None
    return Kept(init, tuple(zip(params, [*missing, *init.args.defaults], strict=True)), tuple(stores))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _all_in_sight(model: FileModel, node: ast.ClassDef, calls: Sequence[ast.Call]) -> bool:
    """Whether the class is used for nothing but instances that are called on the spot."""
    uses = {one for one in model.nodes(ast.Name) if isinstance(one, ast.Name) and one.id == node.name}
    inside = {one for one in ast.walk(node) if isinstance(one, ast.Name)}
    made = {call.func.func for call in calls if isinstance(call.func, ast.Call)}
    return uses - inside == made and not taken_from(model.source.path, node.name)


def _roomy(forward: Method, kept: Kept) -> bool:
    """Whether `forward` can take the arguments: plain parameters, and no name of its own in the way."""
    args = forward.args
    if args.vararg or args.kwarg or args.kwonlyargs or args.defaults or len(parameters(forward)) < 2:
        return False
    bound = set(names_bound([*forward.body])) | {arg.arg for arg in parameters(forward)}
    return not bound & {arg.arg for arg, _ in kept.params}


def _called(model: FileModel, calls: Sequence[ast.Call], kept: Kept) -> Iterator[Edits]:
    """`Scale(2.0)(x)` -> `Scale.apply(x, 2.0)`."""
    for call in calls:
        maker = call.func
        given = _given(model, maker, kept) if isinstance(maker, ast.Call) else None
        plain = not call.keywords and call.args and not any(isinstance(arg, ast.Starred) for arg in call.args)
        if given is None or not plain or not isinstance(maker, ast.Call):
            yield ()
            return
        yield edits.replace(model, maker, f"{edits.source_of(model, maker.func)}.apply")
        if given:
            yield edits.add_keyword_argument(model, call, ", ".join(given))


def _given(model: FileModel, maker: ast.Call, kept: Kept) -> list[str] | None:
    """The arguments in the order of `__init__`; those at the end that have a default may be missing."""
    names = [arg.arg for arg, _ in kept.params]
    if len(maker.args) > len(names) or any(isinstance(arg, ast.Starred) for arg in maker.args):
        return None
    given = dict(zip(names, maker.args, strict=False)) | {k.arg or "": k.value for k in maker.keywords}
    if set(given) - set(names) or any(model.value(value).kind is Kind.TENSOR for value in given.values()):
        return None  # `ctx` should not hold a tensor as an attribute
    last = max((names.index(name) for name in given), default=-1)
    values = [given.get(arg.arg, default) for arg, default in kept.params]
    if None in values:
        return None
    return [edits.source_of(model, value) for value in values[: last + 1] if value is not None]


def _returned(model: FileModel, forward: Method, backward: Method, kept: Kept) -> Iterator[Edits]:
    """None for each new argument, wherever `backward` returns."""
    place, inputs = layout(model.source), len(parameters(forward)) - 1
    nones = ", None" * len(kept.params)
    returns = [one for one in ast.walk(backward) if isinstance(one, ast.Return)]
    for one in returns if nones else ():
        match one.value:
            case ast.Tuple(elts=[*elts]) if len(elts) == inputs and not any(isinstance(e, ast.Starred) for e in elts):
                end = outer_range(model, elts[-1])[1]
            case ast.expr() as value if inputs == 1 and not isinstance(value, ast.Tuple) and (
                model.value(value).kind in (Kind.TENSOR, Kind.UNKNOWN, Kind.NONE)
            ):
                end = outer_range(model, value)[1]
            case _:
                yield ()
                return
        yield (place.edit(end, end, nones),)


def _forward(model: FileModel, forward: ast.FunctionDef, backward: Method, kept: Kept) -> Iterator[Edits]:
    """The new parameters, what `ctx` has to keep of them, and `ctx` or the arguments for `self`."""
    place, me = layout(model.source), parameters(forward)[0].arg
    if kept.params:
        end = max(place.range(one)[1] for one in parameters(forward))
        yield (place.edit(end, end, "".join(f", {_written(model, *param)}" for param in kept.params)),)
    direct = {attr: value.id for attr, value in kept.stores
              if isinstance(value, ast.Name) and not _attributes(backward, attr) and _only_read(forward, me, attr)}
    lines = [f"ctx.{attr} = {edits.source_of(model, value)}" for attr, value in kept.stores if attr not in direct]
    if lines:
        yield edits.insert_first_in_body(model, forward, "\n".join(lines))
    for attr, name in direct.items():
        for read in _attributes(forward, attr):
            yield edits.replace(model, read, name)


def _written(model: FileModel, arg: ast.arg, default: ast.expr | None) -> str:
    text = edits.source_of(model, arg)
    if default is None:
        return text
    return text + (" = " if arg.annotation else "=") + edits.source_of(model, default)


def _attributes(node: ast.AST, attr: str) -> list[ast.Attribute]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr == attr]


def _only_read(forward: Method, me: str, attr: str) -> bool:
    """Whether an attribute is read of `self` alone, and never set."""
    return all(isinstance(one.ctx, ast.Load) and isinstance(one.value, ast.Name) and one.value.id == me
               for one in _attributes(forward, attr))
