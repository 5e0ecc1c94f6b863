"""Ways to run the code around a finding, best first.

First as the file itself calls it, then through its callers, then the whole script, then with arguments
made up from the text. Every run starts from fresh objects and seeded random generators.
"""
from __future__ import annotations

import ast
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from runtime_check.calls import CallGraph, Owner, Site
from runtime_check.extract import Namespace, Target
from runtime_check.functions import Example, differentiable, examples
from runtime_check.lazy import fallback
from runtime_check.made import Maker
from runtime_check.modules import CannotBuild, inputs_for, running
from runtime_check.search import Failure, attempt
from runtime_check.slices import Arguments, Slice, cut, run_at_top, run_in_function
from runtime_check.standins import is_heavy, smaller_constant, surroundings

Hints = Mapping[str, Callable[[], object]]
CHAIN = 3  # how many calls up an argument is followed
PER_LEVEL = 4  # call sites tried at each level
FORMS = 4  # forms of made-up data tried in scripts
ITEMS = 64  # values taken from a generator that the target returns


@dataclass(frozen=True)
class Drive:
    """One way to run the target. `run` starts afresh each time and raises what the code raises."""

    label: str
    run: Callable[[], object]
    kind: str = "call"  # "hint", "call", "caller", "script" or "made"
    prepare: Callable[[], Arguments] | None = None  # the arguments alone, without calling the target


def drives(space: Namespace, target: Target, *, seed: int = 0, budget_s: float = 3.0, device: str = "cpu",
           hints: Hints | None = None) -> Iterator[Drive]:
    """Ranked ways to run code that reaches `target.line`. Nothing has run before a drive's `run` is called,
    except that drives of kind "made" search for arguments within `budget_s` seconds."""
    driver = Driver(space, seed)
    if hints and target.qualname in hints:
        yield Drive("with the factory given for it", driver.fresh(hints[target.qualname]), "hint")
    if target.kind == "script":
        yield from driver.script(target)
        return
    graph = driver.graph
    owner = graph.owners.get(target.qualname)
    seen: set[str] = set()
    found = itertools.chain(
        [] if owner is not None and owner.is_generator else driver.called(target.qualname),
        driver.alone(owner),
        driver.through(target.qualname),
        driver.called(target.qualname),
        driver.main_block(target.qualname),
        driver.made(target, budget_s),
    )
    for drive in found:
        if drive.label not in seen:
            seen.add(drive.label)
            yield drive


@dataclass(frozen=True)
class Built:
    """An instance of a Module class, and a call of it with inputs whose forward ran.

    `call` is None, and `why` says why, if no inputs were found. Every call makes new inputs.
    """

    label: str
    module: nn.Module
    call: Callable[[], object] | None
    why: str = ""
    make: Callable[[], nn.Module] | None = None  # another instance
    inputs: Callable[[], tuple[list[Any], dict[str, Any]]] | None = None  # new arguments for a call


def build_module(space: Namespace, qualname: str, *, seed: int = 0, budget_s: float = 3.0) -> Iterator[Built]:
    """Instances of a Module class, best first. Raises CannotBuild, or what loading the class raises."""
    cls = space.resolve(qualname)
    if not isinstance(cls, type):
        raise CannotBuild(f"`{qualname}` is no class")
    driver = Driver(space, seed)
    yield from _built_as_called(driver, qualname, cls)
    with surroundings(space.path, seed):
        yield from _built_from_instances(driver, qualname, cls)
        for item in running(cls, budget_s):
            module = item.made.make()
            label = f"{qualname}({item.made.arguments.label})"
            if item.inputs is None:
                yield Built(label, module, None, item.why, item.made.make)
                continue
            call = partial(_call_module, module, item.inputs.make)
            yield Built(f"{label}({item.inputs.label})", module, call, "", item.made.make, item.inputs.make)


def _call_module(module: nn.Module, inputs: Callable[[], tuple[list[Any], dict[str, Any]]]) -> object:
    args, kwargs = inputs()
    return module(*args, **kwargs)


def _built_as_called(driver: Driver, qualname: str, cls: type) -> Iterator[Built]:
    """The module and the inputs of the calls that the file itself makes, where they run."""
    for drive in itertools.islice(driver.called(f"{qualname}.forward"), PER_LEVEL):
        prepare = drive.prepare
        if prepare is None:
            continue
        try:
            given = prepare()
        except Exception:
            continue
        if isinstance(given.receiver, cls) and not isinstance(attempt(partial(_call_given, prepare)), Failure):
            call = partial(_call_module, given.receiver, partial(_inputs_of, prepare))
            yield Built(f"{qualname} {drive.label}", given.receiver, call, "", partial(_receiver_of, prepare),
                        partial(_inputs_of, prepare))


