"""What the processes of one experiment leave word of, in a file of its scratch folder, and what is cleaned up after it.

An experiment may end in a crash, and much of it may happen in processes that it has forked: what they have read, and
which processes there were, is written down when it happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

NAME = ".torchlint-notes"
READ, PROCESS = "read", "process"  # kinds of notes
SHARED_MEMORY = "/dev/shm"
MOST_WRITTEN = 512 << 20  # bytes that all files of an experiment may take
#: How torch calls what it shares between processes: with the number of the process that made it.
OF_TORCH = re.compile(r"torch_(\d+)_\d+_\d+")

here = ""  # the scratch folder of the experiment that this process runs


def note(scratch: str, kind: str, word: str) -> None:
    """Writes one word down; nothing where that cannot be done."""
    with contextlib.suppress(OSError), open(os.path.join(scratch, NAME), "a", encoding="ascii") as file:
        file.write(json.dumps([kind, word]) + "\n")


def noted(scratch: str, kind: str) -> Iterator[str]:
    """The words of one kind; what the code has written into the file itself is passed over."""
    try:
        lines = Path(scratch, NAME).read_text("ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            match json.loads(line):
                case [str(found), str(word)] if found == kind:
                    yield word


def prefix(scratch: str) -> str:
    """How the names of all shared memory begin that an experiment makes by Python: they are its own."""
    return f"{os.path.basename(os.path.realpath(scratch))}-"


def free(scratch: str = "", processes: Collection[str] = ()) -> None:
    """Takes away what an experiment, or some processes by way of torch, have left in shared memory."""
    if not (scratch or here):
        return
    ours = prefix(scratch or here)
    with contextlib.suppress(OSError):
        for name in os.listdir(SHARED_MEMORY):
            found = OF_TORCH.fullmatch(name)
            if name.startswith(ours) or (found and found[1] in processes):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(SHARED_MEMORY, name))


def clean(scratch: str, process: int) -> None:
    """Takes away what an experiment, whose processes are gone, has left: in shared memory and its scratch folder."""
    free(scratch, {str(process), *noted(scratch, PROCESS)})
    remove(scratch)


def remove(folder: str) -> None:
    """Removes a folder, also one in which the code has forbidden that."""
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):
        return
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
    for top, folders, _ in os.walk(folder):
        for path in (os.path.join(top, name) for name in folders):
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def written(folder: str) -> int:
    """Bytes that the files below a folder take on the disk; a file with many names counts once."""
    seen: set[int] = set()
    size = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(top, name))
                size += 0 if found.st_ino in seen else found.st_blocks * 512
                seen.add(found.st_ino)
    return size
