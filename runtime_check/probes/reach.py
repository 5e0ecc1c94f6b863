"""How far code can be run with nothing from its author: a module called, a Function applied, a loop driven.

These are no claims about findings. "Confirmed" stands for: it ran; "refuted": it was built and did not
run; cannot-tell: neither. The reason is that of the attempt that came furthest. A loop that ends in an error
which no input can avoid is said to end in its own error.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from runtime_check.evidence import OWN_FAULT, Outcome, Verdict, cannot_tell
from runtime_check.faults import own_fault
from runtime_check.modules import CannotBuild
from runtime_check.placeholder import TOUCHED, MissingError
from runtime_check.probes.bench import Bench
from runtime_check.trace import OutOfTime, Printed, frames_of, pristine, time_limit

if TYPE_CHECKING:
    from runtime_check.driver import Drive

BUILDS, CALLS, DRIVES = 6, 8, 18
LOOP_SECONDS = 2.5  # for one way to drive a loop
ITERATIONS = 2
NEAR = 6  # frames between a backward and the code whose it is: those of a library that wraps it


def told(error: BaseException) -> str:
    """An error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def module(bench: Bench) -> Outcome:
    """Whether a Module can be built, and its forward run."""
    from runtime_check.drive import build_module

    name, why = bench.case.name, "nothing was tried"
    built_once = ""
    try:
        for built in islice(build_module(bench.flagged.space, name, seed=bench.case.seed), BUILDS):
            built_once = built_once or built.label
            if built.call is None:
                why = built.why
                continue
            try:
                built.call()
                return Outcome(Verdict.CONFIRMED, "its forward ran", how=built.label)
            except Exception as error:
                why = told(error)
    except Exception as error:
        why = told(error)
    if built_once:
        return Outcome(Verdict.REFUTED, why, how=built_once)
    return cannot_tell(why)


def function(bench: Bench) -> Outcome:
    """Whether an autograd Function can be called."""
    from runtime_check.drive import build_function_class

    why = "nothing was tried"
    try:
        for example in islice(build_function_class(bench.flagged.space, bench.case.name), CALLS):
            try:
                example.call()
                return Outcome(Verdict.CONFIRMED, "it was called", how=example.label)
            except Exception as error:
                why = told(error)
    except Exception as error:
        why = told(error)
    return cannot_tell(why)


class Enough(BaseException):
    """Ends a loop that has shown that it runs."""


