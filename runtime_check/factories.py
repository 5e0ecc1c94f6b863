"""The user's factories of `[tool.torchlint.confirm.factories]`, and marked functions: what they are for, and whether
they are there.

Nothing is run here. What a factory is to make is an error if the factory is missing, since nothing could be made;
a name of something to make that fits nothing is a warning, since the code may be elsewhere.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runtime_check.nearby import is_module, project_files
from runtime_check.statements import bound
from torchlint.config import Options, did_you_mean
from torchlint.discover import discover
from torchlint.files import show

TABLE = "tool.torchlint.confirm.factories"
MARK = "example_for"
MOST_FILES = 3000  # of a project, that are looked through for marked functions


class FactoryError(RuntimeError):
    """A factory that cannot be used; one line."""


def factories_of(options: Options) -> tuple[tuple[str, str], ...]:
    """The factories with absolute paths. FactoryError for one that is not there."""
    found = []
    for name, place in options.factories:
        path, _, function = place.rpartition(":")
        file = os.path.abspath(os.path.join(options.base, path))
        if not os.path.isfile(file):
            raise FactoryError(f"{options.file}: {TABLE}: there is no file {path}")
        names = names_in(file)
        if names is not None and function not in names:
            near = did_you_mean(function, names)
            raise FactoryError(f"{options.file}: {TABLE}: {path} defines no {function}{near}")
        found.append((name, f"{file}:{function}"))
    return tuple(found)


def names_in(file: str) -> set[str] | None:
    """The names that a file binds at its top level; None if that cannot be said."""
    tree = parsed(file)
    if tree is None or any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return None
    return bound(tree)


def parsed(file: str, word: bytes = b"") -> ast.Module | None:
    """The tree of a file that has a word in it, or None."""
    try:
        with open(file, "rb") as stream:
            text = stream.read()
            return ast.parse(text) if word in text else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Tried:
    """Code that a run tried to reach: its file, its name (`Net.forward`), and whether it came there."""

    path: str
    name: str
    reached: bool


def useless(options: Options, tried: Sequence[Tried] = ()) -> Iterator[str]:
    """A line for each factory of something that is not there, or that is for other code than what was not reached."""
    files = [found.path for found in discover([options.base]).files] if options.factories else []
    for name, _ in options.factories:
        module, _, made = name.partition(":")
        here = next((path for path in [*(one.path for one in tried), *files] if is_module(path, module)), None)
        why = unfit(made, here) or misplaced(made, here, tried) if here else f"there is no module {module}"
        if why:
            yield f"{options.file}: {TABLE}: {name!r} is not used: {why}"


def useless_marks(paths: Iterable[str], given: Sequence[str] = ()) -> Iterator[str]:
    """A line for each function that is marked as an example for something that is not there, in projects of files."""
    files: dict[str, None] = {}
    for place in dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths):
        if not any(os.path.dirname(file) == place for file in files):
            files |= dict.fromkeys(itertools.islice(project_files(os.path.join(place, "_"), given), MOST_FILES))
    for path in files:
        tree = parsed(path, MARK.encode())
        for node in ast.walk(tree) if tree is not None else ():
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                why = missing(name, files) if (name := said(decorator)) else ""
                if why:
                    yield f"{show(path)}:{decorator.lineno}: {MARK}({name!r}) is not used: {why}"


def missing(name: str, files: Iterable[str]) -> str:
    """Why a name as "pkg.mod:Net" is that of nothing in some files or an installed package; "" if it may be there."""
    module, _, made = name.partition(":")
    here = next((one for one in files if is_module(one, module)), None)
    if not made or (here is None and elsewhere(module)):
        return ""
    return unfit(made, here) if here else f"there is no module {module}"


def said(decorator: ast.expr) -> str:
    """The name, as "pkg.mod:Net", of what a decorator marks a function as an example for; "" if it says none so."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr=word) | ast.Name(id=word), args=[ast.Constant(value=str() as name)]):
            return name if word == MARK else ""
    return ""


def elsewhere(module: str) -> bool:
    """Whether a module is an installed one. It is not imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def unfit(made: str, path: str) -> str:
    """Why there is nothing of this name to make in a file; "" if there is, or if it cannot be said."""
    known = names_in(path)
    first = made.partition(".")[0]
    return f"{show(path)} defines no {first}{did_you_mean(first, known)}" if known and first not in known else ""


def misplaced(made: str, path: str, tried: Sequence[Tried]) -> str:
    """What of a file was not reached, if a factory for it is for something else; "" if it was of use, or not needed."""
    here = [one for one in tried if os.path.realpath(one.path) == os.path.realpath(path)]
    if any(f"{one.name}.".startswith(f"{made}.") for one in here):
        return ""
    missed = sorted({one.name for one in here if not one.reached and one.name})
    return f"no finding is in {made}; what was not reached is in {', '.join(missed[:3])}" if missed else ""
