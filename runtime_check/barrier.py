"""The kernel's own limit on writes: Landlock, where Linux has it.

C++ code raises no audit events, so what torch writes by itself (`torch.jit.save`, `torch.from_file`, traces of the
profiler) passes the hooks of Python. Landlock needs no privileges: a process gives up rights, for good, and so do
all that it starts. Reading stays free; files are made, changed and removed below some folders only.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import sys
from collections.abc import Iterable

CREATE, ADD, RESTRICT = 444, 445, 446  # the same numbers on every architecture
ASK_VERSION = 1
BENEATH = 1
NO_NEW_PRIVILEGES = 38

WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
#: Remove folders and files; make devices, folders, files, sockets, pipes, block devices and links.
CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts", "/dev/ptmx", "/proc/self")
ACCELERATORS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")


class Ruleset(ctypes.Structure):
    """What a ruleset handles; the kernel takes the fields that it knows."""

    _fields_ = (("files", ctypes.c_uint64),)


class Below(ctypes.Structure):
    """The rights below a folder, or on a file."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of Landlock here; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return max(0, int(ctypes.CDLL(None).syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))))
    except (OSError, AttributeError):
        return 0


def raise_barrier(folders: Iterable[str]) -> bool:
    """Lets this thread, and what it starts, change files below some folders only. False where that cannot be."""
    known = version()
    if not known:
        return False
    rights = WRITE_FILE | CHANGE_FOLDERS | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = Ruleset(rights)
    rules = libc.syscall(CREATE, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
                         ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for folder in folders:
            allow(libc, rules, folder, rights)
        devices = [*DEVICES, *(path for pattern in ACCELERATORS for path in glob.glob(pattern))]
        for path in devices:
            allow(libc, rules, path, rights & (WRITE_FILE | TRUNCATE))
        unprivileged = libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        return bool(unprivileged and libc.syscall(RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)


def allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """Adds a rule for a path, if it is there."""
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            below = Below(rights, place)
            libc.syscall(ADD, ctypes.c_int(rules), ctypes.c_int(BENEATH), ctypes.byref(below), ctypes.c_uint32(0))
        finally:
            os.close(place)
