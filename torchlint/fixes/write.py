"""Write files so that each holds its old bytes or its new ones, whatever happens in between.

All new files are written beside the old ones first; only then are they put in their place, one rename
each. If a rename fails, or Python is interrupted, those already made are taken back. Signals that end
a program wait until all files are whole and no other name of them is left. Only a file that has several
names (hard links), or whose owner a new one could not have, is written to.
"""
from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

from torchlint.atomic import signals_later


@dataclass(frozen=True)
class Change:
    """New bytes for a file, and the bytes that it had when it was read."""

    path: str
    old: bytes
    new: bytes
    group: str = ""  # files of one group (but "") are of use only together: if one cannot be written, none is


@dataclass(frozen=True)
class Failure:
    """A file that was not written, and why in one sentence."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: not written: {self.why}"


class _Unfit(Exception):
    """A file that must be left alone; the message says why."""


@dataclass
class _Prepared:
    """A file whose new bytes lie ready."""

    change: Change
    target: str  # where links lead to
    fresh: str  # the new bytes, under a name of their own
    inode: tuple[int, int] = (0, 0)
    shared: bool = False  # whether the file has other names, or an owner that a new one could not have
    backup: str = ""  # a second name of the old file


def write_files(changes: Iterable[Change]) -> list[Failure]:
    """Write files, all or none. Returns the files that were left alone.

    A file that has changed since it was read, or that cannot be written, is left alone; the others are still
    written. If anything else goes wrong (disk full), all files are as they were and each is in the result. Links
    stay links, permissions and owner are kept. KeyboardInterrupt, and signals that end the program, leave all files
    old, or all new.
    """
    with signals_later() as held:
        return _write_files(list(changes), held)


def _write_files(changes: list[Change], held: list[int]) -> list[Failure]:
    """What `write_files` does; before the first rename it gives up as soon as a signal is in `held`."""
    failures: list[Failure] = []
    ready: list[_Prepared] = []
    try:
        for change in changes:
            if held:
                return failures
            try:
                item = _prepare(change)
                if not _prepared_already(item, ready):
                    ready.append(item)
            except _Unfit as error:
                failures.append(Failure(change.path, str(error)))
        ready = _without_partners(ready, changes, failures)
        if not held:
            _put_in_place(ready)
    except OSError as error:
        why = error.strerror or type(error).__name__
        done = {failure.path for failure in failures}
        failures += [Failure(change.path, why) for change in changes if change.path not in done]
    finally:
        for item in ready:
            _forget(item.fresh)
            _forget(item.backup)
    return failures


def _prepared_already(item: _Prepared, ready: list[_Prepared]) -> bool:
    """Whether the same bytes lie ready for another name of a file. _Unfit if it is to get others."""
    same = next((other for other in ready if other.inode == item.inode), None)
    if same is None:
        return False
    _forget(item.fresh)
    if same.change.new != item.change.new:
        raise _Unfit(f"it is the same file as {same.change.path}, which is changed otherwise")
    return True


def _without_partners(ready: list[_Prepared], changes: list[Change], failures: list[Failure]) -> list[_Prepared]:
    """Leave alone what goes with a file that cannot be written."""
    failed = {failure.path for failure in failures}
    broken = {change.group: change.path for change in changes if change.group and change.path in failed}
    for item in ready:
        if item.change.group in broken:
            _forget(item.fresh)
            why = f"its fixes go with those of {broken[item.change.group]}, which was not written"
            failures.append(Failure(item.change.path, why))
    return [item for item in ready if item.change.group not in broken]


def write_file(path: str, old: bytes, new: bytes) -> Failure | None:
    """Write one file; see `write_files`."""
    failures = write_files([Change(path, old, new)])
    return failures[0] if failures else None


def _prepare(change: Change) -> _Prepared:
    """Write the new bytes beside the file. _Unfit if it must be left alone, OSError if that fails."""
    target = os.path.realpath(change.path)
    try:
        status = os.stat(target)
    except OSError as error:
        raise _Unfit(error.strerror or "cannot be read") from None
    if not stat.S_ISREG(status.st_mode):
        raise _Unfit("not a regular file")
    if not os.access(target, os.W_OK):
        raise _Unfit("permission denied")
    if not _holds(target, change.old):
        raise _Unfit("it has changed since it was read")
    try:
        handle, fresh = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target))
    except PermissionError:
        raise _Unfit("no new file may be made in its directory") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(change.new)
            stream.flush()
            os.fsync(stream.fileno())
        alike = _like(fresh, target, status)
    except BaseException:
        _forget(fresh)
        raise
    return _Prepared(change, target, fresh, (status.st_dev, status.st_ino), status.st_nlink > 1 or not alike)


def _holds(path: str, data: bytes) -> bool:
    with open(path, "rb") as stream:
        return stream.read() == data


def _still_old(item: _Prepared) -> None:
    """A last look, for other files take time to write, too."""
    if not _holds(item.target, item.change.old):
        raise OSError(0, f"{item.change.path} has changed since it was read")


def _like(fresh: str, target: str, status: os.stat_result) -> bool:
    """Give a new file the owner, permissions and extended attributes of the old one; whether it may have its owner."""
    mine = os.stat(fresh)
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid) and hasattr(os, "chown"):
        try:
            os.chown(fresh, status.st_uid, status.st_gid)
        except OSError:
            return False
    os.chmod(fresh, stat.S_IMODE(status.st_mode))
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(target):
                with contextlib.suppress(OSError):
                    os.setxattr(fresh, name, os.getxattr(target, name))
    return True


def _put_in_place(ready: list[_Prepared]) -> None:
    """Rename the new files over the old ones; on any failure take those already made back."""
    done: list[_Prepared] = []
    try:
        for item in ready:
            if len(ready) > 1 and not item.shared:
                item.backup = _second_name(item.target)
        for item in ready:
            _still_old(item)
            done.append(item)
            if item.shared:
                _overwrite(item.target, item.change.new)
            else:
                os.replace(item.fresh, item.target)
    except BaseException:
        for item in done:
            _take_back(item)
        raise
    for folder in {os.path.dirname(item.target) for item in ready}:
        _sync(folder)


def _overwrite(path: str, data: bytes) -> None:
    """Put bytes into a file that is there. What would not fit on the disk is seen before: they lie beside it."""
    with open(path, "r+b") as stream:
        stream.write(data)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def _second_name(target: str) -> str:
    """A second name for a file, under which it survives being replaced."""
    folder, name = os.path.split(target)
    for number in range(1000):
        backup = os.path.join(folder, f".{name}.{os.getpid()}.{number}.old")
        try:
            os.link(target, backup)
        except FileExistsError:
            continue
        except (OSError, NotImplementedError):
            return ""  # no hard links here: the old bytes are still in memory
        return backup
    return ""


def _take_back(item: _Prepared) -> None:
    """Bring the old file back if the new one has taken its place."""
    if _holds(item.target, item.change.old):
        return
    if item.shared:
        _overwrite(item.target, item.change.old)
        return
    if item.backup:
        os.rename(item.backup, item.target)
        return
    with contextlib.suppress(_Unfit):
        os.rename(_prepare(Change(item.target, item.change.new, item.change.old)).fresh, item.target)


def _forget(path: str) -> None:
    """Remove a file if it is there."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _sync(folder: str) -> None:
    """Make renames in a directory last, where the system has a way to."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
