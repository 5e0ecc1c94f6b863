"""`torchlint PATHS`: check, and fix if asked to."""
from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchlint.builtin import every_rule
from torchlint.config import ConfigError, Options
from torchlint.discover import excluded
from torchlint.engine import roots, unchecked
from torchlint.files import STDIN, UnreadableFile, decode, show
from torchlint.findings import Finding, Safety
from torchlint.fixing import Choose, Repaired, Verify, repair
from torchlint.project import Project
from torchlint.results import Made, Report
from torchlint.rule import Rule
from torchlint.runner import Checked, Checker, Progress, jobs, lint_paths
from torchlint.select import configured, select

NO_FILES = "no Python files here"


@dataclass(frozen=True)
class Choices:
    """What a command line says of configuration and selection; None and () where it says nothing."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    preview: bool | None = None
    isolated: bool = False
    jobs: int | None = None
    cache: bool = True  # use and keep results of earlier runs

    def options(self, paths: Sequence[str], known: Sequence[Rule] | None = None) -> Options:
        """The configuration for `paths` with these choices on top. ConfigError if it is at fault.

        `known` replaces the rules there are.
        """
        known = every_rule() if known is None else known
        options = configured(paths, known, self.isolated).changed(
            select=self.select,
            extend_select=self.extend_select,
            ignore=self.ignore,
            preview=self.preview,
            jobs=self.jobs,
        )
        return replace(options, exclude=(*options.exclude, *self.exclude), force_exclude=self.force_exclude)


@dataclass(frozen=True)
class Request:
    """A whole command line."""

    paths: tuple[str, ...]
    choices: Choices = Choices()
    fix: bool = False
    unsafe: bool = False
    diff: bool = False
    stdin_name: str = ""  # "" unless --stdin-filename is given
    verify: bool = False

    @property
    def stdin(self) -> bool:
        """Whether the source comes from standard input."""
        return self.paths in ((), ("-",))


@dataclass(frozen=True)
class Outcome:
    """What came of a request. `payload` is what goes to standard output in place of the report."""

    report: Report
    payload: bytes | None = None
    patch: bool = False  # the payload is a patch, and the findings are nobody's question
    excluded: bool = False  # standard input was not looked at, which a note says

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know that is no fault."""
        if self.report.files or self.report.errors or self.excluded:
            return self.report.notes
        return (*self.report.notes, NO_FILES)

    def status(self, exit_zero: bool = False) -> int:
        """The exit status: 2 if something could not be done, 1 for findings or a patch, else 0."""
        if self.report.errors:
            return 2
        return int(not exit_zero and bool(self.payload if self.patch else self.report.findings))


def run(
    request: Request,
    data: bytes = b"",
    *,
    rules: Sequence[Rule] | None = None,
    progress: Progress | None = None,
    choose: Choose | None = None,
) -> Outcome:
    """Do what `request` says. `data` is standard input, `rules` replaces the rules there are.

    `choose` is asked about each fix. ConfigError if the configuration or a selector is at fault.
    """
    known = every_rule() if rules is None else tuple(rules)
    if request.stdin:
        return _stdin(request, data, known)
    options = request.choices.options(request.paths, known)
    report = lint_paths(request.paths, options, rules=known, progress=progress, cached=request.choices.cache)
    if not (request.fix or request.diff):
        return Outcome(report)
    checker = Checker(select(options, known), Project(roots(request.paths)))
    verify = _verifier(request, options, progress) if request.verify else None
    fixed = repair(
        report, checker, unsafe=request.unsafe, write=not request.diff, choose=choose, verify=verify)
    return _outcome(fixed, request, None)


def _verifier(request: Request, options: Options, progress: Progress | None) -> Verify:
    """What runs the code of fixes. ConfigError if there is no torch to run it with."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("--verify runs code and needs torch, which is not installed")
    from runtime_check.verify import VerifyError, verify  # late: nothing else may depend on it

    def run(report: Report, findings: Sequence[Finding]) -> list[Made]:
        try:
            return verify(report, findings, roots=roots(request.paths), jobs=jobs(options), progress=progress)
        except VerifyError as error:
            raise ConfigError(f"--verify: {error}") from None

    return run


def _stdin(request: Request, data: bytes, known: Sequence[Rule]) -> Outcome:
    """Check standard input. With --fix the payload is the fixed text, or the input if nothing changed."""
    name = show(request.stdin_name) if request.stdin_name else STDIN
    options = request.choices.options([request.stdin_name] if request.stdin_name else [], known)
    selection = select(options, known)
    if request.stdin_name and (excluded(request.stdin_name, options.exclude, options.base)
                               or excluded(request.stdin_name, request.choices.exclude)):
        report = Report(rules=tuple(known), notes=(*selection.notes, f"{name} is excluded"))
        payload = b"" if request.diff else data if request.fix else None
        return Outcome(report, payload, request.diff, excluded=True)
    checker = Checker(selection, Project(roots([request.stdin_name] if request.stdin_name else [])))
    try:
        checked = checker.source(decode(data, name))
    except UnreadableFile as error:
        checked = Checked((unchecked(name, str(error)),))
    sources = {name: checked.source} if checked.source is not None else {}
    report = Report(checked.findings, files=1, sources=sources, rules=tuple(known), notes=selection.notes)
    if not (request.fix or request.diff):
        return Outcome(report)
    return _outcome(repair(report, checker, unsafe=request.unsafe, write=False), request, data)


def _outcome(fixed: Repaired, request: Request, text: bytes | None) -> Outcome:
    """The outcome of fixing: a patch, the text of standard input, or a report of what is left."""
    if request.diff:
        data, base = fixed.patch()
        notes = (f"this patch has to be applied in {show(base)}",) if base else ()
        report = replace(fixed.report, notes=(*fixed.report.notes, *notes))
        return Outcome(_with_note(report, request), data, patch=True)
    if text is not None:
        return Outcome(fixed.report, fixed.changes[0].data if fixed.changes else text)
    return Outcome(fixed.report)


def _with_note(report: Report, request: Request) -> Report:
    """The report, with a word on the fixes that a patch leaves out for want of --unsafe-fixes."""
    more = report.fixable(Safety.UNSAFE)
    if request.unsafe or not more:
        return report
    said = ("1 more fix needs --unsafe-fixes: it may" if more == 1
            else f"{more} more fixes need --unsafe-fixes: they may")
    return replace(report, notes=(*report.notes, f"{said} change what runs"))


def is_checked(file: str, paths: Sequence[str]) -> bool:
    """Whether a file that is there is one that `paths` name or contain."""
    if not os.path.exists(file):
        return False
    real = os.path.realpath(file)
    for path in map(os.path.realpath, paths):
        if real == path or (real.endswith((".py", ".pyi", ".ipynb")) and real.startswith(path + os.sep)):
            return True
    return False


def statistics(report: Report) -> str:
    """How often each rule was met, the most frequent first: count, code, name."""
    counts = Counter((finding.code, finding.name) for finding in report.findings)
    width = len(str(max(counts.values(), default=0)))
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return "".join(f"{count:>{width}}  {code}  {name}\n" for (code, name), count in rows)
