"""What code can do without an audit event of Python: put under the same check by functions in the place of others."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runtime_check import noted

if TYPE_CHECKING:
    from runtime_check.sandbox import Guard

PATH_NAMES = {"path", "f", "filename"}


def replace_builtin_ways_out(guard: Guard) -> None:
    """Covers what raises no audit event: sleep before Python 3.13, multiprocessing's spawn, C++ writers."""
    if sys.version_info < (3, 13):
        sleep = time.sleep

        def short_sleep(seconds: Any) -> None:
            guard.hook("time.sleep", (seconds,))
            sleep(seconds)

        time.sleep = short_sleep
    import _posixsubprocess

    from runtime_check.sandbox import Stopped

    def refuse(*args: object, **_: object) -> int:
        guard.hook("subprocess.Popen", (args[0] if args else "",))
        raise Stopped("torchlint stopped this code: it tried to start another program")

    _posixsubprocess.fork_exec = refuse
    guard_opening(guard)
    guard_looking(guard)
    guard_sharing(guard)
    for name in ("mkfifo", "mknod"):
        guard_function(os, name, 0, guard)


def guard_opening(guard: Guard) -> None:
    """Checks what is opened from an open folder: the event of `os.open` does not say from which."""
    plain = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            guard.hook("open", (from_folder(path, (dir_fd,), 0), None, flags))
        return plain(path, flags, mode, dir_fd=dir_fd)

    os.open = opened
    # Both ask whether the function that they know can do this.
    for known in (os.supports_dir_fd, os.supports_fd):
        if plain in known:
            known.add(opened)


def guard_looking(guard: Guard) -> None:
    """Remembers what is asked about and is not there: that raises no audit event."""

    def noting(plain: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *args: Any, **options: Any) -> Any:
            found: Any = False
            try:
                found = plain(path, *args, **options)
            finally:
                if found is False and guard.active and not guard.deciding:
                    with contextlib.suppress(Exception):
                        guard.looked_for(from_folder(path, (options.get("dir_fd"),), 0))
            return found

        return ask

    for name in ("stat", "lstat", "access"):
        plain = getattr(os, name)
        asked = noting(plain)
        setattr(os, name, asked)
        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if plain in known:
                known.add(asked)


def guard_sharing(guard: Guard) -> None:
    """Lets memory be shared under names of this experiment's own, without a process that cleans up: we do that."""
    from multiprocessing import heap, resource_tracker

    shared: Any = importlib.import_module("_posixshmem")
    start = "/" + noted.prefix(guard.paths[0])
    for name in ("shm_open", "shm_unlink"):
        setattr(shared, name, renaming(getattr(shared, name), start))
    arena: Any = heap.Arena
    arena._dir_candidates = []  # the scratch folder will do
    for name in ("register", "unregister", "ensure_running"):
        setattr(resource_tracker, name, lambda *_: None)


def renaming(plain: Callable[..., Any], start: str) -> Callable[..., Any]:
    """A function on shared memory that puts something before the name."""
    return lambda path, *args, **options: plain(start + path.lstrip("/"), *args, **options)


def guard_native_writers(guard: Guard) -> None:
    """The path check in front of torch's functions that write by themselves, which raises no audit event."""
    guard_writer("torch.serialization", "_open_zipfile_writer_file", guard)
    for module, name in (("torch.jit._serialization", "save"), ("torch.jit", "save"), ("torch", "from_file")):
        guard_function(sys.modules.get(module), name, 1 if name == "save" else 0, guard)
    script, storage = sys.modules.get("torch.jit._script"), sys.modules.get("torch.storage")
    for name in ("ScriptModule", "RecursiveScriptModule"):
        guard_function(getattr(script, name, None), "save", 1, guard)
    guard_function(getattr(storage, "UntypedStorage", None), "from_file", 0, guard, kind=staticmethod)
    guard_writer("torch._C", "PyTorchFileWriter", guard)
    profilers = sys.modules.get("torch.autograd.profiler"), sys.modules.get("torch.profiler.profiler")
    for kind in (getattr(profilers[0], "profile", None), getattr(profilers[1], "_KinetoProfile", None)):
        guard_function(kind, "export_chrome_trace", 1, guard)


def guard_function(owner: Any, name: str, position: int, guard: Guard, *, kind: Callable[[Any], Any] | None = None,
                   ) -> None:
    """Puts the path check in front of a function that writes to the path that it is given at a position."""
    plain = getattr(owner, name, None)
    if plain is None:
        return

    def checked(*args: Any, **kwargs: Any) -> Any:
        named = [kwargs[word] for word in PATH_NAMES & kwargs.keys()]
        given = args[position] if position < len(args) else next(iter(named), None)
        if isinstance(given, (str, bytes, os.PathLike)):
            folder = kwargs.get("dir_fd")
            guard.hook("open", (from_folder(given, (folder,), 0), "w", None))
        return plain(*args, **kwargs)

    setattr(owner, name, kind(checked) if kind is not None else checked)


def guard_writer(module: str, name: str, guard: Guard) -> None:
    """Puts the path check in front of a writer class that opens its file outside Python."""
    owner = sys.modules.get(module)
    writer = getattr(owner, name, None)
    if writer is None:
        return
    plain: Callable[..., None] = writer.__init__

    def checked(self: object, path: object, *args: object, **kwargs: object) -> None:
        guard.hook("open", (path, "w", None))
        plain(self, path, *args, **kwargs)

    writer.__init__ = checked


def from_folder(path: Any, args: tuple[Any, ...], position: int | None) -> Any:
    """A path that starts from the open folder at a position of an event's arguments, written in full."""
    folder = args[position] if position is not None and position < len(args) else None
    if not isinstance(folder, int) or folder < 0 or isinstance(path, int):
        return path
    return os.path.join(place_of(folder), os.fsdecode(path))


def place_of(folder: int) -> str:
    """The path of an open folder."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(folder, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
    return os.readlink(f"/proc/self/fd/{folder}")
