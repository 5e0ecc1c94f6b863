"""From bytes to `Source`: decoding as Python itself does.

Nothing here prints or knows of rules. Finding the files below a directory is `torchlint.discover`.
"""
from __future__ import annotations

import ast
import codecs
import io
import os
import re
import stat
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

STDIN = "<stdin>"
MAX_BYTES = 10_000_000  # larger files are data, not code; parsing one takes gigabytes

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class UnreadableFile(ValueError):
    """A file that cannot be turned into text; the message is one line without the path."""


@dataclass(frozen=True)
class Source:
    """The text of one file (or one buffer of an editor), and how to write it back.

    `path` is as reported: relative to the working directory with `/`, or a name such as `<stdin>`.
    `text` has the newlines of the file and no byte order mark.
    """

    path: str
    text: str
    encoding: str = "utf-8"  # what to encode with when writing back; "utf-8-sig" if there was a mark
    cell: int | None = None
    cells: tuple[int, ...] = ()  # of a notebook: how many lines come before each of its cells

    @cached_property
    def lines(self) -> tuple[str, ...]:
        r"""The physical lines with their ends; split where Python's tokenizer does: \r\n, \n, \r."""
        return tuple(_LINE.findall(self.text))

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises SyntaxError, ValueError (null bytes, lone surrogates), RecursionError or MemoryError.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in the user's file is not ours to report
            return ast.parse(self.text)

    @cached_property
    def newline(self) -> str:
        r"""The end of the first line, or "\n" when there is none."""
        first = self.lines[0] if self.lines else ""
        return first[len(first.rstrip("\r\n")) :] or "\n"

    def with_tree(self, tree: ast.Module) -> Source:
        """The same source, with a tree that somebody has parsed from it already."""
        copy = Source(self.path, self.text, self.encoding, self.cell, self.cells)
        copy.take(tree)
        return copy

    def take(self, tree: ast.Module) -> None:
        """Use a tree that somebody has parsed from the same text already."""
        self.__dict__["tree"] = tree

    def __reduce__(self) -> tuple[type[Source], tuple[str, str, str, int | None, tuple[int, ...]]]:
        """Pickled without lines and tree: they are dear to send and cheap to make."""
        return Source, (self.path, self.text, self.encoding, self.cell, self.cells)

    def lines_of(self, cell: int | None) -> tuple[str, ...]:
        """The lines of the source from a cell of the notebook on; all of them where there are no cells."""
        return self.lines if cell is None or not self.cells else self.lines[self.cells[cell - 1] :]

    def shows(self, line: int) -> bool:
        """Whether a notebook shows what an expression that ends on a line gives: nothing follows in its cell."""
        if not self.cells:
            return False
        end = next((first for first in self.cells if first >= line), len(self.lines))
        return not any(rest.partition("#")[0].strip() for rest in self.lines[line:end])

    def encode(self, text: str) -> bytes:
        """`text` as bytes of this file. UnicodeEncodeError if its encoding lacks a character."""
        return text.encode(self.encoding)


def decode(data: bytes, path: str) -> Source:
    """The source that `data` holds: byte order mark and PEP 263 cookie honoured, newlines kept.

    Raises UnreadableFile if the encoding is unknown or the bytes are not of that encoding.
    """
    encoding = _declared(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = 1 + len(_LINE_END.findall(data[: error.start]))
        byte = data[error.start]
        raise UnreadableFile(f"line {line}: byte 0x{byte:02x} is not valid {encoding}") from None
    except (LookupError, ValueError) as error:
        raise UnreadableFile(f"encoding {encoding!r} cannot be read: {_one_line(error)}") from None
    return Source(path, text, encoding)


def _declared(data: bytes) -> str:
    """The encoding that mark and cookie declare. UnreadableFile if there is none of that name."""
    start = b"\n".join(_LINE_END.split(data, 2)[:2])
    try:
        return tokenize.detect_encoding(io.BytesIO(start).readline)[0]
    except SyntaxError as error:
        if start.startswith(codecs.BOM_UTF8):
            raise UnreadableFile("a UTF-8 byte order mark and another encoding declared") from None
        if "unknown encoding" in str(error):
            raise UnreadableFile(str(error)) from None
        return "utf-8"  # the first lines are not UTF-8: decoding says where


def read_source(path: str | os.PathLike[str], shown: str | None = None) -> Source:
    """The source of a file on disk. Raises UnreadableFile with one clear line, and nothing else."""
    try:
        # Opening a pipe waits for a writer; one that a shell hands over, as in `<(command)`, has its own already.
        if stat.S_ISFIFO(os.stat(path).st_mode) and not os.fspath(path).startswith(("/dev/fd/", "/proc/")):
            raise UnreadableFile("cannot be read: a pipe, not a file")
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror or _one_line(error)}") from None
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"larger than {MAX_BYTES:,} bytes")
    return decode(data, show(path) if shown is None else shown)


def show(path: str | os.PathLike[str]) -> str:
    """`path` as reports show it: relative to the working directory, with `/` between the parts."""
    name = os.fspath(path)
    try:
        name = os.path.relpath(name)
    except ValueError:  # another drive on Windows
        name = os.path.abspath(name)
    return name.replace(os.sep, "/")


def mentions(text: str, words: Iterable[str]) -> bool:
    """Whether one of `words` occurs in `text`; no words at all mean yes."""
    words = tuple(words)
    return not words or any(word in text for word in words)


def _one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
