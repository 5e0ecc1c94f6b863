"""Imports of code under test: project files on demand, installed packages, placeholders for the rest."""
from __future__ import annotations

import builtins
import importlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime_check.nearby import MARKERS, dotted
from runtime_check.outline import decode
from runtime_check.outside import ALWAYS, known
from runtime_check.placeholder import Missing

if TYPE_CHECKING:
    from runtime_check.extract import Namespace

LEVELS = 6  # how far above a file its project is looked for
SIMILAR = {"regex": "re", "ujson": "json", "orjson": "json", "simplejson": "json"}
STDLIB = frozenset(sys.stdlib_module_names)


class ModuleProxy(types.ModuleType):
    """A project module whose names are computed when they are read."""

    def __init__(self, name: str, space: Namespace | None, loader: Loader, folder: str = "") -> None:
        super().__init__(name)
        put = object.__setattr__
        put(self, "_space", space)
        put(self, "_loader", loader)
        put(self, "_folder", folder)
        if folder:
            put(self, "__path__", [folder])
        if space is not None:
            put(self, "__file__", space.path)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The computed globals: `dataclasses` and `typing` look names up here."""
        space: Namespace | None = object.__getattribute__(self, "_space")
        return space.globals if space is not None else {}

    def __getattr__(self, name: str) -> Any:
        space: Namespace | None = object.__getattribute__(self, "_space")
        if space is not None and space.binds(name):
            try:
                return space.get(name)
            except KeyError:
                pass  # the package is importing this very submodule
        child = self._loader.child(self, name)
        if child is not None:
            return child
        if space is not None and space.has(name):
            return space.get(name)
        if space is not None and not name.startswith("__"):
            try:
                hook = space.get("__getattr__")  # PEP 562
            except KeyError:
                pass
            else:
                if callable(hook):
                    return hook(name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        space: Namespace | None = object.__getattribute__(self, "_space")
        if space is not None and not name.startswith("__"):
            space.pin(name, value)
        else:
            object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        space: Namespace | None = object.__getattribute__(self, "_space")
        return sorted(space.names()) if space is not None else []


def variables(*of: Any) -> Any:
    """The `vars` that code sees: of a module of the project every name, as if all of it had run."""
    if not of:
        return sys._getframe(1).f_locals
    if not isinstance(of[0], ModuleProxy):
        return vars(*of)
    found: dict[str, Any] = {}
    for name in dir(of[0]):
        try:
            found[name] = getattr(of[0], name)
        except Exception:  # a name that cannot be had; its own statement says so when it is read
            continue
    return found


class PartlyMissing(types.ModuleType):
    """An installed module that lacks some of the names a file imports from it."""

    def __init__(self, module: types.ModuleType, reason: str, names: Sequence[str]) -> None:
        super().__init__(module.__name__)
        self._real, self._reason, self._absent = module, reason, frozenset(names)

    def __getattr__(self, name: str) -> Any:
        real = object.__getattribute__(self, "__dict__").get("_real")
        if real is None:
            raise AttributeError(name)
        if name in self._absent and not hasattr(real, name):
            return Missing(f"{real.__name__}.{name}", self._reason)
        return getattr(real, name)


class Overlay(types.ModuleType):
    """An installed package of which some names are replaced, because they would read files or the network."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._real = module

    def __getattr__(self, name: str) -> Any:
        real = object.__getattribute__(self, "__dict__").get("_real")
        if real is None:
            raise AttributeError(name)
        dotted = f"{real.__name__}.{name}"
        if ALWAYS.match(dotted):
            return known(dotted)
        if not hasattr(real, name) and not _submodule(real.__name__, name):
            return Missing(dotted, f"`{real.__name__}` has no `{name}` in this environment")
        value = getattr(real, name)
        return Overlay(value) if isinstance(value, types.ModuleType) else value


