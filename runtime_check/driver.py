"""Runs code of one namespace: from call sites, through callers, as a script."""
from __future__ import annotations

import ast
import gc
import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runtime_check import made_files, world
from runtime_check.calls import CallGraph, Owner, Site, test_arguments
from runtime_check.containers import wholes
from runtime_check.extract import Namespace, Target
from runtime_check.lazy import fallback
from runtime_check.learned import STANDING, Learned, standing_for
from runtime_check.made import Maker
from runtime_check.remote import alone
from runtime_check.slices import Arguments, Slice, cut, run_at_top, run_in_function
from runtime_check.standins import asked_for, expects_gpu, is_heavy, smaller_constant, surroundings
from runtime_check.trace import acts

GIVEN = "__torchlint_given__"
CHAIN = 3  # how many calls up an argument is followed
PER_LEVEL = 4  # call sites tried at each level
FORMS = 4  # forms of made-up data tried in scripts
ITEMS = 64  # values taken from a generator that the target returns
#: Words of code that wants several processes or GPUs, and how many it finds.
MANY, RANKS = re.compile(r"world_size|WORLD_SIZE|device_count|device_mesh"), 4
SMALL, LARGER, FITTING = ", with small sizes", " but images twice as large", " and data of form 2"
AGAIN = 9  # calls that a repeated drive makes


@dataclass(frozen=True)
class Drive:
    """One way to run the target. `run` starts afresh each time and raises what the code raises."""

    label: str
    run: Callable[[], object]
    kind: str = "call"  # "hint", "call", "caller", "script" or "made"
    prepare: Callable[[], Arguments] | None = None  # the arguments alone, without calling the target
    again: Callable[[], object] | None = None  # the same call several times, on one and the same object


def on_device(action: Callable[[], Any], device: str) -> Callable[[], Any]:
    """`action` with new tensors on a device unless it says otherwise."""

    def run() -> Any:
        with torch.device(device), world.on(device):
            return action()

    return action if device == "cpu" else run


def _fail(error: Exception) -> object:
    raise error