def _call_given(prepare: Callable[[], Arguments]) -> object:
    given = prepare()
    return given.receiver(*given.args, **given.kwargs)


def _inputs_of(prepare: Callable[[], Arguments]) -> tuple[list[Any], dict[str, Any]]:
    given = prepare()
    return list(given.args), given.kwargs


def _receiver_of(prepare: Callable[[], Arguments]) -> Any:
    return prepare().receiver


def _built_from_instances(driver: Driver, qualname: str, cls: type) -> Iterator[Built]:
    """Instances as the file makes them, with made-up inputs."""
    target = Target("method", f"{qualname}.forward", 0, 0, 0)
    for label, make in driver.instances(target)[:2]:
        module = attempt(make)
        if isinstance(module, Failure) or not isinstance(module[0], cls) or not isinstance(module[0], nn.Module):
            continue
        first = next(inputs_for(module[0], 1.0)[0], None)
        if first is not None:
            inputs = first.arguments
            yield Built(f"{label}({inputs.label})", module[0], partial(_call_module, module[0], inputs.make), "",
                        make, inputs.make)


def _fail(error: Exception) -> object:
    raise error


def build_function_class(space: Namespace, qualname: str, *, seed: int = 0, budget_s: float = 3.0) -> Iterator[Example]:
    """Arguments for an autograd Function: as the file calls it, then made up. Raises what loading it raises.

    Floating tensors are float64 leaves that require grad; every call makes new ones.
    """
    cls = space.resolve(qualname)
    driver = Driver(space, seed)
    for drive in itertools.islice(driver.called(f"{qualname}.forward"), PER_LEVEL):
        if drive.prepare is not None:
            yield Example(drive.label, partial(_given, drive.prepare), cls)
    with surroundings(space.path, seed):
        yield from examples(cls, budget_s)


def _given(prepare: Callable[[], Arguments]) -> tuple[Any, ...]:
    return differentiable(prepare().args)


