"""Recipes for argument values: frozen, comparable, and made anew for every run.

A recipe knows how to make its value and how a reader would write it (`torch.randn(2, 8, 16)`).
"""
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

Shape = tuple[int, ...]
LARGE_IMAGE = 32
#: What the values of tensors of kind "float" are changed by, while it lasts.
_changes: list[Callable[[torch.Tensor], torch.Tensor]] = []


class Changed:
    """Made-up real numbers are other ones while it lasts."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.change = change

    def __enter__(self) -> None:
        _changes.append(self.change)

    def __exit__(self, *_: object) -> None:
        _changes.remove(self.change)


class Spec:
    """Base of all recipes."""

    def make(self) -> Any:
        """A new value."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """How the value would be written."""
        raise NotImplementedError


@dataclass(frozen=True)
class Tensor(Spec):
    """A tensor of random values.

    `kind`: "float", "fixed" (the same, and never asked for a gradient), "unit" (0 to 1), "long" (0 to
    high - 1), "bool", "complex".
    """

    shape: Shape
    kind: str = "float"
    high: int = 8
    grad: bool = False
    dtype: torch.dtype | None = None
    step: int = 0  # for "long": 0 is random values, 1 is 0, 1, 2 ... along the last dimension

    def make(self) -> torch.Tensor:
        match self.kind:
            case "long" if self.step:
                row = torch.arange(self.shape[-1] if self.shape else 1) % max(self.high, 1)
                return row.expand(self.shape).clone()
            case "long":
                return torch.randint(0, max(self.high, 1), self.shape)
            case "bool":
                return torch.ones(self.shape, dtype=torch.bool)
            case "complex":
                return torch.randn(self.shape, dtype=self.dtype or torch.complex64)
            case "unit":
                value = torch.rand(self.shape, dtype=self.dtype)
            case "fixed":
                value = torch.randn(self.shape, dtype=self.dtype)
            case _:
                value = torch.randn(self.shape, dtype=self.dtype)
                for change in _changes:
                    value = change(value)
        return value.requires_grad_() if self.grad else value

    @property
    def label(self) -> str:
        sizes = ", ".join(map(str, self.shape)) or "()"
        match self.kind:
            case "long":
                return f"torch.randint({self.high}, ({', '.join(map(str, self.shape))}{',' * (len(self.shape) == 1)}))"
            case "bool":
                return f"torch.ones({sizes}, dtype=torch.bool)"
            case "unit":
                return f"torch.rand({sizes})"
            case "complex":
                return f"torch.randn({sizes}, dtype=torch.complex64)"
        more = f", dtype={self.dtype}" if self.dtype else ""
        return f"torch.randn({sizes}{more})"

    def resize(self, shape: Shape) -> Tensor:
        """The same values in another shape."""
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True)
class Const(Spec):
    """A plain value; containers are copied."""

    value: Any

    def make(self) -> Any:
        return copy.deepcopy(self.value) if isinstance(self.value, (list, dict, set)) else self.value

    @property
    def label(self) -> str:
        if isinstance(self.value, type):
            return self.value.__name__
        text = getattr(self.value, "__name__", None) or repr(self.value)
        return text if len(text) <= 60 else type(self.value).__name__

    def __hash__(self) -> int:
        return hash(repr(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and type(self.value) is type(other.value) and self.label == other.label


@dataclass(frozen=True)
class Made(Spec):
    """A value that a function makes; two with one label are taken as the same."""

    text: str
    factory: Callable[[], Any]

    def make(self) -> Any:
        return self.factory()

    @property
    def label(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made) and self.text == other.text


@dataclass(frozen=True)
class Seq(Spec):
    """A list or tuple of recipes."""

    items: tuple[Spec, ...]
    box: type = list

    def make(self) -> Any:
        return self.box(item.make() for item in self.items)

    @property
    def label(self) -> str:
        inner = ", ".join(item.label for item in self.items)
        return f"[{inner}]" if self.box is list else f"({inner}{',' * (len(self.items) == 1)})"


@dataclass(frozen=True)
class Table(Spec):
    """A dictionary of recipes."""

    items: tuple[tuple[str, Spec], ...]

    def make(self) -> dict[str, Any]:
        return {name: item.make() for name, item in self.items}

    @property
    def label(self) -> str:
        return "{" + ", ".join(f"{name!r}: {item.label}" for name, item in self.items) + "}"


class Attributes:
    """An object with given attributes, which can also be had like the items of a dictionary."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def keys(self) -> Any:
        return self.__dict__.keys()

    def items(self) -> Any:
        return self.__dict__.items()

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)

    def clone(self) -> Attributes:
        return copy.copy(self)


