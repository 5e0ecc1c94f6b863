"""Builds instances of Module classes and finds inputs with which their `forward` runs."""
from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runtime_check import again, clock, names
from runtime_check.asked import NO_WISHES, NOTHING_ASKED, Asked, Wishes
from runtime_check.blame import Context
from runtime_check.guess import NOTHING, Guesser, init_of
from runtime_check.inputs import InputGuesser, variations
from runtime_check.placeholder import MissingError
from runtime_check.repair import repairs
from runtime_check.search import Failure, Found, Search
from runtime_check.specs import OMIT, Assignment, Const, Spec

Stops = Callable[[Failure], bool]
SMALLEST = 4  # a size
LARGE = 30_000_000  # parameters; a module above is built again with smaller sizes


def never(failure: Failure) -> bool:
    """No failure is of interest."""
    return False


@dataclass(frozen=True)
class Made:
    """An instance of a Module class and how it was made."""

    arguments: Assignment
    make: Callable[[], nn.Module]
    then: str = ""  # what is done to it afterwards

    @property
    def label(self) -> str:
        """The arguments as written in a call, and what follows."""
        return self.arguments.label + self.then


class CannotBuild(RuntimeError):
    """No arguments were found with which something can be made or called; `search` looked for them."""

    def __init__(self, why: str = "", search: Search | None = None) -> None:
        super().__init__(why)
        self.search = search


def constructions(cls: type, budget_s: float, *, guesser: Callable[[Any, type], Guesser] = Guesser,
                  before: Callable[[], None] = lambda: None, asked: Asked = NOTHING_ASKED) -> Iterator[Made]:
    """Ways to construct a class, best first. Raises CannotBuild with the reason if there is none.

    `guesser` makes what proposes arguments; `before` is called before each construction; arguments that are
    `asked` for are tried first.
    """
    candidates, base = construction_candidates(cls, guesser)
    init = init_of(cls)

    def run(chosen: Assignment) -> Any:
        before()
        args, kwargs = chosen.make()
        return asked.switch(cls(*args, **kwargs))

    def repair(chosen: Assignment, failure: Failure) -> Iterator[Assignment]:
        return repairs(Context(chosen, failure, init, candidates))

    search = Search(run, repair, budget_s, key=cls.__qualname__)
    defaults: dict[str, Any] = {}  # of what is made small
    if too_large(cls, base):
        sizes = inspect.signature(init).parameters
        for name, options in candidates.items():  # what is None by default is no size: it turns something on
            if len(options) > 1 and options[0] is OMIT and sizes[name].default is not None:
                options[:2] = options[1], OMIT
                base = base.put(name, options[0])
                defaults[name] = sizes[name].default
    ways = list(variations(base, candidates))
    ways.sort(key=lambda one: any(one.get(name) == OMIT for name in defaults))  # to make these takes long
    starts = asked.made.starts([*ways[:1], *in_proportion(base, defaults), *ways[1:]], candidates)
    found = False
    for item in search.results(starts):
        if isinstance(item.value, cls):
            found = True
            yield Made(item.arguments, lambda item=item: run(item.arguments), asked.label)  # type: ignore[misc]
    if not found:
        cause = search.failure.error if search.failure is not None else None
        raise CannotBuild(explain(cls.__name__, search.failure)) from cause


