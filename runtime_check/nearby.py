"""The files of a project: below the folder with its project file, or where no such file is, in the folders given.

torch is not needed, so that whoever keeps verdicts sees the same files as whoever runs the code.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
LEVELS = 5  # how far above a file its project is looked for
FOLDERS = 100  # that are looked through where nothing says where the project ends
SKIPPED = {"node_modules", "site-packages", "build", "dist", "venv", "env", "__pycache__"}


def project_root(folder: Path) -> Path | None:
    """The folder of the project that a folder is in, or None."""
    near = [folder, *folder.parents][:LEVELS]
    return next((place for place in near if any((place / item).exists() for item in MARKERS)), None)


def places(path: str, given: Iterable[str] = ()) -> tuple[str, ...]:
    """The folders in which a run looks for files of the project: around a file, and those given."""
    folder = Path(os.path.abspath(path)).parent
    package = folder
    while (package / "__init__.py").is_file() and package.parent != package:
        package = package.parent
    found = (project_root(folder) or folder, package, folder.parent, *map(os.path.abspath, given))
    return tuple(dict.fromkeys(map(str, found)))


def project_files(path: str, given: Iterable[str] = ()) -> Iterator[str]:
    """Python files of the project around a path; without a project those beside it and in `given` folders."""
    folder = Path(path).parent
    if not folder.is_dir():
        return
    root = project_root(folder)
    if root is None:
        beside = [str(item) for item in sorted(folder.glob("*.py")) if item.is_file()]
        yield from dict.fromkeys([*beside, *(file for top in given for file in below(top))])
        return
    for top, folders, names in os.walk(root):
        folders[:] = sorted(item for item in folders if not skipped(item))
        listed = (os.path.join(top, item) for item in sorted(names) if item.endswith(".py"))
        yield from (file for file in listed if os.path.isfile(file))  # a pipe would be waited for


def below(top: str) -> Iterator[str]:
    """Python files in a folder and below it, the nearest first; of a large tree not all."""
    waiting = collections.deque([top])
    for _ in range(FOLDERS):
        if not waiting:
            return
        folder = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        yield from (entry.path for entry in listed if entry.name.endswith(".py") and entry.is_file())
        waiting += [entry.path for entry in listed if entry.is_dir(follow_symlinks=False) and not skipped(entry.name)]


def skipped(name: str) -> bool:
    """Whether a folder of this name holds no code of a project."""
    return name in SKIPPED or name.startswith(".")


def is_module(path: str, module: str) -> bool:
    """Whether a file is the module `pkg.net`, as seen from some folder above it."""
    place = os.sep + module.replace(".", os.sep)
    return os.path.abspath(path).endswith((f"{place}.py", f"{place}{os.sep}__init__.py"))


def dotted(path: str) -> str:
    """The module name of a file: relative to the innermost folder that is no package."""
    file = Path(os.path.abspath(path))
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or file.stem
