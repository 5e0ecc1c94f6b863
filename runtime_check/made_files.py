"""Files that code reads and that are not there: made when they are asked for, inside the scratch folder.

An audit hook sees what is opened and listed before Python looks for it, whichever library asks. It makes
nothing unless `making` is entered and `allow` has named a folder; else it only takes note of what was missed.
"""
from __future__ import annotations

import contextlib
import glob
import gzip
import os
import random
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from runtime_check.placeholder import USER_FILES

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".webp"})
#: Suffixes of data, of which the first that the code names is that of the files in a folder that it lists.
DATA = re.compile(r"\.(png|jpe?g|bmp|tiff?|npy|npz|txt|csv|json|wav|flac|pt)\b")
PICTURES = re.compile(r"\.(png|jpe?g|bmp|tiff?)\b")
#: Files that are kept apart by their number: `files[:-2000]`.
APART = re.compile(r"\[\s*:?\s*-\s*(\d{2,5})\s*:?\s*\]")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
COUNT, MOST, FOLDERS = 64, 9000, 2  # files in a folder, and folders where a pattern asks for some
SIDE, BLOCK = 256, 8  # of made images; they consist of blocks, so that they are small files
#: What code makes itself, and asks for only to know whether it has done so.
WRITTEN = re.compile(r"(^|[_/.\\-])(out(puts?)?|sav\w*|logs?|logging|results?|runs?|exp\w*|samples?|checkpoints?|ckpts?"
                     r"|cache\w*|tmp|lock|processed|plots?|weights?|snapshots?)($|[_/.\\-])", re.IGNORECASE)
WORDS = "the quick brown fox jumps over the lazy dog and runs away"
ROWS = "name,label,value\n" + "".join(f"{number:04d},{number % 2},{number / 8}\n" for number in range(COUNT))
TEXTS = {
    ".json": "{}\n", ".yaml": "{}\n", ".yml": "{}\n", ".csv": ROWS, ".tsv": ROWS.replace(",", "\t"),
    ".jsonl": f'{{"text": "{WORDS}", "label": 0}}\n' * COUNT,
}

#: What was looked for in vain since `forget`.
missed: dict[str, None] = {}
#: What was made.
made: set[str] = set()
_top = ""  # the folder below which files may be made
_watching = False
_making = False
_busy = False
_hooked = False
_text = ""  # the code that asks


def allow(folder: str) -> None:
    """Lets files be made below a folder. Without this none ever is."""
    global _top
    _top = os.path.realpath(folder)