def in_proportion(base: Assignment, defaults: dict[str, Any]) -> Iterator[Assignment]:
    """The small sizes once more, each by the same factor smaller than its default: some are twice another one."""
    small = {name: spec.value for name in defaults if isinstance(spec := base.get(name), Const)}
    plain = [name for name, value in small.items() if type(value) is int and type(defaults[name]) is int]
    factor = max((defaults[name] // max(small[name], 1) for name in plain), default=1)
    fitting = {name: defaults[name] // factor for name in plain if defaults[name] % factor == 0}
    changed = base
    for name, value in fitting.items():
        changed = changed.put(name, Const(value)) if value >= SMALLEST else changed
    if changed != base:
        yield changed


def construction_candidates(cls: type,
                            make: Callable[[Any, type], Guesser]) -> tuple[dict[str, list[Spec]], Assignment]:
    """Candidates for every constructor parameter, and the first assignment."""
    try:
        guesser = make(init_of(cls), cls)
        parameters = guesser.parameters()
    except (TypeError, ValueError):
        return {}, Assignment(())
    candidates: dict[str, list[Spec]] = {}
    positional: set[str] = set()
    for item in parameters:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            continue
        candidates[item.name] = guesser.values(guesser.asked(item))
        if item.kind is not item.KEYWORD_ONLY and item.default is NOTHING:
            positional.add(item.name)
    items = tuple((name, options[0]) for name, options in candidates.items())
    return candidates, Assignment(items, frozenset(positional))


def too_large(cls: type, chosen: Assignment) -> bool:
    """Whether the constructor makes too many parameters; measured without memory for them."""
    defaults = [item.default for item in inspect.signature(init_of(cls)).parameters.values()]
    sizes = [value for value in defaults if type(value) is int]
    sizes += [item for value in defaults if isinstance(value, (list, tuple)) for item in value if type(item) is int]
    largest = max(sizes, default=0)
    if largest < 64:
        return False
    try:
        with torch.device("meta"):
            args, kwargs = chosen.make()
            module = cls(*args, **kwargs)
        return bool(sum(item.numel() for item in module.parameters()) > LARGE)
    except Exception:
        return largest >= 256


def explain(name: str, failure: Failure | None) -> str:
    """Why nothing was found, for a reader."""
    if failure is None:
        return f"`{name}`: no attempt could be made in the time allowed"
    if isinstance(failure.error, MissingError):
        return str(failure.error)
    place = failure.places[-1] if failure.places else None
    where = f" (line {place.line} of {place.code.co_filename.rpartition('/')[2]})" if place else ""
    return f"`{name}`: {type(failure.error).__name__}: {failure.error}{where}"


def inputs_for(module: nn.Module, budget_s: float, stops: Stops = never,
               wishes: Wishes = NO_WISHES) -> tuple[Iterator[Found], Search]:
    """Inputs with which the module's `forward` runs at least one operation, as they are found."""
    forward = entry_of(type(module)) or type(module).forward
    guesser = InputGuesser(forward, module)
    starts, candidates = guesser.starts()

    def run(chosen: Assignment) -> Any:
        args, kwargs = chosen.make()
        return module(*args, **kwargs)

    def repair(chosen: Assignment, failure: Failure) -> Iterator[Assignment]:
        return repairs(Context(chosen, failure, forward, candidates))

    search = Search(run, repair, budget_s, stops, key=f"{type(module).__qualname__}.forward")
    tried = wishes.starts(starts, candidates)
    return (item for item in search.results(tried) if item.operations or not item.ran), search


def entry_of(cls: type) -> Callable[..., Any] | None:
    """What runs when an instance is called: a `forward` of its own or inherited, not the one that only raises, or a
    `__call__` that stands in its place."""
    forward: Callable[..., Any] | None = getattr(cls, "forward", None)
    if getattr(forward, "__name__", "_forward_unimplemented") != "_forward_unimplemented":
        return forward
    call: Callable[..., Any] = cls.__call__
    return call if isinstance(call, types.FunctionType) and call is not nn.Module.__call__ else None


@dataclass(frozen=True)
class Running:
    """A construction with inputs whose forward ran."""

    made: Made
    inputs: Assignment | None
    value: Any
    why: str = ""  # why there are no inputs
    ran: bool = True  # False: forward failed, on the line of interest
    search: Search | None = None  # that found no inputs


def running(cls: type, budget_s: float = 3.0, each_s: float = 0.3, stops: Stops = never,
            asked: Asked = NOTHING_ASKED) -> Iterator[Running]:
    """Constructions of a class, each with inputs if some were found: those with inputs come as soon as found.

    Raises CannotBuild if the class cannot be constructed at all.
    """
    end = 0.0
    bare: list[Running] = []
    for count, made in enumerate(constructions(cls, budget_s, asked=asked)):
        end = end or clock.now() + budget_s  # loading configurations and the like is not counted
        if clock.now() > end or count > 8:
            break
        module = made.make()
        if not isinstance(module, nn.Module) or entry_of(type(module)) is None:
            yield Running(made, None, None, "it has no forward")
            continue
        left = max(end - clock.now(), 0.05)
        found, search = inputs_for(module, min(left, each_s * (3 if count == 0 else 1)), stops, asked.called)
        none = True
        for item in found:
            none = False
            yield Running(made, item.arguments, item.value, "", item.ran)
            if item.ran:
                break
        if none:
            bare.append(Running(made, None, None, explain(f"{cls.__name__}.forward", search.failure), True, search))
    for without in bare[:1]:
        again.note(cls.__qualname__, without.made.arguments)  # those that came later are not run
        yield without


WIDTH = names.WIDTH