class Driver:
    """Makes drives for one namespace.

    `foreign` are names that the file imports and the definitions that they stand for; `where` is added
    to the labels of calls in a file other than the target's.
    """

    def __init__(self, space: Namespace, seed: int, foreign: Mapping[str, ast.ClassDef] | None = None,
                 where: str = "", learned: Learned | None = None) -> None:
        self.space, self.seed, self.where = space, seed, where
        self.graph = CallGraph(space.tree, foreign)
        self.learned = learned or Learned()
        self.unfinished = False  # the last run was ended by an error, or is going on
        self.given: list[tuple[str, Callable[[], Any]]] = []  # instances of the target's class that the user makes

    def fresh(self, action: Callable[[], object], *, choice: int = 0, small: int = 0, standing: bool = False,
              options: frozenset[str] = frozenset(), files: bool = False, ranks: int = 1) -> Callable[[], object]:
        """`action` in fresh surroundings; a generator that it returns is run through.

        `choice` picks among the likely forms of data that cannot be read, `small` makes options small, with images
        that many times as large as small ones, `standing` gives stand-ins for names that nothing binds, `options`
        are those that are given though they are off by default, `files` makes files that are not there, with
        several `ranks` the code is the first of them.
        """

        def run() -> object:
            cuda, text = expects_gpu(self.space.text), self._texts()
            around = surroundings(self.space.path, self.seed, small=small, cuda=cuda, options=options, text=text,
                                  files=files, ranks=ranks)
            with alone(text), around, standing_for(self.space, self.learned, choice if standing else None):
                for space in list(self.space.loader.spaces.values()):
                    space.reset()
                if self.unfinished:
                    gc.collect()  # the traceback of what has ended the last run holds its models
                self.unfinished = True
                self.space.fallback = lambda name: fallback(self.space, name, choice, self.learned.complaint)
                self.space.adjust = partial(smaller_constant, scale=small) if small else None
                try:
                    result = action()
                    if isinstance(result, types.GeneratorType):
                        result = list(itertools.islice(result, ITEMS))
                except Exception as error:
                    self.learned.take(error, self.space)
                    raise
                finally:
                    self.space.adjust = None
                self.unfinished = False
                return result

        return run

    def _sizes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Sizes and stand-ins with which calls are tried, with the words for them: small ones first in heavy files."""
        if is_heavy(self.space.tree):
            yield SMALL, {"small": 1}
            if self.learned.cramped:
                yield SMALL + LARGER, {"small": 2}
        yield "", {}
        if self.learned.complaint:
            yield SMALL + FITTING, {"small": 1, "choice": 1}
        if self.learned.lacking:
            yield SMALL + STANDING, {"small": 1, "standing": True}

    def _texts(self) -> str:
        """The code of the file and of those that it has read names from."""
        others = (space.text for space in self.space.loader.spaces.values() if space is not self.space)
        return "\n".join([self.space.text, *others])

    def called(self, qualname: str) -> Iterator[Drive]:
        """The target as the file calls it; where that takes long, with small sizes first."""
        for words, sizes in self._sizes():
            for site in self._ranked(self.graph.sites(qualname)):
                for label, action in self.at_site(site):
                    prepare = next((item for _, item in self.at_site(site, only_arguments=True)), None)
                    again = None
                    if prepare is not None:
                        again = self.fresh(partial(self._repeat, qualname, prepare), **sizes)
                    run, given = self.fresh(action, **sizes), self.prepared(prepare, **sizes)
                    yield Drive(label + words, run, "call", given, again)

    def _repeat(self, qualname: str, prepare: Callable[[], object]) -> None:
        """The call that `prepare` leads to, several times."""
        given = prepare()
        assert isinstance(given, Arguments)
        name = qualname.rpartition(".")[2]
        function: Any = given.receiver
        if function is None:
            function = self.space.resolve(qualname)
        elif name not in ("forward", "__call__"):
            function = getattr(function, name)
        for _ in range(AGAIN):
            function(*given.args, **given.kwargs)

    def prepared(self, action: Callable[[], object] | None, **sizes: Any) -> Callable[[], Arguments] | None:
        """The arguments of a call alone, made afresh."""
        if action is None:
            return None
        run = self.fresh(action, **sizes)

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
            label = f"as called {self._place(site)}" + (", with its conditions taken as true" if drop else "")
            if site.owner is None:
                yield label, partial(run_at_top, self.space, part)
                continue
            for more, bind in self._bindings(site.owner, part, depth):
                yield label + more, partial(run_in_function, self.space, site.owner, part, bind)

    def _place(self, site: Site) -> str:
        """Where a call is; line numbers of other files are written differently than those of the target's."""
        return f"in {self.where}:{site.line}" if self.where else f"on line {site.line}"

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
                origin = more.removeprefix("as called ").removeprefix("on ")
                yield f" from {origin}", partial(self._bound, owner, action)

    def _bound(self, owner: Owner, action: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = action()
        is_static = any(getattr(item, "id", "") == "staticmethod" for item in owner.node.decorator_list)
        start = (given.receiver,) if owner.cls and not is_static else ()
        return (*start, *given.args), given.kwargs

    def alone(self, owner: Owner | None) -> Iterator[Drive]:
        """A function that can be called with nothing, or with what the test runner would give it."""
        if owner is None or owner.cls or not set(owner.required) <= set(test_arguments(self.graph, owner)):
            return
        label = f"{owner.name}()" + (f" of {self.where}" if self.where else "")
        yield Drive(label, self.fresh(lambda: self._call(owner)), "made", lambda: Arguments(None, (), {}))

    def parametrized(self, qualname: str) -> Iterator[Drive]:
        """Tests that are given the target's class, or the target, by their parametrization."""
        name = qualname.partition(".")[0]
        for owner in list(self.graph.owners.values()):
            given = [item for item in owner.node.decorator_list if "parametrize" in ast.unparse(item)]
            named = {item.id for part in given for item in ast.walk(part) if isinstance(item, ast.Name)}
            if name in named and not owner.cls and set(owner.required) <= set(test_arguments(self.graph, owner, name)):
                run = self.fresh(partial(self._call, owner, name))
                yield Drive(f"through {owner.name}() of {self.where} with {name}", run, "caller")

    def _call(self, owner: Owner, wanted: str = "") -> object:
        value: Any = self.space.resolve(owner.name)
        value = inspect.unwrap(getattr(value, "callback", value))  # click commands keep the function there
        given = test_arguments(self.graph, owner, wanted)
        return value(**{name: self._given(given[name]) for name in owner.required})

    def _given(self, source: ast.expr | str) -> object:
        """The value of an expression at the top level, or of a fixture."""
        if isinstance(source, ast.expr):
            node = ast.copy_location(ast.Assign([ast.Name(GIVEN, ast.Store())], source), source)
            self.space.execute([ast.fix_missing_locations(node)])
            return self.space.globals[GIVEN]
        function: Any = self.space.resolve(source)
        made = inspect.unwrap(function)()  # calling the fixture itself is an error
        return next(made) if isinstance(made, types.GeneratorType) else made

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
                if "add_argument" in self.space.text:
                    asked = asked_for(self.space.tree)
                    run = self.fresh(partial(self._call, owner), small=1, options=asked)
                    yield Drive(f"through {drive.label}, with its options set", run, "caller")
            for drive in itertools.islice(self.called(owner.name), PER_LEVEL):
                yield Drive(f"through {owner.name}, {drive.label}", drive.run, "caller")

    def main_block(self, qualname: str) -> Iterator[Drive]:
        """The `__main__` block or the script's own statements, if they lead to the target."""
        if not acts(self.space.text):
            return
        holder = qualname.rpartition(".")[0]
        names = [qualname, *([holder] if holder in self.graph.classes else ()),
                 *(owner.name for owner in self.callers(qualname))]
        if any(site.owner is None for name in names for site in self.graph.sites(name)) or self._handed_on(set(names)):
            for drive in self.scripts():
                yield drive
                if self.learned.complaint:  # a loss has said what the data should be like
                    yield from self.called(qualname)

    def _handed_on(self, names: set[str]) -> bool:
        """Whether one of the functions is an argument somewhere: of `spawn`, a thread, a hook."""
        calls = (node for node in ast.walk(self.space.tree) if isinstance(node, ast.Call))
        given = (item for call in calls for item in (*call.args, *(part.value for part in call.keywords)))
        return any(isinstance(item, ast.Name) and item.id in names for item in given)

    def scripts(self) -> Iterator[Drive]:
        """The whole file as a script: as it is, with small sizes, with other forms of made-up data."""
        label = "the file run as a script"
        ways = [Drive(label, self.fresh(self._run_script), "script"),
                Drive(label + SMALL, self.fresh(self._run_script, small=1), "script")]
        for way in reversed(ways) if is_heavy(self.space.tree) else ways:
            yield way
            if self.learned.cramped:
                yield Drive(label + SMALL + LARGER, self.fresh(self._run_script, small=2), "script")
            if self.learned.complaint:  # which other sizes do not help against
                yield self._of_form(label, 1)
                break
            if self.learned.lacking:
                for words, files in (("", False), (" and made-up files", True)):
                    run = self.fresh(self._run_script, small=1, standing=True, files=files)
                    yield Drive(label + SMALL + STANDING + words, run, "script")
                return
        if made_files.missed:
            yield from self._with_files(label)
        if MANY.search(self._texts()):
            run = self.fresh(self._run_script, small=1, files=True, ranks=RANKS)
            yield Drive(f"{label}, as the first of {RANKS} ranks", run, "script")
        if "add_argument" in self.space.text:
            for files, more in ((False, "with its options set"), (True, "with its options and files given")):
                asked = asked_for(self.space.tree, files=files)
                run = self.fresh(self._run_script, small=1, options=asked, files=True)
                yield Drive(f"{label}, {more}", run, "script")
        for choice in range(2 if self.learned.complaint else 1, FORMS):
            if any("is made up" in text for text in self.space.skipped):
                yield self._of_form(label, choice)

    def _of_form(self, label: str, choice: int) -> Drive:
        """The script with another of the likely forms of data that cannot be read."""
        run = self.fresh(self._run_script, choice=choice, small=1)
        return Drive(f"{label}, with data of form {choice + 1}", run, "script")

    def _with_files(self, label: str) -> Iterator[Drive]:
        """The script where files that it reads are there, with small sizes first, as for all that follows."""
        run = self.fresh(self._run_script, small=1, files=True)
        yield Drive(f"{label}, with made-up files", run, "script")
        run = self.fresh(self._run_script, files=True)
        yield Drive(f"{label}, with made-up files and the sizes that it states", run, "script")

    def _run_script(self) -> object:
        for step in self.space.steps:
            pinned = bool(step.binds) and step.binds <= self.space.pins.keys()
            if step.index not in self.space.done and not pinned:
                self.space.run_strictly(step)
        return None

    def instances(self, target: Target) -> list[tuple[str, Callable[[], Any]]]:
        """How the file itself makes instances of the target's class."""
        holder = target.qualname.rpartition(".")[0]
        found = list(self.given)
        if holder in self.graph.classes and not target.qualname.endswith("__init__"):
            for site in self._ranked(self.graph.sites(holder))[:PER_LEVEL]:
                text = ast.unparse(site.call)
                short = text if len(text) <= 60 else f"{holder}(...)"
                found += [(f"{short} of line {site.line}", action) for _, action in self.at_site(site)]
        return found

    def made(self, target: Target, budget_s: float, device: str = "cpu") -> Iterator[Drive]:
        """The target with made-up arguments. A search that finds nothing yields a drive that says why."""
        try:
            with alone(self._texts()), surroundings(self.space.path, self.seed, cuda=expects_gpu(self.space.text)):
                self.space.reset()
                callers = [owner.name for owner in self.callers(target.qualname)]
                maker = Maker(self.space, target, budget_s, self.instances(target), callers,
                              wholes(self.graph, target.qualname))
                for action in maker.actions():
                    run, prepare = on_device(action.run, device), action.prepare
                    made = on_device(prepare, device) if prepare is not None else None
                    yield Drive(action.label, self.fresh(run), "made", made)
        except Exception as error:
            yield Drive("with made-up arguments", partial(_fail, error), "made")

    def script(self, target: Target) -> Iterator[Drive]:
        """Drives for top-level code."""
        yield from self.scripts()
