"""What a program is, a way of running it, and what one run of it did."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from runtime_check import trace
from runtime_check.learned import Learned
from runtime_check.plan import Lines, with_steps
from runtime_check.sandbox import beginning, shorten

REPEATED = ", several times on one object"


@dataclass(frozen=True)
class Way:
    """One way of running a program: whole, or its function or class with arguments that fit."""

    label: str
    run: Callable[[], object]
    kind: str = "call"  # as the file does it, or "made": with arguments that were made up
    line: int | None = None  # the line that was to be reached, where that is not a flagged one
    again: Callable[[], object] | None = None  # the same call several times, on one and the same object
    learned: Learned = field(default_factory=Learned)  # before it was run

    @property
    def made_up(self) -> bool:
        """Whether the arguments are guesses, so that an exception may be their fault."""
        return self.kind == "made"

    @property
    def repeated(self) -> Way | None:
        """The same call several times over, for what shows in later calls alone."""
        if self.again is None:
            return None
        return replace(self, label=f"{self.label}{REPEATED}", run=self.again, again=None)


@dataclass(frozen=True)
class Program:
    """A text to run and the statements in it that are watched."""

    text: str
    path: str
    spots: tuple[Lines, ...]
    whole: bool = False
    roots: tuple[str, ...] = ()
    factories: tuple[tuple[str, str], ...] = ()

    def execute(self) -> dict[str, Any]:
        """Runs the text as `__main__`; returns its globals."""
        module = types.ModuleType("__main__")
        module.__file__ = self.path
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.text), None, lines, self.path)
        sys.modules["__main__"] = module
        exec(compile(self.text, self.path, "exec", dont_inherit=True), module.__dict__)
        return module.__dict__

    @cached_property
    def space(self) -> Any:
        """The demand-driven namespace of the text, made once."""
        from runtime_check.extract import Namespace

        space = Namespace(self.text, self.path, self.roots)
        space.loader.factories = self.factories
        return space

    def resized(self, steps: str, count: int) -> Program:
        """The program with another number of iterations."""
        if not (self.whole and steps):
            return self
        return replace(self, text=with_steps(self.text, steps, count))


@dataclass
class Run:
    """What one run did."""

    label: str
    value: object = None
    error: BaseException | None = None
    hits: int = 0
    raised: list[BaseException] = field(default_factory=list)  # passed through a watched statement
    backward_errors: list[BaseException] = field(default_factory=list)  # raised by backwards, if a probe asks
    warnings: list[Any] = field(default_factory=list)
    output: str = ""
    stopped: str = ""  # what the sandbox refused
    seconds: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether a watched statement was executed, be it with an error."""
        return self.hits > 0 or bool(self.raised)

    @property
    def failed(self) -> bool:
        """Whether every execution of a watched statement ended in an exception."""
        return 0 < self.hits <= len(self.raised)

    @property
    def trouble(self) -> str:
        """Why the run ended early, or an empty string."""
        if self.stopped:
            return f"it was stopped when it tried to {self.stopped}"
        match self.error:
            case None | trace.Enough():
                return ""
            case trace.OutOfTime():
                return "it took too long"
            case SystemExit():
                return "it called exit"
            case MemoryError():
                return "it needs more memory than the limit"
        return f"{type(self.error).__name__}: {shorten(beginning(str(self.error)), 120)}".removesuffix(": ")
