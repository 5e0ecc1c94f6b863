"""Unified diffs that `git apply` and `patch` take."""
from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator

from torchlint.files import Source

_NO_NEWLINE = "\\ No newline at end of file\n"
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def diff(old: str, new: str, path: str) -> str:
    r"""The change from `old` to `new` as a unified diff, "" if there is none.

    Only "\n" ends a line here, as for git: a carriage return is part of its line. `path` is relative,
    with `/`; strange characters in it are quoted as git quotes them.
    """
    return _header(path) + _body(old, new) if old != new else ""


def patch(source: Source, new: str, path: str | None = None) -> bytes:
    """The change of a source to `new`, in bytes that fit the file on disk: encoding and byte order mark.

    `path` is what the header says, if that is not the path of the source.
    """
    if source.text == new:
        return b""
    marked = source.encoding == "utf-8-sig"
    mark = "\ufeff" if marked else ""
    body = _body(mark + source.text, mark + new)
    header = _header(source.path if path is None else path).encode("ascii")
    return header + body.encode("utf-8" if marked else source.encoding)


def patches(changes: Iterable[tuple[Source, str]]) -> tuple[bytes, str]:
    """The changes of several sources as one patch, and the directory to apply it in ("" for the current one).

    Git takes no path that leads upwards or through a link, so files have their real names, each once.
    """
    real: dict[str, tuple[Source, str]] = {}
    for source, new in changes:
        real.setdefault(os.path.realpath(source.path), (source, new))
    base = _base(list(real))
    told = {path: os.path.relpath(path, base).replace(os.sep, "/") if base else path for path in real}
    data = b"".join(patch(source, new, told[path]) for path, (source, new) in real.items())
    return data, "" if base == os.path.realpath(os.curdir) else base


def _base(paths: list[str]) -> str:
    """The directory above all files: the current one, else the root of the repository, else the nearest."""
    try:
        here = os.path.realpath(os.curdir)
        common = os.path.commonpath([here, *map(os.path.dirname, paths)])
        if common == here:
            return here
        folder = common
        while not os.path.exists(os.path.join(folder, ".git")):
            if folder == os.path.dirname(folder):
                return common
            folder = os.path.dirname(folder)
        return folder
    except ValueError:  # several drives on Windows
        return ""


def _header(path: str) -> str:
    return f"--- {quoted('a', path)}\n+++ {quoted('b', path)}\n"


def _body(old: str, new: str) -> str:
    hunks = difflib.unified_diff(_lines(old), _lines(new))
    return "".join(_ended(itertools.islice(hunks, 2, None)))  # without its two header lines


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _ended(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if not line.endswith("\n"):
            yield "\n" + _NO_NEWLINE


def quoted(side: str, path: str) -> str:
    """A path in the header of a diff, as git writes it: strange bytes in quotes, a tab behind one with spaces.

    The result is ASCII, whatever encoding the name has on disk.
    """
    name = f"{side}/{path.lstrip('/')}"
    data = os.fsencode(name)
    if any(byte in _ESCAPES or not 32 <= byte < 127 for byte in data):
        return '"' + "".join(map(_escaped, data)) + '"'
    return name + "\t" if " " in name else name


def _escaped(byte: int) -> str:
    return _ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
