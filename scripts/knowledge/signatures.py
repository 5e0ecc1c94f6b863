"""Signatures of torch's functions and Tensor methods, from the stubs in the wheel and from Python sources."""
from __future__ import annotations

import ast
import functools
import inspect
import types
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

TORCH = Path(torch.__file__).parent

# Annotation text in the stubs -> what a call returns.
SIMPLE = {
    "Tensor": "tensor", "torch.Tensor": "tensor", "Self": "tensor", "_int": "int", "int": "int",
    "_float": "float", "float": "float", "_bool": "bool", "bool": "bool", "Number": "number",
    "Number | _complex": "number", "_size": "size", "Size": "size", "torch.Size": "size", "_dtype": "dtype",
    "dtype": "dtype", "torch.dtype": "dtype", "_device": "device", "torch.device": "device", "None": "none",
    "str": "string", "list[Tensor]": "tensors", "tuple[Tensor, ...]": "tensors",
    "Sequence[Tensor]": "tensors", "Tuple[Tensor, ...]": "tensors",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter: name with its stars, type as one of our words, default as source text or None."""

    name: str
    kind: str
    default: str | None


@dataclass(frozen=True)
class Signature:
    """One overload: parameters in order ("*" separates keyword-only ones) and what it returns."""

    params: tuple[Parameter, ...]
    result: str
    count: int | None = None
    names: tuple[str, ...] = ()


def text_of(signature: Signature) -> str:
    """A signature in the form that `torchlint.knowledge.callables.overload_of` reads."""
    parts = []
    for p in signature.params:
        kind = f":{p.kind}" if p.kind else ""
        default = "" if p.default is None else "=" + p.default.replace("|", "/")
        parts.append(f"{p.name}{kind}{default}")
    fields = ",".join(signature.names) or (str(signature.count) if signature.count else "")
    return "|".join(parts) + ">" + signature.result + (f":{fields}" if fields else "")


@functools.cache
def stub(path: str) -> ast.Module:
    """A parsed stub file below the torch package."""
    return ast.parse((TORCH / path).read_text(encoding="utf-8"))


@functools.cache
def return_types() -> dict[str, tuple[str, ...]]:
    """Field names of the named tuples that operators return, by their name in torch.return_types."""
    found = {}
    for node in stub("return_types.pyi").body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = tuple(item.name for item in node.body if isinstance(item, ast.FunctionDef)
                                     and any(ast.unparse(d) == "property" for d in item.decorator_list))
    return found


def overloads(tree: list[ast.stmt]) -> dict[str, list[Signature]]:
    """Every function of a stub body with its overloads, in order."""
    found: dict[str, list[Signature]] = {}
    for node in tree:
        if isinstance(node, ast.FunctionDef):
            if any(ast.unparse(d) in ("property", "staticmethod") for d in node.decorator_list):
                continue
            found.setdefault(node.name, []).append(from_node(node))
    return found


def from_node(node: ast.FunctionDef) -> Signature:
    """The signature written in a stub or a Python source."""
    args = node.args
    params: list[Parameter] = []
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    params += [Parameter(a.arg, argument_kind(a.annotation), text(d)) for a, d in zip(plain, defaults, strict=True)]
    if args.vararg:
        params.append(Parameter("*" + args.vararg.arg, argument_kind(args.vararg.annotation), None))
    elif args.kwonlyargs:
        params.append(Parameter("*", "", None))
    params += [Parameter(a.arg, argument_kind(a.annotation), text(d))
               for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        params.append(Parameter("**" + args.kwarg.arg, "", None))
    result, count, names = result_kind(node.returns)
    return Signature(tuple(params), result, count, names)


def text(node: ast.expr | None) -> str | None:
    """Source text of a default."""
    return None if node is None else ast.unparse(node)


def argument_kind(node: ast.expr | None) -> str:
    """What an argument with this annotation is: tensor, tensors, int, number, ... or ""."""
    if node is None:
        return ""
    words = ast.unparse(node).replace("torch.", "")
    if words.startswith("Optional["):
        words = words[len("Optional["):-1]
    parts = {part.strip() for part in words.split("|")} - {"None"}
    if not parts:
        return "none"
    if "Tensor" in parts:
        return "tensor" if len(parts) == 1 else "operand"
    if parts & {"Sequence[Tensor]", "list[Tensor]", "tuple[Tensor, ...]", "List[Tensor]", "Tuple[Tensor, ...]",
                "_TensorOrTensors", "_TensorOrTensorsOrGradEdge", "Iterable[Tensor]",
                "tuple[Tensor, ...] | list[Tensor]", "TensorList"}:
        return "tensors"
    return next((kind for kind, names in ARGUMENTS.items() if parts <= names), "")


ARGUMENTS = {
    "bool": {"_bool", "bool"}, "int": {"_int", "int", "SymInt"}, "float": {"_float", "float"},
    "number": {"Number", "_complex", "complex", "_int", "int", "SymInt", "_float", "float"},
    "string": {"str"}, "dtype": {"_dtype", "dtype", "DType"}, "device": {"_device", "DeviceLikeType", "device"},
    "generator": {"Generator"},
    "size": {"_size", "Size", "Sequence[_int]", "Sequence[_int | SymInt]", "_int", "SymInt", "Sequence[int]", "int",
             "tuple[_int, ...]", "list[int]"},
}


def result_kind(node: ast.expr | None) -> tuple[str, int | None, tuple[str, ...]]:
    """(kind, number of tensors or None, field names) of a return annotation."""
    if node is None:
        return "other", None, ()
    words = ast.unparse(node).strip("'\"")
    if words in SIMPLE:
        return SIMPLE[words], None, ()
    if words.startswith("torch.return_types."):
        names = return_types()[words.rpartition(".")[2]]
        return "tensors", len(names), names
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("tuple", "Tuple"):
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if all(ast.unparse(member) in ("Tensor", "torch.Tensor") for member in members):
            return "tensors", len(members), ()
    return "other", None, ()


@functools.cache
def python_tree(path: str) -> dict[str, ast.FunctionDef]:
    """Functions at the top level of a Python source file."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def of_python(function: types.FunctionType) -> Signature | None:
    """The signature of a function written in Python, read from its source."""
    function = inspect.unwrap(function)  # type: ignore[assignment]
    path = inspect.getsourcefile(function)
    node = python_tree(path).get(function.__name__) if path else None
    return from_node(node) if node is not None else None


def functional(name: str) -> list[Signature]:
    """Signatures of a function of torch.nn.functional; real defaults win over the stub's dots."""
    value = getattr(F, name)
    stubs = overloads(stub("nn/functional.pyi").body).get(name, [])
    pooled = getattr(F, f"{name}_with_indices", None)
    if pooled is not None:
        return with_indices(of_python(pooled))
    if isinstance(value, types.FunctionType):
        found = of_python(value)
        if found is not None and found.result == "other" and stubs:
            found = Signature(found.params, stubs[0].result, stubs[0].count, stubs[0].names)
        return [found] if found is not None else stubs
    found_stubs = stubs or overloads(stub("_C/_nn.pyi").body).get(value.__name__, [])
    return found_stubs or torch_functions().get(value.__name__, [])


def with_indices(signature: Signature | None) -> list[Signature]:
    """A pooling function: one tensor, or two when `return_indices` is passed."""
    if signature is None:
        return []
    plain = tuple(p for p in signature.params if p.name != "return_indices")
    asked = tuple(Parameter(p.name, "bool", None) if p.name == "return_indices" else p for p in signature.params)
    return [Signature(plain, "tensor"), Signature(asked, "tensors", 2)]


@functools.cache
def torch_functions() -> dict[str, list[Signature]]:
    """Overloads of the functions in torch's own namespace that are written in C++."""
    return overloads(stub("_C/_VariableFunctions.pyi").body)


@functools.cache
def tensor_methods() -> dict[str, list[Signature]]:
    """Overloads of Tensor's methods; those written in Python come from torch/_tensor.py."""
    found: dict[str, list[Signature]] = {}
    for node in stub("_C/__init__.pyi").body:
        if isinstance(node, ast.ClassDef) and node.name == "TensorBase":
            found = overloads(node.body)
    tree = ast.parse((TORCH / "_tensor.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Tensor":
            for name, signatures in overloads(node.body).items():
                if name not in found:
                    found[name] = signatures
    return found


def from_docstring(name: str, value: object) -> Signature | None:
    """The signature in the first line of a docstring: torch.linalg, fft and special have no stubs."""
    line = (value.__doc__ or "").strip().splitlines()[:1]
    if not line or "(" not in line[0]:
        return None
    head, _, tail = line[0].partition("->")
    head = head.strip()
    if "(" not in head or not head.endswith(")"):
        return None
    body = head[head.index("("):].replace("*sizes", "*size")
    try:
        node = ast.parse(f"def f{body}: ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(node, ast.FunctionDef)
    found = from_node(node)
    count = tail.count("Tensor")
    result = "tensor" if count == 1 else "tensors" if count > 1 else "other"
    fields = return_types().get("_linalg_" + name, ())
    tensors = {"input", "A", "B", "x", "tensor", "other", "tau", "L", "LU", "pivots", "P", "U", "hermitian_A"}
    params = tuple(Parameter(p.name, "tensor" if p.name in tensors else "", p.default) for p in found.params)
    return Signature(params, result, count if count > 1 else None, fields if len(fields) == count else ())
