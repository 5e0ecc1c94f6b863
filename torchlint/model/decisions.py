"""Questions about branches and loops: whether Python decides by what is in a tensor."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model import FileModel

PLAIN_ATTRIBUTES = {"device", "dtype", "is_cuda", "requires_grad", "layout", "ndim", "training", "is_sparse"}


# Methods of nothing but tensors (and arrays), as far as arguments of traced and compiled functions go.
REDUCING = {"sum", "mean", "any", "all", "max", "min", "norm", "abs", "argmax", "argmin", "item", "pow", "std", "var"}


def is_tensor(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression is a tensor, or a reduction of an argument of which nothing is known."""
    value = model.value(expr)
    if value.known:
        return value.is_tensor
    match expr:
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in REDUCING:
            function = model.function(expr)
            while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute):
                base = base.func.value
            return function is not None and isinstance(base, ast.Name) and base.id in {a.arg for a in function.params}
    return False


def depends(model: FileModel, test: ast.expr, *, sizes: bool = True) -> bool:
    """Whether an expression is made of a tensor's values, or of its sizes."""
    match test:
        case ast.BoolOp(values=values):
            return any(depends(model, value, sizes=sizes) for value in values)
        case ast.UnaryOp(operand=operand):
            return depends(model, operand, sizes=sizes)
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
            return False
        case ast.Compare(left=left, comparators=[right]):
            return depends(model, left, sizes=sizes) or depends(model, right, sizes=sizes)
        case ast.BinOp(left=left, right=right):
            return depends(model, left, sizes=sizes) or depends(model, right, sizes=sizes)
        case ast.Subscript(value=ast.Attribute(value=base, attr="shape")):
            return sizes and from_input(model, base)
        case ast.Call(func=ast.Attribute(value=base, attr="size"), args=[_]):
            return sizes and from_input(model, base)
        case ast.Call(func=ast.Attribute(value=base, attr="item")):
            return is_tensor(model, base)
        case ast.Call(func=ast.Name(id="bool" | "int" | "float"), args=[arg]):
            return is_tensor(model, arg)
        case ast.Call(func=ast.Name(id="len"), args=[arg]):
            return sizes and from_input(model, arg)
        case ast.Attribute(attr=attr) if attr in PLAIN_ATTRIBUTES:
            return False
    value = model.value(test)
    if not value.known:
        return is_tensor(model, test)
    return value.is_tensor and "maybe_number" not in value.facts and not value.optional and value.role != "parameter"


def from_input(model: FileModel, base: ast.expr) -> bool:
    """Whether a tensor is computed from the input: sizes of parameters and buffers are the same in every call."""
    value = model.value(base)
    return value.is_tensor and value.role not in ("parameter", "buffer")
