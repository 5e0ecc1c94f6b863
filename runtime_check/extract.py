"""Loads what a class or function needs out of its file, on demand, and runs nothing else of the file.

A top-level statement runs when a name that it binds is read for the first time. It is compiled with its
own file name and lines, so tracebacks and line tracing show what the user wrote. What cannot be
imported or computed becomes a placeholder that explains itself when touched.
"""
from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import linecache
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from runtime_check import placeholder, unbound
from runtime_check.outline import outline
from runtime_check.placeholder import USER_FILES, Missing, MissingError
from runtime_check.project_loader import Loader, ModuleProxy, importer, opener, register, star_names, variables
from runtime_check.statements import (
    Step,
    bound,
    class_body_reads,
    is_for_checkers,
    is_star,
    lasts,
    looks_like_module,
    read,
    walk,
)
from runtime_check.target import Target, target_at

LOOKS = {"globals", "locals", "vars"}


class Globals(dict[str, Any]):
    """A module's globals that computes names when they are read."""

    space: Namespace

    def __missing__(self, name: str) -> Any:
        return self.space.compute(name)

    # Names are added while code looks through `globals()`: it gets a copy to look through.

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """The pairs that are there now."""
        return dict(super().items()).items()

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, computed if need be."""
        try:
            return self[name]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if not self.space.running:
            self.space.pins[name] = value


class Namespace:
    """The names of one file's text, computed when asked for.

    `path` is the name shown in tracebacks and, if it is a real place, where the project's other files
    are found; `roots` are further folders that absolute imports start from. Raises SyntaxError or
    ValueError if the text cannot be parsed.
    """

    def __init__(self, text: str, path: str, roots: tuple[str, ...] = (), *,
                 loader: Loader | None = None) -> None:
        self.text, self.path = text, path
        self.outline = outline(text, path)
        self.tree, self.steps = self.outline.tree, self.outline.steps
        self.binding, self.touching, self.stars = self.outline.binding, self.outline.touching, self.outline.stars
        self.patches = self.outline.patches
        self.skipped: list[str] = []
        self.pins: dict[str, Any] = {}
        self.running: list[int] = []
        self.done: set[int] = set()
        self.partial: set[str] = set()  # names with bindings that were not run yet
        self.failed: dict[str, BaseException] = {}
        self.fallback: Callable[[str], object] | None = None  # a value for a name whose statement failed
        self.adjust: Callable[[ast.stmt], ast.stmt] | None = None  # the form in which a statement is run
        self.loader = loader or Loader(path, roots, _namespace)
        self.package = self.loader.package(path)
        self.guarded_lines, self.flags = self.outline.guarded_lines, self.outline.flags
        self._from_star: dict[str, ast.ImportFrom | None] = {}
        self._asked: set[tuple[str, ast.ImportFrom]] = set()
        self.globals = Globals()
        self.globals.space = self
        self._set_up()
        self.loader.spaces.setdefault(os.path.abspath(path), self)  # whole: a time limit may end this anywhere

    def _set_up(self) -> None:
        USER_FILES.add(self.path)
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.text), None, lines, self.path)
        name = self.loader.dotted(self.path)
        own = dict(vars(builtins))
        own["__import__"] = importer(self)
        own["open"] = opener(self.path, self.note)
        own["vars"] = variables
        with self.busy(len(self.steps)):
            self.globals.update({
                "__name__": name, "__file__": self.path, "__package__": self.package, "__builtins__": own,
                "__doc__": ast.get_docstring(self.tree), "__spec__": None, "__loader__": None,
                "__annotations__": {},
            })
        if name not in self.loader.modules:
            place, file = os.path.split(os.path.abspath(self.path))
            proxy = ModuleProxy(name, self, self.loader, place if file == "__init__.py" else "")
            self.loader.modules[name] = proxy
            register(name, proxy)

    # Asking

    def names(self) -> set[str]:
        """All names that the file binds at its top level, computed or not."""
        return set(self.binding)

    def has(self, name: str) -> bool:
        """Whether the file binds `name`, itself or by a star import. Runs nothing of this file."""
        return self.binds(name) or self._star_with(name) is not None

    def binds(self, name: str) -> bool:
        """Whether the file binds `name` itself, or has a value for it already."""
        return name in self.binding or name in self.globals

    def get(self, name: str) -> object:
        """The value of a top-level name. KeyError if nothing binds it; what its statement raises."""
        if name in self.pins:
            return self.pins[name]
        if name in self.binding:
            self._need(name, len(self.steps) if not self.running else self.running[-1])
        if not self.running:
            self._complete()
        if name not in self.globals:
            self._need_star(name)
        if name in self.failed:
            raise self.failed[name]
        return self.globals[name]

    def resolve(self, qualname: str) -> object:
        """The object of a dotted name, "Net.forward". KeyError, AttributeError, or what loading raises."""
        first, *rest = qualname.split(".")
        value = self.get(first)
        for part in rest:
            value = getattr(value, part)
        return value

    def pin(self, name: str, value: object) -> None:
        """Sets a name for good: its statements will not run, and `reset` keeps it."""
        self.pins[name] = value
        dict.__setitem__(self.globals, name, value)

    def note(self, text: str) -> None:
        """Remembers once that something was replaced or skipped."""
        if text not in self.skipped:
            self.skipped.append(text)

    def reset(self) -> None:
        """Forgets values computed by assignments, so that the next run computes fresh ones.

        Functions, classes, modules and pinned names stay: objects made from them stay comparable.
        """
        gone: set[str] = set()
        for step in self.steps:
            if step.index in self.done and step.index not in self.outline.lasting:
                self.done.discard(step.index)
                gone |= step.binds - self.pins.keys()
        for name in gone:
            self.globals.pop(name, None)
            self.failed.pop(name, None)
            self.done.difference_update(step.index for step in self.binding[name])  # an import that it was made of
        kept = {*self.binding, *self.pins, *vars(builtins)}
        for name in [name for name in self.globals if name not in kept]:
            if not name.startswith("__") and not isinstance(self.globals[name], _LASTING_VALUES):
                del self.globals[name]

    # Computing

    def compute(self, name: str) -> Any:
        """Called when code reads a name that has no value yet. KeyError lets Python look at the builtins."""
        if name.startswith("__") and name.endswith("__") and name not in self.binding:
            raise KeyError(name)
        if name in self.binding:
            self._need(name, self.running[-1] if self.running else len(self.steps))
        if name not in self.globals:
            own = dict.__getitem__(self.globals, "__builtins__")
            if name in own:
                dict.__setitem__(self.globals, name, own[name])  # found faster the next time
            else:
                try:
                    self._need_star(name)
                except KeyError:
                    return unbound.value(self, name)
        return dict.__getitem__(self.globals, name)

    def _need(self, name: str, before: int) -> None:
        """Runs, in order, the statements before index `before` that bind or prepare `name`."""
        binding = self.binding[name]
        now = [step for step in binding if not step.main and step.index < before]
        now = now or [step for step in binding if not step.main] or binding
        first = now[0].index
        imported = all(isinstance(step.node, _DEFINITIONS) for step in now)
        touching = () if imported else self.touching.get(name, ())
        more = [item for item in touching if first < item.index < before and item.main <= now[0].main]
        for step in sorted([*now, *more], key=lambda step: step.index):
            if step.index in self.done or (step.binds and step.binds <= self.pins.keys()):
                continue
            if not (is_for_checkers(step.node, name) and self._need_part(name, [step])):
                self.run_step(step)
        if name not in self.globals:
            self._need_part(name, now)
        if any(step.index not in self.done and step.index >= before for step in binding):
            self.partial.add(name)

    def _complete(self) -> None:
        """Brings names that were computed as of some statement up to date, unless that means real work."""
        while self.partial:
            name = self.partial.pop()
            rest = [step for step in self.binding[name] if step.index not in self.done and not step.main]
            if not any(self._works(step.node) for step in rest):
                self._need(name, len(self.steps))

    def _works(self, node: ast.stmt) -> bool:
        """Whether a statement loops, or calls a function of the file."""
        if isinstance(node, (ast.For, ast.While, ast.With)):
            return True
        calls = [item.func for item in walk(node) if isinstance(item, ast.Call)]
        return any(isinstance(item, ast.Name) and item.id in self.binding for item in calls)

    def _need_part(self, name: str, binding: list[Step]) -> bool:
        """A block does not bind the name when it runs (`if TYPE_CHECKING:`): run the one import in it that does."""
        for step in binding:
            for item in walk(step.node):
                if isinstance(item, (ast.Import, ast.ImportFrom)) and item is not step.node and name in bound(item):
                    with self.busy(step.index):
                        self.execute([item])
                    return True
        return False

    def run_step(self, step: Step) -> None:
        """Runs one top-level statement. If it raises, the names that it binds become placeholders."""
        if is_star(step.node):
            self.done.add(step.index)
            return  # names of star imports are looked up one by one
        with self._doing(step):
            if self.patches and isinstance(step.node, ast.FunctionDef):
                self._patch()
            with self.busy(step.index):
                self._prepare(step.node)
                try:
                    self._execute_step(step)
                except (Exception, SystemExit) as error:
                    if not self.fall_back(step, error) and not self._without_decorators(step.node, error):
                        self._replace(step, error)

    @contextlib.contextmanager
    def _doing(self, step: Step) -> Iterator[None]:
        """While a statement runs, it counts as done; if it is interrupted, it is not."""
        self.done.add(step.index)
        try:
            yield
        except BaseException:
            self.done.discard(step.index)
            raise

    def _patch(self) -> None:
        """What the file changes in other modules is there before one of its functions runs."""
        for step in self.patches:
            if step.index not in self.done:
                self.run_step(step)
        self.patches = []

    def _without_decorators(self, node: ast.stmt, error: BaseException) -> bool:
        """Makes a definition once more, without its decorators. False if it has none, or that fails too."""
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or not node.decorator_list:
            return False
        bare = copy.copy(node)
        bare.decorator_list = []
        try:
            self.execute([bare])
        except (Exception, SystemExit):
            return False
        self.note(f"the decorators of `{node.name}` were left out ({type(error).__name__}: {error})")
        return True

    def run_strictly(self, step: Step) -> None:
        """Runs one top-level statement and raises what it raises."""
        with self._doing(step), self.busy(step.index):
            self._prepare(step.node)
            try:
                self._execute_step(step)
            except Exception as error:
                if not self.fall_back(step, error):
                    raise

    def fall_back(self, step: Step, error: BaseException) -> bool:
        """Gives the names of a failed statement stand-ins; False if one of them has none."""
        if self.fallback is None or not step.binds or lasts(step.node):
            return False
        values = {name: self.fallback(name) for name in step.binds}
        if any(value is None for value in values.values()):
            return False
        for name, value in values.items():
            dict.__setitem__(self.globals, name, value)
        names = ", ".join(f"`{name}`" for name in sorted(values))
        self.note(f"{names} of line {step.node.lineno} is made up ({type(error).__name__}: {error})")
        return True

    def execute(self, nodes: list[ast.stmt]) -> None:
        """Runs statements in this namespace, keeping file name and lines. Raises what they raise."""
        tree = ast.Module(body=nodes if self.adjust is None else [*map(self.adjust, nodes)], type_ignores=[])
        self._run(compile(tree, self.path, "exec", flags=self.flags, dont_inherit=True), nodes)

    def _execute_step(self, step: Step) -> None:
        if self.adjust is not None:
            self.execute([step.node])
            return
        self._run(self.outline.code(step, self.path), [step.node])

    def _run(self, code: types.CodeType, nodes: list[ast.stmt]) -> None:
        before = placeholder.module_like
        placeholder.module_like = any(looks_like_module(node) for node in nodes)
        try:
            exec(code, self.globals)
        finally:
            placeholder.module_like = before

    def busy(self, index: int) -> Busy:
        """While it lasts, names are computed as of the statement with this index."""
        return Busy(self, index)

    def _prepare(self, node: ast.stmt) -> None:
        """Class bodies read globals behind our back, and names may have an older value: compute them first."""
        for name in sorted(read(node, deep=False) & self.partial):
            self._need(name, self.running[-1])
        if read(node, deep=False) & LOOKS:
            self._all_before(self.running[-1])
        for name in sorted(class_body_reads(node)):
            if name in self.globals or (name in vars(builtins) and name not in self.binding):
                continue
            try:
                self.compute(name)
            except KeyError:
                continue

    def _all_before(self, index: int) -> None:
        """Computes the values above a statement that looks through all names."""
        for step in self.steps[:index]:
            if isinstance(step.node, (ast.Assign, ast.AnnAssign)) and not step.main and not self._works(step.node):
                for name in sorted(step.binds - self.globals.keys()):
                    with contextlib.suppress(KeyError):
                        self.compute(name)

    def _replace(self, step: Step, error: BaseException) -> None:
        reason = str(error) if isinstance(error, MissingError) else f"{type(error).__name__}: {error}"
        text = f"line {step.node.lineno} of {self.path.rpartition('/')[2]} could not run ({reason})"
        self.note(text)
        for name in step.binds:
            self.failed[name] = error
            if name not in self.globals:
                dict.__setitem__(self.globals, name, Missing(name, text))

    def _need_star(self, name: str) -> None:
        """Binds a name from the first star import that has it. KeyError if none does."""
        for node in self._find_stars(name) if self._star_with(name) is not None else ():
            if (name, node) in self._asked:
                continue  # the module itself asks for the name here: another star import has it
            self._asked.add((name, node))
            try:
                dict.__setitem__(self.globals, name, getattr(self._star_module(node), name))
                return
            except (KeyError, AttributeError):
                continue
            finally:
                self._asked.discard((name, node))
        raise KeyError(name)

    def _star_with(self, name: str) -> ast.ImportFrom | None:
        if name.startswith("_"):
            return None
        if name not in self._from_star:
            self._from_star[name] = None  # star imports may go in circles
            try:
                self._from_star[name] = next(self._find_stars(name), None)
            except BaseException:
                del self._from_star[name]
                raise
        return self._from_star[name]

    def _find_stars(self, name: str) -> Iterator[ast.ImportFrom]:
        for node in reversed(self.stars):
            if not self.loader.may_bind(name, node.module or "", self, node.level):
                continue
            module = self._star_module(node)
            if isinstance(module, ModuleProxy):
                space = object.__getattribute__(module, "_space")
                if space is not None and space.has(name):
                    yield node
            elif not isinstance(module, Missing) and module is not None and name in set(star_names(module)):
                yield node

    def _star_module(self, node: ast.ImportFrom) -> Any:
        import_ = self.globals["__builtins__"]["__import__"]
        try:
            return import_(node.module or "", self.globals, None, ("*",), node.level)
        except Exception as error:
            self.note(f"`from {node.module} import *` failed ({type(error).__name__}: {error})")
            return None


_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)
_LASTING_VALUES = (types.FunctionType, types.ModuleType, type, Missing)


def _namespace(text: str, path: str, loader: Loader) -> Namespace:
    return Namespace(text, path, loader=loader)


class Busy:
    """Context in which a statement of a namespace runs."""

    def __init__(self, space: Namespace, index: int) -> None:
        self.space, self.index = space, index

    def __enter__(self) -> None:
        self.space.running.append(self.index)

    def __exit__(self, *details: object) -> None:
        self.space.running.pop()


__all__ = ["Globals", "Namespace", "Target", "target_at"]
