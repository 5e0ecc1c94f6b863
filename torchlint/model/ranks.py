"""Questions about shapes: how many dimensions a tensor has, and whether memory is in their order."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.values import Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

FACTORIES = {"zeros", "ones", "randn", "rand", "empty", "full"}
# Operations whose result has new memory, in order, and the rank of their first tensor operand.
ORDERED = {"matmul", "bmm", "linear", "Linear", "Embedding", "embedding", "cat", "softmax_", "einsum", "baddbmm"}
# Operations that keep rank and memory order of their first tensor operand.
SAME = {"softmax", "relu", "dropout", "Dropout", "ReLU", "GELU", "gelu", "tanh", "sigmoid", "mul", "add", "sub", "div",
        "masked_fill", "exp", "to", "float", "half", "clone", "layer_norm", "LayerNorm", "Tanh", "Softmax"}
MOVING = {"transpose", "permute", "t", "T", "mT", "movedim", "swapaxes", "swapdims", "H", "mH"}
DEPTH = 12


def rank(model: FileModel, expr: ast.expr, depth: int = 0) -> int | None:
    """The number of dimensions of a tensor expression; None if it cannot be told."""
    if depth > DEPTH:
        return None
    value = model.value(expr)
    site = value.site if isinstance(value.site, ast.expr) and model.holds(value.site) else None
    if isinstance(expr, (ast.Name, ast.Attribute)) and site is not None and site is not expr:
        return rank(model, site, depth + 1)
    if isinstance(expr, ast.Name):
        return _unpacked(model, expr)
    return _made(model, expr, value, depth)


def _made(model: FileModel, expr: ast.expr, value: Value, depth: int) -> int | None:
    tail = value.name.rpartition(".")[2]
    match expr:
        case ast.Tuple():  # `q, k, v = x`: each is a row of x
            parent = model.parent(expr)
            whole = parent.value if isinstance(parent, ast.Assign) and expr in parent.targets else None
            inner = rank(model, whole, depth + 1) if whole is not None and model.value(whole).is_tensor else None
            return inner - 1 if inner is not None else None
        case ast.BinOp(left=left, right=right):
            known = [r for r in (rank(model, left, depth + 1), rank(model, right, depth + 1)) if r is not None]
            return max(known, default=None)
        case ast.Call(func=ast.Attribute(attr="view" | "reshape" | "permute"), args=args):
            return size_count(args)
        case ast.Call(func=ast.Attribute(value=receiver, attr="unbind" | "select")):
            inner = rank(model, receiver, depth + 1)
            return inner - 1 if inner is not None else None
        case ast.Call(func=ast.Attribute(value=receiver, attr="unsqueeze")):
            inner = rank(model, receiver, depth + 1)
            return inner + 1 if inner is not None else None
        case ast.Call(args=args) if tail in FACTORIES and value.name.startswith("torch."):
            return size_count(args)
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)) if attr in MOVING | SAME | {"contiguous", "chunk",
                                                                                               "split"}:
            if model.value(receiver).is_tensor:
                return rank(model, receiver, depth + 1)
    if isinstance(expr, ast.Call) and expr.args and tail in ORDERED | SAME and tail not in ("einsum", "cat"):
        inner = rank(model, expr.args[0], depth + 1)
        return inner + 1 if inner is not None and tail in ("Embedding", "embedding") else inner
    return None


def size_count(args: list[ast.expr]) -> int | None:
    """How many sizes are passed, one by one or as a tuple; None if that cannot be seen."""
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = args[0].elts
    elif len(args) == 1 and not isinstance(args[0], (ast.Constant, ast.UnaryOp)):
        return None
    return None if any(isinstance(arg, ast.Starred) for arg in args) else len(args)


def _unpacked(model: FileModel, name: ast.Name) -> int | None:
    """`b, n, d = x.shape` says that x has three dimensions."""
    found: set[int] = set()
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[ast.Tuple(elts=elts)], value=ast.Attribute(value=ast.Name(id=source), attr="shape")
                            | ast.Call(func=ast.Attribute(value=ast.Name(id=source), attr="size"), args=[])):
                if source == name.id and model.owner(assign) is model.owner(name) and not any(
                        isinstance(elt, ast.Starred) for elt in elts):
                    found.add(len(elts))
    return found.pop() if len(found) == 1 else None


def in_order(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether a tensor's memory is surely (or for inputs of forward, likely) in the order of its dimensions."""
    if depth > DEPTH:
        return False
    value = model.value(expr)
    if isinstance(expr, (ast.Name, ast.Attribute)) and isinstance(value.site, ast.expr) and value.site is not expr and (
            model.holds(value.site)):
        return in_order(model, value.site, depth + 1)
    tail = value.name.rpartition(".")[2]
    match expr:
        case ast.Call(func=ast.Attribute(attr="view" | "reshape" | "contiguous" | "bmm" | "matmul")):
            return True
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Name():
            return value.role == "input"
    if tail in FACTORIES | ORDERED and value.is_tensor:
        return True
    if tail in SAME and isinstance(expr, ast.Call):
        first = expr.args[0] if expr.args and not model.value(expr.func.value if isinstance(
            expr.func, ast.Attribute) else expr.func).is_tensor else getattr(expr.func, "value", None)
        return isinstance(first, ast.expr) and in_order(model, first, depth + 1)
    return False
