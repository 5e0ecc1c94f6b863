"""From paths to a report: every file once, in as many processes as are wanted, in a fixed order."""
from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from torchlint.builtin import UNCHECKED, every_rule
from torchlint.cache import Cache
from torchlint.config import Options
from torchlint.consulted import Consulted, consulted
from torchlint.discover import Found, discover
from torchlint.engine import check, roots, unchecked
from torchlint.files import Source, UnreadableFile, read_source
from torchlint.findings import Finding
from torchlint.notebooks import ENDING, by_cell, read_notebook
from torchlint.project import Project
from torchlint.results import Report
from torchlint.rule import Rule
from torchlint.select import Selection, select

Progress = Callable[[int, int], None]  # files done, files in all

FEW = 16  # files for which starting processes costs more than it saves
CHUNK = 24  # files that a process gets at a time
HELD = 300  # models that a process keeps; one of a long file takes some megabytes


@dataclass(frozen=True)
class Checked:
    """One file's findings, and its source if there are any, or it is needed for the cache, and it could be read."""

    findings: tuple[Finding, ...]
    source: Source | None = None
    rest: Consulted | None = None  # what they rest on besides the file, if that was asked for and is known


class Checker:
    """Checks the files of one run in one process; they share a project."""

    def __init__(self, selection: Selection, project: Project, trace: bool = False) -> None:
        self.selection = selection
        self.project = project
        self.trace = trace  # say what findings rest on

    def file(self, found: Found) -> Checked:
        """Read and check a file; whatever goes wrong becomes a finding."""
        if len(self.project.cache) > HELD:
            self.project = Project(self.project.roots)
            gc.collect()
        try:
            if found.path.endswith(ENDING):
                return self._notebook(read_notebook(found.path, found.shown))
            source = read_source(found.path, found.shown)
        except UnreadableFile as error:
            return self._unchecked(found, str(error))
        return self.source(source, found.named)

    def _notebook(self, source: Source) -> Checked:
        """Check the code of a notebook; its findings say in which cell they are."""
        checked = self.source(source)
        kept = source if checked.findings else None
        return Checked(tuple(by_cell(checked.findings, source)), kept)

    def source(self, source: Source, named: bool = True) -> Checked:
        """Check a source; a failure of torchlint itself becomes a finding."""
        try:
            findings = check(source, self.selection, self.project, named=named)
        except Exception as error:
            why = f"a fault of torchlint: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return Checked((unchecked(source.path, why),), source)
        # The copy has no tree, so that memory does not grow with the number of files.
        whole = self.trace and all(finding.code != UNCHECKED.meta.code for finding in findings)
        kept = Source(source.path, source.text, source.encoding) if findings or whole else None
        return Checked(tuple(findings), kept, consulted(self.project, source) if whole else None)

    def _unchecked(self, found: Found, message: str) -> Checked:
        code = "TL000"
        silent = code not in self.selection.active(found.shown)
        return Checked(() if silent else (unchecked(found.shown, message),))


def lint_paths(
    paths: Iterable[str],
    options: Options | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    progress: Progress | None = None,
    cached: bool = False,
) -> Report:
    """Check all Python files that `paths` name or contain.

    `rules` replaces the rules there are. `progress` is called after each file or group of files.
    With `cached`, files whose results of an earlier run still hold are not looked at again.
    ConfigError if `options` select a rule that is unknown. The report does not depend on `options.jobs`.
    """
    start = time.perf_counter()
    paths = list(paths)
    options = options or Options()
    known = every_rule() if rules is None else tuple(rules)
    selection = select(options, known)
    discovery = discover(paths, options.exclude, options.base, force=options.force_exclude)
    project = Project(roots(paths))
    checker = Checker(selection, project, cached)
    cache = Cache(options, known, project) if cached else None
    checked: list[Checked] = []
    with _no_gc():
        for part in _some_cached(checker, cache, discovery.files, jobs(options)):
            checked += part
            if progress is not None:
                progress(len(checked), len(discovery.files))
    return Report(
        findings=tuple(sorted((f for one in checked for f in one.findings), key=lambda f: f.order)),
        errors=discovery.errors,
        files=len(discovery.files),
        sources={one.source.path: one.source for one in checked if one.source is not None and one.findings},
        rules=known,
        notes=selection.notes,
        seconds=time.perf_counter() - start,
    )


