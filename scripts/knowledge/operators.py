"""The tables of functions, Tensor methods and Tensor attributes."""
from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import sys
import types
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from knowledge import catalogue, derivatives, guesses, measure
from knowledge.signatures import Signature, text_of
from torchlint.knowledge.callables import Overload, overload_of

Facts = dict[str, Any]
# Never run: they need files or other devices, or change the whole process or the tensor's own memory.
NEVER_RUN = {
    "set_", "resize_", "resize_as_", "share_memory_", "storage", "cuda", "xpu", "hpu", "mtia", "ipu", "pin_memory",
    "backward", "map_", "map2_", "apply_", "register_hook", "set_num_threads", "set_num_interop_threads", "from_file",
    "init_num_threads", "set_flush_denormal", "set_printoptions", "as_subclass", "module_load", "record_stream",
    "register_post_accumulate_grad_hook", "retain_grad", "set_deterministic_debug_mode",
}
# The trailing underscore of these does not mean that the first argument's values change.
NO_WRITE = {"requires_grad_", "share_memory_", "detach_", "clip_grad_norm_", "clip_grad_value_",
            "clip_grads_with_norm_"}
NEUTRAL: Facts = {"grad": "", "dtype": "", "view": "", "saves": {}, "zero": False, "unmeasured": False}


def allow_test_helpers() -> None:
    """Make torch's descriptions of operators and modules importable: they live among its test helpers."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # They derive a class from it that we never use.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in


def samples() -> list[Any]:
    """The OpInfo of every operator that torch describes for its own tests."""
    allow_test_helpers()
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def module_infos() -> list[Any]:
    """The ModuleInfo of every module that torch describes for its own tests."""
    allow_test_helpers()
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


def is_inplace(name: str) -> bool:
    """Whether a name is one of an operation that changes its first argument."""
    last = name.rpartition(".")[2]
    if last.startswith("__"):
        return last.startswith("__i") and last not in ("__invert__", "__index__", "__int__", "__init__", "__iter__")
    return last.endswith("_")


def variants(op: Any, *, method: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Names in our table under which an OpInfo's operator can be called, with what calls it on a sample."""
    for each in (op, *op.aliases):
        last = each.name.rpartition(".")[2]
        if not method:
            yield "torch." + each.name, each.op
            if each.inplace_variant is not None:
                yield f"torch.{each.name}_", each.inplace_variant
            continue
        if each.method_variant is not None:
            yield last, each.method_variant
        if each.inplace_variant is not None:
            yield last + "_", each.inplace_variant


def measured(
    wanted: dict[str, list[Overload]], calls: dict[str, Callable[..., Any]], *, method: bool
) -> dict[str, list[measure.Facts]]:
    """Facts for every overload of every name, from torch's own samples and else from guessed arguments."""
    facts = {name: [measure.Facts() for _ in each] for name, each in wanted.items()}
    for op in samples():
        asked = [(name, describes) for name, describes in variants(op, method=method)
                 if name in wanted and name.rpartition(".")[2] not in NEVER_RUN]
        for dtype in LIKED if asked else ():
            chosen = chosen_samples(op, dtype)
            for name, describes in asked:
                from_samples(facts[name], wanted[name], calls[name], describes, chosen, is_inplace(name))
    for name, overloads in wanted.items():
        if name.rpartition(".")[2] in NEVER_RUN:
            continue
        for overload, found in zip(overloads, facts[name], strict=True):
            if not found.runs:
                from_guesses(found, overload, calls[name], inplace=is_inplace(name))
    return facts


