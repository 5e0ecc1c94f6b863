"""Limits around user code in a child process: memory, file size, writes, network, processes, sleep.

They stop accidents, not malice: code that wants to break out can. An operation that is not allowed
raises `Stopped` where it is tried, and is remembered in `Guard.stopped` in case the code catches it.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30  # bytes above what the process has mapped when the limit is set
FILE_SIZE = 64 << 20
FORKS = 32  # worker processes of data loaders, ranks of a process group
LONGEST_SLEEP = 1.0
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


class Stopped(RuntimeError):
    """The code tried something that is not allowed while it is checked."""


class Guard:
    """Decides about audit events. `paths` are folders below which files may be written."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = tuple(os.path.realpath(path) for path in paths)
        self.stopped: list[str] = []
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
            return self.about_path(CHANGES[event], args[0])
        if event in MOVES:
            return self.about_path(MOVES[event], args[0]) or self.about_path(MOVES[event], args[1])
        if event in NETWORK:
            return self.about_network(event, args)
        if event in PROCESSES:
            return f"start another program ({shorten(args[0] if args else event)})"
        if event == "os.fork":
            self.forks += 1
            return f"start more than {FORKS} processes" if self.forks > FORKS else ""
        if event == "time.sleep" and float(args[0]) > LONGEST_SLEEP:
            return f"sleep for {float(args[0]):g} s"
        if event == "os.kill" and args[0] != 0 and not same_group(args[0]):
            return f"send a signal to process {args[0]}"
        return ""

    def about_open(self, args: tuple[Any, ...]) -> str:
        """Objection to opening a file for writing outside the allowed folders."""
        path, mode, flags = args
        if isinstance(path, int):
            return ""
        writes = bool(flags & WRITE_FLAGS) if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
        return self.about_path("write", path) if writes else ""

    def about_path(self, verb: str, path: Any) -> str:
        """Objection to changing a path, unless it lies in an allowed folder."""
        if isinstance(path, int) or path is None:
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


def same_group(process: int) -> bool:
    """Whether a process was started by this experiment."""
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
    sys.dont_write_bytecode = True
    limit_resources(memory, address_space=address_space)
    guard = Guard((scratch, "/dev/shm"))
    replace_builtin_ways_out(guard)
    sys.addaudithook(guard.hook)
    return guard
