"""What code has done to the process in which it is looked at: the cause where looking at it fails.

Code may replace what it likes: functions of torch, builtins, the table of loaded modules. A check that trips over that
has not failed by itself, and says what the code did.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import time
from typing import Any

MODULES = ("torch", "torch.nn.functional", "torch.autograd", "torch.nn.init", "torch.random")
CLASSES = (("torch", "Tensor"), ("torch.nn", "Module"), ("torch.nn", "Parameter"))
NAMED = 3  # replaced things that are named
_set_on_class = type.__setattr__


class Known:
    """How functions that looking at code needs were before it ran."""

    def __init__(self) -> None:
        self.loaded = dict(sys.modules)
        plain = (("builtins", builtins), ("os", os), ("json", json), ("time", time))
        self.modules = [(name, vars(module), dict(vars(module))) for name, module in plain]
        for name in MODULES:
            if name in sys.modules:
                space = vars(sys.modules[name])
                self.modules.append((name, space, dict(space)))
        self.classes = [(f"{module}.{name}", kind, dict(vars(kind)))
                        for module, name in CLASSES if (kind := getattr(sys.modules.get(module), name, None))]

    def put_back(self) -> list[str]:
        """Restores what the code has replaced or deleted; returns its names. Calls nothing that may be replaced."""
        names: list[str] = []
        for label, space, saved in self.modules:
            for name, value in saved.items():
                if name not in space or space[name] is not value:
                    space[name] = value
                    names.append(f"{label}.{name}")
        for label, kind, saved in self.classes:
            for name, value in saved.items():
                if name not in kind.__dict__ or kind.__dict__[name] is not value:
                    _put(kind, name, value)
                    names.append(f"{label}.{name}")
        missing = [name for name in self.loaded if name not in sys.modules]
        for name in missing:
            sys.modules[name] = self.loaded[name]
        return [*names, *(["sys.modules"] if "torch" in missing else [])]


def _put(kind: Any, name: str, value: object) -> None:
    """Sets an attribute of a class, if it can be set."""
    try:
        _set_on_class(kind, name, value)
    except (TypeError, AttributeError):
        return


def explained(error: BaseException, replaced: list[str], doing: str) -> str:
    """The reason for a verdict on an error in looking at code, which has replaced something; `doing` is the place."""
    text = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError):
        return "the run needs more memory than the limit"
    if "Meta tensors" in text or "meta tensor" in text:
        return "the code makes its tensors on the meta device, and those hold no values that could be compared"
    if replaced:
        more = f" and {len(replaced) - NAMED} more" if len(replaced) > NAMED else ""
        return f"the code replaces {', '.join(replaced[:NAMED])}{more}, without which it cannot be looked at ({text})"
    return f"the check itself failed at {doing} ({text})"


def kills_for_memory() -> int:
    """How many processes the system has killed for lack of memory so far; 0 where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            rows = (line.split() for line in file)
            return next((int(number) for name, number in rows if name == "oom_kill"), 0)
    except (OSError, ValueError):
        return 0
