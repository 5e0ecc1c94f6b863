"""From one source to its findings. One bad rule or file never costs another its findings."""
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchlint.builtin import BUILTIN, UNCHECKED, every_rule, rule_url
from torchlint.config import Options
from torchlint.files import STDIN, Source, mentions
from torchlint.findings import Confidence, Finding, Fix, Safety, Span
from torchlint.fingerprint import Scopes, scopes_of, with_fingerprints
from torchlint.gate import worth_parsing
from torchlint.model import FileModel
from torchlint.project import Project
from torchlint.requirements import Configured
from torchlint.rule import Hit, Rule
from torchlint.select import Selection, select
from torchlint.suppress import Suppressions, read_comments, suppress


def lint_source(
    text: str,
    path: str = STDIN,
    options: Options | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    project: Project | None = None,
) -> list[Finding]:
    """The findings in `text`, sorted by place.

    `path` is what findings say and where imports are looked up from; the file need not exist.
    `rules` replaces the rules of the package. ConfigError if `options` select a rule that is unknown.
    """
    known = every_rule() if rules is None else tuple(rules)
    selection = select(options or Options(), known)
    return check(Source(path, text.removeprefix("\ufeff")), selection, project or Project())


def check(
    source: Source, selection: Selection, project: Project, *, noqa: bool = True, named: bool = True
) -> list[Finding]:
    """The findings in a source, sorted by place, silenced ones left out; `noqa` says whether such comments count.

    A source that is not `named`, but was met on a walk, is not parsed if it has nothing to do with torch.
    """
    active = selection.active(source.path)
    comments = read_comments(source, noqa)
    if comments.skip:
        return []
    run = _Run(source, active)
    project.session(Configured).torch_version = selection.torch_version
    if (named or worth_parsing(source, project)) and run.parse():
        rules = [rule for rule in selection.rules if rule.meta.code in active and not rule.meta.runtime]
        run.rules([rule for rule in rules if mentions(source.text, rule.meta.triggers)], project)
    return run.finish(comments, selection)


class _Run:
    """The findings of one source while they are gathered."""

    def __init__(self, source: Source, active: frozenset[str]) -> None:
        self.source = source
        self.active = active
        self.findings: list[Finding] = []
        self.failed: set[str] = set()  # codes of rules that raised
        self.parsed = False

    def parse(self) -> bool:
        """Whether the source has a tree; if not, that is reported."""
        try:
            self.parsed = bool(self.source.tree)
        except SyntaxError as error:
            self._unchecked(f"syntax error: {error.msg}", *_position(error, self.source))
        except (RecursionError, MemoryError):
            self._unchecked("nested too deep to be parsed")
        except ValueError as error:
            self._unchecked(f"cannot be parsed: {_one_line(error)}")
        return self.parsed

    def rules(self, rules: Sequence[Rule], project: Project) -> None:
        """Make the model and let every rule look."""
        if not any(rule not in BUILTIN for rule in rules):
            return
        try:
            model = FileModel.begin(self.source, project)
        except RecursionError:
            self._unchecked("nested too deep to be understood")
        except Exception as error:
            self._unchecked(f"could not be understood, which is a fault of torchlint: {_named(error)}")
        else:
            for rule in rules:
                self._one(rule, model)
            return
        self.failed |= {rule.meta.code for rule in rules}

    def _one(self, rule: Rule, model: FileModel) -> None:
        """Let one rule look; if it fails, its findings are dropped and that is reported."""
        try:
            found = [_finding(rule, hit, model) for hit in rule.check(model)]
        except RecursionError:
            self.failed.add(rule.meta.code)
            self._unchecked("nested too deep to be understood by every rule")
        except Exception as error:
            self.failed.add(rule.meta.code)
            name = f"{rule.meta.code} ({rule.meta.name})"
            self._unchecked(f"not checked by {name}, which failed by a fault of torchlint: {_named(error)}")
        else:
            self.findings += found

    def finish(self, comments: Suppressions, selection: Selection) -> list[Finding]:
        """Silence, name and sort."""
        unseen = {rule.meta.code for rule in selection.rules if rule.meta.runtime}
        looked_for = self.active - self.failed - unseen
        whole = not selection.narrowed and looked_for == selection.codes - unseen
        findings = sorted(set(self.findings), key=_order)
        if not findings or self.parsed:
            findings = suppress(findings, self.source, comments, selection.known, looked_for, whole)
        findings.sort(key=_order)
        scopes: Scopes = scopes_of(self.source.tree) if findings and self.parsed else []
        return with_fingerprints(findings, self.source, scopes)

    def _unchecked(self, message: str, line: int = 1, column: int = 1) -> None:
        if UNCHECKED.meta.code in self.active:
            self.findings.append(unchecked(self.source.path, message, line, column, self.source.cell))


def unchecked(path: str, message: str, line: int = 1, column: int = 1, cell: int | None = None) -> Finding:
    """The TL000 finding that says why a file was not checked."""
    meta = UNCHECKED.meta
    return Finding(
        path, Span(line, column, line, column), meta.code, meta.name, meta.severity, Confidence.SURE,
        message, rule_url(meta.name), cell=cell,
    )


def roots(paths: Iterable[str]) -> tuple[Path, ...]:
    """Where absolute imports of the files in `paths` may start: each directory named, and the working one."""
    found = [Path(path) if os.path.isdir(path) else Path(path).parent for path in paths]
    return tuple(dict.fromkeys([*(folder.absolute() for folder in found), Path.cwd()]))


def _finding(rule: Rule, hit: Hit, model: FileModel) -> Finding:
    """What a hit says, with its place, its fix at the safety that the rule may claim, and its page."""
    meta = rule.meta
    fix = None
    if hit.fix is not None and meta.fix is not None:
        safety = max(meta.fix, hit.fix.safety or Safety.SAFE, key=lambda one: one.rank)
        fix = Fix(safety, hit.fix.title, hit.fix.edits, hit.fix.imports)
    return Finding(
        model.source.path, model.span(hit.node), meta.code, meta.name, hit.severity or meta.severity,
        hit.confidence, hit.message, rule_url(meta.name), fix, model.source.cell,
    )


def _order(finding: Finding) -> tuple[object, ...]:
    """Sort key that leaves nothing to chance."""
    return (*finding.order, finding.span.end_line, finding.span.end_column)


def _position(error: SyntaxError, source: Source) -> tuple[int, int]:
    """Line and column of a syntax error, inside the text."""
    line = min(max(error.lineno or 1, 1), max(len(source.lines), 1))
    width = len(source.lines[line - 1]) if source.lines else 0
    return line, min(max(error.offset or 1, 1), width + 1)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_one_line(error)}" if str(error) else type(error).__name__


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
