"""Whether in-place operations of the flagged statement change any number, and inputs with which they may.

A `clamp_` of values that are within its limits already, or a `mul_` by one, writes and changes nothing: that nothing
went wrong then shows nothing.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check.probes import graphs

MOST = 6  # executions that are looked at
FACTORS = (10.0, -10.0, 100.0)  # for made-up inputs, where the write changes nothing with them as they are
NO_WRITES = {"requires_grad_", "detach_", "share_memory_"}
#: In-place operations whose names do not end in an underscore.
OPERATORS = {"__setitem__", *(f"__i{name}__" for name in (
    "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"))}


class Writes(TorchFunctionMode):  # type: ignore[misc]
    """Watches the in-place operations of the flagged statement, and what they change."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.count = 0  # in-place operations
        self.changed = 0  # of them, those that changed a number
        self.executions = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = written(func, args, kwargs) if self.inside else []
        if not target:
            return func(*args, **kwargs)
        with torch.DisableTorchFunction():
            old = [tensor.detach().clone() for tensor in target]
            result = func(*args, **kwargs)
            self.count += 1
            self.changed += any(not equal(a, b.detach()) for a, b in zip(old, target, strict=True))
        return result

    def begin(self, frame: FrameType, index: int) -> None:
        """The flagged statement begins."""
        self.executions += 1
        self.inside = self.executions <= MOST

    def end(self, frame: FrameType, index: int) -> None:
        """It has ended."""
        self.inside = False

    @property
    def idle(self) -> bool:
        """Whether there were writes, and none of them changed a number."""
        return bool(self.count) and not self.changed


def written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation writes to."""
    name = getattr(func, "__name__", "")
    stored = name == "__set__" and getattr(getattr(func, "__self__", None), "__name__", "") == "data"  # not `.grad`
    in_place = stored or name in OPERATORS or (name.endswith("_") and not name.endswith("__") and name not in NO_WRITES)
    return [*graphs.flat(args[:1] if in_place else ()), *graphs.flat(kwargs.get("out"))]


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, NaN like NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
