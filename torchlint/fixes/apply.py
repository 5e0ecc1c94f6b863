"""Make the fixes of one source, in rounds, behind guards that no rule can skip.

A round makes all fixes that do not overlap; the text is then linted again, and what waited gets its
turn. Where a guard trips, the round is repeated with half of its fixes until one is left: that one is
dropped, and what it did wrong is told as a fault of its rule.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchlint.files import Source
from torchlint.findings import Edit, Finding, Fix, Safety
from torchlint.fixes.guard import Moved, broken, judge, lost_comments, vanished
from torchlint.fixes.imports import import_edits
from torchlint.fixes.layout import layout
from torchlint.fixes.patch import diff
from torchlint.fixes.unused import without_unused
from torchlint.fixes.wrap import wrapped

__all__ = ["Dropped", "FixResult", "diff", "fix_source"]

ROUNDS = 100

Lint = Callable[[Source], list[Finding]]
Choose = Callable[[Finding, str], bool]


class Dropped(NamedTuple):
    """A fix that was not made although it was allowed, and what it did wrong."""

    finding: Finding
    why: str

    def __str__(self) -> str:
        finding, place = self.finding, self.finding.span
        return (f"{finding.path}:{place.line}:{place.column}: the fix of {finding.code} ({finding.name}) "
                f"was dropped, which is a fault of torchlint: {self.why}")


@dataclass(frozen=True)
class FixResult:
    """The text after its fixes. Findings stand where they stood when their turn came."""

    text: str
    applied: tuple[Finding, ...] = ()
    gone: int = 0  # findings that went away with the fixes of others
    dropped: tuple[Dropped, ...] = ()
    left: tuple[Finding, ...] = ()  # of the new text; those of dropped fixes are among them, without a fix


def fix_source(
    source: Source, lint: Lint, *, unsafe: bool = False, choose: Choose | None = None
) -> FixResult:
    """Make the safe fixes of `source`, with `unsafe` also those that change what runs.

    `lint` gives the findings of a source, sorted. `choose` is asked about each fix, with the patch it
    would make; without it all are made. Nothing is written. What `lint` raises is not caught.
    """
    try:
        assert source.tree
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FixResult(source.text, left=tuple(lint(source)))
    return _Session(source, lint, unsafe, choose).run()


class _Group(NamedTuple):
    """Findings that share one fix, with its edits."""

    findings: tuple[Finding, ...]
    edits: tuple[Edit, ...]
    imports: tuple[str, ...]


class _Session:
    """The state of fixing one source."""

    def __init__(self, source: Source, lint: Lint, unsafe: bool, choose: Choose | None) -> None:
        self.source = source
        self.lint = lint
        self.choose = choose
        self.allowed = Safety.UNSAFE if unsafe else Safety.SAFE
        self.findings: Sequence[Finding] = lint(source)
        self.applied: list[Finding] = []
        self.gone = 0
        self.dropped: list[Dropped] = []
        self.refused: set[tuple[str, int]] = set()  # code and offset of findings that keep their faults
        self.failed: set[tuple[str, int]] = set()  # those of them whose fixes were dropped
        self.linted = source

    def run(self) -> FixResult:
        """Rounds until nothing is left to do."""
        seen = {self.source.text}
        limit = 1 if self.choose else len(self.findings) + 1
        rounds = 0
        while rounds < ROUNDS:
            batch = self._batch()[:limit]
            if not batch:
                break
            if self.choose is not None and not self._chosen(batch[0]):
                self._refuse(batch[0])
                continue
            why = self._try(batch, seen)
            if not why:
                rounds += 1
                limit = 1 if self.choose else limit * 2
            elif len(batch) == 1:
                self._drop(batch[0], why)
            else:
                limit = len(batch) // 2
        if self.linted is not self.source:
            self.findings = self.lint(self.source)  # the project must know the text that stays
        left = tuple(self._offered(finding) for finding in self.findings)
        return FixResult(self.source.text, tuple(self.applied), self.gone, tuple(self.dropped), left)

    # -- choosing --------------------------------------------------------------------------------

    def _batch(self) -> list[_Group]:
        """The fixes that may be made now and do not touch each other, first ones first."""
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for finding in self.findings:
            fix = self._lowered(finding).fix
            if fix is None or not fix.edits or fix.safety.rank > self.allowed.rank:
                continue
            if self._key(finding) not in self.refused:
                groups.setdefault((fix.edits, fix.imports), []).append(finding)
        found: list[_Group] = []
        taken: list[tuple[int, int]] = []
        for (edits, imports), findings in groups.items():
            group = _Group(tuple(findings), edits, imports)  # type: ignore[arg-type]
            ranges = self._ranges(group)
            if ranges is not None and not any(_touch(mine, other) for mine in ranges for other in taken):
                found.append(group)
                taken += ranges
        return found

    def _ranges(self, group: _Group) -> list[tuple[int, int]] | None:
        """The offsets of a group's edits; None (and the fix dropped) if they are no edits of this text."""
        place = layout(self.source)
        try:
            place.apply(group.edits)
            return [place.offsets(edit.span) for edit in group.edits]
        except ValueError as error:
            self._drop(group, f"its edits are wrong: {error}")
            return None

    def _key(self, finding: Finding) -> tuple[str, int]:
        return finding.code, layout(self.source).offsets(finding.span)[0]

    def _refuse(self, group: _Group) -> None:
        self.refused.update(self._key(finding) for finding in group.findings)

    def _drop(self, group: _Group, why: str) -> None:
        self.dropped += [Dropped(finding, why) for finding in group.findings]
        self.failed.update(self._key(finding) for finding in group.findings)
        self._refuse(group)

    def _offered(self, finding: Finding) -> Finding:
        """The finding as it is left: a fix that was dropped is nothing to promise."""
        if self.failed and self._key(finding) in self.failed:
            return replace(finding, fix=None)
        return self._lowered(finding)

    def _lowered(self, finding: Finding) -> Finding:
        """The finding, its fix called unsafe if it loses a comment."""
        fix = finding.fix
        if fix is None or fix.safety is not Safety.SAFE or not _loses_comment(self.source, fix):
            return finding
        return replace(finding, fix=replace(fix, safety=Safety.UNSAFE))

    def _chosen(self, group: _Group) -> bool:
        assert self.choose is not None
        try:
            text = layout(self.source).apply(self._edits([group]))
        except ValueError:
            return True  # it will be dropped, with the reason
        return self.choose(group.findings[0], diff(self.source.text, text, self.source.path))

    # -- making ----------------------------------------------------------------------------------

    def _edits(self, batch: Iterable[_Group]) -> tuple[Edit, ...]:
        """All edits of some fixes, with the imports that they need or leave. ValueError if they overlap."""
        edits = [edit for group in batch for edit in group.edits]
        imports = [text for group in batch for text in group.imports]
        made = (*import_edits(self.source, imports), *edits)
        return wrapped(layout(self.source), without_unused(self.source, made), self.source.path)

    def _try(self, batch: list[_Group], seen: set[str]) -> str:
        """Make some fixes; if a guard trips, nothing is changed and the reason is returned."""
        try:
            edits = self._edits(batch)
            text = layout(self.source).apply(edits)
        except ValueError:
            return "its edits overlap the imports that it needs"
        if text == self.source.text:
            return "it changes nothing"
        if text in seen:
            return "it undoes another fix"
        new = Source(self.source.path, text, self.source.encoding, self.source.cell)
        why = broken(self.source, new, edits)
        if why:
            return why
        findings = self.lint(new)
        self.linted = new
        fixed = [finding for group in batch for finding in group.findings]
        why = judge(self.source, new, edits, self.findings, findings, fixed)
        if why:
            return why
        self.gone += vanished(self.source, new, edits, self.findings, findings, fixed)
        moved = Moved(layout(self.source), edits)
        self.refused = {(code, moved.offset(offset)) for code, offset in self.refused}
        self.failed = {(code, moved.offset(offset)) for code, offset in self.failed}
        seen.add(text)
        self.source, self.findings = new, findings
        self.applied += fixed
        return ""


def _touch(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two edits overlap, or their order at one place would matter."""
    if one[0] == one[1] or other[0] == other[1]:
        return one[0] <= other[1] and other[0] <= one[1]
    return one[0] < other[1] and other[0] < one[1]


def _loses_comment(source: Source, fix: Fix) -> bool:
    try:
        return bool(lost_comments(source, fix.edits))
    except ValueError:
        return False  # edits outside the text are dropped later, with the reason
