"""Questions about the shape of a batch of numbers: one per row, or in a column of their own.

A value is COLUMN (its last dimension is 1 and there is another), FLAT (one dimension of more than one element),
MATRIX (at least two dimensions, the last longer than 1), or unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

COLUMN, FLAT, MATRIX, UNKNOWN = "column", "flat", "matrix", ""
DEPTH = 12
CALLS = 3  # of a function that are looked at
# Methods and functions that keep the shape.
KEEPING = {
    "float", "double", "half", "long", "int", "to", "cuda", "cpu", "detach", "clone", "contiguous", "type", "type_as",
    "sigmoid", "relu", "tanh", "exp", "log", "abs", "softplus", "sqrt", "neg", "clamp", "requires_grad_", "pow",
    "leaky_relu", "elu", "gelu", "silu", "mul", "div", "bfloat16", "dropout", "zeros_like", "ones_like", "rand_like",
    "randn_like", "square", "clamp_min", "clamp_max", "sin", "cos", "round", "log1p", "expm1",
}
REDUCING = {"sum", "mean", "max", "min", "argmax", "argmin", "amax", "amin", "norm", "prod"}
PAIRS = {"max", "min"}  # with a dimension they give values and indices
FACTORIES = {"zeros", "ones", "rand", "randn", "empty", "full", "randint"}
KEEPING_LAYERS = {
    "Sigmoid", "ReLU", "Tanh", "Softplus", "Dropout", "Identity", "LeakyReLU", "ELU", "GELU", "SiLU", "BatchNorm1d",
    "LayerNorm", "ReLU6", "Hardtanh",
}


def shape_of(model: FileModel, expr: ast.AST, depth: int = 0) -> str:
    """COLUMN, FLAT, MATRIX, or "" where that cannot be told."""
    if depth > DEPTH or not model.has(expr):
        return UNKNOWN
    match expr:
        case ast.Name():
            return _name(model, expr, depth)
        case ast.Call():
            return _call(model, expr, depth)
        case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.Pow()):
            return _operands(model, left, right, depth)
        case ast.BinOp(left=left, right=right, op=ast.MatMult()):
            both = shape_of(model, left, depth + 1), shape_of(model, right, depth + 1)
            return both[1] if both[0] == MATRIX and both[1] in (FLAT, COLUMN) else UNKNOWN
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return shape_of(model, inner, depth + 1)
        case ast.Attribute(attr="values", value=ast.Call(func=ast.Attribute(attr=method)) as call) if method in PAIRS:
            return shape_of(model, call, depth + 1)
        case ast.Attribute(attr="data", value=inner):
            return shape_of(model, inner, depth + 1)
        case ast.Subscript(value=ast.Call(func=ast.Attribute(attr=method)) as call, slice=ast.Constant(value=0)) if (
            method in PAIRS
        ):
            return shape_of(model, call, depth + 1)
        case ast.Subscript(value=inner, slice=index):
            return _indexed(shape_of(model, inner, depth + 1), index)
        case ast.Attribute():
            return _made(model, expr, depth)
    return UNKNOWN


def _name(model: FileModel, name: ast.Name, depth: int) -> str:
    site = model.value(name).site
    for loop in model.place(name).loops:
        target = getattr(loop, "target", None)
        if target is not None and any(isinstance(n, ast.Name) and n.id == name.id for n in ast.walk(target)):
            around = [site, *model.ancestors(site)] if site is not None and model.has(site) else []
            if loop not in around or getattr(loop, "iter", None) in around:
                return _from_data(model, name, depth)  # an item, not the whole
    return _made(model, name, depth) or _passed(model, name, depth)


def _passed(model: FileModel, name: ast.Name, depth: int) -> str:
    """A parameter that the body does not bind anew, by what the calls in the file pass for it."""
    function = model.function(name)
    arg = next((arg for arg in function.params if arg.arg == name.id), None) if function is not None else None
    if function is None or arg is None or model.value(name).site is not None:
        return UNKNOWN
    if any(isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Store)
           for node in function.own_nodes):
        return UNKNOWN
    given = [function.argument(site, arg) for site in function.call_sites[:CALLS]]
    shapes = {shape_of(model, expr, depth + 1) for expr in given if expr is not None} - {UNKNOWN}
    return shapes.pop() if len(shapes) == 1 else UNKNOWN


def _made(model: FileModel, expr: ast.expr, depth: int) -> str:
    """By the expression that made the value."""
    value = model.value(expr)
    site = value.site
    if not value.is_tensor or site is None or site is expr or not isinstance(site, ast.expr):
        return UNKNOWN
    return shape_of(model, site, depth + 1)


def _operands(model: FileModel, left: ast.expr, right: ast.expr, depth: int) -> str:
    sides = []
    for side in (left, right):
        value = model.value(side)
        if value.kind is not Kind.NUMBER:
            sides.append(shape_of(model, side, depth + 1))
    if len(sides) == 1 or (len(sides) == 2 and sides[0] == sides[1]):
        return sides[0]
    return UNKNOWN


def _indexed(base: str, index: ast.expr) -> str:
    match base, index:
        case "matrix" | "column", ast.Tuple(elts=[ast.Slice(lower=None, upper=None), ast.Constant(value=int())]):
            return FLAT
        case "flat", ast.Tuple(elts=[ast.Slice(lower=None, upper=None), ast.Constant(value=None)]):
            return COLUMN
        case _, ast.Slice():
            return base
    return UNKNOWN


# -- calls ----------------------------------------------------------------------------------------


def _call(model: FileModel, call: ast.Call, depth: int) -> str:
    callee = model.value(call.func)
    if callee.kind is Kind.MODULE:
        given = call.args[0] if len(call.args) == 1 else None
        if given is not None and shape_of(model, given, depth + 1) == FLAT:
            return UNKNOWN  # one row, not a batch of them
        return _layer(model, callee, given, depth)
    name = model.name_of(call.func)
    tail = name.rpartition(".")[2]
    if name.startswith("torch."):
        if tail in FACTORIES:
            return _factory(model, tail, call)
        if tail in ("tensor", "as_tensor") and call.args:
            return _literal(call.args[0])
        if tail in ("arange", "linspace"):
            return FLAT
        return _operation(model, call, tail, call.args[0], call.args[1:], depth) if call.args else UNKNOWN
    if isinstance(call.func, ast.Attribute) and not name and model.value(call.func.value).is_tensor:
        return _operation(model, call, call.func.attr, call.func.value, call.args, depth)
    return _made(model, call, depth)


def _operation(
    model: FileModel, call: ast.Call, name: str, tensor: ast.expr, args: list[ast.expr], depth: int
) -> str:
    """A function or method of a tensor."""
    consts = [_number(arg) for arg in args]
    keep = any(k.arg == "keepdim" for k in call.keywords)
    named = [_number(k.value) for k in call.keywords if k.arg == "dim"]
    dims = consts[:1] or named[:1]
    if name in KEEPING:
        return shape_of(model, tensor, depth + 1)
    if name in ("view", "reshape"):
        return {(-1,): FLAT, (-1, 1): COLUMN}.get(tuple(consts), UNKNOWN)  # type: ignore[arg-type]
    if name in ("flatten", "ravel") and not dims:
        return FLAT
    base = shape_of(model, tensor, depth + 1)
    if name == "squeeze":
        flat = base == COLUMN and (not dims or dims[0] in (1, -1))
        return FLAT if flat else base if dims == [0] else UNKNOWN
    if name == "unsqueeze":
        return COLUMN if dims == [-1] or (dims == [1] and base == FLAT) else UNKNOWN
    if name in REDUCING and base in (MATRIX, COLUMN) and dims and dims[0] in (1, -1):
        return COLUMN if keep else FLAT
    if name == "gather" and len(args) == 2:
        return shape_of(model, args[1], depth + 1)
    return UNKNOWN


def _number(expr: ast.expr) -> int | None:
    match expr:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None


def _factory(model: FileModel, name: str, call: ast.Call) -> str:
    sizes: Sequence[ast.expr] = call.args
    if name in ("full", "randint"):
        sizes = [arg for arg in sizes if isinstance(arg, (ast.Tuple, ast.List))][:1]
    match sizes:
        case [ast.Tuple(elts=elts) | ast.List(elts=elts)]:
            sizes = list(elts)
    numbers = [_number(size) for size in sizes]
    if any(isinstance(size, ast.Starred) for size in sizes):
        return UNKNOWN
    if len(sizes) == 1:
        sized = model.value(sizes[0]).kind is Kind.NUMBER
        return FLAT if numbers[0] not in (0, 1) and sized else UNKNOWN
    if len(sizes) >= 2 and numbers[-1] is not None:
        return COLUMN if numbers[-1] == 1 else MATRIX
    return UNKNOWN


def _literal(expr: ast.expr) -> str:
    match expr:
        case ast.List(elts=[first, _, *_]):
            match first:
                case ast.Constant() | ast.UnaryOp():
                    return FLAT
                case ast.List(elts=[_]):
                    return COLUMN
                case ast.List():
                    return MATRIX
    return UNKNOWN


def _layer(model: FileModel, module: Value, given: ast.expr | None, depth: int) -> str:
    """What a module gives: by its last layer, or by what its forward returns."""
    if depth > DEPTH or module.optional:
        return UNKNOWN
    if "wrapper" in module.facts and module.bound is not None:
        return _layer(model, module.bound, given, depth + 1)
    if module.cls is not None:
        forward = module.cls.method("forward")
        if forward is None or not forward.model.has(forward.node):
            return UNKNOWN
        returned = [node.value for node in forward.own_nodes if isinstance(node, ast.Return) and node.value]
        shapes = {shape_of(forward.model, expr, depth + 1) for expr in returned}
        return shapes.pop() if len(shapes) == 1 else UNKNOWN
    short = module.name.rpartition(".")[2]
    if module.name == "torch.nn.Sequential" and module.elements:
        for layer in reversed(module.elements):
            if layer.cls is not None or layer.name.rpartition(".")[2] not in KEEPING_LAYERS:
                return _layer(model, layer, None, depth + 1)
        return UNKNOWN
    if module.name == "torch.nn.Linear":
        return _linear(module)
    if module.name == "torch.nn.Flatten" and isinstance(module.site, ast.Call):
        return FLAT if module.site.args and _number(module.site.args[0]) == 0 else UNKNOWN
    if module.name.startswith("torch.nn.") and short in KEEPING_LAYERS and given is not None:
        return shape_of(model, given, depth + 1)
    return UNKNOWN


def _linear(module: Value) -> str:
    match module.site:
        case ast.Call(args=args, keywords=keywords):
            sizes = [k.value for k in keywords if k.arg == "out_features"] or args[1:2]
            number = _number(sizes[0]) if sizes else None
            return UNKNOWN if number is None else COLUMN if number == 1 else MATRIX
    return UNKNOWN


# -- batches --------------------------------------------------------------------------------------


def _from_data(model: FileModel, name: ast.Name, depth: int) -> str:
    """A loop variable over a loader, by what the dataset's items are."""
    if "batch" not in model.value(name).facts:
        return UNKNOWN
    for loop in reversed(model.place(name).loops):
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            continue
        loader, target = model.value(loop.iter), loop.target
        while loader.kind is not Kind.LOADER and loader.bound is not None:
            if isinstance(loop.iter, ast.Call) and model.name_of(loop.iter.func) == "builtins.enumerate":
                target = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
            loader = loader.bound
        if loader.kind is Kind.LOADER and isinstance(target, ast.Tuple) and loader.bound is not None:
            names = [part.id if isinstance(part, ast.Name) else "" for part in target.elts]
            if name.id in names:
                return _batched(model, loader.bound, names.index(name.id), len(names), depth)
    return UNKNOWN


def _batched(model: FileModel, dataset: Value, index: int, count: int, depth: int) -> str:
    if dataset.name == "torch.utils.data.TensorDataset":
        match dataset.site:
            case ast.Call(args=args) if len(args) == count:
                return shape_of(model, args[index], depth + 1)
    method = dataset.cls.method("__getitem__") if dataset.cls is not None else None
    if method is None:
        return UNKNOWN
    returned = [node.value for node in method.own_nodes if isinstance(node, ast.Return)]
    match returned:
        case [ast.Tuple(elts=elts)] if len(elts) == count:
            item = elts[index]
            kind = method.model.value(item).kind
            if kind is Kind.NUMBER:
                return FLAT
            match item:
                case ast.Call(args=[inner]) if method.model.name_of(item.func) == "torch.tensor":
                    return FLAT if method.model.value(inner).kind is Kind.NUMBER else UNKNOWN
                case ast.Subscript(value=base, slice=ast.Name()):
                    return shape_of(method.model, base, depth + 1)
    return UNKNOWN