class Backwards:
    """Counts calls of backward that code of one file makes, itself or through a library that it calls."""

    def __init__(self, path: str) -> None:
        self.path, self.count, self.inside = path, 0, False
        self.patches = [(torch.Tensor, "backward"), (torch.autograd, "backward")]
        if torch.distributed.is_available():
            self.patches.append((torch.distributed.autograd, "backward"))
        self.real = [getattr(owner, name) for owner, name in self.patches]
        self.went_on: Callable[[], None] | None = None  # called at each of them

    def __enter__(self) -> Backwards:
        for (owner, name), real in zip(self.patches, self.real, strict=True):
            setattr(owner, name, partial(self.counted, real) if owner is not torch.Tensor else self.method(real))
        return self

    def method(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """As `counted`, to be found on tensors."""
        return lambda tensor, *args, **kwargs: self.counted(real, tensor, *args, **kwargs)

    def counted(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One backward; those that it is made of are none of the code's."""
        if self.inside or not self.of_code():
            return real(*args, **kwargs)
        self.count += 1
        if self.count > ITERATIONS:
            raise Enough
        if self.went_on is not None:
            self.went_on()
        self.inside = True
        try:
            return real(*args, **kwargs)
        finally:
            self.inside = False

    def of_code(self) -> bool:
        """Whether one of the innermost frames is of the file."""
        frame: FrameType | None = sys._getframe(2)
        for _ in range(NEAR):
            if frame is None:
                return False
            if frame.f_code.co_filename == self.path:
                return True
            frame = frame.f_back
        return False

    def __exit__(self, *details: object) -> None:
        for (owner, name), real in zip(self.patches, self.real, strict=True):
            setattr(owner, name, real)


@dataclass
class Attempts:
    """What driving a loop has come to; `why` and `how` are of the attempt that came furthest."""

    bench: Bench
    why: str = "nothing was tried"
    rank: tuple[int, ...] = ()
    how: str = ""
    late: Drive | None = None  # the first that ran out of time

    def drive(self, drive: Drive, seconds: float) -> bool:
        """Whether a way of driving the loop comes to its backward again and again."""
        case = self.bench.case
        why = f"{drive.label}: its loop came to an end before a second backward"
        at = -1
        TOUCHED.clear()
        with Backwards(case.path) as backwards, pristine(case.seed), own_streams():
            try:
                with time_limit(min(seconds, self.bench.left)) as timer:
                    if timer is not None:
                        backwards.went_on = partial(timer.restart, seconds)
                    drive.run()
            except Enough:
                pass
            except OutOfTime:
                why = f"{drive.label}: it took too long"
                self.late = self.late or drive
            except BaseException as error:  # also what test runners raise to skip or fail a test
                why, at = told(error) + missed(error), line_in(error, case.path)
                if drive.kind != "made" and own_fault(error, self.bench.flagged.space):
                    why = f"{OWN_FAULT}: {why}"
        rank = (backwards.count, why.startswith(OWN_FAULT), drive.kind != "made", at)
        if rank > self.rank:
            self.rank, self.why = rank, why
            self.how = drive.label if backwards.count else self.how
        return backwards.count >= ITERATIONS


def loop(bench: Bench) -> Outcome:
    """Whether a training function or script comes to its backward again and again."""
    from runtime_check.drive import drives
    from runtime_check.extract import target_at

    attempts = Attempts(bench)
    seconds = max(LOOP_SECONDS, bench.case.seconds / 4)
    try:
        target = target_at(bench.case.text, line_of_backward(ast.parse(bench.case.text), bench.case.name))
        for drive in islice(drives(bench.flagged.space, target, budget_s=bench.left / 3), DRIVES):
            if attempts.drive(drive, seconds):
                return Outcome(Verdict.CONFIRMED, "its backward was reached again and again", how=drive.label)
            if bench.left < (seconds if attempts.late is not None else 0):
                break
        if attempts.late is not None and attempts.drive(attempts.late, bench.left):
            how = attempts.late.label
            return Outcome(Verdict.CONFIRMED, "its backward was reached again and again", how=how)
    except Exception as error:
        attempts.why = attempts.why if attempts.rank else told(error)
    if attempts.how:
        return Outcome(Verdict.REFUTED, attempts.why, how=attempts.how)
    return cannot_tell(attempts.why)


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """While it lasts, the code has streams of its own, which it may close."""
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), Printed(), Printed()
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def missed(error: BaseException) -> str:
    """What the code has used before and was not there, where an error does not say so itself."""
    known = isinstance(error, (MissingError, CannotBuild)) or "No such file" in str(error) or not TOUCHED
    return "" if known else f" (before that: {list(TOUCHED)[-1]})"


def line_in(error: BaseException, path: str) -> int:
    """The line of a file at which an error left it, the outermost one; -1 if it was never there."""
    return next((line for file, line, _ in frames_of(error) if file == path), -1)


def line_of_backward(tree: ast.Module, name: str) -> int:
    """A line with `.backward` in a function, or at the top level."""
    scope: ast.AST = tree
    for part in name.split(".") if name else []:
        scope = next(item for item in ast.iter_child_nodes(scope) if getattr(item, "name", "") == part)
    skip = {
        id(inner)
        for item in tree.body
        if not name and isinstance(item, (ast.FunctionDef, ast.ClassDef))
        for inner in ast.walk(item)
    }
    return next(
        item.lineno
        for item in ast.walk(scope)
        if isinstance(item, ast.Attribute) and item.attr == "backward" and id(item) not in skip
    )
