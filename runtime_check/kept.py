"""Verdicts of earlier runs, kept until the code, the project around it, torch or torchlint changes.

They live beside the results of the check, in the user's cache folder. Whatever goes wrong with the
file costs time, never a verdict. What a busy machine may be to blame for is not kept. A verdict rests on
the files that its run has opened, wherever they are, and on what else the project around the code holds:
a new file may be found where another was found before.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

from runtime_check.evidence import Environment, Outcome
from runtime_check.nearby import below, project_root
from runtime_check.plan import Case
from runtime_check.sandbox import MOST_FILES
from torchlint import __version__
from torchlint.cache import DAYS, WAIT_S, folder, installed

MOST = 4000  # files of a project; verdicts about a larger one are not kept
LARGE = 1 << 20  # bytes of a file above which its size and time are looked at only
NO_CODE = {"node_modules", "site-packages", "__pycache__"}
SELDOM = {"build", "dist", "venv", "env"}
SCHEMA = "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, value TEXT NOT NULL, used INTEGER NOT NULL)"
#: Reasons that another run may not have.
PASSING = re.compile(r"no result within|time was over|took too long|interrupted|--max-seconds|process|memory|crashed"
                     r"|the check itself failed|closed the pipe")


class Kept:
    """The verdicts of earlier runs on one device."""

    def __init__(self, device: str) -> None:
        code = [(path.name, path.stat().st_mtime_ns) for path in sorted(Path(__file__).parent.rglob("*.py"))]
        versions = (__version__, metadata.version("torch"), platform.python_version(), platform.machine())
        self.base = repr((versions, installed(()), code, device))
        self.environment: Environment | None = None
        self.today = int(time.time() // 86400)
        self.projects: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.store = opened()

    def get(self, case: Case) -> Outcome | None:
        """The outcome of a case, if nothing that it rests on has changed."""
        key = self.key(case)
        if self.store is None or not key:
            return None
        try:
            row = self.store.execute("SELECT value FROM verdicts WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            data = json.loads(row[0])
            if any(self.state(path) != then for path, then in data["files"].items()):
                return None
            outcome = Outcome.from_row(data["outcome"])
            self.environment = self.environment or Environment(**data["environment"])
            return outcome
        except (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError):
            return None

    def put(self, case: Case, outcome: Outcome, environment: Environment) -> None:
        """Keeps an outcome, unless another run may give another."""
        key = self.key(case)
        if self.store is None or not key or PASSING.search(outcome.why) or len(outcome.files) > MOST_FILES:
            return
        files = {path: self.state(path) for path in outcome.files}
        value = json.dumps({"outcome": outcome.as_row(), "environment": asdict(environment), "files": files})
        try:
            self.store.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (key, value, self.today))
        except sqlite3.Error:
            self.store = None

    def close(self) -> None:
        """Writes what is new, and drops what is old."""
        if self.store is None:
            return
        try:
            with self.store:
                self.store.execute("DELETE FROM verdicts WHERE used < ?", (self.today - DAYS,))
            self.store.close()
        except (sqlite3.Error, UnicodeDecodeError):
            pass

    def state(self, path: str) -> str:
        """A short name for what a file holds; of a large one for its size and time; of a folder for the names in it."""
        if path not in self.states:
            try:
                found = os.stat(path)
                folder = stat.S_ISDIR(found.st_mode)
                large = found.st_size > LARGE or not stat.S_ISREG(found.st_mode)
                if folder:
                    shown = sorted(name for name in os.listdir(path) if not name.startswith((".", "__pycache__")))
                    data = repr(shown).encode("utf-8", "surrogatepass")
                else:
                    data = repr((found.st_size, found.st_mtime_ns)).encode() if large else Path(path).read_bytes()
                    data += settings(data)
                self.states[path] = hashlib.blake2b(data, digest_size=12).hexdigest()
            except (OSError, ValueError):
                self.states[path] = ""
        return self.states[path]

    def key(self, case: Case) -> bytes:
        """All that an experiment rests on, as a short name; empty if that cannot be said."""
        project = self.project(os.path.dirname(case.path), case.roots)
        if not project:
            return b""
        what = repr((self.base, replace(case, key=0, message="", device=""), project))
        return hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=20).digest()

    def project(self, place: str, given: tuple[str, ...] = ()) -> str:
        """A short name for the texts of all files of the project around a folder; "" if there are too many.

        Where no file says what the project is, those in the `given` folders belong to it.
        """
        if place not in self.projects:
            digest = hashlib.blake2b(digest_size=20)
            count = 0
            for path in files_around(Path(place), given):
                count += 1
                if count > MOST:
                    break
                digest.update(path.encode("utf-8", "surrogateescape"))
                digest.update(self.state(path).encode())
            self.projects[place] = "" if count > MOST else digest.hexdigest()
        return self.projects[place]


def settings(text: bytes) -> bytes:
    """The environment variables that a text names, with their values, where it reads the environment."""
    if b"environ" not in text and b"getenv" not in text:
        return b""
    found = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return b"".join(b"\0" + name + b"=" + found[name] for name in sorted(found) if name in text)


def opened() -> sqlite3.Connection | None:
    """The database, made anew if it is damaged; None if there can be none."""
    path = folder() / "verdicts.sqlite"
    for _ in range(2):
        try:
            folder().mkdir(parents=True, exist_ok=True)
            store = sqlite3.connect(path, timeout=WAIT_S)
            store.execute(SCHEMA)
            store.execute("SELECT key, value, used FROM verdicts LIMIT 1").fetchone()
            return store
        except sqlite3.OperationalError as error:
            if "no such column" not in str(error):
                return None  # not writable, or locked
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            pass
        except OSError:
            return None
        try:
            for end in ("", "-journal", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
        except OSError:
            return None
    return None


def files_around(place: Path, given: tuple[str, ...] = ()) -> Iterator[str]:
    """The Python files of the project that a folder is in; without one, those in the given folders and below it."""
    root = project_root(place)
    if root is None:
        root = place
        yield from (file for top in given for file in below(top))
    seen: set[str] = set()
    for top, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(top)
        if real in seen:
            folders.clear()  # a link that leads back
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not skipped(top, name))
        yield from (os.path.join(top, name) for name in sorted(names) if name.endswith(".py"))


def skipped(top: str, name: str) -> bool:
    """Whether a folder holds no code of the project. A package may be called as what usually is no code."""
    if name in NO_CODE or name.startswith(".") or os.path.exists(os.path.join(top, name, "pyvenv.cfg")):
        return True
    return name in SELDOM and not os.path.exists(os.path.join(top, name, "__init__.py"))
