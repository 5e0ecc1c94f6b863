"""Repairs of everything but shapes: kinds of values, missing and wrong arguments, failed conditions."""
from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from runtime_check import names
from runtime_check.asked import bound_by
from runtime_check.blame import (
    Context,
    compared,
    conditions,
    evaluate,
    lookups,
    names_at,
    spelling,
)
from runtime_check.layers import PassThrough
from runtime_check.repair_sizes import resize, with_rank
from runtime_check.specs import OMIT, Assignment, Const, Made, Omit, Seq, Tensor
from runtime_check.usage import source_tree

LAYER = Made("a layer that passes its input through", PassThrough)


def to_kind(kind: str) -> Callable[[Context, re.Match[str]], Iterator[Assignment]]:
    """A rule that gives blamed tensors another kind of values."""

    def rule(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
        order = context.involved()
        blamed = set(context.blamed())
        pairs = [(name, spec) for name, spec in context.arguments.leaves() if spec.kind != kind]
        for name, spec in sorted(pairs, key=lambda pair: order.index(pair[0])):
            changed = replace(spec, kind=kind, dtype=None)
            yield context.arguments.put(name, changed)
            if kind == "long" and len(spec.shape) == 3 and name in blamed:
                yield context.arguments.put(name, changed.resize(spec.shape[:-1]))

    return rule


def kinds_differ(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Two operands have different kinds: whole numbers become real ones, or the other way."""
    yield from to_kind("float")(context, match)
    yield from to_kind("long")(context, match)
    for name, spec in context.arguments.leaves():
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            if str(dtype).rpartition(".")[2].lower() in context.text.lower() or dtype == torch.float64:
                yield context.arguments.put(name, replace(spec, kind="float", dtype=dtype))


def smaller_index(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """An index is too large: smaller values, shorter sequences."""
    for name, spec in context.arguments.leaves():
        if spec.kind == "long" and spec.high > 1:
            for high in (spec.high // 4, 2, 1):
                if 0 < high < spec.high:
                    yield context.arguments.put(name, replace(spec, high=high))
    for name, spec in context.arguments.leaves():
        if len(spec.shape) > 1 and spec.shape[1] > 2:
            yield context.arguments.put(name, spec.resize((spec.shape[0], 2, *spec.shape[2:])))


def other_options(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A tensor was given where something else is wanted, or the other way."""
    yield from other_candidates(context)


def missing_argument(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A parameter without a value: give it its first candidate, or a number by its name."""
    changed = context.arguments
    for name in re.findall(r"'(\w+)'", match[1]):
        options = context.candidates.get(name)
        value = names.number(name)
        changed = changed.put(name, options[0] if options else Const(names.WIDTH if value is None else value))
    yield changed


def unexpected_argument(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A name that the function does not take."""
    if not isinstance(context.arguments.get(match[1]), Omit):
        yield context.arguments.put(match[1], OMIT)


def none_given(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """None stands where a value is needed: fill in the optional arguments that are involved."""
    for name in context.involved():
        spec = context.arguments.get(name)
        if isinstance(spec, Omit) or spec == Const(None):
            for option in context.candidates.get(name, [])[:4]:
                if option != spec and option != Const(None):
                    yield context.arguments.put(name, option)
    yield from fill_optional(context)


def fill_optional(context: Context) -> Iterator[Assignment]:
    """Optional arguments that were left out and that the failing statement names."""
    place = context.place()
    tree = source_tree(context.function)
    near = names_at(tree, place.line) if place is not None and tree is not None else set()
    for name, options in context.candidates.items():
        if name in near and isinstance(context.arguments.get(name), Omit):
            for option in options[:3]:
                if not isinstance(option, Omit):
                    yield context.arguments.put(name, option)


def unbound(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A variable was read that only some branches bind: arguments with which one of them is taken."""
    tree = source_tree(context.function)
    if isinstance(tree, ast.FunctionDef):
        for wishes in bound_by(tree, match[1]):
            yield wishes.put(context.arguments, context.candidates)


def to_call(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A number or tensor stands where the code calls something."""
    for name in context.blamed():
        spec = context.arguments.get(name)
        if isinstance(spec, Tensor) or (isinstance(spec, Const) and not callable(spec.value)):
            yield context.arguments.put(name, LAYER)


def whole_number(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A whole number is wanted where a tensor or a fraction stands."""
    for name in context.blamed():
        spec = context.arguments.get(name)
        if isinstance(spec, Tensor):
            yield context.arguments.put(name, Const(2))
        if isinstance(spec, Const) and isinstance(spec.value, float):
            yield context.arguments.put(name, Const(max(int(spec.value), 1)))


def several(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A number stands where the code takes several apart."""
    defaults = inspect.signature(context.function).parameters
    for name in context.blamed():
        spec = context.arguments.get(name)
        if isinstance(spec, Omit) and name in defaults:
            spec = Const(defaults[name].default)
        if isinstance(spec, Const) and type(spec.value) is int:
            for count in (3, 2, 4):
                yield context.arguments.put(name, Seq((spec,) * count, tuple))


def one_of(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The error lists what is allowed: try the quoted words and the keys of the table that was read."""
    words = re.findall(r"['\"]([\w\-. ]+)['\"]", context.text)
    text = context.text.strip()
    listed = re.search(r"(?:one of|choose from|must be|in|either|are|supported)[: ]+([\w\-., ]+)$", text)
    plain = re.split(r"[, ]+", listed[1]) if listed else []
    words += [item for item in plain if item not in ("or", "and", "one", "of")]
    for name in context.involved():
        spec = context.arguments.get(name)
        if isinstance(spec, Const) and isinstance(spec.value, str):
            for word in words:
                if word != spec.value:
                    yield context.arguments.put(name, Const(word))


def wrong_key(context: Context) -> Iterator[Assignment]:
    """A table was read with a key that it lacks: try the keys that it has."""
    for place in reversed(context.failure.places):
        for table, key in lookups(place):
            for name, spec in context.arguments.items:
                plain = isinstance(spec, Const) and not isinstance(key, (bool, torch.Tensor)) and spec.value == key
                tensor = isinstance(spec, Tensor) and isinstance(key, torch.Tensor) and key.shape == spec.shape
                if plain or tensor:
                    for other in list(table)[:6]:
                        yield context.arguments.put(name, Const(other))


def from_condition(context: Context) -> Iterator[Assignment]:
    """A failed `assert a == b` or `if a != b: raise`: evaluate both sides and make them agree."""
    if isinstance(context.failure.error, KeyError):
        yield from wrong_key(context)
    for place in list(reversed(context.failure.places))[:4]:
        for test in conditions(place):
            for left, right in compared(test):
                one, two = evaluate(left, place), evaluate(right, place)
                yield from _agree(context, test, one, two)


def _agree(context: Context, test: ast.expr, one: Any, two: Any) -> Iterator[Assignment]:
    modulo = next((node for node in ast.walk(test) if isinstance(node, ast.Mod)), None)
    read = {spelling(item).removeprefix("self.") for item in ast.walk(test)} - {""}
    for name in [item for item, _ in context.arguments.items if item in read] or context.blamed():
        spec = context.arguments.get(name)
        match spec, one, two:
            case Const(value=value), _, int() if modulo is not None and type(value) is int:
                yield from (context.arguments.put(name, Const(new)) for new in (16, 8, 4, 2, 1, 32) if new != value)
            case (Const(value=value), _, _) if type(value) in (int, float, str):
                for other in (one, two):
                    if type(other) is type(value) and other != value:
                        yield context.arguments.put(name, Const(other))
                if isinstance(two, (list, tuple, set, dict)):
                    yield from (context.arguments.put(name, Const(item)) for item in list(two)[:6])
                elif type(value) in (int, float):
                    yield from (context.arguments.put(name, Const(type(value)(new))) for new in (1, 2, 0, 64))
            case Tensor(), int(), int():
                yield from resize(context, one, two)
                yield from resize(context, two, one)
                if {one, two} & {len(spec.shape)}:
                    yield from with_rank(context, two if one == len(spec.shape) else one)
            case Tensor(), [*_], [*_]:
                for old, new in zip(one, two, strict=False):
                    if isinstance(old, int) and isinstance(new, int):
                        yield from resize(context, old, new)
                        yield from resize(context, new, old)
            case Seq(items=items), int(), int() if items and one != two:
                for count in (one, two):
                    if 0 < count < 12 and count != len(items):
                        yield context.arguments.put(name, Seq((items[0],) * count, spec.box))


def from_sizes(context: Context) -> Iterator[Assignment]:
    """Whole numbers that were passed beside tensors: most often they are sizes of these."""
    sizes = list(dict.fromkeys(size for _, spec in context.arguments.leaves() for size in spec.shape))
    for name in context.blamed() if sizes else ():
        spec = context.arguments.get(name)
        if isinstance(spec, Const) and type(spec.value) is int:
            for size in [*sizes[:6], 1]:
                if size != spec.value:
                    yield context.arguments.put(name, Const(size))


def other_candidates(context: Context) -> Iterator[Assignment]:
    """The next candidates of the blamed parameters, then of all."""
    for name in context.blamed():
        for option in context.candidates.get(name, ()):
            if option != context.arguments.get(name):
                yield context.arguments.put(name, option)