def absent(path: object) -> bool:
    """Whether there is no such file but a made one."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    return not os.path.exists(path) or os.path.realpath(path) in made


@contextlib.contextmanager
def watching(text: str = "", *, making: bool = False) -> Iterator[None]:
    """While it lasts, notes what the code of `text` misses, and with `making` makes it."""
    global _watching, _making, _text
    _hook_once()
    before = _watching, _making, _text
    with contextlib.ExitStack() as stack:
        for owner, name in ((os.path, "exists"), (os.path, "isfile"), (os.path, "isdir"), (Path, "exists"),
                            (Path, "is_file"), (Path, "is_dir")):
            stack.enter_context(mock.patch.object(owner, name, _asking(getattr(owner, name), name)))
        _watching, _making, _text = True, making, text
        try:
            yield
        finally:
            _watching, _making, _text = before


def _asking(real: Callable[..., bool], name: str) -> Callable[..., bool]:
    """A function that says whether a path exists; it is made if user code asks."""

    def ask(path: Any, *args: Any, **options: Any) -> bool:
        found = real(path, *args, **options)
        if found or not isinstance(path, (str, os.PathLike)) or sys._getframe(1).f_code.co_filename not in USER_FILES:
            return found
        text = os.fspath(path)
        missed[str(text)] = None
        if not _making or not text or WRITTEN.search(str(text)):
            return False
        with _at_work():
            _make_folder(text) if "dir" in name or not os.path.splitext(text)[1] else _make_file(text)
        return real(path, *args, **options)

    return ask


# -- the hook -----------------------------------------------------------------------------------


def _hook_once() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)


@contextlib.contextmanager
def _at_work() -> Iterator[None]:
    """While it lasts, what we do ourselves is not looked at."""
    global _busy
    _busy = True
    try:
        yield
    finally:
        _busy = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watching or _busy or event not in EVENTS:
        return
    with _at_work(), contextlib.suppress(OSError, TypeError, ValueError, UnicodeError):
        EVENTS[event](*args)


def _opened(path: Any, mode: Any = "r", flags: Any = 0, *more: Any) -> None:
    if not isinstance(path, (str, os.PathLike)) or os.path.exists(path):
        return
    text = str(os.fspath(path))
    if set(str(mode or "r")) & set("wax+") or (isinstance(flags, int) and flags & WRITES):
        if _making and os.path.dirname(text):
            _make_folder(os.path.dirname(text))
        return
    if _of_code(text):
        return
    missed[text] = None
    if _making:
        _make_file(text)


def _of_code(path: str) -> bool:
    """Whether a file is none of data: Python and the system look for these in many places."""
    return path.endswith((".py", ".pyc", ".so", "pyvenv.cfg")) or path.startswith(("/proc", "/sys", "/dev", "/etc"))


def _listed(path: Any = ".", *more: Any) -> None:
    if isinstance(path, (str, os.PathLike)) and not os.path.exists(path):
        text = str(os.fspath(path))
        missed[text] = None
        if _making:
            _fill(text, _suffix())


def _globbed(pattern: Any, *more: Any) -> None:
    if isinstance(pattern, str) and "__pycache__" not in pattern and not glob.glob(pattern, recursive=True):
        missed[pattern] = None
        if _making:
            _match(pattern)


def _globbed_below(path: Any, pattern: Any, *more: Any) -> None:
    _globbed(os.path.join(str(path), str(pattern)))


def _entered(path: Any, *more: Any) -> None:
    if _making and isinstance(path, (str, os.PathLike)) and not os.path.exists(path):
        _make_folder(os.fspath(path))


EVENTS: dict[str, Callable[..., None]] = {
    "open": _opened, "os.listdir": _listed, "os.scandir": _listed, "glob.glob": _globbed, "os.chdir": _entered,
    "pathlib.Path.glob": _globbed_below, "pathlib.Path.rglob": _globbed_below,
}

# -- making -------------------------------------------------------------------------------------


def _may_make(path: Any) -> bool:
    """Whether a path is below the folder in which files may be made, and leads into it by no link."""
    return bool(_top) and os.path.realpath(path).startswith(_top + os.sep)


def _make_folder(path: Any) -> None:
    if _may_make(path):
        os.makedirs(path, exist_ok=True)


def _make_file(path: Any) -> None:
    """A file with contents that its name speaks of."""
    if not _may_make(path):
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content(str(path)))
    made.add(os.path.realpath(path))


def content(path: str) -> bytes:
    """What is in a made file of this name."""
    start, suffix = os.path.splitext(path.lower())
    if suffix == ".gz":
        return gzip.compress(content(start))
    if suffix in IMAGES:
        return picture()
    return TEXTS.get(suffix, (WORDS + "\n") * COUNT).encode()


def _match(pattern: str) -> None:
    """Files that a pattern finds."""
    parts = pattern.split(os.sep)
    last = parts.pop()
    suffix = os.path.splitext(last)[1]
    suffix = suffix if suffix and not glob.has_magic(suffix) else _suffix()
    folders = [""]
    for part in parts:
        names = [f"class_{number}" for number in range(FOLDERS)] if glob.has_magic(part) else [part]
        names = [""] if part == "**" else names
        folders = [os.path.join(folder, name) if folder else name or os.sep for folder in folders for name in names]
    start = re.split(r"[*?\[]", last)[0]
    for folder in folders:
        _fill(folder if parts else ".", suffix, start)


def _fill(folder: str, suffix: str, start: str = "") -> None:
    """A folder with files of one kind: one of them, and links to it."""
    if not _may_make(folder):
        return
    os.makedirs(folder, exist_ok=True)
    first = os.path.join(folder, f"{start}0000{suffix}")
    _make_file(first)
    for number in range(1, how_many(_text)):
        name = os.path.join(folder, f"{start}{number:04d}{suffix}")
        with contextlib.suppress(FileExistsError):
            os.link(first, name)
            made.add(os.path.realpath(name))


def how_many(text: str) -> int:
    """As many files as code needs that keeps a number of them apart."""
    return min(max([2 * int(number) for number in APART.findall(text)], default=0) + COUNT, MOST)


def _suffix() -> str:
    pictures = re.search(r"\bImage\b|imread|read_image", _text)
    found = PICTURES.search(_text) if pictures else DATA.search(_text)
    return found[0] if found else ".png"


def columns() -> int:
    """How many columns a table of numbers has: what the code's first layer takes, and a target."""
    found = re.search(r"Linear\((\d{1,4}),", _text)
    return int(found[1]) + 1 if found else 9


def compared_with(name: str) -> str:
    """A value that the code compares an option of this name with, or an empty string."""
    found = re.search(rf"\b{re.escape(name)}\s*==\s*[\"']([\w./-]+)[\"']", _text)
    return found[1] if found else ""


def picture() -> bytes:
    """An image file, of blocks in random colours."""
    rows, chance = [], random.Random(0)  # the code's own random numbers stay what they are
    for _ in range(SIDE // BLOCK):
        row = b"".join(chance.randbytes(3) * BLOCK for _ in range(SIDE // BLOCK))
        rows += [b"\0" + row] * BLOCK

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    head = struct.pack("!IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(rows), 1))
            + chunk(b"IEND", b""))
