"""Writing a file so that it holds either the old bytes or the new ones, never a part."""
from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the bytes of `path`; a link stays a link, the mode stays what it was.

    A device or pipe, which cannot be replaced, is written to. OSError if it cannot be done; then a
    regular file is as it was.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | (0o666 & ~_umask())
    if not stat.S_ISREG(mode):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    with signals_later():
        _replace(target, data, mode)


def _replace(target: str, data: bytes, mode: int) -> None:
    """Write the bytes beside the file, then put them in its place."""
    handle, scratch = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(scratch, stat.S_IMODE(mode))
        os.replace(scratch, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def _umask() -> int:
    """The umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def signals_later() -> Iterator[list[int]]:
    """Hold back, until the block is left, the signals that would end it; gives those that have come."""
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    mine = {number: old for number, old in before.items() if old is not None and old is not signal.SIG_IGN}
    try:
        for number in mine:
            signal.signal(number, lambda came, frame: held.append(came))
        yield held
    finally:
        for number, old in mine.items():
            signal.signal(number, old)
        for number in dict.fromkeys(held):
            signal.raise_signal(number)
