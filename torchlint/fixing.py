"""Fixes for a whole report: which files change, what is left, and writing or showing that."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchlint import atomic
from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.results import Problem, Report
from torchlint.runner import Checker


@dataclass(frozen=True)
class Change:
    """One file before and after its fixes."""

    source: Source
    text: str
    data: bytes


@dataclass(frozen=True)
class Repaired:
    """The report of what is left, and what was changed (or would be)."""

    report: Report
    changes: tuple[Change, ...]

    def patch(self) -> bytes:
        """All changes as one patch, each file's part in that file's encoding."""
        from torchlint.fixes.apply import diff

        parts = [
            diff(change.source.text, change.text, change.source.path).encode(_plain(change.source.encoding))
            for change in self.changes
        ]
        return b"".join(parts)


def repair(report: Report, checker: Checker, *, unsafe: bool, write: bool) -> Repaired:
    """Fix the files of a report; `write` says whether they are changed on disk.

    A file that cannot be written keeps its findings, and an error says why.
    """
    left: dict[str, tuple[Finding, ...]] = {}
    changes: list[Change] = []
    errors: list[Problem] = []
    sources = dict(report.sources)
    fixed = 0
    for path in _to_fix(report.findings, unsafe):
        try:
            change, remaining, count = _one(sources[path], checker, unsafe)
            if change is not None and write:
                atomic.write(path, change.data)
        except UnicodeEncodeError as error:
            char = error.object[error.start]
            errors.append(Problem(f"not fixed: {error.encoding} has no {char!r}", path))
            continue
        except OSError as error:
            errors.append(Problem(f"not fixed: {error.strerror}", path))
            continue
        left[path] = remaining
        if change is not None:
            changes.append(change)
            fixed += count
            sources[path] = replace(change.source, text=change.text)
    kept = [finding for finding in report.findings if finding.path not in left]
    findings = sorted([*kept, *(f for found in left.values() for f in found)], key=lambda f: f.order)
    new = replace(
        report, findings=tuple(findings), errors=(*report.errors, *errors), fixed=fixed, sources=sources
    )
    return Repaired(new, tuple(changes))


def _one(source: Source, checker: Checker, unsafe: bool) -> tuple[Change | None, tuple[Finding, ...], int]:
    """The change of one file (None for none), the findings left in it, and how many are fixed."""
    from torchlint.fixes.apply import fix_source  # late: only fixes need libcst

    result = fix_source(source, lambda text: list(checker.source(text).findings), unsafe=unsafe)
    left = tuple(result.left)
    if result.text == source.text:
        return None, left, 0
    return Change(source, result.text, source.encode(result.text)), left, len(result.applied)


def _to_fix(findings: Iterable[Finding], unsafe: bool) -> list[str]:
    """Paths of files with a finding that may be fixed."""
    allowed = (Safety.SAFE, Safety.UNSAFE) if unsafe else (Safety.SAFE,)
    return list(dict.fromkeys(f.path for f in findings if f.fix is not None and f.fix.safety in allowed))


def _plain(encoding: str) -> str:
    """The encoding of a patch: a byte order mark belongs to the file, not to its lines."""
    return "utf-8" if encoding == "utf-8-sig" else encoding
