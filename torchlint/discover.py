"""Which files a run looks at: arguments, the directories below them, what git and the config ignore."""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from torchlint.files import show
from torchlint.results import Problem

# fmt: off
SKIPPED = frozenset((
    ".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox",
    ".pants.d", ".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".torchlint_cache",
    ".tox", ".venv", ".vscode", "__pycache__", "__pypackages__", "_build", "buck-out",
    "node_modules", "site-packages", "venv",
))
# fmt: on
OUTPUT = frozenset({"build", "dist"})  # skipped unless they are packages


@dataclass(frozen=True)
class Found:
    """A file to look at: where it is, what reports call it, and whether an argument names it."""

    path: str
    shown: str
    named: bool = False


@dataclass(frozen=True)
class Discovery:
    """Files in a fixed order, and one line for each argument or directory that cannot be used."""

    files: tuple[Found, ...]
    errors: tuple[Problem, ...]


@dataclass(frozen=True)
class Layer:
    """Ignore rules that hold below the directory `base`."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str, directory: bool = False) -> bool | None:
        """True if `path` is ignored, False if a `!` pattern keeps it, None if no pattern matches."""
        prefix = self.base.rstrip(os.sep) + os.sep
        if not path.startswith(prefix):
            return None
        relative = path[len(prefix) :].replace(os.sep, "/") + ("/" if directory else "")
        return self.spec.check_file(relative).include


def discover(paths: Iterable[str], exclude: Sequence[str] = (), base: str = ".", *, force: bool = False) -> Discovery:
    """The Python files that `paths` name or contain, each once, sorted by argument and then by name.

    `exclude` are gitignore patterns relative to `base`. A file that is named is in the result in any case, but
    with `force` not if it is excluded; so is what lies in a named directory, even where rules from above it would
    ignore it. Links to directories are not followed below an argument, so that a loop of links cannot hold the walk.
    """
    above = [Layer(os.path.abspath(base), patterns(exclude))] if exclude else []
    files: dict[str, Found] = {}
    errors: list[Problem] = []
    for path in paths:
        if force and excluded(os.path.join(path, "any") if os.path.isdir(path) else path, exclude, base):
            continue
        if os.path.isdir(path):
            for file in _below(os.path.abspath(path), above, errors):
                files.setdefault(os.path.realpath(file), Found(file, show(file)))
        elif os.path.lexists(path):
            file = os.path.abspath(path)
            files[os.path.realpath(file)] = Found(file, show(file), named=True)
        else:
            errors.append(Problem("no such file or directory", path))
    return Discovery(tuple(files.values()), tuple(errors))


def excluded(path: str, exclude: Sequence[str], base: str = ".") -> bool:
    """Whether `exclude`, gitignore patterns relative to `base`, hold for a file, or a directory that it is in."""
    if not exclude:
        return False
    layer = Layer(os.path.abspath(base), patterns(exclude))
    path = os.path.abspath(path)
    folders = Path(path).parents
    return bool(layer.verdict(path)) or any(layer.verdict(str(folder), directory=True) for folder in folders)


def _below(top: str, exclude: list[Layer], errors: list[Problem]) -> Iterator[str]:
    """Python files below the directory `top`, with an explicit stack: depth is no limit."""
    layers = [layer for layer in (*exclude, *_outer_layers(top)) if not layer.verdict(top, directory=True)]
    stack: list[tuple[str, list[Layer]]] = [(top, layers)]
    while stack:
        folder, layers = stack.pop()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            errors.append(Problem(f"cannot be listed: {error.strerror}", show(folder)))
            continue
        if any(entry.name == ".gitignore" for entry in listed):
            layers = [*layers, *_gitignore(folder)]
        deeper = []
        for entry in listed:
            match _kind(entry):
                case "file" if not _ignored(entry.path, layers):
                    yield entry.path
                case "directory" if not _ignored(entry.path, layers, directory=True):
                    deeper.append((entry.path, layers))
        stack.extend(reversed(deeper))


def _kind(entry: os.DirEntry[str]) -> str:
    """`file` for a Python file, `directory` for one to walk into, "" for all else."""
    try:
        if entry.name.endswith(".py") and entry.is_file():
            return "file"
        if entry.is_dir(follow_symlinks=False) and not _skipped(entry):
            return "directory"
    except OSError:  # a link to itself
        pass
    return ""


def _skipped(entry: os.DirEntry[str]) -> bool:
    """Whether a directory is one that no project keeps its own code in."""
    if entry.name in SKIPPED or os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
        return True
    return entry.name in OUTPUT and not os.path.exists(os.path.join(entry.path, "__init__.py"))


def _ignored(path: str, layers: list[Layer], directory: bool = False) -> bool:
    """The nearest rules that say anything about `path` decide, as in git."""
    for layer in reversed(layers):
        verdict = layer.verdict(path, directory)
        if verdict is not None:
            return verdict
    return False


def _outer_layers(top: str) -> list[Layer]:
    """The .gitignore files above `top`, outermost first, up to the root of its git repository."""
    if os.path.exists(os.path.join(top, ".git")):
        return []
    found: list[Layer] = []
    for folder in Path(top).parents:
        found[:0] = _gitignore(str(folder))
        if (folder / ".git").exists():
            return found
    return []


def _gitignore(folder: str) -> list[Layer]:
    """The rules of the .gitignore in `folder`; none if there is no readable one."""
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="surrogateescape") as stream:
            return [Layer(folder, patterns(stream.read().splitlines()))]
    except OSError:
        return []


def patterns(lines: Sequence[str]) -> GitIgnoreSpec:
    """Compiled gitignore patterns; a line that is no pattern is passed over, as git does."""
    try:
        return _compile(lines)
    except ValueError:
        return _compile([line for line in lines if is_pattern(line)])


def is_pattern(line: str) -> bool:
    """Whether `line` is a valid gitignore pattern."""
    try:
        _compile([line])
    except ValueError:
        return False
    return True


def _compile(lines: Sequence[str]) -> GitIgnoreSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `re` warns of brackets that git reads without fuss
        return GitIgnoreSpec.from_lines(lines)
