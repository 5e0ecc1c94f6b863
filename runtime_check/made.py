"""Drives with made-up arguments, for code that the file itself never calls."""
from __future__ import annotations

import inspect
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from runtime_check import clock, world
from runtime_check.asked import NOTHING_ASKED, Asked, asked_by
from runtime_check.extract import Namespace, Target
from runtime_check.functions import Example, calls, examples
from runtime_check.modules import CannotBuild, Running, constructions, running
from runtime_check.placeholder import USER_FILES
from runtime_check.search import Failure, Search
from runtime_check.slices import Arguments
from runtime_check.specs import Assignment
from runtime_check.trace import Enough, OutOfTime
from runtime_check.training import TrainingGuesser, recipes_for
from runtime_check.world import Recipe

INSTANCES = 2  # of a module on which a method of it is called
GRAPHS = re.compile("backward through the graph a second time|modified by an inplace operation")
CONSTRUCTED = 16  # ways to construct a class that are tried for one of its methods


@dataclass(frozen=True)
class Action:
    """A labelled call with made-up arguments."""

    label: str
    run: Callable[[], Any]
    prepare: Callable[[], Arguments] | None = None


class Maker:
    """Makes actions that reach a target."""

    def __init__(self, space: Namespace, target: Target, budget_s: float,
                 instances: list[tuple[str, Callable[[], Any]]] | None = None,
                 callers: Sequence[str] = (), wholes: Sequence[str] = ()) -> None:
        self.space, self.target, self.callers, self.wholes = space, target, callers, wholes
        self.instances = instances or []  # how the file itself makes instances of the target's class
        self.end = clock.now() + budget_s
        self.recipes: list[Recipe] | None = None

    @property
    def left(self) -> float:
        """Seconds left to search."""
        return max(self.end - clock.now(), 0.0)

    def actions(self) -> Iterator[Action]:
        """Actions for the target, best first. Raises what loading the target raises, or CannotBuild."""
        why: Exception | None = None
        found = False
        try:
            for action in self.directly():
                found = True
                yield from self.waiting(action)
        except Exception as error:
            why = error
        for action in self.through_callers():
            found = True
            yield from self.waiting(action)
        if why is not None and not found:
            raise why

    def waiting(self, action: Action) -> Iterator[Action]:
        """Gives an action; what is then done with it takes no time from the search."""
        given = clock.now()
        yield action
        self.end += clock.now() - given

    def through_callers(self) -> Iterator[Action]:
        """Functions and methods that call the target, with made-up arguments, if that reaches the line."""
        # A whole passes on to its parts what they are not given alone.
        wholes = [f"{name}.forward" for name in self.wholes[:2]]
        for name in dict.fromkeys([*self.callers[:1], *wholes, *self.callers[1:3]]):
            holder, _, method = name.rpartition(".")
            try:
                if holder:
                    cls: Any = self.space.resolve(holder)
                    tried = self.module(cls, method) if issubclass(cls, nn.Module) else self.plain_class(cls, method)
                else:
                    tried = self.function(self.space.resolve(name), name, None, None)
                for action in itertools.islice(tried, 1 if self.wholes else 2):
                    if self.reaches(action.run):
                        yield action
            except Exception:
                continue
            if not self.left:
                return

    def directly(self) -> Iterator[Action]:
        """Actions that call the target itself."""
        holder, _, name = self.target.qualname.rpartition(".")
        if self.target.kind == "function":
            yield from self.function(self.space.resolve(self.target.qualname), self.target.qualname, None, None)
            return
        cls = self.space.resolve(self.target.qualname if self.target.kind == "class" else holder)
        if not isinstance(cls, type):
            return
        if self.target.kind == "method" and not issubclass(cls, torch.autograd.Function):
            yield from self.on_instances(cls, name)
        if issubclass(cls, torch.autograd.Function):
            yield from self.autograd(cls)
        elif issubclass(cls, nn.Module):
            yield from self.module(cls, name if self.target.kind == "method" else "")
        else:
            yield from self.plain_class(cls, name if self.target.kind == "method" else "")

    def on_instances(self, cls: type, name: str) -> Iterator[Action]:
        """The method on instances as the file makes them."""
        for label, make in self.instances[:2]:
            try:
                instance = make()
            except Exception:
                continue
            if isinstance(instance, cls):
                yield from itertools.islice(self.method(type(instance), name, f"({label}).{name}", make), 3)

    # Modules

    def module(self, cls: type, name: str) -> Iterator[Action]:
        """Construct, run forward, and for other methods call them on the instance."""
        known: list[Running] = []
        rest: list[Action] = []
        for item in itertools.islice(running(cls, self.left * 0.6, stops=self.failed_here, asked=self.asked(cls)), 6):
            known.append(item)
            label = f"{cls.__name__}({item.made.label})"
            if item.inputs is None:
                rest.append(Action(label, item.made.make))
                continue
            action = Action(f"{label}({item.inputs.label})", _forward(item), _arguments(item))
            if not item.ran:
                yield action
                continue
            if name not in ("", "forward", "__init__", "__call__") and not self.reaches(action.run):
                rest.append(action)
                if len(rest) >= INSTANCES:
                    break  # the rest of the time is for calls of the method itself
                continue
            yield action
            if item.inputs is not None and name in ("", "__init__"):
                yield Action(label, item.made.make)
        if name and name not in ("forward", "__init__", "__call__"):
            for item in [item for item in known if item.ran][:2]:
                label = f"{cls.__name__}({item.made.label}).{name}"
                recipe = Recipe(cls.__name__, item.made.make, item.inputs, item.value)
                yield from self.method(cls, name, label, item.made.make, [recipe])
        yield from rest
        if name in ("forward", "__call__"):
            for item in [item for item in known if item.inputs is None and item.why][:1]:
                yield self.furthest(item) or Action(
                    f"{cls.__name__}({item.made.label}).{name}", partial(fail, item.why))

    def furthest(self, item: Running) -> Action | None:
        """The call of a module that got furthest, if it got past the line of interest and failed then."""
        search = item.search
        if search is None or search.furthest is None or not self.failed_after(search):
            return None
        called = replace(item, inputs=search.furthest)
        name = self.target.qualname.partition(".")[0]
        return Action(f"{name}({item.made.label})({search.furthest.label})", _forward(called), _arguments(called))

    def method(self, cls: type, name: str, label: str, make: Callable[[], Any],
               recipes: list[Recipe] | None = None, limit: float | None = None) -> Iterator[Action]:
        """A method of an instance that `make` makes."""
        raw = inspect.getattr_static(cls, name, None)
        if isinstance(raw, property):
            yield Action(label, lambda: getattr(make(), name))
            return
        function = getattr(raw, "__func__", raw)
        if not isinstance(function, types.FunctionType):
            return
        receiver = None if isinstance(raw, staticmethod) else (lambda: cls) if isinstance(raw, classmethod) else make
        owner = None if isinstance(raw, staticmethod) else cls
        yield from self.function(function, label, owner, receiver, recipes, limit)

    # Plain classes

    def plain_class(self, cls: type, name: str) -> Iterator[Action]:
        """A trainer, data set or other class: constructed with what its constructor seems to want."""
        recipes = self.models()

        def candidates(function: Any, owner: type) -> TrainingGuesser:
            return TrainingGuesser(function, owner, recipes)

        world.enter(recipes)
        made = constructions(cls, self.left * 0.6, guesser=candidates, before=lambda: world.enter(recipes),
                             asked=self.asked(cls))
        why: Exception | None = None
        working = 0
        for item in itertools.islice(made, CONSTRUCTED):
            label = f"{cls.__name__}({item.label})"
            if name in ("", "__init__", "__post_init__"):
                yield Action(label, item.make)
                continue
            try:
                for action in self.method(cls, name, f"{label}.{name}", item.make, limit=max(self.left / 8, 0.1)):
                    working += 1
                    yield action
            except CannotBuild as error:
                why = why or error
            if not self.left or working > 2:
                return
        if why is not None and not working:
            raise why

    # Functions

    def function(self, function: Any, label: str, owner: type | None, receiver: Callable[[], Any] | None,
                 recipes: list[Recipe] | None = None, limit: float | None = None) -> Iterator[Action]:
        """A function or method with arguments that a search of at most `limit` seconds finds."""
        function = getattr(function, "callback", function)  # click keeps the function there
        models = recipes if recipes is not None else self.models()
        if not models and world.ASKS_LOSS.search(source(function)):
            models = [world.WITH_LOSS]
        world.enter(models)
        starts, candidates = TrainingGuesser(function, owner, models).starts()
        if getattr(function, "__name__", "") == self.target.qualname.rpartition(".")[2]:
            starts = self.wanted.called.starts(starts, candidates)

        def run(chosen: Assignment) -> Any:
            world.enter(models)
            args, kwargs = chosen.make()
            first = [receiver()] if receiver is not None else []
            if first and isinstance(first[0], nn.Module) and vars(type(first[0])).get("forward") is function:
                return first[0](*args, **kwargs)  # as it is used: hooks and modes belong to the call
            return function(*first, *args, **kwargs)

        def new_receiver() -> Any:
            world.enter(models)
            return receiver() if receiver is not None else None

        budget = self.left if limit is None else min(limit, self.left)
        found = calls(function, owner, budget, reached=self.failed_here, starts=starts, candidates=candidates,
                      receiver=new_receiver if receiver is not None else None, before=lambda: world.enter(models))
        later: list[Action] = []
        try:
            for item in itertools.islice(found, 12):
                chosen = item.arguments
                action = Action(f"{label}({chosen.label})", lambda chosen=chosen: run(chosen))  # type: ignore[misc]
                if item.ran and not self.reaches(action.run):
                    later.append(action)
                else:
                    yield action
        except CannotBuild as error:
            furthest = error.search.furthest if error.search is not None and self.failed_after(error.search) else None
            if furthest is None or not self.reaches(partial(run, furthest)):
                raise
            yield Action(f"{label}({furthest.label})", partial(run, furthest))
        yield from later[:2]

    def models(self) -> list[Recipe]:
        """Models of the file, built once; what that takes beyond its share is not taken from the search."""
        if self.recipes is None:
            share, began = min(1.5, self.left * 0.4), clock.now()
            self.recipes = recipes_for(self.space, budget_s=share)
            self.end += max(clock.now() - began - share, 0.0)
        return self.recipes

    # autograd Functions

    def autograd(self, cls: Any) -> Iterator[Action]:
        """Forward, and backward from the sum of what it gives."""
        for item in examples(cls, self.left, self.space.tree):
            yield Action(f"{cls.__name__}.apply({item.label}), then backward", lambda item=item: there_and_back(item))  # type: ignore[misc]

    # What the line wants, and what was reached

    @cached_property
    def wanted(self) -> Asked:
        """What the conditions around the line of interest ask for."""
        if self.target.kind not in ("method", "function"):
            return NOTHING_ASKED
        return asked_by(self.space.tree, self.target.qualname, self.target.line)

    def asked(self, cls: type) -> Asked:
        """What is asked for if the class is that of the line of interest."""
        return self.wanted if cls.__name__ == self.target.qualname.rpartition(".")[0] else NOTHING_ASKED

    def failed_here(self, failure: Failure) -> bool:
        """Whether the innermost line of user code in a failure is the line of interest.

        What is wrong with a graph behind that line counts too: it is never the fault of arguments.
        """
        own = [place for place in failure.places if place.code.co_filename in USER_FILES]
        if GRAPHS.search(failure.text) and self.behind(failure):
            return True
        return bool(own) and (own[-1].code.co_filename, own[-1].line) == (self.space.path, self.target.line)

    def failed_after(self, search: Search) -> bool:
        """Whether the attempt that got furthest failed in the function of the line of interest, behind that line."""
        return search.failure is not None and self.behind(search.failure)

    def behind(self, failure: Failure) -> bool:
        """Whether an attempt failed in the function of the line of interest, behind that line."""
        name = self.target.qualname.rpartition(".")[2]
        own = [place.line for place in failure.places
               if place.code.co_filename == self.space.path and place.code.co_name == name]
        return bool(own) and own[-1] > self.target.line

    def reaches(self, action: Callable[[], Any]) -> bool:
        """Whether running an action executes the line of interest."""
        return reaches(action, self.space.path, self.target.line)


