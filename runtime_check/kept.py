"""Verdicts of earlier runs, kept until the code, the project around it, torch or torchlint changes.

They live beside the results of the check, in the user's cache folder. Whatever goes wrong with the
file costs time, never a verdict. What a busy machine may be to blame for is not kept. Data files that the
code reads are not looked at: `--no-cache` runs everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

from runtime_check.evidence import Environment, Outcome
from runtime_check.plan import Case
from torchlint import __version__
from torchlint.cache import DAYS, WAIT_S, folder, installed

MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
LEVELS = 5  # how far above a file its project is looked for
MOST = 4000  # files of a project; verdicts about a larger one are not kept
SKIPPED = {"node_modules", "site-packages", "build", "dist", "venv", "env", "__pycache__"}
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
            outcome = Outcome.from_row(data["outcome"])
            self.environment = self.environment or Environment(**data["environment"])
            return outcome
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            return None

    def put(self, case: Case, outcome: Outcome, environment: Environment) -> None:
        """Keeps an outcome, unless another run may give another."""
        key = self.key(case)
        if self.store is None or not key or PASSING.search(outcome.why):
            return
        value = json.dumps({"outcome": outcome.as_row(), "environment": asdict(environment)})
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
        except sqlite3.Error:
            pass

    def key(self, case: Case) -> bytes:
        """All that an experiment rests on, as a short name; empty if that cannot be said."""
        project = self.project(os.path.dirname(case.path))
        if not project:
            return b""
        what = repr((self.base, replace(case, key=0, message="", device=""), project))
        return hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=20).digest()

    def project(self, place: str) -> str:
        """A short name for the texts of all files of the project around a folder; "" if there are too many."""
        if place not in self.projects:
            digest = hashlib.blake2b(digest_size=20)
            count = 0
            for path in files_around(Path(place)):
                count += 1
                if count > MOST:
                    break
                digest.update(path.encode("utf-8", "surrogateescape"))
                digest.update(hashlib.blake2b(content(path)).digest())
            self.projects[place] = "" if count > MOST else digest.hexdigest()
        return self.projects[place]


def opened() -> sqlite3.Connection | None:
    """The database; None if there can be none."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        store = sqlite3.connect(folder() / "verdicts.sqlite", timeout=WAIT_S)
        store.execute(SCHEMA)
        return store
    except (sqlite3.Error, OSError):
        return None


def content(path: str) -> bytes:
    """A file's bytes; none if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def files_around(place: Path) -> Iterator[str]:
    """The Python files of the project that a folder is in; without one, those in the folder."""
    near = [place, *place.parents][:LEVELS]
    root = next((one for one in near if any((one / marker).exists() for marker in MARKERS)), None)
    if root is None:
        yield from sorted(str(path) for path in place.glob("*.py"))
        return
    for top, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        yield from (os.path.join(top, name) for name in sorted(names) if name.endswith(".py"))
