"""Fixes for a whole report: which files change, what is left, and writing or showing that."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.results import Problem, Report
from torchlint.runner import Checker


@dataclass(frozen=True)
class Change:
    """One file before and after its fixes, and what came of them."""

    source: Source
    text: str
    data: bytes
    left: tuple[Finding, ...]
    fixed: int


@dataclass(frozen=True)
class Repaired:
    """The report of what is left, and what was changed (or would be)."""

    report: Report
    changes: tuple[Change, ...]

    def patch(self) -> bytes:
        """All changes as one patch, each file's part in the bytes of that file."""
        from torchlint.fixes.patch import patch

        return b"".join(patch(change.source, change.text) for change in self.changes)


def repair(report: Report, checker: Checker, *, unsafe: bool, write: bool) -> Repaired:
    """Fix the files of a report; `write` says whether they are changed on disk, all or none.

    A file that cannot be written keeps its findings, and an error says why. A fix that was dropped
    because it did what no fix may do is named in the notes of the new report.
    """
    changes: dict[str, Change] = {}
    errors: list[Problem] = []
    notes: list[str] = []
    for path in _to_fix(report.findings, unsafe):
        try:
            change = _one(report.sources[path], checker, unsafe, notes)
        except UnicodeEncodeError as error:
            char = error.object[error.start]
            errors.append(Problem(f"not fixed: {error.encoding} has no {char!r}", path))
        else:
            if change is not None:
                changes[path] = change
    if write:
        for problem in _write(changes.values()):
            errors.append(problem)
            del changes[problem.path]
    kept = [finding for finding in report.findings if finding.path not in changes]
    left = [finding for change in changes.values() for finding in change.left]
    new = replace(
        report,
        findings=tuple(sorted(kept + left, key=lambda finding: finding.order)),
        errors=(*report.errors, *errors),
        notes=(*report.notes, *notes),
        fixed=sum(change.fixed for change in changes.values()),
        sources={**report.sources, **{path: _after(change) for path, change in changes.items()}},
    )
    return Repaired(new, tuple(changes.values()))


def _one(source: Source, checker: Checker, unsafe: bool, notes: list[str]) -> Change | None:
    """The change of one file, None for none; dropped fixes are added to `notes`."""
    from torchlint.fixes.apply import fix_source  # late: only fixes need libcst

    result = fix_source(source, lambda text: list(checker.source(text).findings), unsafe=unsafe)
    notes += map(str, result.dropped)
    if result.text == source.text:
        return None
    return Change(source, result.text, source.encode(result.text), result.left, len(result.applied))


def _write(changes: Iterable[Change]) -> list[Problem]:
    """Write the changes; the files that were left alone, and why."""
    from torchlint.fixes import write

    failures = write.write_files(
        write.Change(change.source.path, change.source.encode(change.source.text), change.data)
        for change in changes
    )
    return [Problem(f"not fixed: {failure.why}", failure.path) for failure in failures]


def _after(change: Change) -> Source:
    return replace(change.source, text=change.text)


def _to_fix(findings: Iterable[Finding], unsafe: bool) -> list[str]:
    """Paths of files with a finding that may be fixed."""
    allowed = (Safety.SAFE, Safety.UNSAFE) if unsafe else (Safety.SAFE,)
    return list(dict.fromkeys(f.path for f in findings if f.fix is not None and f.fix.safety in allowed))
