"""What type annotations say: strings, Optional, unions, jaxtyping and project classes included."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.findings import Confidence
from torchlint.model.classes import class_kind
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Kind, Value, join

if TYPE_CHECKING:
    from torchlint.model import FileModel

SIMPLE = {
    "builtins.int": NUMBER, "builtins.float": NUMBER, "builtins.bool": NUMBER, "builtins.complex": NUMBER,
    "builtins.str": STRING, "builtins.None": NONE,
}
SEQUENCES = {
    "builtins.list": Kind.LIST, "typing.List": Kind.LIST, "typing.Sequence": Kind.LIST,
    "typing.Iterable": Kind.LIST, "collections.abc.Sequence": Kind.LIST, "collections.abc.Iterable": Kind.LIST,
    "builtins.tuple": Kind.TUPLE, "typing.Tuple": Kind.TUPLE, "builtins.set": Kind.SET, "typing.Set": Kind.SET,
    "builtins.dict": Kind.DICT, "typing.Dict": Kind.DICT, "typing.Mapping": Kind.DICT,
    "collections.abc.Mapping": Kind.DICT, "collections.deque": Kind.LIST, "typing.Deque": Kind.LIST,
}
TENSOR_NAMES = {
    "torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor", "torch.IntTensor",
    "torch.ByteTensor", "torch.DoubleTensor", "torch.HalfTensor", "torch.cuda.FloatTensor",
}


def annotation_value(model: FileModel, annotation: ast.expr) -> Value:
    """The value that an annotation promises, at most LIKELY: annotations are not enforced."""
    value = _annotated(model, annotation, 0)
    return value if not value.known else value.but(sure=min(value.sure, Confidence.LIKELY))


def _annotated(model: FileModel, expr: ast.expr, depth: int) -> Value:
    if depth > 5:
        return UNKNOWN
    match expr:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str(text)):
            return _from_text(model, text, expr, depth)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return join(_annotated(model, left, depth + 1), _annotated(model, right, depth + 1))
        case ast.Subscript(value=value, slice=inner):
            return _generic(model, value, inner, depth)
        case ast.Name() | ast.Attribute():
            return _named(model, expr)
    return UNKNOWN


def _from_text(model: FileModel, text: str, at: ast.expr, depth: int) -> Value:
    """A string annotation: its names mean what they mean at module level."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    return _by_name(model, _global_name(model, parsed), depth) if isinstance(
        parsed, (ast.Name, ast.Attribute)) else _parsed(model, parsed, depth)


def _parsed(model: FileModel, expr: ast.expr, depth: int) -> Value:
    match expr:
        case ast.Constant(value=None):
            return NONE
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return join(_parsed(model, left, depth + 1), _parsed(model, right, depth + 1))
        case ast.Subscript(value=value, slice=inner):
            name = _global_name(model, value)
            if name == "typing.Optional":
                return join(NONE, _parsed(model, inner, depth + 1))
            if name in SEQUENCES:
                return Value(SEQUENCES[name])
            return _by_name(model, name, depth)
        case ast.Name() | ast.Attribute():
            return _by_name(model, _global_name(model, expr), depth)
    return UNKNOWN


def _global_name(model: FileModel, expr: ast.expr) -> str:
    """The dotted origin of a name that is not a node of the tree (parsed from a string)."""
    match expr:
        case ast.Name(id=name):
            return model.global_name(name)
        case ast.Attribute(value=value, attr=attr):
            base = _global_name(model, value)
            return model.canonical(f"{base}.{attr}") if base else ""
    return ""


def _generic(model: FileModel, value: ast.expr, inner: ast.expr, depth: int) -> Value:
    name = model.name_of(value)
    if name == "typing.Optional":
        return join(NONE, _annotated(model, inner, depth + 1))
    if name == "typing.Union" and isinstance(inner, ast.Tuple):
        found = [_annotated(model, member, depth + 1) for member in inner.elts]
        result = found[0]
        for member in found[1:]:
            result = join(result, member)
        return result
    if name in ("typing.Annotated", "typing.Final", "typing.ClassVar"):
        first = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
        return _annotated(model, first, depth + 1)
    if name.startswith("jaxtyping.") and isinstance(inner, ast.Tuple) and inner.elts:
        return _annotated(model, inner.elts[0], depth + 1)
    if name in SEQUENCES:
        return _sequence(model, SEQUENCES[name], inner, depth)
    if name in ("builtins.type", "typing.Type"):
        member = _annotated(model, inner, depth + 1)
        return Value(Kind.CLASS, name=member.name, cls=member.cls)
    return _named(model, value)


def _sequence(model: FileModel, kind: Kind, inner: ast.expr, depth: int) -> Value:
    members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    values = [_annotated(model, member, depth + 1) for member in members]
    if kind is Kind.DICT:
        return Value(kind, item=values[-1])
    if kind is Kind.TUPLE:
        match members:
            case [_, ast.Constant(value=x)] if x is ...:
                return Value(kind, item=values[0])
        return Value(kind, elements=tuple(values))
    return Value(kind, item=values[0])


def _named(model: FileModel, expr: ast.expr) -> Value:
    cls = model.class_named(expr)
    if cls is not None:
        return cls.instance(ident=expr)
    return _by_name(model, model.name_of(expr), 0, expr)


def _by_name(model: FileModel, name: str, depth: int, site: ast.expr | None = None) -> Value:
    if not name:
        return UNKNOWN
    if name in SIMPLE:
        return SIMPLE[name]
    if name in SEQUENCES:
        return Value(SEQUENCES[name])
    if name in TENSOR_NAMES:
        return Value(Kind.TENSOR, storage=site, ident=site)
    if name == "torch.nn.Parameter":
        return Value(Kind.TENSOR, role="parameter", storage=site, ident=site)
    found = model.definition(name)
    if found is not None and isinstance(found[1], ast.ClassDef):
        return found[0].class_info(found[1]).instance(ident=site)
    kind = class_kind(name)
    return UNKNOWN if kind is Kind.UNKNOWN else Value(kind, name=name, ident=site)
