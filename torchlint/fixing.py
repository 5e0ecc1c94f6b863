"""Fixes for a whole report: which files change, what is left, and writing or showing that."""
from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.project import Project
from torchlint.results import Made, Problem, Proof, Report
from torchlint.runner import Checker

Choose = Callable[[Finding, str], bool]  # asked about a fix, with the patch that it would make
Verify = Callable[[Report, Sequence[Finding]], Sequence[Made]]  # runs the code before and after each fix


@dataclass(frozen=True)
class Change:
    """One file before and after its fixes, and what came of them."""

    source: Source
    text: str
    data: bytes
    left: tuple[Finding, ...]
    made: tuple[Made, ...]
    gone: int = 0  # findings that went away with the fixes of others


@dataclass(frozen=True)
class Repaired:
    """The report of what is left, and what was changed (or would be)."""

    report: Report
    changes: tuple[Change, ...]

    def patch(self) -> tuple[bytes, str]:
        """All changes as one patch, and the directory to apply it in ("" for the current one)."""
        from torchlint.fixes.patch import patches

        return patches((change.source, change.text) for change in self.changes)


TOGETHER = "TL301 TL302"  # rules whose fixes repair a program only together, wherever its parts stand


@dataclass
class _Job:
    """What is wanted of all files, and what is told of them."""

    report: Report
    checker: Checker
    unsafe: bool
    choose: Choose | None = None
    verify: Verify | None = None
    proofs: dict[tuple[str, str, str], Made] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    told: dict[int, Made] = field(default_factory=dict)  # by the identity of findings, which it keeps alive

    def allowed(self, finding: Finding) -> bool:
        """Whether the finding has a fix that may be made."""
        if finding.fix is None or not finding.fix.edits:
            return False
        return finding.fix.safety is Safety.SAFE or (self.unsafe and finding.fix.safety is Safety.UNSAFE)

    def lint(self, source: Source) -> list[Finding]:
        """The findings of a text; those whose fix did not stand the test have none."""
        found = self.checker.source(source).findings
        self.prove(replace(self.report, findings=found, sources={source.path: source}))
        findings = []
        for finding in found:
            made = self.proofs.get(_key(source, finding))
            if made is not None and made.proof is Proof.FAILED:
                finding = replace(finding, fix=None)
            elif made is not None:
                self.told[id(finding)] = replace(made, finding=finding)
            findings.append(finding)
        return findings

    def prove(self, report: Report) -> None:
        """Run the code before and after each fix that was not run yet, those that others made possible, too.

        Of findings that look the same the worst proof counts.
        """
        fresh = [one for one in report.findings
                 if self.allowed(one) and _key(report.sources[one.path], one) not in self.proofs]
        order = list(Proof)
        for made in self.verify(report, fresh) if self.verify is not None and fresh else ():
            key = _key(report.sources[made.finding.path], made.finding)
            known = self.proofs.get(key)
            if known is None or order.index(made.proof) > order.index(known.proof):
                self.proofs[key] = made
            if made.proof is Proof.FAILED:
                span = made.finding.span
                self.notes.append(f"{made.finding.path}:{span.line}:{span.column}: the fix of {made.finding.code} "
                                  f"({made.finding.name}) was taken back: {made.why}")

    def made(self, finding: Finding) -> Made:
        """A finding whose fix was made, with what running the code showed."""
        return self.told.get(id(finding)) or Made(finding)


def _key(source: Source, finding: Finding) -> tuple[str, str, str]:
    """What makes two findings the same for a proof: file, code and the text of the line."""
    line = finding.span.line
    text = source.lines[line - 1] if 1 <= line <= len(source.lines) else ""
    return finding.path, finding.code, text.strip()