@dataclass(frozen=True)
class Record(Spec):
    """An object with attributes: of a class that takes them as named arguments, else a plain one."""

    items: tuple[tuple[str, Spec], ...]
    kind: Callable[..., Any] = Attributes

    def make(self) -> Any:
        return self.kind(**{name: item.make() for name, item in self.items})

    @property
    def label(self) -> str:
        name = "SimpleNamespace" if self.kind is Attributes else self.kind.__name__
        return f"{name}({', '.join(f'{name}={item.label}' for name, item in self.items)})"


class Omit(Spec):
    """Leave the argument out: its default is used."""

    def make(self) -> Any:
        raise ValueError("an argument that is left out has no value")

    @property
    def label(self) -> str:
        return "…"

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Omit)


OMIT = Omit()


@dataclass(frozen=True)
class Assignment:
    """Recipes for the parameters of one call, in the order of the signature."""

    items: tuple[tuple[str, Spec], ...]
    positional: frozenset[str] = frozenset()  # parameters that cannot be named
    spread: str = ""  # the `*args` parameter: its Seq is spread out

    def get(self, path: str) -> Spec:
        """The recipe of a parameter, or of a part of it: "states/0" is the first item of `states`."""
        name, _, rest = path.partition("/")
        found = dict(self.items).get(name, OMIT)
        for part in rest.split("/") if rest else ():
            found = dict(parts_of(found)).get(part, OMIT)
        return found

    def put(self, path: str, spec: Spec) -> Assignment:
        """With one recipe replaced or added."""
        name, _, rest = path.partition("/")
        if any(item == name for item, _ in self.items):
            items = tuple((item, with_part(old, rest, spec) if item == name else old) for item, old in self.items)
            return replace(self, items=items)
        return replace(self, items=(*self.items, (name, spec)))

    def make(self) -> tuple[list[Any], dict[str, Any]]:
        """New positional and named arguments."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, spec in self.items:
            if isinstance(spec, Omit):
                continue
            if name == self.spread:
                args.extend(spec.make())
            elif name in self.positional:
                args.append(spec.make())
            else:
                kwargs[name] = spec.make()
        return args, kwargs

    @property
    def label(self) -> str:
        """The arguments as written in a call."""
        parts = []
        for name, spec in self.items:
            if isinstance(spec, Omit):
                continue
            if name == self.spread:
                parts += [item.label for item in spec.items] if isinstance(spec, Seq) else [spec.label]
            else:
                parts.append(spec.label if name in self.positional else f"{name}={spec.label}")
        return ", ".join(parts)

    @property
    def numbers(self) -> int:
        """How many numbers the tensors hold."""
        return sum(math.prod(spec.shape) for _, spec in self.leaves())

    def smaller(self) -> Assignment:
        """With a quarter of the height and width of large images: attention compares all pixels with each other."""
        found = self
        for path, spec in self.leaves():
            if len(spec.shape) >= 4 and min(spec.shape[-2:]) >= LARGE_IMAGE:
                found = found.put(path, spec.resize((*spec.shape[:-2], spec.shape[-2] // 4, spec.shape[-1] // 4)))
        return found

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Parameters whose recipe is a tensor."""
        return [(name, spec) for name, spec in self.items if isinstance(spec, Tensor)]

    def leaves(self) -> list[tuple[str, Tensor]]:
        """All tensors with their paths, also those in lists, tables and objects."""
        found: list[tuple[str, Tensor]] = []
        waiting = list(self.items)[::-1]
        while waiting:
            path, spec = waiting.pop()
            if isinstance(spec, Tensor):
                found.append((path, spec))
            waiting += [(f"{path}/{part}", inner) for part, inner in parts_of(spec)][::-1]
        return found


def parts_of(spec: Spec) -> tuple[tuple[str, Spec], ...]:
    """The recipes that a recipe is made of, by name or number."""
    match spec:
        case Seq(items=items):
            return tuple((str(index), item) for index, item in enumerate(items))
        case Table(items=named) | Record(items=named):
            return named
    return ()


def with_part(whole: Spec, path: str, new: Spec) -> Spec:
    """A recipe with one of its parts replaced; itself replaced if the path is empty."""
    if not path:
        return new
    first, _, rest = path.partition("/")
    parts = tuple((name, with_part(old, rest, new) if name == first else old) for name, old in parts_of(whole))
    match whole:
        case Seq():
            return replace(whole, items=tuple(item for _, item in parts))
        case Table() | Record():
            return replace(whole, items=parts)
    return whole
