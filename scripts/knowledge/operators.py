"""The tables of functions, Tensor methods and Tensor attributes."""
from __future__ import annotations

import functools
import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from knowledge import measure, signatures
from knowledge.signatures import Signature

from torchlint.knowledge.callables import Overload, overload_of

NAMESPACES = {"torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special}
# Run by hand only: they need files, other devices or change the whole process.
UNSAFE = {"set_", "resize_", "resize_as_", "share_memory_", "storage", "cuda", "xpu", "hpu", "mtia", "ipu", "pin_memory",
          "backward", "set_default_dtype", "map_", "map2_", "apply_", "register_hook"}


def text_of(signature: Signature) -> str:
    """A signature in the form that `torchlint.knowledge.callables.overload_of` reads."""
    parts = []
    for p in signature.params:
        kind = f":{p.kind}" if p.kind else ""
        default = "" if p.default is None else "=" + p.default.replace("|", "/")
        parts.append(f"{p.name}{kind}{default}")
    fields = ",".join(signature.names) or (str(signature.count) if signature.count else "")
    return "|".join(parts) + ">" + signature.result + (f":{fields}" if fields else "")


def public(module: types.ModuleType) -> list[str]:
    """Names of the functions of a namespace, without private ones, classes and modules."""
    return [name for name in sorted(dir(module)) if not name.startswith("_") and callable(getattr(module, name))
            and not isinstance(getattr(module, name), (type, types.ModuleType))]


def functions() -> dict[str, list[Signature]]:
    """Signatures by canonical name of all functions that we know of."""
    found: dict[str, list[Signature]] = {}
    for name in public(torch):
        value = getattr(torch, name)
        if getattr(value, "__module__", "") in ("torch.functional", "torch._tensor_str", "torch._lobpcg",
                                                 "torch._linalg_utils"):
            one = signatures.of_python(value) or signatures.from_docstring(name, value)
            found["torch." + name] = signatures.torch_functions().get(name) or ([one] if one else [])
        elif name in signatures.torch_functions():
            found["torch." + name] = signatures.torch_functions()[name]
    for name in public(F):
        value = getattr(F, name)
        module = getattr(value, "__module__", "") or ""
        if module in ("typing", "torch.overrides", "torch._jit_internal", "warnings") or name in HELPERS:
            continue
        found["torch.nn.functional." + name] = signatures.functional(name) or \
            signatures.torch_functions().get(name, [])
    for prefix, module_ in NAMESPACES.items():
        for name in public(module_):
            one = signatures.from_docstring(name, getattr(module_, name))
            found[f"{prefix}.{name}"] = [one] if one else []
    return {name: value for name, value in found.items() if value}


HELPERS = {"boolean_dispatch", "handle_torch_function", "has_torch_function", "has_torch_function_unary",
           "has_torch_function_variadic", "assert_int_or_pair", "importlib"}


def resolve(dotted: str) -> Any:
    """The object of a dotted name below torch."""
    return functools.reduce(getattr, dotted.split(".")[1:], torch)


def samples() -> Iterator[tuple[str, Any]]:
    """(name below torch, OpInfo) of every operator that torch describes for its own tests."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # torch's test helpers derive a class from it that we never use.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        yield op.name, op


def measured(wanted: dict[str, list[Overload]], calls: dict[str, Callable[..., Any]],
             *, method: bool) -> dict[str, list[measure.Facts]]:
    """Facts for every overload of every name, from torch's own samples and then from guessed arguments."""
    facts = {name: [measure.Facts() for _ in each] for name, each in wanted.items()}
    for name, op in samples():
        for target, call, inplace in variants(name, op, method=method):
            if target in wanted:
                from_samples(facts[target], wanted[target], call, op, inplace)
    for name, overloads in wanted.items():
        for overload, found in zip(overloads, facts[name], strict=True):
            if not found.runs and name.rpartition(".")[2] not in UNSAFE:
                from_guesses(found, overload, calls[name], is_inplace(name))
    return facts


def is_inplace(name: str) -> bool:
    """Whether a name is one of an operation that changes its first argument."""
    last = name.rpartition(".")[2]
    return last.endswith("_") and not last.endswith("__") or last.startswith("__i") and last.endswith("__") and \
        last not in ("__invert__", "__index__", "__int__", "__init__", "__iter__")


def variants(name: str, op: Any, *, method: bool) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Names under which an OpInfo's operator can be called, with the callable and whether it is in-place."""
    for each in (op, *op.aliases):
        last = each.name.rpartition(".")[2]
        if method:
            if each.method_variant is not None and hasattr(torch.Tensor, last):
                yield last, getattr(torch.Tensor, last), False
            if each.inplace_variant is not None and hasattr(torch.Tensor, last + "_"):
                yield last + "_", getattr(torch.Tensor, last + "_"), True
        else:
            yield "torch." + each.name, each.op, False


def from_samples(facts: list[measure.Facts], overloads: list[Overload], call: Callable[..., Any], op: Any,
                 inplace: bool) -> None:
    """Run an operator on the samples of its OpInfo, with several dtypes."""
    for dtype in dtypes(op):
        torch.manual_seed(0)
        count = 0
        try:
            for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
                count += 1
                if count > measure.MAX_SAMPLES:
                    break
                args = [sample.input, *sample.args]
                kinds = [measure.argument_kind(value) for value in args]
                fitting = [n for n, each in enumerate(overloads) if each.fits(kinds, sample.kwargs)]
                number = fitting[0] if fitting else 0
                names = [p.name for p in overloads[number].params if p.way != "keyword"]
                measure.observe(facts[number], call, args, sample.kwargs, names, inplace)
        except Exception:
            continue


def dtypes(op: Any) -> list[torch.dtype]:
    """Float and two integer dtypes that an operator supports."""
    liked = (torch.float32, torch.float64, torch.int64, torch.int32, torch.complex64)
    return [dtype for dtype in liked if op.supports_dtype(dtype, "cpu")][:4]


def from_guesses(facts: measure.Facts, overload: Overload, call: Callable[..., Any], inplace: bool) -> None:
    """Run something on made-up arguments until three calls succeed."""
    names = [p.name for p in overload.params if p.required or p.way == "rest"]
    params = overload.params
    if names[:1] == ["self"]:
        from dataclasses import replace
        params = (replace(params[0], kind="tensor"), *params[1:])
    done = 0
    for tried, args in enumerate(measure.synthetic(params)):
        if done >= 3 or tried > 400:
            return
        if measure.observe(facts, call, args, {}, names, inplace):
            done += 1


def entry_of(name: str, found: list[Signature], facts: list[measure.Facts], *, method: bool) -> dict[str, Any]:
    """A table entry from signatures and facts."""
    texts = []
    for signature, fact in zip(found, facts, strict=True):
        texts.append(text_of(with_result(signature, fact)))
    each = [facts_of(name, signature, fact) for signature, fact in zip(found, facts, strict=True)]
    known = [one for one, fact in zip(each, facts, strict=True) if fact.runs]
    each = [one if fact.runs else (known[0] if known else one) for one, fact in zip(each, facts, strict=True)]
    entry: dict[str, Any] = {"overloads": texts, **each[0]}
    others = {str(n): {**{key: NEUTRAL[key] for key in each[0] if key not in one}, **one}
              for n, one in enumerate(each) if one != each[0]}
    if others:
        entry["each"] = others
    flags = flags_of(name, found, facts, method=method)
    if flags:
        entry["flags"] = " ".join(flags)
    return entry


NEUTRAL: dict[str, Any] = {"grad": "", "dtype": "", "view": "", "saves": {}, "zero": False}


def with_result(signature: Signature, fact: measure.Facts) -> Signature:
    """The signature, its result taken from the runs where the stub does not say."""
    if len(fact.kinds) == 1 and signature.result == "other":
        kind, count = next(iter(fact.kinds))
        return Signature(signature.params, kind, None, ()) if kind != "tensors" else \
            Signature(signature.params, kind, count if fact.runs > 3 else None, ())
    if {kind for kind, _ in fact.kinds} == {"tensors"} and signature.result in ("tensor", "other"):
        return Signature(signature.params, "tensors", None, ())
    return signature


def facts_of(name: str, signature: Signature, fact: measure.Facts) -> dict[str, Any]:
    """What to write about one overload."""
    found: dict[str, Any] = {}
    count = signature.count or 1
    if any(fact.grad):
        marks = fact.grad[:count] if signature.count or signature.result == "tensor" else [any(fact.grad)]
        found["grad"] = "".join("+" if mark else "-" for mark in marks)
    fixed = {result for _, result in fact.dtypes}
    if len(fixed) == 1 and len({given for given, _ in fact.dtypes}) > 1 and fixed <= set(measure.FIXED):
        found["dtype"] = str(next(iter(fixed))).removeprefix("torch.")
    if any(fact.shares):
        found["view"] = "always" if all(fact.shares) else "maybe"
    if fact.gradients and not fact.nonzero:
        found["zero"] = True
    saves = {key: " ".join(sorted(fact.saved.get(key) or {"*"})) for key in sorted(fact.joint)}
    if saves:
        found["saves"] = saves
    return found


def flags_of(name: str, found: Sequence[Signature], facts: Sequence[measure.Facts], *, method: bool) -> list[str]:
    """In-place, factory, random."""
    flags = []
    if is_inplace(name) and (not any(f.runs for f in facts) or any(any(f.mutates) for f in facts) or True):
        flags.append("inplace")
    if any(p.name in ("pin_memory", "requires_grad") for signature in found for p in signature.params):
        flags.append("factory")
    if name.rpartition(".")[2] in random_names():
        flags.append("random")
    return flags


@functools.cache
def random_names() -> frozenset[str]:
    """Operators that torch tags as drawing random numbers."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            packet = getattr(torch.ops.aten, schema.name[6:], None)
            overload = getattr(packet, schema.overload_name or "default", None)
            if overload is not None and torch.Tag.nondeterministic_seeded in overload.tags:
                found.add(schema.name[6:])
    return frozenset(found)


def build() -> dict[str, dict[str, Any]]:
    """The tables "functions" and "methods" and "attributes"."""
    warnings.simplefilter("ignore")
    tables = {}
    for table, found, method in (("functions", functions(), False), ("methods", tensor_methods(), True)):
        wanted = {name: [overload_of(text_of(s), {}) for s in each] for name, each in found.items()}
        calls = {name: getattr(torch.Tensor, name) if method else resolve(name) for name in found}
        facts = measured(wanted, calls, method=method)
        tables[table] = {name: entry_of(name, found[name], facts[name], method=method) for name in sorted(found)}
    tables["attributes"] = attributes()
    return tables


def tensor_methods() -> dict[str, list[Signature]]:
    """Signatures of Tensor's methods that exist at run time."""
    skip = {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__reduce__",
            "__reduce_ex__", "__subclasshook__", "__init_subclass__", "__dir__"}
    return {name: each for name, each in signatures.tensor_methods().items()
            if hasattr(torch.Tensor, name) and name not in skip and not name.startswith("_make")}


def attributes() -> dict[str, dict[str, Any]]:
    """What reading an attribute of a tensor gives."""
    found = {}
    for name in sorted(dir(torch.Tensor)):
        if name.startswith("_") or callable(getattr(torch.Tensor, name)):
            continue
        fact = measure.Facts()
        for value in (torch.rand(2, 3), torch.rand(2, 3, dtype=torch.complex64), torch.rand(4, 2, 2)):
            measure.observe(fact, lambda x, name=name: getattr(x, name), [value], {}, ["self"])
        kinds = {kind for kind, _ in fact.kinds} - {"none"}
        entry: dict[str, Any] = {"returns": ATTRIBUTES.get(name) or (kinds.pop() if len(kinds) == 1 else "other")}
        entry.update(facts_of(name, Signature((), "tensor"), fact))
        found[name] = entry
    return found


# Reading these needs a backward or another device first.
ATTRIBUTES = {"grad": "tensor", "name": "other"}
