"""The edge: the only module that writes to the terminal, to standard output and to the report file."""
from __future__ import annotations

import contextlib
import os
import sys
import time
from types import TracebackType
from typing import TextIO

import click

from torchlint import atomic


def put(content: str | bytes, file: str | None = None, *, err: bool = False) -> None:
    """Write `content` to `file`, or to standard output (standard error if `err`).

    Line ends are written as they are. A reader that has gone away is no error. ClickException if the
    file cannot be written.
    """
    if file is not None:
        data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        try:
            atomic.write(file, data)
        except OSError as error:
            raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from None
        return
    stream = sys.stderr if err else sys.stdout
    if isinstance(content, str):
        content = content.encode(stream.encoding or "utf-8", "backslashreplace")
    try:
        stream.flush()
        stream.buffer.write(content)
        stream.buffer.flush()
    except BrokenPipeError:
        _silence(stream)


def say(kind: str, *lines: str) -> None:
    """Write lines such as `torchlint: error: ...` to standard error."""
    put("".join(f"torchlint: {kind}: {line}\n" for line in lines), err=True)


def fail(message: str) -> int:
    """Say what kept the job from being done; the exit status for that."""
    say("error", " ".join(message.split()))
    return 2


def _silence(stream: TextIO) -> None:
    """Send what is still to be written, at exit too, where nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def columns(stream: TextIO, default: int, most: int) -> int:
    """How wide lines may be: what COLUMNS says, else the width of the terminal up to `most`, else `default`."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    try:
        return min(os.get_terminal_size(stream.fileno()).columns, most)
    except (OSError, ValueError):
        return default


class Progress:
    """A line on a terminal that says how far a long run is; `with` takes it away at the end."""

    WAIT, EVERY = 0.5, 0.1  # seconds before the first line, and between two

    def __init__(self, *, off: bool = False) -> None:
        self._off = off or not sys.stderr.isatty()
        self._next = time.monotonic() + self.WAIT
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` files are checked."""
        if self._off or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.EVERY
        self._shown = True
        put(f"\r{done} of {total} files checked", err=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            put("\r\x1b[K", err=True)
