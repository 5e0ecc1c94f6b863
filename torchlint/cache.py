"""Findings of earlier runs, kept until something that they rest on changes.

They live in one SQLite file in the user's cache folder, `TORCHLINT_CACHE_DIR` if that is set. Whatever goes
wrong with it (not writable, damaged, locked) costs time, never a finding and never an error.
"""
from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import platformdirs

from torchlint import __version__
from torchlint.config import Options
from torchlint.consulted import Consulted, Present
from torchlint.files import Source
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Severity, Span
from torchlint.project import Project, module_name
from torchlint.requirements import newest_torch, oldest_torch
from torchlint.rule import Rule

DAYS = 30  # after which a result that nobody asked for is dropped
WAIT_S = 0.5  # for another process that writes
SCHEMA = "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value BLOB NOT NULL, used INTEGER NOT NULL)"


def folder() -> Path:
    """Where results are kept."""
    return Path(os.environ.get("TORCHLINT_CACHE_DIR") or platformdirs.user_cache_dir("torchlint", appauthor=False))


def describe() -> str:
    """Where results are kept and how much that is, as one line."""
    size = sum(path.stat().st_size for path in _files() if path.is_file())
    return f"{folder()}: {size / 1e6:.1f} MB\n"


def forget() -> str:
    """Remove all results, and say so in one line. OSError if they cannot be removed."""
    return f"{folder()}: results forgotten\n" if _clear() else f"{folder()}: nothing is kept\n"


def _clear() -> bool:
    """Remove the database; False if there is none."""
    there = [path for path in _files() if path.exists()]
    for path in there:
        path.unlink()
    return bool(there)


def _files() -> list[Path]:
    """The database and what SQLite may leave beside it."""
    names = ("results.sqlite", "verdicts.sqlite")  # of the check, and of confirm
    return [folder() / f"{name}{end}" for name in names for end in ("", "-journal", "-wal", "-shm")]


class Cache:
    """The results of files checked with one configuration."""

    def __init__(self, options: Options, rules: Sequence[Rule], project: Project) -> None:
        roots = [str(root) for root in project.roots]
        settings = repr(replace(options, jobs=0, file=""))
        self.base = repr((__version__, sys.version_info[:3], installed(rules), settings, roots)).encode()
        self.present = Present(project)
        self.today = int(time.time() // 86400)
        self.used: list[bytes] = []
        self.new: list[tuple[bytes, bytes, int]] = []
        self.store = _open()

    def get(self, source: Source, named: bool) -> tuple[Finding, ...] | None:
        """The findings in a source if it, and all that they rest on, is as it was; else None."""
        if self.store is None:
            return None
        key = self.key(source, named)
        try:
            row = self.store.execute("SELECT value, used FROM results WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            findings, then = unpack(row[0], source.path)
        except (sqlite3.Error, ValueError, TypeError, LookupError, zlib.error):
            return None
        if not self.present.same(then):
            return None
        if row[1] != self.today:
            self.used.append(key)
        return findings

    def put(self, source: Source, named: bool, findings: Iterable[Finding], rest: Consulted) -> None:
        """Note the findings in a source; they are written by `close`."""
        self.new.append((self.key(source, named), pack(findings, rest), self.today))

    def key(self, source: Source, named: bool) -> bytes:
        """What is known before a file is checked: the configuration, its place and its text."""
        place = os.path.abspath(source.path)
        torch = newest_torch(Path(place).parent), oldest_torch(Path(place).parent)
        head = repr((place, source.path, source.encoding, named, torch, module_name(place))).encode()
        return hashlib.blake2b(b"\0".join((self.base, head, source.text.encode("utf-8", "surrogatepass"))),
                               digest_size=20).digest()

    def close(self) -> None:
        """Write what is new, and drop what is old."""
        store, self.store = self.store, None
        if store is None:
            return
        try:
            with store:
                store.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", self.new)
                store.executemany("UPDATE results SET used = ? WHERE key = ?", [(self.today, k) for k in self.used])
                if self.new:
                    store.execute("DELETE FROM results WHERE used < ?", (self.today - DAYS,))
        except sqlite3.Error:
            pass
        finally:
            store.close()


def _open() -> sqlite3.Connection | None:
    """The database, made if it is not there, made anew if it is damaged; None if that cannot be done."""
    path = folder() / "results.sqlite"
    for _ in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            store = sqlite3.connect(path, timeout=WAIT_S)
            store.execute("PRAGMA synchronous = OFF")  # a crash may cost results, nothing else
            store.execute(SCHEMA)
            store.execute("SELECT key, value, used FROM results LIMIT 1").fetchone()
            return store
        except sqlite3.OperationalError:
            return None  # not writable, or locked
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            try:
                _clear()
            except OSError:
                return None
        except OSError:
            return None
    return None


def installed(rules: Sequence[Rule]) -> str:
    """A short name for the code that finds: all of torchlint's files and those of other packages' rules."""
    here = Path(__file__).parent
    files = {path for path in here.rglob("*") if path.suffix in (".py", ".json")}
    modules = (sys.modules.get(rule.module) for rule in rules)
    folders = {Path(module.__file__).parent for module in modules if module is not None and module.__file__}
    files.update(path for each in folders for path in each.glob("*.py"))
    state = []
    for path in sorted(files):
        found = path.stat()
        state.append((str(path), found.st_size, found.st_mtime_ns))
    return hashlib.blake2b(repr(state).encode(), digest_size=12).hexdigest()


def pack(findings: Iterable[Finding], rest: Consulted) -> bytes:
    """Findings (without their path) and what they rest on, as bytes."""
    return zlib.compress(json.dumps([[astuple(replace(one, path="")) for one in findings], asdict(rest)]).encode(), 1)


def unpack(data: bytes, path: str) -> tuple[tuple[Finding, ...], Consulted]:
    """What `pack` was given. ValueError, TypeError, LookupError or zlib.error if that is not what `data` holds."""
    findings, rest = json.loads(zlib.decompress(data))
    return tuple(_finding(path, *row[1:]) for row in findings), Consulted(**rest)


def _finding(path: str, span: Any, code: str, name: str, severity: str, confidence: int, message: str, url: str,
             fix: Any, cell: int | None, fingerprint: str) -> Finding:
    return Finding(path, Span(*span), code, name, Severity(severity), Confidence(confidence), message, url,
                   None if fix is None else _fix(*fix), cell, fingerprint)


def _fix(safety: str, title: str, edits: Any, imports: Any) -> Fix:
    return Fix(Safety(safety), title, tuple(Edit(Span(*span), text) for span, text in edits), tuple(imports))
