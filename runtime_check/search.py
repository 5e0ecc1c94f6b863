"""Looks for arguments with which a call runs: best-first, guided by how far each attempt got.

An attempt that fails is given to a repairer, which reads the error and proposes changed arguments.
Attempts that ran more torch operations before they failed are repaired first.
"""
from __future__ import annotations

import contextlib
import heapq
import io
import itertools
import os
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check import again, clock
from runtime_check.placeholder import MissingError
from runtime_check.specs import Assignment
from runtime_check.trace import Enough, OutOfTime

TRIALS = 400
ALIKE = 4  # failures of one kind, at one place and after as many operations, that are repaired
STOPS = 2  # failures on the line of interest that are given as results
SLOW = 0.2  # of the time of a search, in one attempt: the next ones are made with smaller images
LARGEST = 1_500_000  # numbers in the tensors of one call


class Operations(TorchFunctionMode):  # type: ignore[misc]
    """Counts calls of torch functions on tensors while it is active; making a tensor does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(isinstance(item, (torch.Tensor, list, tuple)) for item in args)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Place:
    """One frame of a failure: where it was and what it knew."""

    code: types.CodeType
    line: int
    locals: dict[str, Any]
    globals: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed. `places` go from the outermost frame to the innermost."""

    error: BaseException
    operations: int
    places: tuple[Place, ...]

    @property
    def text(self) -> str:
        return str(self.error)


@dataclass(frozen=True)
class Found:
    """Arguments with which the call ran, and what it returned; or with which it failed where it matters."""

    arguments: Assignment
    value: Any
    operations: int
    ran: bool = True


Repairer = Callable[[Assignment, Failure], Iterable[Assignment]]


@dataclass
class Search:
    """A search in progress; `failure` is the one that got furthest.

    A failure for which `stops` is true is a result too: the code ran up to the line of interest.
    """

    run: Callable[[Assignment], Any]
    repair: Repairer
    budget_s: float
    stops: Callable[[Failure], bool] = lambda failure: False
    stopped: int = 0
    tried: set[str] = field(default_factory=set)
    failure: Failure | None = None
    furthest: Assignment | None = None  # what it was given
    seen: Counter[tuple[object, ...]] = field(default_factory=Counter)  # failures of each kind
    key: str = ""  # what the arguments are for

    def results(self, starts: Iterable[Assignment]) -> Iterator[Found]:
        """Successful calls, as they are found, until the budget or the ideas are spent."""
        order = itertools.count()
        waiting = iter(again.first(self.key, starts))
        heap: list[tuple[float, float, int, Assignment]] = []
        end = clock.now() + self.budget_s
        for trial in range(TRIALS):
            if trial and clock.now() > end:
                return
            # Every third attempt is a fresh start, so that one line of repairs cannot use up the budget.
            chosen = next(waiting, None) if trial % 3 == 0 or not heap else None
            depth = 0.0
            if chosen is None:
                if not heap:
                    return
                _, depth, _, chosen = heapq.heappop(heap)
            if chosen.label in self.tried or chosen.numbers > LARGEST:
                continue
            self.tried.add(chosen.label)
            began = clock.now()
            outcome = attempt(lambda chosen=chosen: self.run(chosen))  # type: ignore[misc]
            slow = clock.now() - began > SLOW * self.budget_s
            if isinstance(outcome, Failure):
                if self.failure is None or outcome.operations > self.failure.operations:
                    self.failure, self.furthest = outcome, chosen
                if self.stopped < STOPS and self.stops(outcome) and not hopeless(outcome):
                    self.stopped += 1
                    again.note(self.key, chosen)
                    yield Found(chosen, outcome.error, outcome.operations, False)
                self.seen[kind_of(outcome)] += 1
                if depth < 12 and self.seen[kind_of(outcome)] <= ALIKE:  # what was changed makes no difference to it
                    for rank, item in enumerate(itertools.islice(self.repair(chosen, outcome), 12)):
                        key = -outcome.operations + 0.5 * rank + 0.25 * depth
                        heapq.heappush(heap, (key, depth + 1, next(order), item.smaller() if slow else item))
            else:
                again.note(self.key, chosen)
                yield Found(chosen, *outcome)


def kind_of(failure: Failure) -> tuple[object, ...]:
    """What failures have in common that arguments without influence would not change."""
    place = failure.places[-1] if failure.places else None
    where = (place.code, place.line) if place is not None else ()
    return type(failure.error), failure.text, failure.operations, *where


def attempt(action: Callable[[], Any]) -> Failure | tuple[Any, int]:
    """The result of a call with the number of torch operations in it, or how it failed."""
    counter = Operations()
    process = os.getpid()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with counter:
                return action(), counter.count
    except (Enough, OutOfTime):
        raise
    except BaseException as error:  # also what test runners raise to skip or fail a test
        return Failure(error, counter.count, tuple(_places(error)))
    finally:
        if os.getpid() != process:
            os._exit(0)  # a process that the code has forked: the search is not its business


def _places(error: BaseException) -> Iterator[Place]:
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename != __file__:
            yield Place(frame.f_code, trace.tb_lineno, frame.f_locals, frame.f_globals)
        trace = trace.tb_next


def hopeless(failure: Failure) -> bool:
    """Whether no other arguments can help: something outside the code is missing."""
    return isinstance(failure.error, (MissingError, torch.cuda.OutOfMemoryError, MemoryError))
