"""Calls of the target in the project's other files and tests."""
from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime_check.driver import PER_LEVEL, Drive, Driver
from runtime_check.extract import Namespace
from runtime_check.nearby import project_files

FILES, READ = 2000, 6  # files looked at for the name; files whose calls are tried
LARGE = 200_000  # bytes; larger files are skipped


def called_elsewhere(space: Namespace, qualname: str, seed: int) -> Iterator[Drive]:
    """Drives that call the target as other files of the project do, tests first."""
    for driver, here in drivers_elsewhere(space, qualname, seed):
        found = itertools.chain(driver.through(here), driver.parametrized(here), driver.called(here))
        for drive in itertools.islice(found, PER_LEVEL):
            yield Drive(drive.label, drive.run, "caller" if drive.kind == "caller" else "call", drive.prepare)


def drivers_elsewhere(space: Namespace, qualname: str, seed: int) -> Iterator[tuple[Driver, str]]:
    """Drivers of other files that use the target, each with the name that it has there."""
    name = qualname.partition(".")[0]
    for path in itertools.islice(files_with(space, name), READ):
        try:
            other = space.loader.space(path)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        alias = alias_of(space, other, name)
        if not alias:
            continue
        driver = Driver(other, seed, foreign_class(space, name, alias), place_of(path, space.loader.roots))
        yield driver, qualname.replace(name, alias, 1)


def place_of(path: str, roots: Sequence[str]) -> str:
    """A file as seen from the outermost folder of the project: where this process works says nothing to a reader."""
    around = [root for root in roots if path.startswith(root + os.sep)]
    return os.path.relpath(path, min(around, key=len)) if around else os.path.basename(path)


def files_with(space: Namespace, name: str) -> Iterator[str]:
    """Project files other than the target's own whose text has the name; tests come first."""
    own = os.path.abspath(space.path)
    word = name.encode()
    listed = list(itertools.islice(project_files(own, space.loader.given), FILES))
    for path in sorted(listed, key=lambda item: ("test" not in item.lower(), len(item), item)):
        try:
            if path != own and os.path.getsize(path) < LARGE and word in Path(path).read_bytes():
                yield path
        except OSError:
            continue


def alias_of(space: Namespace, other: Namespace, name: str) -> str:
    """What another file calls the target: `Net`, `model.Net`; "" if it does not import it."""
    target = os.path.abspath(space.path)
    for node in ast.walk(other.tree):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                place = other.loader.place(module or "", other, level)
                for item in names:
                    if item.name == name and place and _leads_to(place, target):
                        return item.asname or name
                    inner = os.path.join(place, item.name + ".py") if place else ""
                    if inner == target:
                        return f"{item.asname or item.name}.{name}"
            case ast.Import(names=names):
                for item in names:
                    if other.loader.place(item.name, other, 0) == target:
                        return f"{item.asname or item.name}.{name}"
    return ""


def _leads_to(place: str, target: str) -> bool:
    """Whether a module is the target's file, or a package above it, which may hand its names on."""
    return place == target or (os.path.isdir(place) and target.startswith(place + os.sep))


def foreign_class(space: Namespace, name: str, alias: str) -> dict[str, ast.ClassDef]:
    """The class definition that an alias in another file stands for."""
    for step in space.binding.get(name, ()):
        if isinstance(step.node, ast.ClassDef):
            return {alias: step.node}
    return {}
