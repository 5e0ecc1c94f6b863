"""What a call of a torch function or Tensor method takes, returns, shares and saves for backward.

Signatures come from torch's stubs and sources. What happens in a call (views, gradients, saved tensors,
result types) was measured by the generator: it runs each operator on the sample inputs that torch ships
for its own tests, and falls back on torch's derivative formulas where there are none.
"""
from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchlint.knowledge.tables import table

# Which kinds of argument a parameter of a kind takes. Kinds that are not listed take only themselves.
TAKES = {
    "operand": {"tensor", "number", "int", "float", "bool"},
    "int": {"bool"},
    "float": {"int", "number", "bool"},
    "number": {"int", "float", "bool"},
    "size": {"int", "tuple", "list"},
    "device": {"string", "int"},
    "tensors": {"tuple", "list"},
}


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a call.

    `kind` is tensor, operand (a tensor or a number), tensors (a sequence of them), int, float, number, bool,
    size, dtype, device, string, generator or "" (anything else). `default` is the source text of the default,
    None when the argument is required. `way` is "positional" (by position or name), "keyword" (by name only),
    "rest" (`*args`) or "keywords" (`**kwargs`).
    """

    name: str
    kind: str = ""
    default: str | None = None
    way: str = "positional"

    @property
    def required(self) -> bool:
        """Whether a call must pass it."""
        return self.default is None and self.way in ("positional", "keyword")

    @property
    def is_tensor(self) -> bool:
        """Whether it may be a tensor."""
        return self.kind in ("tensor", "operand")

    def takes(self, kind: str) -> bool:
        """Whether an argument of this kind may be passed; "" (unknown) always may."""
        if not kind or not self.kind or kind == self.kind:
            return True
        if kind == "none":
            return self.default == "None"
        return kind in TAKES.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature and what a call of it does.

    `returns`: tensor, tensors, number, bool, int, float, size, dtype, device, string, none or other.
    `count`: how many tensors "tensors" are, if fixed; `names`: field names of a named tuple.
    `outputs`: for each result tensor whether it carries grad when an input does (one entry that stands for
    all when the count is not fixed). `dtype`: "int64", "bool", ... when the result always has that dtype.
    `view`: the result always shares storage with the first argument; `may_view`: it may.
    `zero_grad`: differentiable on paper, but the gradient is zero everywhere (round, sign, floor).
    `saved_for`: parameters (and "result", or "result1" ... for later results) that backward keeps whatever the
    options of the call, each with the parameters of which one must require grad for it to be kept.
    `may_save`: what only some options of the call keep (the result of `norm` for p=2).
    `measured`: false where the generator could not run the call and torch has no derivative formula for it: it is
    then taken to carry grad and to save nothing.
    """

    params: tuple[Param, ...] = ()
    returns: str = "other"
    count: int | None = None
    names: tuple[str, ...] = ()
    outputs: tuple[bool, ...] = ()
    dtype: str = ""
    zero_grad: bool = False
    view: bool = False
    may_view: bool = False
    saved_for: Mapping[str, frozenset[str]] = field(default_factory=dict)
    may_save: frozenset[str] = frozenset()
    measured: bool = True

    @property
    def saves(self) -> frozenset[str]:
        """All that backward keeps. Changing one of these in place before backward raises in backward."""
        return frozenset(self.saved_for)

    @property
    def differentiable(self) -> bool:
        """Whether any output carries grad when an input does."""
        return any(self.outputs)

    def fits(self, kinds: Sequence[str], keywords: Collection[str] = (), *, method: bool = False) -> bool:
        """Whether a call with these positional argument kinds and keyword names can mean this overload."""
        params = self.params[1:] if method else self.params
        plain = [p for p in params if p.way == "positional"]
        rest = next((p for p in params if p.way == "rest"), None)
        if len(kinds) > len(plain) and rest is None:
            return False
        if not all(p.takes(kind) for p, kind in zip(plain, kinds, strict=False)):
            return False
        if rest is not None and not all(rest.takes(kind) for kind in kinds[len(plain):]):
            return False
        passed = {p.name for p in plain[: len(kinds)]} | set(keywords)
        known = {p.name for p in params}
        if not passed <= known and not any(p.way == "keywords" for p in params):
            return False
        return all(p.name in passed for p in params if p.required)