def _earlier(cache: Cache, file: Found) -> Checked | None:
    """What an earlier run found in a file, if that still holds. A pipe is left alone: it can be read once."""
    if not os.path.isfile(file.path):
        return None
    try:
        source = read_source(file.path, file.shown)
    except UnreadableFile:
        return None
    findings = cache.get(source, file.named)
    return None if findings is None else Checked(findings, source if findings else None)


def _some_cached(
    checker: Checker, cache: Cache | None, files: Sequence[Found], jobs: int
) -> Iterator[list[Checked]]:
    """The files' results: first those of earlier runs that still hold, then the others as they come."""
    if cache is None:
        yield from _all(checker, files, jobs)
        return
    earlier = {file: result for file in files if (result := _earlier(cache, file)) is not None}
    yield list(earlier.values())
    todo = [file for file in files if file not in earlier]
    named = iter([file.named for file in todo])
    for part in _all(checker, todo, jobs):
        for result, is_named in zip(part, named, strict=False):
            if result.rest is not None and result.source is not None:
                cache.put(result.source, is_named, result.findings, result.rest)
        yield part
    cache.close()


@contextlib.contextmanager
def _no_gc() -> Iterator[None]:
    """Without the garbage collector, which would look through all trees and models again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def jobs(options: Options) -> int:
    """How many processes to use: as many as there are processors unless the options say."""
    if options.jobs:
        return options.jobs
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _all(checker: Checker, files: Sequence[Found], jobs: int) -> Iterator[list[Checked]]:
    """The files' results in order, a few at a time."""
    if jobs < 2 or len(files) < FEW:
        for file in files:
            yield [checker.file(file)]
        return
    size = max(1, min(CHUNK, len(files) // (2 * jobs)))
    chunks = [files[start : start + size] for start in range(0, len(files), size)]
    pool = _pool(checker, min(jobs, len(chunks)))
    try:
        for chunk, future in [(chunk, _submit(pool, chunk)) for chunk in chunks]:
            try:
                yield future.result() if future is not None else _afresh(checker, chunk)
            except BrokenProcessPool:
                yield _afresh(checker, chunk)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, chunk: Sequence[Found]) -> Future[list[Checked]] | None:
    """The work handed to the pool; None if a process has died already."""
    try:
        return pool.submit(_chunk, chunk)
    except BrokenProcessPool:
        return None


def _afresh(checker: Checker, files: Sequence[Found]) -> list[Checked]:
    """Check files whose process has died, in ever smaller groups, so that one file is left to blame."""
    pool = _pool(checker, 1)
    try:
        return pool.submit(_chunk, files).result()
    except BrokenProcessPool:
        if len(files) == 1:
            return [Checked((unchecked(files[0].shown, "the process that checked it died"),))]
    finally:
        pool.shutdown()
    half = len(files) // 2
    return _afresh(checker, files[:half]) + _afresh(checker, files[half:])


def _pool(checker: Checker, processes: int) -> ProcessPoolExecutor:
    """Processes that have the checker; forked where that is safe, because it takes no time."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(processes, context, _start, (checker.selection, checker.project.roots, checker.trace))


_checker: Checker


def _start(selection: Selection, roots: Sequence[os.PathLike[str]], trace: bool) -> None:
    """Make a process ready: its own project, and interrupts left to the parent."""
    global _checker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # see _no_gc
    _checker = Checker(selection, Project(Path(root) for root in roots), trace)


def _chunk(files: Sequence[Found]) -> list[Checked]:
    return [_checker.file(file) for file in files]