class Loader:
    """Finds and keeps the project's modules. One per experiment: every experiment starts fresh."""

    def __init__(self, main: str, roots: Sequence[str],
                 make: Callable[[str, str, Loader], Namespace]) -> None:
        self.make = make
        self.main = os.path.abspath(main)
        self.loaded = {name for name, module in list(sys.modules.items()) if not isinstance(module, ModuleProxy)}
        FINDER.loader = self
        if FINDER not in sys.meta_path:
            sys.meta_path.insert(0, FINDER)
        self.spaces: dict[str, Namespace] = {}
        self.modules: dict[str, ModuleProxy] = {}
        self.texts: dict[str, str] = {}
        self.factories: tuple[tuple[str, str], ...] = ()  # of the user: what is made, path:function
        self.broken: set[str] = set()  # factories that failed
        self.given = tuple(map(os.path.abspath, roots))
        self.roots: list[str] = []
        self.only: dict[str, str] = {}  # roots that serve one top-level package alone: root -> package
        self._guess_roots()
        # Those of other files come last: several scripts may each have a `models.py` beside them.
        self.roots += [path for path in self.given if path not in self.roots]

    def _guess_roots(self) -> None:
        folder = Path(self.main).parent
        package = folder
        while (package / "__init__.py").is_file() and package.parent != package:
            package = package.parent
        if package != folder:
            top = Path(self.main).relative_to(package).parts[0]
            if package.name in ("site-packages", "dist-packages"):
                self.only[str(package)] = top
            self._add_root(package)
        else:
            self._add_root(folder)
        if package.name in ("site-packages", "dist-packages"):
            return
        above = [package, *package.parents][: LEVELS]
        for depth, place in enumerate(above):
            if any((place / marker).exists() for marker in MARKERS):
                for item in above[: depth + 1]:
                    self._add_root(item)
                self._add_root(place / "src")
                break

    def _add_root(self, folder: Path) -> None:
        if str(folder) not in self.roots and folder.is_dir():
            self.roots.append(str(folder))

    def space(self, path: str) -> Namespace:
        """The namespace of a project file; its text is read once. OSError, SyntaxError as they come."""
        path = os.path.abspath(path)
        if path not in self.spaces:
            text = Path(path).read_bytes()
            self.spaces[path] = self.make(decode(text), path, self)
        return self.spaces[path]

    def dotted(self, path: str) -> str:
        """The module name of a file: relative to the innermost folder that is no package."""
        return dotted(path)

    def package(self, path: str) -> str:
        """`__package__` of a file."""
        name = self.dotted(path)
        return name if Path(path).stem == "__init__" else name.rpartition(".")[0]

    def find(self, dotted: str) -> str | None:
        """File or folder of a project module; None where the project has none of this name."""
        top, *rest = dotted.split(".")
        for root in self.roots:
            if self.only.get(root, top) != top:
                continue
            place = locate(os.path.join(root, top), rest)
            if place:
                return place
        return None

    def may_bind(self, name: str, level_module: str, space: Namespace, level: int) -> bool:
        """False if a star import of a project module surely does not offer `name`: a look at the text alone."""
        place = self.place(level_module, space, level)
        if place is None:
            return True
        file = os.path.join(place, "__init__.py") if os.path.isdir(place) else place
        if file not in self.texts:
            try:
                self.texts[file] = Path(file).read_bytes().decode("utf-8", errors="replace")
            except OSError:
                self.texts[file] = ""
        text = self.texts[file]
        return name in text or "import *" in text

    def place(self, dotted: str, space: Namespace, level: int) -> str | None:
        """File or folder of a module as named in an import of `space`."""
        if level == 0:
            return self.find(dotted)
        folder = os.path.dirname(os.path.abspath(space.path))
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        return locate(folder, dotted.split(".") if dotted else [])

    def proxy(self, dotted: str, place: str) -> ModuleProxy | None:
        """The module object for a found place; None if its text cannot be read or parsed."""
        if dotted not in self.modules:
            space = None
            folder = place if os.path.isdir(place) else ""
            init = os.path.join(place, "__init__.py") if folder else place
            try:
                if not folder or os.path.isfile(init):
                    space = self.space(init)
            except (OSError, SyntaxError, ValueError, RecursionError):
                return None
            module = ModuleProxy(dotted, space, self, folder)
            self.modules[dotted] = module
            register(dotted, module)
        return self.modules[dotted]

    def child(self, module: ModuleProxy, name: str) -> ModuleProxy | None:
        """The submodule `name` of a package."""
        folder = object.__getattribute__(module, "_folder")
        place = locate(os.path.join(folder, name), []) if folder else None
        return self.proxy(f"{module.__name__}.{name}", place) if place else None

    def project_module(self, dotted: str, space: Namespace, level: int) -> ModuleProxy | None:
        """The project's module of this name as seen from a file, or None."""
        place = self.place(dotted, space, level)
        if level == 0 or place is None:
            return self.proxy(dotted, place) if place else None
        parts = space.package.split(".") if space.package else []
        parents = parts[: len(parts) - (level - 1)] if level > 1 else parts
        rest = dotted.split(".") if dotted else []
        return self.proxy(".".join([*parents, *rest]) or os.path.basename(place), place)


