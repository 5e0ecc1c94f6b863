"""Runs in which the flagged statement had nothing to do: such a run refutes nothing."""

from __future__ import annotations

import ast
from types import FrameType

from runtime_check.amounts import Amount, amounts
from runtime_check.outline import parsed
from runtime_check.plan import Lines
from runtime_check.probes.runs import Program
from runtime_check.probes.targets import value_of
from runtime_check.trace import Watcher


class Idle:
    """Notes the amounts with which the flagged statements of a program run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.amounts = [of_spot(program.text, spot) for spot in program.spots]
        self.clear()

    def clear(self) -> None:
        """Forgets what earlier runs have shown."""
        self.active, self.reason = False, ""

    @property
    def said(self) -> str:
        """Why the flagged statements did nothing in any execution; empty if they did something."""
        return "" if self.active else self.reason

    def noting(self, program: Program, before: Watcher | None) -> Watcher | None:
        """A watcher that looks at the amounts first; the one given, where there are none."""
        if program is not self.program or not any(self.amounts):
            return before

        def look(frame: FrameType, index: int) -> None:
            reason = next(filter(None, (idle(amount, frame) for amount in self.amounts[index])), "")
            self.active |= not reason
            self.reason = self.reason or reason
            if before is not None:
                before(frame, index)

        return look


def of_spot(text: str, spot: Lines) -> list[Amount]:
    """The amounts on which a flagged statement depends."""
    around = [node for node in ast.walk(parsed(text)) if isinstance(node, ast.FunctionDef)
              and node.lineno < spot.first <= (node.end_lineno or 0)]
    function = max(around, key=lambda node: node.lineno, default=None)
    return list(amounts(function, spot.first)) if function is not None else []


def idle(amount: Amount, frame: FrameType) -> str:
    """What does not happen with the amount that a frame has; empty if it does."""
    try:
        value, _ = value_of(amount.node, frame)
    except LookupError:
        return ""
    known = repr(value) if isinstance(value, (list, tuple)) else value if type(value) in (int, float) else None
    if known not in amount.idle:
        return ""
    return f"with {ast.unparse(amount.node)}={value!r} {amount.what}"