class Driver:
    """Makes drives for one namespace."""

    def __init__(self, space: Namespace, seed: int) -> None:
        self.space, self.seed = space, seed
        self.graph = CallGraph(space.tree)

    def fresh(self, action: Callable[[], object], *, choice: int = 0, small: bool = False) -> Callable[[], object]:
        """`action` in fresh surroundings; a generator that it returns is run through.

        `choice` picks among the likely forms of data that cannot be read, `small` makes options small.
        """

        def run() -> object:
            with surroundings(self.space.path, self.seed, small=small, cuda="cuda" in self.space.text):
                self.space.reset()
                self.space.fallback = lambda name: fallback(self.space, name, choice)
                result = action()
                if isinstance(result, types.GeneratorType):
                    return list(itertools.islice(result, ITEMS))
                return result

        return run

    def called(self, qualname: str) -> Iterator[Drive]:
        """The target as the file calls it."""
        for site in self._ranked(self.graph.sites(qualname)):
            for label, action in self.at_site(site):
                prepare = next((item for _, item in self.at_site(site, only_arguments=True)), None)
                yield Drive(label, self.fresh(action), "call", self._prepared(prepare))

    def _prepared(self, action: Callable[[], object] | None) -> Callable[[], Arguments] | None:
        if action is None:
            return None
        run = self.fresh(action)

        def prepare() -> Arguments:
            result = run()
            assert isinstance(result, Arguments)
            return result

        return prepare

    def _ranked(self, sites: list[Site]) -> list[Site]:
        """Sure matches first; the script's own calls before calls in functions; then in source order."""
        ranked = sorted(sites, key=lambda site: (not site.sure, site.owner is not None, site.line))
        return ranked[: PER_LEVEL * 2]

    def at_site(self, site: Site, *, only_arguments: bool = False, depth: int = CHAIN,
                ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Label and action for one call: once with the conditions around it, then without them."""
        for drop in (False, True):
            part = cut(site, self.space.tree, only_arguments=only_arguments, drop_conditions=drop)
            if part is None or (drop and not part.conditional):
                return
            label = f"as called on line {site.line}" + (", with its conditions taken as true" if drop else "")
            if site.owner is None:
                yield label, partial(run_at_top, self.space, part)
                continue
            for more, bind in self._bindings(site.owner, part, depth):
                yield label + more, partial(run_in_function, self.space, site.owner, part, bind)

    def _bindings(self, owner: Owner, part: Slice, depth: int) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Ways to get the arguments that a slice of `owner` needs."""
        if not part.needs & set(owner.required):
            yield "", lambda: ((), dict.fromkeys(owner.required))
            return
        if depth == 0:
            return
        for site in self._ranked(self.graph.sites(owner.name))[:PER_LEVEL]:
            if site.owner is owner or owner.name.endswith("__init__"):
                continue
            for more, action in self.at_site(site, only_arguments=True, depth=depth - 1):
                yield f" from {more.removeprefix('as called on ')}", partial(self._bound, owner, action)

    def _bound(self, owner: Owner, action: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = action()
        is_static = any(getattr(item, "id", "") == "staticmethod" for item in owner.node.decorator_list)
        start = (given.receiver,) if owner.cls and not is_static else ()
        return (*start, *given.args), given.kwargs

    def alone(self, owner: Owner | None) -> Iterator[Drive]:
        """A function that can be called with nothing."""
        if owner is not None and not owner.cls and not owner.required:
            yield Drive(f"{owner.name}()", self.fresh(lambda: self._call(owner.name)), "made",
                        lambda: Arguments(None, (), {}))

    def _call(self, name: str) -> object:
        value: Any = self.space.resolve(name)
        return getattr(value, "callback", value)()  # click commands keep the function there

    def callers(self, qualname: str) -> list[Owner]:
        """Functions and methods that call the target, directly or not; nearest first."""
        found: list[Owner] = []
        names = [qualname]
        holder, _, last = qualname.rpartition(".")
        if holder in self.graph.classes and (last.startswith("__") or not self.graph.sites(qualname)):
            names.append(holder)  # who makes an instance may run the method: `dataset[0]`, a hook, a callback
        for name in names:
            for site in self.graph.sites(name):
                owner = site.owner
                if owner is not None and owner.name not in names and len(names) < 20:
                    names.append(owner.name)
                    found.append(owner)
        return found

    def through(self, qualname: str) -> Iterator[Drive]:
        """Callers of the target, run as a whole."""
        for owner in self.callers(qualname):
            for drive in self.alone(owner):
                yield Drive(f"through {drive.label}", drive.run, "caller")
            for drive in itertools.islice(self.called(owner.name), PER_LEVEL):
                yield Drive(f"through {owner.name}, {drive.label}", drive.run, "caller")

    def main_block(self, qualname: str) -> Iterator[Drive]:
        """The `__main__` block or the script's own statements, if they lead to the target."""
        holder = qualname.rpartition(".")[0]
        names = [qualname, *([holder] if holder in self.graph.classes else ()),
                 *(owner.name for owner in self.callers(qualname))]
        if any(site.owner is None for name in names for site in self.graph.sites(name)):
            yield from self.scripts()

    def scripts(self) -> Iterator[Drive]:
        """The whole file as a script: as it is, with small sizes, with other forms of made-up data."""
        label = "the file run as a script"
        ways = [Drive(label, self.fresh(self._run_script), "script"),
                Drive(f"{label}, with small sizes", self.fresh(partial(self._run_script, True), small=True), "script")]
        yield from reversed(ways) if is_heavy(self.space.tree) else ways
        for choice in range(1, FORMS):
            if any("is made up" in text for text in self.space.skipped):
                run = self.fresh(partial(self._run_script, True), choice=choice, small=True)
                yield Drive(f"{label}, with data of form {choice + 1}", run, "script")

    def _run_script(self, small: bool = False) -> object:
        for step in self.space.steps:
            if small:
                step = dataclasses.replace(step, node=smaller_constant(step.node))
            pinned = bool(step.binds) and step.binds <= self.space.pins.keys()
            if step.index not in self.space.done and not pinned:
                self.space.run_strictly(step)
        return None

    def instances(self, target: Target) -> list[tuple[str, Callable[[], Any]]]:
        """How the file itself makes instances of the target's class."""
        holder = target.qualname.rpartition(".")[0]
        found: list[tuple[str, Callable[[], Any]]] = []
        if holder in self.graph.classes and not target.qualname.endswith("__init__"):
            for site in self._ranked(self.graph.sites(holder))[:PER_LEVEL]:
                text = ast.unparse(site.call)
                short = text if len(text) <= 60 else f"{holder}(...)"
                found += [(f"{short} of line {site.line}", action) for _, action in self.at_site(site)]
        return found

    def made(self, target: Target, budget_s: float) -> Iterator[Drive]:
        """The target with made-up arguments. A search that finds nothing yields a drive that says why."""
        try:
            with surroundings(self.space.path, self.seed):
                self.space.reset()
                for action in Maker(self.space, target, budget_s, self.instances(target)).actions():
                    yield Drive(action.label, self.fresh(action.run), "made", action.prepare)
        except Exception as error:
            yield Drive("with made-up arguments", partial(_fail, error), "made")

    def script(self, target: Target) -> Iterator[Drive]:
        """Drives for top-level code."""
        yield from self.scripts()
