"""What the findings in a file depend on besides its own text: the other files that were looked at.

Every look-up of a module is noted at the file it is made for. Following these notes from a file gives all
files that an answer about it may rest on, and all places where a new file would change one.
"""
from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from torchlint.files import Source, UnreadableFile, read_source
from torchlint.project import FileIndex, Project, module_name, neighbours

BESIDE = "*"  # stands for all files of the folder, in place of a dotted name


@dataclass(frozen=True)
class Consulted:
    """Look-ups by folder (dotted name -> path, "" where nothing was found), and what the files held."""

    lookups: dict[str, dict[str, str]]
    files: dict[str, str]  # path -> state


def consulted(project: Project, source: Source) -> Consulted | None:
    """What was consulted for the findings in `source`, which has just been checked; None if it was not parsed."""
    start = project.indexed(source.path)
    if start is None or start.source is not source:
        return None
    lookups: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    waiting = [start]
    seen = set(waiting)
    while waiting:
        index = waiting.pop()
        asked = lookups.setdefault(str(index.folder), {})
        if index.looked_beside:
            texts = neighbours(index.folder)
            asked[BESIDE] = names_of(texts)
            files.update((str(path), read_state(str(path))) for path in texts)
        for dotted, path in index.asked.items():
            asked[dotted] = str(path or "")
            if path is None or str(path) in files:
                continue
            found = project.file(path)
            files[str(path)] = read_state(str(path)) if found is None else state(found)
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)
    return Consulted(lookups, files)


def state(index: FileIndex) -> str:
    """A short name for everything that an index rests on: the text, and the package that its path stands for."""
    return _digest(index.source.text, index.name, index.package)


def read_state(path: str) -> str:
    """What `state` says of the file at `path`, as it is now; "" if it cannot be read."""
    try:
        return _digest(read_source(path).text, *module_name(path))
    except UnreadableFile:
        return ""


def _digest(text: str, name: str, package: str) -> str:
    parts = "\0".join((name, package, text)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(parts, digest_size=12).hexdigest()


def names_of(paths: list[Path]) -> str:
    """The names of files as one text."""
    return "/".join(path.name for path in paths)


class Present:
    """The files as they are in this run; what was consulted in an earlier one is compared with them."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._states: dict[str, str] = {}

    def same(self, then: Consulted) -> bool:
        """Whether everything that was consulted is as it was."""
        for folder, asked in then.lookups.items():
            base = Path(folder)
            for dotted, path in asked.items():
                now = names_of(neighbours(base)) if dotted == BESIDE else str(self.project.locate(dotted, base) or "")
                if now != path:
                    return False
        return all(self.state(path) == was for path, was in then.files.items())

    def state(self, path: str) -> str:
        """What `read_state` says, each file read once."""
        if path not in self._states:
            self._states[path] = read_state(path)
        return self._states[path]
