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
from types import FrameType
from typing import Any

from runtime_check import made_files, noted
from runtime_check.barrier import raise_barrier
from runtime_check.placeholder import USER_FILES
from runtime_check.ways_out import from_folder, guard_native_writers, place_of, replace_builtin_ways_out

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
#: Audit events of looking at what is in a folder.
LISTINGS = {"os.listdir", "os.scandir"}
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


class Stopped(RuntimeError):
    """The code tried something that is not allowed while it is checked."""


class Guard:
    """Decides about audit events. `paths` are folders below which files may be written, the first the scratch folder.

    What is listed, or looked for in vain, in the folders `around` the code is remembered as what is read is.
    """

    def __init__(self, paths: tuple[str, ...], around: tuple[str, ...] = ()) -> None:
        self.paths = tuple(os.path.realpath(path) for path in paths)
        self.shared = os.path.join(noted.SHARED_MEMORY, noted.prefix(paths[0])) if paths else "no such place"
        self.around = tuple(os.path.join(path, "") for path in around)
        self.stopped: list[str] = []
        self.read: dict[str, None] = {}  # what was opened to be read, or looked for in vain
        self.forked = False  # whether this is a process that the code has started
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
        if event in LISTINGS and by_user_code(sys._getframe(2)):
            self.looked_for(args[0] or ".")
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
        if event == "resource.prlimit" and args[0] not in (0, os.getpid()):
            return f"limit process {args[0]}"
        if event == "os.killpg" and args[0] not in (0, os.getpgid(0)):
            return f"send a signal to the processes of group {args[0]}"
        return ""

    def looked_for(self, path: Any) -> None:
        """Remembers a path around the code that was listed, or that is not there."""
        if isinstance(path, int):
            return
        text = os.path.abspath(os.fsdecode(path))
        if os.path.join(text, "").startswith(self.around) and "-packages" not in text:
            self.remember(text)

    def remember(self, path: str) -> None:
        """Takes note of a file that the verdict rests on."""
        if path in self.read or len(self.read) > MOST_FILES:
            return
        self.read[path] = None
        if self.forked:
            self.write_down(noted.READ, path)

    def write_down(self, kind: str, word: str) -> None:
        """Tells those that come after this process; what we write ourselves is no event."""
        before, self.deciding = self.deciding, True
        noted.note(self.paths[0], kind, word)
        self.deciding = before

    def after_fork(self) -> None:
        """In a process that the code has started: it may start some of its own, but in all there is an end."""
        self.forks = FORKS - (FORKS - self.forks) // 4
        self.forked = True
        self.write_down(noted.PROCESS, str(os.getpid()))

    def about_open(self, args: tuple[Any, ...]) -> str:
        """Objection to opening a file for writing outside the allowed folders."""
        path, mode, flags = args
        if isinstance(path, int):
            return ""
        self.remember(os.path.abspath(os.fsdecode(path)))
        writes = bool(flags & WRITE_FLAGS) if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
        return self.about_path("write", path) if writes else ""

    def files_read(self) -> tuple[str, ...]:
        """The files outside the scratch folder that were opened or looked for, without Python's own and torch's."""
        torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/no/torch")
        python = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
        apart = (*self.paths, *python, torch, os.path.dirname(__file__), "/proc", "/dev", "/sys")
        found: dict[str, None] = {}
        for path in (*self.read, *noted.noted(self.paths[0], noted.READ)):
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
        inside = any(real == top or real.startswith(top + os.sep) for top in self.paths)
        if inside or text in DEVICES or real.startswith(self.shared):
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


def by_user_code(frame: FrameType | None) -> bool:
    """Whether the code under test, not we ourselves or an import, is what asks."""
    ours = os.path.dirname(__file__)
    while frame is not None:
        file = frame.f_code.co_filename
        if file in USER_FILES:
            return True
        if file.startswith((ours, "<frozen importlib")):
            return False
        frame = frame.f_back
    return False


def guard_priorities(guard: Guard) -> None:
    """Lets code change no priority but its own: Python tells audit hooks nothing of it."""
    plain = getattr(os, "setpriority", None)
    if plain is None:
        return

    def setpriority(which: int, who: int, priority: int) -> None:
        if guard.active and not (which == os.PRIO_PROCESS and who in (0, os.getpid())):
            guard.stopped.append(f"change the priority of process {who}")
            raise Stopped(f"torchlint stopped this code: it tried to {guard.stopped[-1]}")
        plain(which, who, priority)

    os.setpriority = setpriority


def source_of(path: str) -> str:
    """The Python file that a compiled one was made from; itself if its name is not one that Python gives."""
    try:
        return importlib.util.source_from_cache(path)
    except ValueError:  # code that was generated into a file with dots in its name
        return path


def same_group(process: int) -> bool:
    """Whether a process, or the group that a negative number names, was started by this experiment."""
    if process <= 0:
        return process in (0, -os.getpgid(0))
    try:
        return os.getpgid(process) == os.getpgid(0)
    except OSError:
        return True  # gone: the signal will not be delivered


def beginning(text: str) -> str:
    """The first line of a text, with those that follow where it only introduces them: "ImportError:", "b"."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    count = next((number for number, line in enumerate(lines, 1) if not line.rstrip().endswith(":")), len(lines))
    return " ".join(lines[:count])


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


def enter(scratch: str, memory: int = MEMORY, *, address_space: bool = True, around: tuple[str, ...] = ()) -> Guard:
    """Puts this process into its scratch folder and under the limits. There is no way back.

    `around` are the folders of the project.
    """
    # Deep down, so that what scripts make of `../../data` is still inside.
    folder = os.path.join(scratch, *DEPTH)
    os.makedirs(folder)
    os.chdir(folder)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[name] = scratch
    os.environ.update(WANDB_MODE="disabled", HF_HUB_OFFLINE="1", MPLBACKEND="Agg")
    tempfile.tempdir = scratch
    made_files.allow(scratch)
    noted.here = scratch
    sys.dont_write_bytecode = True
    limit_resources(memory, address_space=address_space)
    guard = Guard((scratch,), around)
    replace_builtin_ways_out(guard)
    guard_priorities(guard)
    guard_native_writers(guard)
    raise_barrier((*guard.paths, noted.SHARED_MEMORY))  # where libraries share memory between processes
    sys.addaudithook(guard.hook)
    os.register_at_fork(after_in_child=guard.after_fork)
    return guard
