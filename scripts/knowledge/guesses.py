"""Made-up arguments for operators that torch describes no samples for."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchlint.knowledge.callables import Param

VALUES: dict[str, list[Any]] = {
    "float": [0.5], "number": [0.5, 1], "bool": [True], "int": [0, 1, 2], "dtype": [torch.float32],
    "device": ["cpu"], "size": [(3, 3), (1,), (9,), (0,), (0, 1), (1, 0), 2],
}
SHAPES = [(3, 3), (4,), (2, 3, 3), (1, 2, 4, 4), (1, 2, 4, 4, 4), (2,), ()]
MODES = ("float", "index", "mask", "integer", "complex")
LIMIT = 12  # combinations per shape and mode
TRIES = 150


def arguments(params: Sequence[Param]) -> Iterator[list[Any]]:
    """Guesses at arguments for the required parameters, likeliest first."""
    required = [p for p in params if p.required or p.way == "rest"]
    if any(p.way == "keyword" for p in required):
        return
    for shape, mode in itertools.product(SHAPES, MODES):
        choices = [choice(p, shape, mode) for p in required]
        yield from (list(each) for each in itertools.islice(itertools.product(*choices), LIMIT))


def choice(param: Param, shape: tuple[int, ...], mode: str) -> list[Any]:
    """Values to try for one parameter."""
    if param.is_tensor:
        return [tensor(shape, param.name, mode)]
    if param.kind == "tensors":
        return [[tensor(shape, "a", mode), tensor(shape, "b", mode)]]
    if param.way == "rest" and param.kind in ("size", "int"):
        return [0, 1, 3]
    return VALUES.get(param.kind, [None])


def tensor(shape: tuple[int, ...], name: str, mode: str) -> torch.Tensor:
    """A tensor that suits a parameter of this name; other names give other values."""
    torch.default_generator.manual_seed(sum(map(ord, name)))
    if mode == "integer" or any(word in name for word in ("ind", "target", "pivots")):
        return torch.zeros(shape, dtype=torch.int64) + (mode == "integer")
    if "mask" in name or "condition" in name or mode == "mask":
        return torch.rand(shape) > 0.5
    if mode == "complex":
        return torch.rand(shape, dtype=torch.complex64)
    return torch.rand(shape) * 0.8 + 0.1
