"""Which torch a project is for: what its configuration says, or the newest and oldest that its requirements allow."""
from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

FILES = ("requirements.txt", "pyproject.toml", "setup.cfg", "setup.py", "environment.yml", "environment.yaml")
MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
LEVELS = 8  # folders looked at above a file
# `torch==1.13.1`, `"torch>=1.8,<2"`, `torch = "^1.13"`, `- pytorch=1.13`, but not `torch = None` or `torchvision`.
LINE = re.compile(
    r"""^[\s"'\-\[(,]*(?:torch|pytorch)["']?(?:\[[^\]]*\])?\s*((?:=\s*["'])?[\^~<>=!\d][^"'#;\n]*)""", re.M)
QUOTED = re.compile(r"""["'](?:torch|pytorch)(?:\[[^\]]*\])?\s*([\^~<>=!]=?\s*\d[^"';\n]*)""")  # inside a list
SCRIPT = re.compile(r"^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", re.M)
PART = re.compile(r"(\^|~=|===|==|=|<=|<|>=|>|!=)?\s*(\d+(?:\.\d+)*)")


class Configured:
    """What the configuration says of torch; one for each project."""

    torch_version = ""


def newest_torch(folder: Path) -> str:
    """A version such as "1.13": the newest that the requirements nearest to a folder allow; "" if they leave it open.

    Only what a project says itself counts: the search ends at the folder that holds its metadata.
    """
    return _nearest(folder, newest_in)


def oldest_torch(folder: Path) -> str:
    """A version such as "2.1": the oldest that the requirements nearest to a folder allow; "" if they leave it open."""
    return _nearest(folder, oldest_in)


def inline(text: str) -> str:
    """What the source of a script says of its own requirements, in a comment between `# /// script` and `# ///`."""
    match = SCRIPT.search(text)
    return match[1] if match is not None else ""


@functools.lru_cache(maxsize=8192)
def _nearest(folder: Path, read: Callable[[str], str], level: int = 0) -> str:
    for name in FILES:
        file = folder / name
        if file.is_file():
            found = read(_text(file))
            if found:
                return found
    if level == LEVELS or folder == folder.parent or any((folder / marker).exists() for marker in MARKERS):
        return ""
    return _nearest(folder.parent, read, level + 1)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def newest_in(text: str) -> str:
    """The newest torch that a requirements text allows; "" if it has no upper bound."""
    return min((limit for specification in _specifications(text) for limit in _limits(specification)),
               key=_numbers, default="")


def oldest_in(text: str) -> str:
    """The oldest torch that a requirements text allows; "" if it has no lower bound."""
    bounds = [[version for operator, version in PART.findall(one) if operator not in ("<", "<=", "!=")]
              for one in _specifications(text)]
    return min((max(each, key=_numbers) for each in bounds if each), key=_numbers, default="")


def _specifications(text: str) -> list[str]:
    """What a requirements text says of torch's version, such as `>=1.8,<2`, once for each place."""
    matches = [*LINE.finditer(text), *QUOTED.finditer(text)]
    return [re.sub(r"""^=\s*["']""", "", match[1]) for match in matches]


def _limits(specification: str) -> list[str]:
    """The upper bounds in a specification, as the newest minor release below each."""
    found = []
    for operator, version in PART.findall(specification):
        major, minor = (*_numbers(version), 0, 0)[:2]
        parts = version.count(".") + 1
        if operator in ("", "=", "==", "===", "<=") or (operator == "~=" and parts > 2):
            found.append(f"{major}.{minor}" if parts > 1 or operator == "<=" else f"{major}.99")
        elif operator in ("^", "~="):
            found.append(f"{major}.99")
        elif operator == "<":
            patch = parts > 2 and _numbers(version)[2] > 0
            found.append(f"{major}.{minor}" if patch else f"{major}.{minor - 1}" if minor else f"{major - 1}.99")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
