"""Watching one statement of a file while it runs, and the state around a run.

The tracer costs little: only the one code object that holds the statement is traced line by line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from runtime_check import clock, noted
from runtime_check.outline import parsed

Watcher = Callable[[FrameType, int], None]
Range = tuple[int, int, int, int]
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Enough(BaseException):
    """Ends a run that has shown what it could. Not an Exception: user code must not catch it."""


class OutOfTime(BaseException):
    """Ends a run at the time limit for one attempt."""


def owner_of(text: str, line: int) -> tuple[str, int, int]:
    """Name, first and last line of the innermost function or class around a line, or of the module.

    A line of a `def` or `class` statement itself belongs to what is around it.
    """
    best = ("<module>", 1, max(1, text.count("\n") + 1))
    for node in ast.walk(parsed(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            body = node.body[0].lineno if isinstance(node.body, list) else node.body.lineno
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if isinstance(node, ast.Lambda):
                continue
            if (
                body <= line <= (node.end_lineno or 0)
                and (line > node.lineno or body == node.lineno)
                and first >= best[1]
            ):
                best = (node.name, first, node.end_lineno or first)
    return best


def class_around(text: str, line: int) -> str:
    """The name of the innermost class around a line, or an empty string."""
    best, first = "", 0
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.ClassDef) and first <= node.lineno <= line <= (node.end_lineno or 0):
            best, first = node.name, node.lineno
    return best


def methods_around(text: str, line: int) -> set[str]:
    """The names of the methods of the innermost class around a line."""
    name = class_around(text, line)
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return set()


def script_line(text: str) -> list[int]:
    """The line of the last top-level statement that does more than define or import something."""
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    lines = [node.lineno for node in parsed(text).body if not isinstance(node, defining)]
    return lines[-1:]


def acts(text: str) -> bool:
    """Whether running a file does more than define things: it loops, calls what it defines, has a `__main__` block."""
    body = parsed(text).body
    own = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    for node in body:
        if isinstance(node, (ast.For, ast.While, ast.With)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            return True
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return True
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            calls = (item.func for item in ast.walk(node) if isinstance(item, ast.Call))
            if any(isinstance(func, ast.Name) and func.id in own for func in calls):
                return True
    return False


def class_line(text: str, line: int) -> int | None:
    """The line of the `class` statement of the outermost class around a line, if it is in one."""
    for node in parsed(text).body:
        if isinstance(node, ast.ClassDef) and node.lineno < line <= (node.end_lineno or 0):
            return node.lineno
    return None


def bodies(text: str, spots: Sequence[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """For the spots that head a function or class: the lines of the whole definition, decorators included."""
    found = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            for index, (start, _) in enumerate(spots):
                if start == node.lineno:
                    found[index] = first, node.end_lineno or first
    return found


class LineTrace:
    """Follows the executions of some statements of one file, given as (first, last) lines.

    `before(frame, index)` and `after(frame, index)` are called around each execution that does not
    fail; entering a definition that a statement heads counts as well. Exceptions that pass through a
    statement are kept in `raised`. When a statement has been run `limit` times and is about to run again,
    the run is ended by `Enough`.

    `parts` gives, for some statements, the (line, byte, line, byte) range of an expression in it that
    need not be evaluated: executions that pass it by do not count. Python before 3.11 cannot tell.
    `returned(name, value)` is called when a function around a statement returns.
    """

    def __init__(
        self,
        path: str,
        text: str,
        spots: Sequence[tuple[int, int]],
        *,
        limit: int = 0,
        before: Watcher | None = None,
        after: Watcher | None = None,
        parts: Mapping[int, Range] | None = None,
        returned: Callable[[str, object], None] | None = None,
    ) -> None:
        self.returned = returned
        self.hit: Callable[[], None] | None = None  # called at each execution
        self.parts = dict(parts or {}) if sys.version_info >= (3, 11) else {}
        self.touched: set[FrameType] = set()
        self.ranges: dict[CodeType, list[tuple[int | None, ...]]] = {}
        self.path, self.limit, self.before, self.after = path, limit, before, after
        self.spots = tuple(spots)
        self.owners = tuple(owner_of(text, first) for first, _ in spots)
        self.bodies = bodies(text, self.spots)
        self.hits = [0] * len(self.spots)
        self.raised: list[BaseException] = []
        self.known: dict[CodeType, tuple[int, ...]] = {}
        self.inside: dict[FrameType, int] = {}
        self.failed: set[FrameType] = set()
        self.fault: Exception | None = None  # raised by a callback
        self.previous: Any = None

    def __enter__(self) -> LineTrace:
        self.previous = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self.previous)
        self.inside.clear()

    def enter(self, frame: FrameType, event: str, arg: object) -> Any:
        """The tracer of calls: picks the frames of code that holds one of the statements."""
        code = frame.f_code
        if self.bodies and code.co_filename == self.path and code.co_name != "<module>":
            self.enter_body(code)
        held = self.known.get(code)
        if held is None:
            held = self.known[code] = tuple(i for i in range(len(self.spots)) if self.holds(code, i))
        if held and any(index in self.parts for index in held):
            frame.f_trace_opcodes = True
        return self.step if held else None

    def enter_body(self, code: CodeType) -> None:
        """A flagged definition runs when its code, or that of one of its methods, is entered."""
        for index, (first, last) in self.bodies.items():
            if first <= code.co_firstlineno <= last:
                self.hits[index] += 1
                if self.hit is not None:
                    self.hit()

    def holds(self, code: CodeType, index: int) -> bool:
        """Whether a code object is the function, class body or module around a statement."""
        if code.co_filename != self.path or code.co_name in COMPREHENSIONS:
            return False
        name, first, last = self.owners[index]
        if name == "<module>":
            # A demand-driven loader compiles statements one by one: each is a <module> of its own.
            low, high = self.spots[index]
            lines = (line for _, _, line in code.co_lines() if line is not None)
            return code.co_name == "<module>" and any(low <= line <= high for line in lines)
        return code.co_name == name and first <= code.co_firstlineno <= last

    def spot_at(self, frame: FrameType) -> int:
        """The statement that a frame is at, or -1."""
        for index in self.known.get(frame.f_code, ()):
            first, last = self.spots[index]
            if first <= frame.f_lineno <= last:
                return index
        return -1

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The tracer of lines."""
        if event == "opcode":
            if frame in self.inside and self.at_part(frame):
                self.touched.add(frame)
            return self.step
        here = self.spot_at(frame) if event in ("line", "exception") else -1
        old = self.inside.get(frame, -1)
        if event == "exception":
            if old == here >= 0 and not issubclass(arg[0], (StopIteration, StopAsyncIteration, GeneratorExit)):
                self.failed.add(frame)
                self.raised.append(arg[1])
            return self.step
        first, last = self.spots[here] if here >= 0 else (0, 1)
        if old >= 0 and (here != old or first == last):  # left, or a loop of this one line
            del self.inside[frame]
            self.done(frame, old)
        if event == "return" and self.returned is not None and frame.f_code.co_name != "<module>":
            self.safely(self.returned, frame.f_code.co_name, arg)
        if here >= 0 and frame not in self.inside:
            if self.limit and self.hits[here] >= self.limit:
                raise Enough
            self.inside[frame] = here
            self.tell(self.before, frame, here)
        return self.step

    def at_part(self, frame: FrameType) -> bool:
        """Whether a frame is at an instruction of the part of its statement that counts."""
        part = self.parts.get(self.inside[frame])
        if part is None:
            return False
        code = frame.f_code
        if code not in self.ranges:
            self.ranges[code] = list(code.co_positions())  # type: ignore[attr-defined,unused-ignore]
        first, last, start, end = self.ranges[code][frame.f_lasti // 2]
        if first is None or last is None or start is None or end is None:
            return False
        return part[:2] <= (first, start) and (last, end) <= part[2:]

    def done(self, frame: FrameType, index: int) -> None:
        """A statement has run."""
        if index in self.parts:
            if frame not in self.touched:
                return
            self.touched.discard(frame)
        self.hits[index] += 1
        if frame in self.failed:
            self.failed.discard(frame)
        else:
            self.tell(self.after, frame, index)
        if self.hit is not None:
            self.hit()

    def tell(self, call: Watcher | None, frame: FrameType, index: int) -> None:
        """Runs a callback, untraced as all that a tracer calls."""
        if call is not None:
            self.safely(call, frame, index)

    def safely(self, call: Callable[..., None], *args: object) -> None:
        """Runs something of ours; its failure must not look like the code's."""
        try:
            call(*args)
        except Exception as error:
            self.fault = error
            raise Enough from error


# -- the state around a run ---------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    """Sets every random state that user code may draw from."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


@contextlib.contextmanager
def pristine(seed: int) -> Iterator[None]:
    """Seeds everything, and puts back the process state that user code may change."""
    import torch

    saved = {
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    environment, folder, argv, path = dict(os.environ), os.getcwd(), list(sys.argv), list(sys.path)
    main = sys.modules.get("__main__")
    seed_everything(seed)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        noted.free()
        torch.set_grad_enabled(saved["grad"])
        torch.set_default_dtype(saved["dtype"])
        torch.autograd.set_detect_anomaly(saved["anomaly"])
        torch.use_deterministic_algorithms(saved["deterministic"])
        torch.set_default_device(None)
        torch.set_num_threads(1)
        os.environ.clear()
        os.environ.update(environment)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.argv[:], sys.path[:] = argv, path
        if main is not None:
            sys.modules["__main__"] = main


class Timer:
    """A time limit that is running; `restart` gives it new seconds, within the outer limit."""

    running: Timer | None = None  # the innermost one

    def __init__(self, seconds: float) -> None:
        self.outer = Timer.running
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """Lets the limit be `seconds` from now."""
        self.end = clock.now() + max(0.05, seconds)
        if self.outer is not None:
            self.end = min(self.end, self.outer.end)
        self.wait()

    def wait(self) -> None:
        """Sets the alarm anew."""
        signal.setitimer(signal.ITIMER_REAL, max(0.01, self.end - clock.now()))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[Timer | None]:
    """Raises OutOfTime after `seconds`, or when an outer limit is over.

    Only the main thread's Python code can be interrupted: a long call in C is left to the parent's limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return

    def expired(number: int, frame: FrameType | None) -> None:
        if clock.now() >= timer.end:
            raise OutOfTime
        timer.wait()  # a part of the time was spent waiting for a processor

    signal.setitimer(signal.ITIMER_REAL, 0)
    timer = Timer(seconds)
    old = signal.signal(signal.SIGALRM, expired)
    Timer.running = timer
    try:
        yield timer
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        Timer.running = timer.outer
        if timer.outer is not None:
            timer.outer.wait()


class Printed(io.StringIO):
    """Printed text, which is kept when the code closes its stream; of very much text the beginning."""

    MOST = 1 << 20

    def write(self, text: str) -> int:
        """Keeps a text unless there is too much already."""
        return super().write(text) if self.tell() < self.MOST else len(text)

    def close(self) -> None:
        """Nothing: the text is read later."""


@dataclass
class Caught:
    """What a run printed and warned about."""

    output: io.StringIO = field(default_factory=Printed)
    warnings: list[warnings.WarningMessage] = field(default_factory=list)


@contextlib.contextmanager
def caught() -> Iterator[Caught]:
    """Collects printed text and every warning, each time it is given."""
    found = Caught()
    with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stdout(found.output):
        warnings.simplefilter("always")
        found.warnings = seen
        yield found


@contextlib.contextmanager
def calls_noted(into: set[str]) -> Iterator[None]:
    """Notes the classes of all modules that are called."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    handle = register_module_forward_pre_hook(lambda module, args: into.add(type(module).__name__))
    try:
        yield
    finally:
        handle.remove()


def frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of every frame that an exception came through, outermost first."""
    found = []
    trace = error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    return found