def repair(
    report: Report,
    checker: Checker,
    *,
    unsafe: bool,
    write: bool,
    choose: Choose | None = None,
    verify: Verify | None = None,
) -> Repaired:
    """Fix the files of a report; `write` says whether they are changed on disk, all or none.

    A file that cannot be written keeps its findings, and an error says why. A fix that was dropped
    because it did what no fix may do is named in the notes of the new report. `choose` is asked about
    each fix. `verify` runs the code before and after each; one that fails is not made, and named.
    """
    job = _Job(report, checker, unsafe, choose, verify)
    job.prove(report)
    changes: dict[str, Change] = {}
    errors: list[Problem] = []
    for path in dict.fromkeys(finding.path for finding in report.findings if job.allowed(finding)):
        try:
            change = _one(report.sources[path], job)
        except UnicodeEncodeError as error:
            char = error.object[error.start]
            errors.append(Problem(f"not fixed: {error.encoding} has no {char!r}", path))
        else:
            if change is not None:
                changes[path] = change
    if write:
        for problem in _write(changes.values()):
            errors.append(problem)
            checker.source(changes.pop(problem.path).source)  # which the project must know again
    after = _after_fixes(report, changes, errors, job.notes)
    return Repaired(_seen_again(after, checker, changes), tuple(changes.values()))


def _seen_again(report: Report, checker: Checker, changed: Collection[str]) -> Report:
    """The report with the findings of files as they are once those that they import from have changed, too."""
    targets = {os.path.abspath(path) for path in changed}
    gone, left = 0, list(report.findings)
    for path in sorted({finding.path for finding in left}):
        source = report.sources.get(path)  # none of a file that cannot be read
        if source is None or not _takes_from(checker.project, source, targets - {os.path.abspath(path)}):
            continue
        before = {(one.code, one.span): one for one in left if one.path == path}
        now = [before.get((one.code, one.span), one) for one in checker.source(source).findings]
        gone += max(0, len(before) - len(now))
        left = [one for one in left if one.path != path] + now
    return replace(report, findings=tuple(sorted(left, key=lambda one: one.order)), fixed=report.fixed + gone)


def _takes_from(project: Project, source: Source, paths: Collection[str]) -> bool:
    """Whether a file imports what one of the others defines, or a module that does."""
    try:
        index = project.add(source) if paths else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if index is None:
        return False
    whole = [alias.name for node in index.tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules = [project.module(name, index) for name in (*whole, *index.scope.stars)]
    origins = [project.resolve(one, name).index for one in (index, *modules) if one is not None
               for name in one.scope.imports.values()]
    return any(os.path.abspath(one.source.path) in paths for one in (*modules, *origins) if one is not None)


def _after_fixes(report: Report, changes: dict[str, Change], errors: list[Problem], notes: list[str]) -> Report:
    """The report of what is left."""
    kept = [finding for finding in report.findings if finding.path not in changes]
    left = [finding for change in changes.values() for finding in change.left]
    made = tuple(one for change in changes.values() for one in change.made)
    return replace(
        report,
        findings=tuple(sorted(kept + left, key=lambda finding: finding.order)),
        errors=(*report.errors, *errors),
        notes=(*report.notes, *notes),
        fixed=len(made) + sum(change.gone for change in changes.values()),
        made=made,
        sources={**report.sources, **{path: _after(change) for path, change in changes.items()}},
    )


def _one(source: Source, job: _Job) -> Change | None:
    """The change of one file, None for none; dropped fixes are added to the notes."""
    from torchlint.fixes.apply import fix_source  # late: only fixes need what they import

    result = fix_source(source, job.lint, unsafe=job.unsafe, choose=job.choose)
    job.notes += map(str, result.dropped)
    if result.text == source.text:
        return None
    made = tuple(job.made(finding) for finding in result.applied)
    return Change(source, result.text, source.encode(result.text), result.left, made, result.gone)


def _write(changes: Iterable[Change]) -> list[Problem]:
    """Write the changes; the files that were left alone, and why."""
    from torchlint.fixes import write

    failures = write.write_files(
        write.Change(change.source.path, change.source.encode(change.source.text), change.data, _group(change))
        for change in changes
    )
    return [Problem(f"not fixed: {failure.why}", failure.path) for failure in failures]


def _group(change: Change) -> str:
    """What holds a file together with others: `.apply` is of no use while the class is not static."""
    return TOGETHER if any(made.finding.code in TOGETHER for made in change.made) else ""


def _after(change: Change) -> Source:
    return replace(change.source, text=change.text)
