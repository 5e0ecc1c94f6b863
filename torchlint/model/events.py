"""What happens in a function, in order: the facts that rules about training loops ask for."""
from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import dataclass, field

from torchlint.model.values import NONE, UNKNOWN, Value


@dataclass(frozen=True, eq=False, slots=True)
class Event:
    """One thing that the code does to a value.

    `what` is one of
      backward       target: the value it is called on (or passed to accelerator.backward, ...)
      autograd_grad  target: the first argument of torch.autograd.grad
      step           target: the optimizer (or scaler.step's argument, then `via` is the scaler)
      zero_grad      target: the optimizer or module
      clear_grad     `p.grad = None` or `p.grad.zero_()`; target: the parameter
      clip           target: the parameters
      unscale, scaler_update, scheduler_step, set_epoch
      train, eval    target: the module
      freeze, thaw   target: the module whose parameters no longer (or again) require grad, or the parameter
      call           target: the module that is called; value: what it returned
      inplace        target: the tensor that an in-place operation changes; value: the new contents
      data_write     target: the tensor whose `.data` is written
      store          target: the container; value: what is put in; `path` is the container's spelling
      load_state, save, collective, unknown_call (args: what was handed to code that cannot be seen)

    `node` is the place in this function, `inner` the place where it really happens (in a helper the two
    differ). `loops` and `guards` enclose it, outermost first, helper's included. `grad` is the grad mode.
    """

    what: str
    node: ast.AST
    target: Value = UNKNOWN
    value: Value = NONE
    args: tuple[Value, ...] = ()
    name: str = ""  # dotted name of the function or method
    path: str = ""
    via: Value = UNKNOWN
    loops: tuple[ast.AST, ...] = ()
    guards: tuple[tuple[ast.AST, bool], ...] = ()
    grad: bool | None = True
    inner: ast.AST | None = None
    depth: int = 0  # 0: in the function itself; more: in a helper that it calls

    def seen_from(self, node: ast.AST, loops: tuple[ast.AST, ...], guards: tuple[tuple[ast.AST, bool], ...],
                  target: Value, value: Value) -> Event:
        """The event of a helper, as it looks at the call that leads to it, with its values as they look there."""
        return Event(self.what, node, target, value, self.args, self.name, self.path, self.via,
                     loops + self.loops, guards + self.guards, self.grad, self.inner, max(self.depth, 1))

    def excludes(self, other: Event) -> bool:
        """Whether the two stand in different arms of one `if`, so that never both happen in one pass."""
        mine = dict(self.guards)
        return any(test in mine and mine[test] is not arm for test, arm in other.guards)


@dataclass
class LoopState:
    """What is known before a loop, and after its body."""

    head: dict[str, Value] = field(default_factory=dict)
    end: dict[str, Value] = field(default_factory=dict)
    iterated: Value = UNKNOWN

    def carried(self) -> dict[str, Value]:
        """Names whose value at the end of the body differs from the one before the loop."""
        return {name: value for name, value in self.end.items() if self.head.get(name) != value}


@dataclass
class Flow:
    """The analysed body of a function, or a file's own code."""

    values: dict[ast.AST, Value] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    returns: Value = UNKNOWN
    yields: Value = UNKNOWN
    grad_modes: dict[ast.AST, bool | None] = field(default_factory=dict)
    loops: dict[ast.AST, LoopState] = field(default_factory=dict)
    end: dict[str, Value] = field(default_factory=dict)
    return_values: list[tuple[ast.Return, Value]] = field(default_factory=list)
    grad_before: bool | None = True
    grad_after: bool | None = True
    made: set[Hashable] = field(default_factory=set)  # operations recorded in graphs, see Value.graph

    def of(self, *whats: str) -> list[Event]:
        """The events of the given sorts, in order."""
        return [event for event in self.events if event.what in whats]

    def in_loop(self, loop: ast.AST) -> list[Event]:
        """The events inside a loop, in order."""
        return [event for event in self.events if loop in event.loops]
