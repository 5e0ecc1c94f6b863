"""Larger inputs, for what fails for large values only: made-up arguments, and random numbers that the code draws.

What is scaled is what comes in, never a value in the middle: between the two may stand a `tanh` or a `clamp` that no
input passes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check import specs
from runtime_check.probes.bench import Program
from runtime_check.trace import owner_of

DRAWN = {"randn", "rand", "randn_like", "rand_like", "normal"}
FACTORS = (1e3, 3e4)  # for inputs; before them comes the one that would do if all in between were linear
#: Folders whose random numbers are no data: weights of layers, and what this package makes of its recipes.
OTHERS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, specs.__file__))


class Inputs(TorchFunctionMode):  # type: ignore[misc]
    """Inputs are `factor` times as large while it lasts."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.made = specs.Changed(lambda tensor: tensor * factor)

    def __enter__(self) -> Any:
        self.made.__enter__()
        return super().__enter__()

    def __exit__(self, *said: Any) -> Any:
        self.made.__exit__(*said)
        return super().__exit__(*said)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        drawn = getattr(func, "__name__", "") in DRAWN and isinstance(result, torch.Tensor)
        if drawn and not next(callers(sys._getframe(1))).f_code.co_filename.startswith(OTHERS):
            with torch.no_grad():
                result.mul_(self.factor)
        return result


class Largest(TorchFunctionMode):  # type: ignore[misc]
    """Keeps the largest number that some functions are given by the flagged function, itself or through a layer.

    Of several calls the last one on the flagged line counts, else the last one in its function: that is the one whose
    result the line takes.
    """

    def __init__(self, program: Program, names: frozenset[str]) -> None:
        super().__init__()
        self.path, self.names = program.path, names
        self.lines = [(spot.first, spot.last) for spot in program.spots]
        self.owners = [owner_of(program.text, spot.first)[1:] for spot in program.spots]
        self.sizes: dict[tuple[CodeType, int], float] = {}  # by the place of the call
        self.last: dict[bool, tuple[CodeType, int]] = {}  # that place, on the flagged line and in its function

    @property
    def size(self) -> float:
        """The largest number; 0 if no such function was called."""
        place = self.last.get(True, self.last.get(False))
        return self.sizes[place] if place is not None else 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if getattr(func, "__name__", "") in self.names and isinstance(first, torch.Tensor):
            caller = next((f for f in callers(sys._getframe(1)) if f.f_code.co_filename == self.path), None)
            if caller is not None and any(a <= caller.f_lineno <= b for a, b in self.owners):
                place = caller.f_code, caller.f_lasti
                self.last[any(a <= caller.f_lineno <= b for a, b in self.lines)] = place
                self.sizes[place] = max(self.sizes.get(place, 0.0), size(first))
        return func(*args, **(kwargs or {}))


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that have called it, without other modes that hand a function on."""
    while frame is not None:
        if frame.f_code.co_name != "__torch_function__":
            yield frame
        frame = frame.f_back


def size(tensor: torch.Tensor) -> float:
    """The largest finite number in a tensor, without its sign; 0 if there is none."""
    with torch.DisableTorchFunction():
        values = tensor.detach().abs()
        values = values[torch.isfinite(values)]
        return float(values.max()) if values.numel() else 0.0


def too_small(largest: float) -> str:
    """What is said where nothing came near the size at which the code would fail."""
    return f"no input that was tried makes the operand larger than {largest:.3g}"