def chosen_samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """Some of an OpInfo's samples, evenly spread: they are ordered by option. None for a dtype it lacks."""
    if not op.supports_dtype(dtype, "cpu"):
        return []
    torch.default_generator.manual_seed(0)
    found: list[Any] = []
    with contextlib.suppress(Exception):
        found.extend(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 100))
    return found[:: max(1, len(found) // LIKED[dtype])][: LIKED[dtype]]


def from_samples(
    facts: list[measure.Facts], overloads: list[Overload], target: Callable[..., Any], describes: Callable[..., Any],
    chosen: list[Any], inplace: bool,
) -> None:
    """Run an operator on samples of its OpInfo."""
    for sample in chosen:
        args, kwargs = measure.arguments_of(target, describes, sample)
        if "return_indices" in kwargs:
            # The overload with this argument is the one that returns two tensors.
            run_sample(facts, overloads, target, args, {**kwargs, "return_indices": True}, inplace)
            del kwargs["return_indices"]
        run_sample(facts, overloads, target, args, kwargs, inplace)


def run_sample(
    facts: list[measure.Facts], overloads: list[Overload], target: Callable[..., Any], args: list[Any],
    kwargs: dict[str, Any], inplace: bool,
) -> None:
    """One call, counted for the overload that it means."""
    kinds = [measure.argument_kind(value) for value in args]
    fitting = [n for n, each in enumerate(overloads) if each.fits(kinds, kwargs)]
    number = fitting[0] if fitting else 0
    call = measure.Call(target, args, kwargs, positional(overloads[number], len(args)), inplace)
    facts[number].sampled |= measure.observe(facts[number], call)


def positional(overload: Overload, count: int) -> list[str]:
    """Parameter names of so many positional arguments; `*args` takes all that are left."""
    names = [p.name for p in overload.params if p.way == "positional"]
    rest = [p.name for p in overload.params if p.way == "rest"]
    return [*names, *rest * max(0, count - len(names))][:count]


def from_guesses(facts: measure.Facts, overload: Overload, target: Callable[..., Any], *, inplace: bool) -> None:
    """Run something on made-up arguments until three calls succeed."""
    names = [p.name for p in overload.params if p.required or p.way == "rest"]
    params = [replace(p, kind="tensor") if p.name == "self" else p for p in overload.params]
    done = 0
    for args in itertools.islice(guesses.arguments(params), guesses.TRIES):
        if measure.observe(facts, measure.Call(target, args, {}, names, inplace)):
            doubles = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
                       for each in args]
            measure.observe(facts, measure.Call(target, doubles, {}, names, inplace))
            done += 1
        if done >= 3 and (facts.graded or done >= 8):
            return


# How many samples are run with which dtype of the first argument. The others than float32 tell result dtypes.
LIKED = {torch.float32: 10, torch.float64: 2, torch.int64: 3, torch.int32: 2, torch.complex64: 2}


def entry_of(name: str, found: list[Signature], facts: list[measure.Facts], call: Callable[..., Any]) -> Facts:
    """A table entry from signatures and facts."""
    found = [with_result(signature, fact) for signature, fact in zip(found, facts, strict=True)]
    each = [facts_of(signature, fact) for signature, fact in zip(found, facts, strict=True)]
    each = [one if told(signature, fact) else borrowed(name, signature, found, each, facts)
            for one, signature, fact in zip(each, found, facts, strict=True)]
    entry: Facts = {"overloads": [text_of(signature) for signature in found], **each[0]}
    others = {str(n): {**{key: NEUTRAL[key] for key in each[0] if key not in one}, **one}
              for n, one in enumerate(each) if one != each[0]}
    if others:
        entry["each"] = others
    flags = flags_of(name, found, facts, call)
    if flags:
        entry["flags"] = " ".join(flags)
    return {**entry, **catalogue.KNOWN.get(name, {})}


def told(signature: Signature, fact: measure.Facts) -> bool:
    """Whether runs have answered the question about gradients. Guesses that only took integers have not."""
    if not fact.runs:
        return False
    return bool(fact.graded or fact.sampled or fixed_dtype(fact) or signature.result not in ("tensor", "tensors")
                or catalogue.is_factory(signature))


def borrowed(
    name: str, signature: Signature, found: list[Signature], each: list[Facts], facts: list[measure.Facts]
) -> Facts:
    """Facts of an overload that could not be run: its sibling's with the same result, or from the formulas."""
    for other, one, fact in zip(found, each, facts, strict=True):
        if told(other, fact) and other.result == signature.result and other.count == signature.count:
            return own_names(one, {p.name for p in signature.params})
    params = [p.name for p in signature.params]
    formula = derivatives.facts(name.rpartition(".")[2], params)
    if formula is not None:
        return formula
    takes = any(p.kind in ("tensor", "operand", "tensors", "") for p in signature.params if p.name != "*")
    if takes and signature.result in ("tensor", "tensors") and not catalogue.is_factory(signature):
        return {"grad": "+", "unmeasured": True}
    return {}


def own_names(facts: Facts, names: set[str]) -> Facts:
    """A sibling's facts without what they say about parameters that this overload lacks."""
    kept = {}
    for key, because in facts.get("saves", {}).items():
        wanting = [name for name in because.split() if name in names]
        if wanting and (key.rstrip("?") in names or key.startswith("result")):
            kept[key] = " ".join(wanting)
    return {**{key: value for key, value in facts.items() if key != "saves"}, **({"saves": kept} if kept else {})}


def with_result(signature: Signature, fact: measure.Facts) -> Signature:
    """The signature, its result taken from the runs where the stub does not say."""
    kinds = {kind for kind, _ in fact.kinds}
    if len(kinds) != 1:
        return signature
    kind = kinds.pop()
    counts = {count for _, count in fact.kinds}
    if signature.result == "other" or (kind == "tensors" and signature.result == "tensor"):
        fixed = counts.pop() if kind == "tensors" and len(counts) == 1 and fact.runs > 6 else None
        return Signature(signature.params, kind, fixed, ())
    return signature


def facts_of(signature: Signature, fact: measure.Facts) -> Facts:
    """What to write about one overload that was run."""
    found: Facts = {}
    if any(fact.grad):
        fixed = signature.count if signature.result == "tensors" else 1
        marks = fact.grad[:fixed] if fixed else [True]
        found["grad"] = "".join("+" if mark else "-" for mark in marks)
    dtype = fixed_dtype(fact)
    if dtype:
        found["dtype"] = dtype
    if any(fact.shares):
        found["view"] = "always" if all(fact.shares) else "maybe"
    if fact.sampled and fact.gradients >= 4 and fact.tried >= 2 and not fact.nonzero:
        found["zero"] = True
    saves = {}
    everything = sorted(set().union(*fact.saved.values()))
    for name, count in sorted(fact.joint.items()):
        # What only some options of the call keep is marked.
        mark = "" if count >= fact.graphs[name] else "?"
        saves[name + mark] = " ".join(sorted(fact.saved.get(name) or everything))
    if saves:
        found["saves"] = saves
    return found


def fixed_dtype(fact: measure.Facts) -> str:
    """The dtype that the (first) result always has, whatever the first argument's is; else ""."""
    given = {first for first, _ in fact.dtypes}
    results = {result for _, result in fact.dtypes}
    if len(results) != 1 or len(given) < 2:
        return ""
    result = results.pop()
    if result.is_complex or (result.is_floating_point and torch.float64 not in given):
        return ""
    return str(result).removeprefix("torch.")


def flags_of(
    name: str, found: Sequence[Signature], facts: Sequence[measure.Facts], call: Callable[..., Any]
) -> list[str]:
    """In-place, factory, random."""
    flags = []
    last = name.rpartition(".")[2]
    if is_inplace(name) and last not in NO_WRITE:
        flags.append("inplace")
    if any(catalogue.is_factory(signature) for signature in found):
        flags.append("factory")
    if last in random_names() or last in catalogue.RANDOM:
        flags.append("random")
    if name.startswith("torch.nn.init."):
        flags.append("untracked")
    return flags


@functools.cache
def random_names() -> frozenset[str]:
    """Operators that torch tags as drawing random numbers, and F's functions that pass on to them."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            packet = getattr(torch.ops.aten, schema.name[6:], None)
            overload = getattr(packet, schema.overload_name or "default", None)
            if overload is not None and torch.Tag.nondeterministic_seeded in overload.tags:
                found.add(schema.name[6:])
    return frozenset(found)


def build() -> dict[str, dict[str, Any]]:
    """The tables "functions", "methods" and "attributes"."""
    warnings.simplefilter("ignore")
    # torch.manual_seed also queues a seed, with a stack trace, for each accelerator that may be used later.
    with unittest.mock.patch.object(torch, "manual_seed", torch.default_generator.manual_seed):
        return build_tables()


def build_tables() -> dict[str, dict[str, Any]]:
    """All of it, with a cheap seed."""
    tables: dict[str, dict[str, Any]] = {}
    for table, found, method in (("functions", catalogue.functions(), False), ("methods", catalogue.methods(), True)):
        wanted = {name: [overload_of(text_of(s), {}) for s in each] for name, each in found.items()}
        calls = {name: getattr(torch.Tensor, name) if method else catalogue.resolve(name) for name in found}
        facts = measured(wanted, calls, method=method)
        tables[table] = {name: entry_of(name, found[name], facts[name], calls[name]) for name in sorted(found)}
    tables["attributes"] = attributes()
    return tables


def attributes() -> dict[str, dict[str, Any]]:
    """What reading an attribute of a tensor gives."""
    found = {}
    for name in sorted(dir(torch.Tensor)):
        if name.startswith("_") or callable(getattr(torch.Tensor, name)):
            continue
        fact = measure.Facts()
        for value in (torch.rand(2, 3), torch.rand(2, 3, dtype=torch.complex64), torch.rand(4, 2, 2)):
            measure.observe(fact, measure.Call(lambda x, name=name: getattr(x, name), [value], {}, ["self"]))
        kinds = {kind for kind, _ in fact.kinds} - {"none"}
        result = kinds.pop() if len(kinds) == 1 else "other"
        found[name] = {"returns": catalogue.ATTRIBUTES.get(name, result), **facts_of(Signature((), "tensor"), fact)}
    return found