def source(function: Any) -> str:
    """The text of a function, or nothing."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def fail(why: str) -> None:
    """An action that cannot be: its reason is what a report says of it."""
    raise CannotBuild(why)


def reaches(action: Callable[[], Any], path: str, line: int) -> bool:
    """Whether running an action executes a line of a file, be it with an error."""
    hit = False

    def inside(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal hit
        hit = hit or frame.f_lineno == line
        return inside

    def enter(frame: types.FrameType, event: str, arg: object) -> Any:
        return inside if frame.f_code.co_filename == path else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        value = action()
        if isinstance(value, types.GeneratorType):
            list(itertools.islice(value, 8))
    except (Enough, OutOfTime):
        raise
    except BaseException:  # also what ends a script
        pass
    finally:
        sys.settrace(before)
    return hit


def _forward(item: Running) -> Callable[[], Any]:
    def run() -> Any:
        module = item.made.make()
        assert item.inputs is not None
        args, kwargs = item.inputs.make()
        return module(*args, **kwargs)

    return run


def _arguments(item: Running) -> Callable[[], Arguments]:
    def prepare() -> Arguments:
        assert item.inputs is not None
        args, kwargs = item.inputs.make()
        return Arguments(item.made.make(), tuple(args), kwargs)

    return prepare


def there_and_back(item: Example) -> Any:
    """Applies a Function and goes back through it. Raises what either raises."""
    value = item.call()
    parts = [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, torch.Tensor)]
    ends = [part for part in parts if part.requires_grad]
    if ends:
        sum((part.abs() if part.is_complex() else part).sum() for part in ends).backward()
    return value


__all__ = ["Action", "CannotBuild", "Maker", "reaches", "there_and_back"]