class ProjectFinder:
    """Lets `importlib.import_module` give the project's modules as `import` does, with names on demand."""

    loader: Loader | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A spec for a module that the project has."""
        top = name.partition(".")[0]
        if self.loader is None or top in self.loader.loaded or top in STDLIB:
            return None
        if top not in self.loader.modules and PathFinder.find_spec(top) is not None:
            return None  # installed
        place = self.loader.find(name)
        return ModuleSpec(name, self, is_package=os.path.isdir(place)) if place else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """The module whose names are computed on demand."""
        place = self.loader.find(spec.name) if self.loader is not None else None
        return self.loader.proxy(spec.name, place) if self.loader is not None and place else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: a name's statement runs when it is read."""


FINDER = ProjectFinder()


def locate(base: str, rest: Sequence[str]) -> str | None:
    """The file or package folder at `base` plus submodule names; a folder without `__init__.py` counts."""
    place = os.path.join(base, *rest)
    if os.path.isfile(os.path.join(place, "__init__.py")):
        return place
    if os.path.isfile(place + ".py"):
        return place + ".py"
    if os.path.isdir(place) and any(name.endswith(".py") or "." not in name for name in os.listdir(place)):
        return place
    return None


def register(name: str, module: types.ModuleType) -> None:
    """Makes a proxy known to pickle, dataclasses and typing, unless a real module has the name."""
    there = sys.modules.get(name)
    if (there is None and name.partition(".")[0] not in STDLIB) or isinstance(there, ModuleProxy):
        sys.modules[name] = module


def importer(space: Namespace) -> Callable[..., Any]:
    """The `__import__` that code of `space` sees."""
    loader = space.loader

    def import_(name: str, globals_: Any = None, locals_: Any = None, fromlist: Any = (),
                level: int = 0) -> Any:
        wanted = [item for item in fromlist or () if item != "*"]
        guarded = sys._getframe(1).f_lineno in space.guarded_lines
        if level or _is_project(loader, name, wanted):
            module = loader.project_module(name, space, level)
            if module is not None:
                return _project_import(loader, module, name, wanted, guarded, level)
            if level and guarded:
                raise ImportError(f"the project has no module {'.' * level}{name}")
            if level:
                return Missing(name or wanted[0], f"the project has no module `{'.' * level}{name}`")
        module = _real_import(name, wanted, bool(fromlist), guarded, space)
        folder = os.path.dirname(os.path.abspath(space.path))
        beside = locate(folder, [name]) if type(module) is Missing and "." not in name else None
        other = loader.proxy(name, beside) if beside else None  # a script may lie in the folder of a package
        return _project_import(loader, other, name, wanted, guarded, level) if other is not None else module

    return import_


