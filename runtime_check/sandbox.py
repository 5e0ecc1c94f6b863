"""Limits around user code in a child process: memory, file size, writes, network, processes, sleep.

They stop accidents, not malice: code that wants to break out can. An operation that is not allowed
raises `Stopped` where it is tried, and is remembered in `Guard.stopped` in case the code catches it.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from typing import Any

from runtime_check import made_files
from runtime_check.barrier import raise_barrier

MEMORY = 2 << 30  # bytes above what the process has mapped when the limit is set
FILE_SIZE = 64 << 20
FORKS = 32  # worker processes of data loaders, ranks of a process group
LONGEST_SLEEP = 1.0
MOST_FILES = 3000  # that a run may read for its verdict to be kept
DEPTH = ("a", "b", "c", "d")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdout", "/dev/stderr")

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: Audit events whose first argument is a path that would be changed.
CHANGES = {
    "os.remove": "delete",
    "os.rmdir": "delete",
    "shutil.rmtree": "delete",
    "os.mkdir": "create",
    "os.truncate": "change",
    "os.chmod": "change",
    "os.chown": "change",
    "os.utime": "change",
    "os.setxattr": "change",
    "os.removexattr": "change",
    "sqlite3.connect": "write",
    "tempfile.mkstemp": "write",
    "tempfile.mkdtemp": "write",
}
#: Audit events with two paths, both of which would be changed.
MOVES = {"os.rename": "move", "os.link": "link", "os.symlink": "link", "shutil.move": "move"}
#: Where these give the folders that the paths start from.
MOVE_FOLDERS = {"os.rename": (2, 3), "os.link": (2, 3), "os.symlink": (None, 2)}
#: Where the events that have one give the folder that a relative path starts from.
FOLDER_ARGUMENT = {"os.remove": 1, "os.rmdir": 1, "shutil.rmtree": 1, "os.mkdir": 2, "os.chmod": 2, "os.chown": 3,
                   "os.utime": 3}
NETWORK = {
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.gethostbyaddr",
    "urllib.Request",
    "http.client.connect",
    "ftplib.connect",
    "smtplib.connect",
    "poplib.connect",
    "imaplib.open",
    "telnetlib.Telnet.open",
}
PROCESSES = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.forkpty",
    "pty.spawn",
    "webbrowser.open",
}


PATH_NAMES = {"path", "f", "filename"}


class Stopped(RuntimeError):
    """The code tried something that is not allowed while it is checked."""


class Guard:
    """Decides about audit events. `paths` are folders below which files may be written."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = tuple(os.path.realpath(path) for path in paths)
        self.stopped: list[str] = []
        self.read: dict[str, None] = {}  # what was opened to be read, or looked for in vain
        self.forks = 0
        self.active = True
        self.deciding = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook. Raises Stopped; anything else that goes wrong lets the event pass."""
        if not self.active or self.deciding:
            return
        self.deciding = True
        try:
            reason = self.objection(event, args)
        except Exception:
            reason = ""  # an event of another shape than known: do not break the code for it
        finally:
            self.deciding = False
        if reason:
            self.stopped.append(reason)
            raise Stopped(f"torchlint stopped this code: it tried to {reason}")

    def objection(self, event: str, args: tuple[Any, ...]) -> str:
        """What is wrong with an event, or an empty string."""
        if event == "open":
            return self.about_open(args)
        if event in CHANGES:
            return self.about_path(CHANGES[event], from_folder(args[0], args, FOLDER_ARGUMENT.get(event)))
        if event in MOVES:
            first, second = MOVE_FOLDERS.get(event, (None, None))
            return (self.about_path(MOVES[event], from_folder(args[0], args, first))
                    or self.about_path(MOVES[event], from_folder(args[1], args, second)))
        if event in NETWORK:
            return self.about_network(event, args)
        if event in PROCESSES:
            return f"start another program ({shorten(args[0] if args else event)})"
        if event == "os.fork":
            self.forks += 1
            return f"start more than {FORKS} processes" if self.forks > FORKS else ""
        if event == "time.sleep" and float(args[0]) > LONGEST_SLEEP:
            return f"sleep for {float(args[0]):g} s"
        if event == "os.kill" and not same_group(args[0]):
            return f"send a signal to process {args[0]}"
        if event == "os.killpg" and args[0] not in (0, os.getpgid(0)):
            return f"send a signal to the processes of group {args[0]}"
        return ""

    def halve(self) -> None:
        """In a process that the code has started: it may start some of its own, but in all there is an end."""
        self.forks = FORKS - (FORKS - self.forks) // 4

    def about_open(self, args: tuple[Any, ...]) -> str:
        """Objection to opening a file for writing outside the allowed folders."""
        path, mode, flags = args
        if isinstance(path, int):
            return ""
        if len(self.read) <= MOST_FILES:
            self.read[os.path.abspath(os.fsdecode(path))] = None
        writes = bool(flags & WRITE_FLAGS) if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
        return self.about_path("write", path) if writes else ""

    def files_read(self) -> tuple[str, ...]:
        """The files outside the scratch folder that were opened, without Python's own and torch's."""
        torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/no/torch")
        python = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
        apart = (*self.paths, *python, torch, os.path.dirname(__file__), "/proc", "/dev", "/sys")
        found: dict[str, None] = {}
        for path in self.read:
            if path.endswith(".pyc") and "__pycache__" in path:
                path = source_of(path)
            inside = any(path.startswith(top + os.sep) for top in apart)
            if not inside or ("-packages" in path and not path.startswith(torch + os.sep)):
                found[path] = None
        return tuple(found)

    def about_path(self, verb: str, path: Any) -> str:
        """Objection to changing a path, unless it lies in an allowed folder."""
        if isinstance(path, int):
            path = place_of(path)  # an open file
        if path is None:
            return ""
        text = os.fsdecode(path)
        real = os.path.realpath(text)
        if text in DEVICES or any(real == top or real.startswith(top + os.sep) for top in self.paths):
            return ""
        return f"{verb} {shorten(text)}, outside its scratch folder"

    def about_network(self, event: str, args: tuple[Any, ...]) -> str:
        """Objection to a connection; sockets of the local file system are allowed."""
        if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"):
            address = args[1]
            if address is None or isinstance(address, (str, bytes)):
                return ""
            return f"use the network ({shorten(address)})"
        return f"use the network ({shorten(args[0] if args else event)})"


def source_of(path: str) -> str:
    """The Python file that a compiled one was made from; itself if its name is not one that Python gives."""
    try:
        return importlib.util.source_from_cache(path)
    except ValueError:  # code that was generated into a file with dots in its name
        return path


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


def same_group(process: int) -> bool:
    """Whether a process, or the group that a negative number names, was started by this experiment."""
    if process <= 0:
        return process in (0, -os.getpgid(0))
    try:
        return os.getpgid(process) == os.getpgid(0)
    except OSError:
        return True  # gone: the signal will not be delivered


def shorten(value: object, limit: int = 80) -> str:
    """A value on one line, cut when long."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def mapped_bytes() -> int:
    """Size of this process' address space; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def limit_resources(memory: int = MEMORY, *, address_space: bool = True) -> None:
    """Caps memory (above what is mapped now), file size, and turns core dumps off.

    `address_space` is False for accelerators: their drivers map far more than they use.
    """
    caps = [(resource.RLIMIT_FSIZE, FILE_SIZE), (resource.RLIMIT_CORE, 0)]
    base = mapped_bytes()
    if address_space and base:
        caps.append((resource.RLIMIT_AS, base + memory))
    for which, cap in caps:
        hard = resource.getrlimit(which)[1]
        soft = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
        resource.setrlimit(which, (soft, soft))


def replace_builtin_ways_out(guard: Guard) -> None:
    """Covers what raises no audit event: sleep before Python 3.13, multiprocessing's spawn, C++ writers."""
    if sys.version_info < (3, 13):
        sleep = time.sleep

        def short_sleep(seconds: Any) -> None:
            guard.hook("time.sleep", (seconds,))
            sleep(seconds)

        time.sleep = short_sleep
    import _posixsubprocess

    def refuse(*args: object, **_: object) -> int:
        guard.hook("subprocess.Popen", (args[0] if args else "",))
        raise Stopped("torchlint stopped this code: it tried to start another program")

    _posixsubprocess.fork_exec = refuse
    guard_writer("torch.serialization", "_open_zipfile_writer_file", guard)
    guard_opening(guard)
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


def guard_native_writers(guard: Guard) -> None:
    """The path check in front of torch's functions that write by themselves, where the kernel does not stop them."""
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


def enter(scratch: str, memory: int = MEMORY, *, address_space: bool = True) -> Guard:
    """Puts this process into its scratch folder and under the limits. There is no way back."""
    # Deep down, so that what scripts make of `../../data` is still inside.
    folder = os.path.join(scratch, *DEPTH)
    os.makedirs(folder)
    os.chdir(folder)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[name] = scratch
    os.environ.update(WANDB_MODE="disabled", HF_HUB_OFFLINE="1", MPLBACKEND="Agg")
    tempfile.tempdir = scratch
    made_files.allow(scratch)
    sys.dont_write_bytecode = True
    limit_resources(memory, address_space=address_space)
    guard = Guard((scratch, "/dev/shm"))
    replace_builtin_ways_out(guard)
    if not raise_barrier(guard.paths):
        guard_native_writers(guard)
    sys.addaudithook(guard.hook)
    os.register_at_fork(after_in_child=guard.halve)
    return guard
