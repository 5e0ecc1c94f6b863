"""Which functions and methods the tables hold, and what no stub or run can tell about them."""
from __future__ import annotations

import functools
import importlib
import types
from typing import Any

import torch
import torch.nn.functional as F

from knowledge import signatures
from knowledge.signatures import Signature

DOCUMENTED = {"torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special}
# Namespaces of Python functions; those that return a tensor are worth knowing.
PYTHON = ("torch.nn.init", "torch.nn.utils", "torch.nn.utils.rnn", "torch.nn.utils.stateless", "torch.autograd",
          "torch.autograd.functional", "torch.utils.checkpoint", "torch.random", "torch.serialization", "torch.func",
          "torch.sparse", "torch.nested")
# Building blocks of torch itself that no user calls.
INTERNAL = (
    "cudnn_", "miopen_", "mkldnn_", "fbgemm_", "quantized_", "q_per_", "q_scale", "q_zero", "batch_norm_",
    "sym_", "choose_qparams", "fused_", "native_", "init_num", "vitals", "import_ir", "parse_", "merge_type",
    "unify_", "wait", "fork", "get_file_path", "typename", "int_repr", "rnn_", "constrain", "hash_tensor",
    "affine_grid_g",
)
HELPERS = {"boolean_dispatch", "handle_torch_function", "has_torch_function", "has_torch_function_unary",
           "has_torch_function_variadic", "assert_int_or_pair", "importlib"}
SKIPPED_METHODS = {
    "__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__reduce__", "__reduce_ex__",
    "__subclasshook__", "__init_subclass__",
    "index", "module_load", "reinforce", "__dir__", "__torch_function__", "__setstate__",
}
# Random functions written in Python, which carry no operator tag.
RANDOM = {"dropout1d", "dropout2d", "dropout3d", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
          "pca_lowrank", "svd_lowrank", "lobpcg", "uniform_", "normal_", "trunc_normal_", "xavier_uniform_",
          "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_"}

# Facts that neither a stub nor a run on one CPU gives.
KNOWN: dict[str, dict[str, Any]] = {
    # Copies between devices are differentiable; without a change of device the tensor itself comes back.
    **{name: {"grad": "+", "view": "maybe"} for name in ("cuda", "xpu", "hpu", "mtia", "ipu")},
    # The tensor itself comes back where nothing has to change.
    **{name: {"view": "maybe"} for name in (
        "cpu", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool",
        "cfloat", "cdouble", "chalf", "contiguous", "dequantize", "to_dense", "resolve_conj", "resolve_neg",
        "torch.resolve_conj", "torch.resolve_neg", "torch.dequantize",
        "torch.nn.functional.dropout1d")},
    # Share memory with a tensor or array that they are given, else make a fresh tensor.
    **{f"torch.{name}": {"flags": "factory", "view": "maybe"} for name in ("as_tensor", "asarray", "from_numpy")},
    "to": {"view": "maybe", "dtype": ""},
    # Read and scale gradients, under no_grad; the parameters' own values stay.
    **{f"torch.nn.utils.{name}": {"grad": "", "unmeasured": False} for name in ("clip_grad_norm_", "get_total_norm")},
    "torch.nn.functional.upsample": {"grad": "+", "unmeasured": True},
    "pin_memory": {"grad": "", "view": "maybe"},
    "backward": {"overloads": [
        "self|gradient:tensor=None|retain_graph:bool=None|create_graph:bool=False|inputs=None>none"]},
    "register_hook": {"overloads": ["self|hook>other"]},
    "retain_grad": {"overloads": ["self>none"]},
    "share_memory_": {"view": "always"},
    "torch.chain_matmul": {"grad": "+", "overloads": ["*matrices:tensor|out:tensor=None>tensor"]},
    **{f"torch.atleast_{n}d": {"grad": "+", "view": "maybe", "overloads": ["*tensors:tensor>tensor"]}
       for n in (1, 2, 3)},
    "detach_": {"grad": "", "view": "always", "unmeasured": False},
    "torch.detach_": {"grad": "", "view": "always", "unmeasured": False},
    "torch.einsum": {"overloads": ["equation:string|*operands:tensor>tensor"], "saves": {"operands": "operands"}},
    **{f"__{name}__": {"grad": "", "unmeasured": False}
       for name in ("iand", "ior", "ixor", "ilshift", "irshift", "invert")},  # of integers and booleans only
    "torch.autograd.grad": {"grad": "", "unmeasured": False},  # carries grad only with create_graph=True
    "as_subclass": {"grad": "+", "view": "always", "overloads": ["self|cls>tensor"]},
}
ATTRIBUTES = {"grad": "tensor", "name": "other", "grad_fn": "other"}  # .grad is None before the first backward


def resolve(dotted: str) -> Any:
    """The object of a dotted name below torch."""
    return functools.reduce(getattr, dotted.split(".")[1:], torch)


def public(module: types.ModuleType) -> list[str]:
    """Names of the functions of a namespace, without private ones, classes and modules."""
    return [name for name in sorted(dir(module)) if not name.startswith("_") and callable(getattr(module, name))
            and not isinstance(getattr(module, name), (type, types.ModuleType))]


def functions() -> dict[str, list[Signature]]:
    """Signatures by canonical name of all functions that the table holds."""
    found = {"torch." + name: of_torch(name) for name in public(torch) if not name.startswith(INTERNAL)
             and not (name.endswith("_copy") and name != "slice_copy")}
    for name in public(F):
        module = getattr(getattr(F, name), "__module__", "") or ""
        if module not in ("typing", "torch.overrides", "torch._jit_internal", "warnings") and name not in HELPERS:
            found["torch.nn.functional." + name] = signatures.functional(name)
    found["torch.nn.functional.threshold"] = signatures.functional("threshold")
    for prefix, module_ in DOCUMENTED.items():
        for name in public(module_):
            one = signatures.from_docstring(name, getattr(module_, name))
            found[f"{prefix}.{name}"] = [one] if one else []
    for prefix in PYTHON:
        found.update(of_python(prefix))
    return {name: value for name, value in found.items() if value}


def of_torch(name: str) -> list[Signature]:
    """Signatures of `torch.<name>`, none if it is not an operator."""
    value = getattr(torch, name)
    if name in ("unique", "unique_consecutive"):
        return optional_results(signatures.of_python(getattr(torch.functional, f"_{name}_impl", value)))
    stubs = signatures.torch_functions().get(name, [])
    if isinstance(value, types.FunctionType):
        if value.__module__ not in ("torch.functional", "torch._lobpcg", "torch._lowrank", "torch._linalg_utils"):
            return stubs
        one = signatures.of_python(value) or signatures.from_docstring(name, value)
        if one is not None and one.result == "other" and stubs:
            return stubs
        return [one] if one is not None and not stubs else stubs
    return stubs


def optional_results(signature: Signature | None) -> list[Signature]:
    """Two overloads of `unique`: one tensor, or several when a `return_*` argument is passed."""
    if signature is None:
        return []
    plain = tuple(p for p in signature.params if not p.name.startswith("return_"))
    return [Signature(plain, "tensor"), Signature(signature.params, "other")]


def of_python(prefix: str) -> dict[str, list[Signature]]:
    """Functions of a namespace that are written in Python and annotated with what they return."""
    module = importlib.import_module(prefix)
    found = {}
    for name in public(module):
        value = getattr(module, name)
        if isinstance(value, types.FunctionType) and value.__module__.startswith(prefix):
            signature = signatures.of_python(value)
            if signature is not None and (signature.result != "other" or f"{prefix}.{name}" in RESULTS):
                result = RESULTS.get(f"{prefix}.{name}", signature.result)
                kind, _, count = result.partition(":")
                found[f"{prefix}.{name}"] = [Signature(signature.params, kind, int(count) if count else None)]
    return found


# What functions return whose sources do not annotate it.
RESULTS = {"torch.autograd.grad": "tensors", "torch.utils.checkpoint.checkpoint": "other"}


def methods() -> dict[str, list[Signature]]:
    """Signatures of Tensor's methods that exist at run time."""
    found = {name: each for name, each in signatures.tensor_methods().items()
             if hasattr(torch.Tensor, name) and name not in SKIPPED_METHODS
             and (name.startswith("__") or not name.startswith("_"))}
    for name in ("unique", "unique_consecutive"):
        found[name] = optional_results(found[name][0])
    return found


def is_factory(signature: Signature) -> bool:
    """Whether a signature is one of a function that makes a fresh tensor."""
    names = {p.name for p in signature.params}
    return "pin_memory" in names or "requires_grad" in names