@dataclass(frozen=True, slots=True)
class Callable_:
    """A torch function or Tensor method. The short properties speak of the main (first) overload.

    `inplace`: changes its first argument and returns it. `factory`: makes a fresh tensor; tensor arguments
    (as of `zeros_like`) only lend shape and dtype. `random`: draws from a random generator.
    `untracked`: runs without recording a graph, so that it may change leaves (torch.nn.init).
    `method`: the first parameter of each overload is the receiver, named "self".
    """

    name: str
    overloads: tuple[Overload, ...]
    inplace: bool = False
    factory: bool = False
    random: bool = False
    untracked: bool = False
    method: bool = False

    def overload(self, kinds: Sequence[str], keywords: Collection[str] = ()) -> Overload | None:
        """The overload that a call means; None when none fits or when several that differ in effect do.

        `kinds` are the kinds of the positional arguments ("" if unknown), without a method's receiver;
        `keywords` the names of the keyword arguments.
        """
        fitting = [each for each in self.overloads if each.fits(kinds, keywords, method=self.method)]
        effects = {(e.returns, e.count, e.outputs, e.view, e.may_view, e.saves) for e in fitting}
        return fitting[0] if len(effects) == 1 else None

    @property
    def params(self) -> tuple[Param, ...]:
        """Parameters of the main overload, in order."""
        return self.overloads[0].params

    @property
    def returns(self) -> str:
        """What the main overload returns, see `Overload.returns`."""
        return self.overloads[0].returns

    @property
    def count(self) -> int | None:
        """How many tensors the main overload returns, when it returns "tensors" and the number is fixed."""
        return self.overloads[0].count

    @property
    def differentiable(self) -> bool:
        """Whether any output of any overload carries grad when an input does."""
        return any(each.differentiable for each in self.overloads)

    @property
    def zero_grad(self) -> bool:
        """Whether the gradient is zero everywhere, so that nothing is learned through it."""
        return self.overloads[0].zero_grad

    @property
    def dtype(self) -> str:
        """The result's dtype where it is fixed ("int64" of argmax, "bool" of comparisons), else ""."""
        return self.overloads[0].dtype

    @property
    def view(self) -> bool:
        """Whether the result always shares storage with the first argument."""
        return all(each.view for each in self.overloads)

    @property
    def may_view(self) -> bool:
        """Whether the result may share storage with the first argument."""
        return any(each.view or each.may_view for each in self.overloads)

    @property
    def saves(self) -> frozenset[str]:
        """All that backward of the main overload keeps: parameter names and "result"."""
        return self.overloads[0].saves


@functools.cache
def function(dotted: str) -> Callable_ | None:
    """The torch function of this canonical name ("torch.nn.functional.relu"), None if there is none.

    "torch.Tensor.add_" gives the method as a function of its receiver.
    """
    if dotted.startswith("torch.Tensor."):
        entry = table("methods").get(dotted[len("torch.Tensor."):])
        return None if entry is None else decode(dotted, entry, method=False)
    entry = table("functions").get(dotted)
    return None if entry is None else decode(dotted, entry, method=False)


@functools.cache
def method(name: str) -> Callable_ | None:
    """The Tensor method of this name ("add_", "__mul__"), None if there is none."""
    entry = table("methods").get(name)
    return None if entry is None else decode(name, entry, method=True)


@functools.cache
def tensor_attribute(name: str) -> Overload | None:
    """What reading the Tensor attribute `x.<name>` gives (shape, T, grad, is_leaf ...), None if there is none."""
    entry = table("attributes").get(name)
    return None if entry is None else overload_of(f"self:tensor>{entry['returns']}", entry)


def decode(name: str, entry: dict[str, Any], *, method: bool) -> Callable_:
    """A table entry as data. Facts beside "overloads" hold for all, those under "each" for one overload."""
    each = entry.get("each", {})
    overloads = tuple(
        overload_of(text, {**entry, **each.get(str(number), {})}) for number, text in enumerate(entry["overloads"])
    )
    flags = set(entry.get("flags", "").split())
    marks = ("inplace" in flags, "factory" in flags, "random" in flags, "untracked" in flags)
    return Callable_(name, overloads, *marks, method)


def overload_of(text: str, facts: Mapping[str, Any]) -> Overload:
    """One overload from its signature text, such as `input:tensor|dim:int=None>tensors:values,indices`."""
    left, _, right = text.rpartition(">")
    returns, _, fields = right.partition(":")
    saves: dict[str, str] = facts.get("saves", {})
    names = tuple(fields.split(",")) if fields and not fields.isdigit() else ()
    return Overload(
        params=tuple(params_of(left)),
        returns=returns,
        count=int(fields) if fields.isdigit() else len(names) or None,
        names=names,
        outputs=tuple(mark == "+" for mark in facts.get("grad", "")),
        dtype=facts.get("dtype", ""),
        zero_grad=facts.get("zero", False),
        view=facts.get("view") == "always",
        may_view=facts.get("view") in ("always", "maybe"),
        saved_for={key: frozenset(value.split()) for key, value in saves.items() if not key.endswith("?")},
        may_save=frozenset(key[:-1] for key in saves if key.endswith("?")),
        measured=not facts.get("unmeasured", False),
    )


def params_of(text: str) -> list[Param]:
    """Parameters from the left side of a signature text."""
    found: list[Param] = []
    way = "positional"
    for part in text.split("|") if text else ():
        head, equals, default = part.partition("=")
        name, _, kind = head.partition(":")
        if name == "*":
            way = "keyword"
        elif name.startswith("**"):
            found.append(Param(name[2:], kind, None, "keywords"))
        elif name.startswith("*"):
            found.append(Param(name[1:], kind, None, "rest"))
            way = "keyword"
        else:
            found.append(Param(name, kind, default if equals else None, way))
    return found
