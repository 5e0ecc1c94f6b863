"""Instances of the flagged class: noted as their constructors return."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from runtime_check.probes.bench import Program
from runtime_check.trace import class_around


class Watch:
    """Hands on each Module of the flagged classes, once per constructor that returns."""

    def __init__(self, program: Program, note: Callable[[torch.nn.Module], None]) -> None:
        self.note = note
        self.classes = {name for spot in program.spots if (name := class_around(program.text, spot.first))}

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        """The profiler."""
        code = frame.f_code
        if event != "return" or code.co_name != "__init__" or not code.co_argcount:
            return
        module = frame.f_locals.get(code.co_varnames[0])
        if isinstance(module, torch.nn.Module) and type(module).__name__ in self.classes:
            if "_modules" in module.__dict__:
                self.note(module)


@contextmanager
def instances(program: Program, note: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """Notes while it lasts."""
    old = sys.getprofile()
    sys.setprofile(Watch(program, note).profile)
    try:
        yield
    finally:
        sys.setprofile(old)
