"""Questions about branches and loops: whether Python decides by what is in a tensor."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model import FileModel

PLAIN_ATTRIBUTES = {"device", "dtype", "is_cuda", "requires_grad", "layout", "ndim", "training", "is_sparse"}


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
            return model.value(base).is_tensor
        case ast.Call(func=ast.Name(id="bool" | "int" | "float"), args=[arg]):
            return model.value(arg).is_tensor
        case ast.Call(func=ast.Name(id="len"), args=[arg]):
            return sizes and from_input(model, arg)
        case ast.Attribute(attr=attr) if attr in PLAIN_ATTRIBUTES:
            return False
    value = model.value(test)
    return value.is_tensor and "maybe_number" not in value.facts and not value.optional and value.role != "parameter"


def from_input(model: FileModel, base: ast.expr) -> bool:
    """Whether a tensor is computed from the input: sizes of parameters and buffers are the same in every call."""
    value = model.value(base)
    return value.is_tensor and value.role not in ("parameter", "buffer")
