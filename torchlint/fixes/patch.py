"""Unified diffs that `git apply` and `patch` take."""
from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator

from torchlint.files import Source

_NO_NEWLINE = "\\ No newline at end of file\n"
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r",
            '"': '\\"', "\\": "\\\\"}


def diff(old: str, new: str, path: str) -> str:
    r"""The change from `old` to `new` as a unified diff, "" if there is none.

    Only "\n" ends a line here, as for git: a carriage return is part of its line. `path` is relative,
    with `/`; strange characters in it are quoted as git quotes them.
    """
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    hunks = itertools.islice(difflib.unified_diff(before, after), 2, None)  # without its two header lines
    header = f"--- {quoted('a', path)}\n+++ {quoted('b', path)}\n"
    return header + "".join(_ended(hunks))


def patch(source: Source, new: str) -> bytes:
    """The change of a source to `new`, in bytes that fit the file on disk: encoding and byte order mark."""
    marked = source.encoding == "utf-8-sig"
    mark = "\ufeff" if marked else ""
    text = diff(mark + source.text, mark + new, source.path)
    return text.encode("utf-8" if marked else source.encoding)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _ended(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if not line.endswith("\n"):
            yield "\n" + _NO_NEWLINE


def quoted(side: str, path: str) -> str:
    """A path in the header of a diff: a tab behind one with spaces, control characters in quotes."""
    name = f"{side}/{path.lstrip('/')}"
    if any(char < " " or char in '"\\\x7f' for char in name):
        return '"' + "".join(map(_escaped, name)) + '"'
    return name + "\t" if " " in name else name


def _escaped(char: str) -> str:
    return _ESCAPES.get(char) or (f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char)
