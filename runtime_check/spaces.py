"""Spaces of observations and actions, for code that speaks of them where their package is not installed.

They have the attributes and methods that networks read: shapes, bounds, counts, samples.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

WHERE = "gymnasium.spaces"


class Space:
    """Base of all spaces."""

    shape: tuple[int, ...] | None = None
    dtype: Any = None

    def seed(self, *args: object) -> None: ...

    def contains(self, value: object) -> bool:
        return True

    def sample(self) -> Any:
        raise NotImplementedError


class Box(Space):
    """Numbers between bounds."""

    def __init__(self, low: Any, high: Any, shape: Sequence[int] | None = None, dtype: Any = "float32",
                 **options: object) -> None:
        import numpy

        self.dtype = numpy.dtype(dtype)
        self.shape = tuple(shape) if shape is not None else numpy.shape(low)
        self.low = numpy.broadcast_to(numpy.asarray(low, self.dtype), self.shape).copy()
        self.high = numpy.broadcast_to(numpy.asarray(high, self.dtype), self.shape).copy()
        self.bounded_below, self.bounded_above = numpy.isfinite(self.low), numpy.isfinite(self.high)

    def is_bounded(self, manner: str = "both") -> bool:
        return bool(self.bounded_below.all() and self.bounded_above.all())

    def sample(self) -> Any:
        import numpy

        low, high = self.low.astype("float64").clip(min=-9.0), self.high.astype("float64").clip(max=255.0)
        return numpy.random.uniform(low, high).astype(self.dtype)


class Discrete(Space):
    """One of `n` choices."""

    shape = ()

    def __init__(self, n: int, seed: object = None, start: int = 0) -> None:
        import numpy

        self.n, self.start, self.dtype = int(n), start, numpy.dtype("int64")

    def sample(self) -> int:
        return self.start


class MultiDiscrete(Space):
    """Several choices at once."""

    def __init__(self, nvec: Any, *args: object, **options: object) -> None:
        import numpy

        self.nvec, self.dtype = numpy.asarray(nvec), numpy.dtype("int64")
        self.shape = self.nvec.shape

    def sample(self) -> Any:
        return self.nvec * 0


class MultiBinary(Space):
    """Several switches at once."""

    def __init__(self, n: Any, *args: object) -> None:
        import numpy

        self.n, self.dtype = n, numpy.dtype("int8")
        self.shape = (n,) if isinstance(n, int) else tuple(n)

    def sample(self) -> Any:
        import numpy

        return numpy.zeros(self.shape, self.dtype)


class Dict(Space):
    """Named spaces."""

    def __init__(self, spaces: Any = None, *args: object, **named: Space) -> None:
        self.spaces: dict[str, Space] = {**dict(spaces or {}), **named}

    def __getitem__(self, key: str) -> Space:
        return self.spaces[key]

    def __iter__(self) -> Any:
        return iter(self.spaces)

    def items(self) -> Any:
        return self.spaces.items()

    def keys(self) -> Any:
        return self.spaces.keys()

    def values(self) -> Any:
        return self.spaces.values()

    def sample(self) -> dict[str, Any]:
        return {key: space.sample() for key, space in self.spaces.items()}


class Tuple(Space):
    """Spaces in a row."""

    def __init__(self, spaces: Sequence[Space], *args: object) -> None:
        self.spaces = tuple(spaces)

    def __getitem__(self, index: int) -> Space:
        return self.spaces[index]

    def __len__(self) -> int:
        return len(self.spaces)

    def sample(self) -> tuple[Any, ...]:
        return tuple(space.sample() for space in self.spaces)


def flatdim(space: Any) -> int:
    """How many numbers a value of a space is, with choices as one-hot vectors."""
    match space:
        case Discrete():
            return space.n
        case MultiDiscrete():
            return int(space.nvec.sum())
        case Dict():
            return sum(map(flatdim, space.values()))
        case Tuple():
            return sum(map(flatdim, space.spaces))
    return math.prod(space.shape or ())


_KINDS: tuple[Any, ...] = (Space, Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple)
KINDS: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}
for _kind in KINDS.values():
    _kind.__module__ = WHERE
FUNCTIONS: dict[str, Any] = {"flatdim": flatdim}


def named(name: str) -> Any:
    """The class or function of this name, or None."""
    return KINDS.get(name) or FUNCTIONS.get(name)


def examples(kinds: Mapping[str, Any], package: str) -> dict[str, list[tuple[str, Callable[[], Any]]]]:
    """Small spaces of each kind, labelled as they would be written; `kinds` are the classes of a package."""
    box, image = partial(kinds["Box"], -1.0, 1.0, (4,)), partial(kinds["Box"], 0, 255, (3, 64, 64), "uint8")

    def table() -> Any:
        return kinds["Dict"]({"vector": box()})

    at = f"{package}.spaces"
    return {
        "Box": [(f"{at}.Box(-1, 1, (4,))", box), (f"{at}.Box(0, 255, (3, 64, 64), uint8)", image)],
        "Discrete": [(f"{at}.Discrete(2)", partial(kinds["Discrete"], 2))],
        "MultiDiscrete": [(f"{at}.MultiDiscrete([2, 3])", partial(kinds["MultiDiscrete"], [2, 3]))],
        "MultiBinary": [(f"{at}.MultiBinary(3)", partial(kinds["MultiBinary"], 3))],
        "Dict": [(f'{at}.Dict({{"vector": {at}.Box(-1, 1, (4,))}})', table)],
    }
