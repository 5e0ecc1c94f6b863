"""What an object is by the names that code reads from it, and what a class value makes."""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from torchlint import knowledge
from torchlint.model.values import Kind, Value

# What code reads from an argument only if that is a tensor.
TENSOR_WORDS = frozenset({
    "exp", "log", "sigmoid", "tanh", "mul", "matmul", "mm", "mean", "clamp", "pow", "transpose", "view",
    "reshape", "abs", "sqrt", "sign", "detach", "requires_grad", "new_zeros", "new_empty", "expand_as", "permute",
    "contiguous", "masked_fill", "round", "relu", "numel", "view_as", "ge", "gt", "lt", "le", "is_cuda",
    "is_contiguous", "data_ptr", "stride", "new_tensor", "unsqueeze", "softmax", "scatter", "gather", "index_select",
    "type_as",
})

# What, next to `load_state_dict`, only a Module has; "()" is a call of the object itself.
STATEFUL_MODULE = frozenset({"()", "to", "cuda", "cpu", "half", "train()", "forward", "modules()", "children()"})


def duck_kind(names: set[str]) -> Kind:
    """What has these attributes: combinations that only one kind of object in torch code has."""
    if "step" in names and ("zero_grad" in names or "param_groups" in names):
        return Kind.OPTIMIZER
    if "unscale_" in names or {"scale", "update", "step"} <= names:
        return Kind.SCALER
    # A state alone proves nothing: datasets, loaders and samplers have one as well.
    if not names & {"fit", "fit_transform", "step"} and (
        names & {"named_parameters()", "parameters()", "named_modules()"}
        or ("load_state_dict" in names and names & STATEFUL_MODULE)
    ):
        return Kind.MODULE
    if "eval()" in names:
        return Kind.MODULE
    if "backward()" in names:
        return Kind.TENSOR
    if names & {"get_last_lr", "get_last_lr()"}:
        return Kind.SCHEDULER
    return Kind.UNKNOWN


def makes_module(value: Value) -> bool:
    """Whether a class value's instances are Modules."""
    if value.cls is not None:
        return value.cls.is_module
    other = knowledge.third_party_class(value.name)
    return knowledge.module_class(value.name) is not None or (other is not None and other.what == "module")


def tensor_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a body uses as only tensors are used: by their methods, `x[..., 0]`, `save_for_backward(x)`."""
    return {name for node in nodes for name in _as_tensor(node)}


def _as_tensor(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            inplace = attr.endswith("_") and not attr.startswith("_") and knowledge.method(attr) is not None
            if attr in TENSOR_WORDS or inplace:
                yield name
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=elts)):
            if any(isinstance(e, ast.Slice) or (isinstance(e, ast.Constant) and e.value is ...) for e in elts):
                yield name
        case ast.Call(func=ast.Attribute(attr="save_for_backward"), args=args):
            yield from (arg.id for arg in args if isinstance(arg, ast.Name))
