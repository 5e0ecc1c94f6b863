"""What type annotations say: strings, Optional, unions, jaxtyping and project classes included."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.classes import class_kind
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Kind, Value, join, join_all, promised

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
    value = _annotated(model, annotation, annotation, 0)
    return promised(value)


def _annotated(model: FileModel, expr: ast.expr, at: ast.AST, depth: int) -> Value:
    """`at` is the node of the tree that the annotation stands at, if only in a string."""
    if depth > 5:
        return UNKNOWN
    match expr:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str(text)):
            return _from_text(model, text, at, depth)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return join(_annotated(model, left, at, depth + 1), _annotated(model, right, at, depth + 1))
        case ast.Subscript(value=value, slice=inner):
            return _generic(model, value, inner, at, depth)
        case ast.Name() | ast.Attribute():
            return _by_name(model, _origin(model, expr, at), expr)
    return UNKNOWN


def _from_text(model: FileModel, text: str, at: ast.AST, depth: int) -> Value:
    """A string annotation: its names mean what they mean where the string stands."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    return _annotated(model, parsed, at, depth + 1)


def _origin(model: FileModel, expr: ast.expr, at: ast.AST) -> str:
    """The dotted origin of a name, also of one that was parsed from the string at a node."""
    if model.has(expr):
        return model.name_of(expr)
    match expr:
        case ast.Name(id=name):
            return model.name_at(name, at)
        case ast.Attribute(value=value, attr=attr):
            base = _origin(model, value, at)
            return model.canonical(f"{base}.{attr}") if base else ""
    return ""


def _generic(model: FileModel, value: ast.expr, inner: ast.expr, at: ast.AST, depth: int) -> Value:
    name = _origin(model, value, at)
    if name == "typing.Optional":
        return join(NONE, _annotated(model, inner, at, depth + 1))
    if name == "typing.Union" and isinstance(inner, ast.Tuple):
        return join_all([_annotated(model, member, at, depth + 1) for member in inner.elts])
    if name in ("typing.Annotated", "typing.Final", "typing.ClassVar") or name.startswith("jaxtyping."):
        first = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner
        return _annotated(model, first, at, depth + 1)
    if name in SEQUENCES:
        return _sequence(model, SEQUENCES[name], inner, at, depth)
    if name in ("builtins.type", "typing.Type"):
        member = _annotated(model, inner, at, depth + 1)
        return Value(Kind.CLASS, name=member.name, cls=member.cls)
    return _by_name(model, name, value)


def _sequence(model: FileModel, kind: Kind, inner: ast.expr, at: ast.AST, depth: int) -> Value:
    members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    values = [_annotated(model, member, at, depth + 1) for member in members]
    if kind is Kind.DICT:
        return Value(kind, item=values[-1])
    if kind is Kind.TUPLE:
        match members:
            case [_, ast.Constant(value=x)] if x is ...:
                return Value(kind, item=values[0])
        return Value(kind, elements=tuple(values))
    return Value(kind, item=values[0])


def _by_name(model: FileModel, name: str, site: ast.expr) -> Value:
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