def _is_project(loader: Loader, name: str, wanted: Sequence[str]) -> bool:
    """Whether an absolute import means a project file. A standard module wins unless it lacks the names."""
    top = name.partition(".")[0]
    if top in ("torch", "builtins"):
        return False
    if loader.find(name) is None:
        return False
    if top in STDLIB:
        try:
            real = builtins.__import__(name, fromlist=["x"])
        except ImportError:
            return True
        return bool(wanted) and not all(hasattr(real, item) for item in wanted)
    return True


def _project_import(loader: Loader, module: ModuleProxy, name: str, wanted: Sequence[str], guarded: bool,
                    level: int) -> Any:
    if not wanted and level == 0 and "." in name:
        top = name.partition(".")[0]
        place = loader.find(top)
        return (loader.proxy(top, place) if place else None) or module
    space: Namespace | None = object.__getattribute__(module, "_space")
    absent = [item for item in wanted if not _offers(module, space, item)]
    if absent and guarded:
        raise ImportError(f"cannot import name {absent[0]!r} from {module.__name__!r}")
    if absent:
        return PartlyMissing(module, f"`{module.__name__}` binds no name `{absent[0]}`", absent)
    return module


def _offers(module: ModuleProxy, space: Namespace | None, name: str) -> bool:
    if space is not None and (space.binds(name) or space.binds("__getattr__")):
        return True
    return module._loader.child(module, name) is not None or (space is not None and space.has(name))


def _real_import(name: str, wanted: Sequence[str], from_: bool, guarded: bool, space: Namespace) -> Any:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if guarded:
            raise
        if name in SIMILAR:
            return importlib.import_module(SIMILAR[name])
        return _placeholder(name, bool(from_), error, space)
    if name.partition(".")[0] == "torchvision":
        return Overlay(module if from_ else sys.modules["torchvision"])
    absent = [item for item in wanted if not hasattr(module, item) and not _submodule(name, item)]
    if absent and not guarded:
        space.note(f"`{name}` has no `{absent[0]}` in this environment")
        return PartlyMissing(module, f"`{name}` has no `{absent[0]}` in this environment", absent)
    return module if from_ else sys.modules[name.partition(".")[0]]


def _placeholder(name: str, from_: bool, error: Exception, space: Namespace) -> Any:
    top = name.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and name.startswith(error.name):
        reason = f"the package `{error.name}` is not installed"
    else:
        reason = f"importing `{name}` failed ({type(error).__name__}: {error})"
    space.note(reason)
    if from_:
        return Missing(name, reason)
    real = sys.modules.get(top)
    if real is not None and top != name:  # `import torch.absent`: the package itself is there
        rest = name.split(".")[1]
        return PartlyMissing(real, reason, [rest])
    return Missing(top, reason)


def _submodule(name: str, item: str) -> bool:
    try:
        importlib.import_module(f"{name}.{item}")
    except Exception:
        return False
    return True


def opener(path: str, note: Callable[[str], None]) -> Callable[..., Any]:
    """The `open` that code of a file sees. A file to read that is not here is looked for beside the code; a
    text that is nowhere is made up, and `note` is told."""
    folder = os.path.dirname(os.path.abspath(path))

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and "r" in mode and "+" not in mode and not os.path.exists(file):
            for place in (folder, os.path.dirname(folder)):
                other = os.path.join(place, file)
                if os.path.exists(other):
                    return open(other, mode, *args, **kwargs)
            if os.fspath(file).endswith(".txt") and "b" not in mode:
                note(f"`{os.fspath(file)}` does not exist; its text is made up")
                return io.StringIO("the quick brown fox jumps over the lazy dog and runs away\n" * 40)
        return open(file, mode, *args, **kwargs)

    return open_


def star_names(module: Any) -> Iterator[str]:
    """The names that `from module import *` would bind, without computing them."""
    if isinstance(module, ModuleProxy):
        space: Namespace | None = object.__getattribute__(module, "_space")
        names = space.names() if space is not None else set()
        yield from (name for name in names if not name.startswith("_"))
        return
    listed = getattr(module, "__all__", None)
    yield from listed if listed is not None else (name for name in vars(module) if not name.startswith("_"))
