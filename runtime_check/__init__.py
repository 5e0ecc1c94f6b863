"""Runs flagged code in child processes and says whether a finding is real.

This package is the only place that imports torch and the only place that executes user code.
It guards against accidents (endless loops, lost files, network calls), not against malice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def example_for(target: object) -> Callable[[F], F]:
    """Marks a function that makes what `torchlint confirm` needs to run `target`.

    `target` is a class or function, or its name as "pkg.mod:Net". The function takes nothing; it returns
    an instance, or an instance and the arguments of a call of it; for a function, its arguments.
    """
    return lambda function: function
