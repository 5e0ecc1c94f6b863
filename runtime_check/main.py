"""`torchlint confirm`: find, run, and say which findings are real. torch is loaded in a child only."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from runtime_check.candidates import CODES, rules
from runtime_check.evidence import Environment, Outcome, Verdict, cannot_tell
from runtime_check.factories import FactoryError, Tried, factories_of, useless, useless_marks
from runtime_check.plan import SECONDS, Case, claim_of, from_finding
from runtime_check.remedies import next_step
from runtime_check.results import Confirmation, Result
from runtime_check.target import Target, target_at
from torchlint.builtin import UNCHECKED, every_rule
from torchlint.commands.check import NO_FILES, Choices
from torchlint.config import Options
from torchlint.engine import roots
from torchlint.files import Source
from torchlint.findings import Finding, Span
from torchlint.notebooks import in_source
from torchlint.output import fail, put, say
from torchlint.report import wants_colour
from torchlint.results import Problem, Report
from torchlint.runner import Progress, jobs, lint_paths

if TYPE_CHECKING:
    from runtime_check.script import Place

DEVICES = ("cpu", "cuda", "auto")
MOST_PLACES = 8  # that an error names


@dataclass(frozen=True)
class Request:
    """A command line of `torchlint confirm`."""

    paths: tuple[str, ...]
    choices: Choices = field(default_factory=Choices)
    device: str = "cpu"
    timeout: float = SECONDS  # seconds for each finding
    fail_on: tuple[str, ...] = ("confirmed",)
    form: str = "text"
    output_file: str | None = None
    keyword: str = ""  # only findings whose path:line, code, name or message hold this
    max_seconds: float | None = None
    quiet: bool = False
    check_modules: bool = False  # every Module that can be built, too


class ConfirmError(RuntimeError):
    """What keeps the whole job from being done; one line."""


def confirm_command(request: Request, *, lint_progress: Progress | None = None) -> int:
    """Does what a command line asks and prints the report; returns the exit status.

    0: nothing of the kind that --fail-on names · 1: something · 2: the job could not be done.
    ConfigError if the configuration or a selector is at fault.
    """
    show = progress_line(off=request.quiet or not sys.stderr.isatty())
    try:
        found = confirm(request, lint_progress=lint_progress, progress=show)
    except ConfirmError as error:
        return fail(str(error))
    finally:
        show(0, 0)
    if not request.quiet:
        say("warning", *found.notes)
    say("error", *map(str, found.errors))
    put(render(found, request), request.output_file)
    return status(found, request.fail_on)


def reach_command(request: Request, *, lint_progress: Progress | None = None) -> int:
    """Says how much of the code can be run; returns the exit status: 0, or 2 if nothing can be said."""
    from runtime_check import reach
    from runtime_check.pool import PoolError

    show = progress_line(off=request.quiet or not sys.stderr.isatty())
    try:
        require_fork()
        options, report = lint(request, lint_progress)
        findings = [finding for finding in report.findings if finding.code not in CODES]
        cases = [("findings", case) for case in plan(report, findings, request)]
        cases += reach.cases_in(request.paths, options, request.timeout, factories_for(request))
        words = request.keyword.lower()
        asked = [(kind, case) for kind, case in cases if words in f"{case.path}:{case.name}:{case.code}".lower()]
        if cases and not asked:
            there = dict.fromkeys(os.path.relpath(case.path) for _, case in cases)
            raise ConfirmError(none_wanted(request.keyword, ", ".join([*there][:MOST_PLACES])))
        found = reach.measure(asked, jobs(options), request.device, most=request.max_seconds, progress=show)
    except (ConfirmError, PoolError) as error:
        return fail(str(error))
    finally:
        show(0, 0)
    if not request.quiet:
        say("warning", *report.notes, *unused_factories(options, report, {}, findings))
    say("error", *map(str, report.errors))
    put(reach.render(found, request.form), request.output_file)
    return 2 if report.errors else 0


def script_command(request: Request, words: str) -> int:
    """Writes a script that repeats the evidence of one finding; returns the exit status: 0, or 2 if it cannot."""
    from runtime_check.pool import Pool, PoolError
    from runtime_check.script import ScriptError, parted, write

    try:
        place = parted(words)
        request = replace(request, paths=request.paths or (place.path,))
        require_fork()
        finding, case = chosen(request, place)
        with Pool(1, request.device) as pool:
            device = pool.environment.device if pool.environment is not None else "cpu"
            text, outcome = write(finding, replace(case, device=device), pool)
    except (ScriptError, ConfirmError, PoolError) as error:
        return fail(str(error))
    put(text, request.output_file)
    if not request.quiet:
        say("note", f"the script repeats: {outcome.verdict.value}, {outcome.why}")
    return 0


def chosen(request: Request, place: Place) -> tuple[Finding, Case]:
    """The one finding at a place, and its case. ConfirmError if there is none, or more than one."""
    path = place.path
    if os.path.isdir(path):
        raise ConfirmError(f"--script: {path} is a folder; name one file and line, such as {path.rstrip('/')}/net.py:8")
    if not os.path.exists(path):
        raise ConfirmError(f"--script: there is no file {path}")
    asked = request
    if place.code:
        asked = replace(request, choices=replace(request.choices, select=(place.code,), preview=True))
    report = lint(asked)[1]
    found = [one for one in findings_in(report, path) if is_at(one, place)]
    cases = plan(report, found, asked)
    if len(cases) == 1:
        return found[cases[0].key], cases[0]
    if cases:
        raise ConfirmError(f"--script: more than one finding there; say which: {places(found, path)}")
    if found:
        raise ConfirmError(f"--script: {found[0].code} makes no claim that running the code could test")
    here = findings_in(lint(request)[1] if place.code else report, path)
    there = [one for one in here if is_at(one, place)]
    if there and place.code:
        raise ConfirmError(f"--script: no {place.code} there; what is there: {places(there, path)}")
    where = f"line {place.line}" if place.cell is None else f"line {place.line} of cell {place.cell}"
    what = f"no {place.code}" if place.code else "no finding"
    raise ConfirmError(f"--script: {what} on {where} of {path} (findings: {places(here, path) or 'none'})")


def findings_in(report: Report, path: str) -> list[Finding]:
    """The findings in one file."""
    wanted = os.path.realpath(path)
    return [one for one in report.findings if os.path.realpath(one.path) == wanted]


def is_at(finding: Finding, place: Place) -> bool:
    """Whether a finding begins on a line, in the cell if one is named."""
    return finding.span.line == place.line and place.cell in (None, finding.cell)


def places(findings: Sequence[Finding], path: str = "") -> str:
    """Where some findings are, each as it can be given to --script; of many the first ones."""
    shown = list(dict.fromkeys(place_of(replace(one, path=path or one.path)) for one in findings))
    more = len(shown) - MOST_PLACES
    return ", ".join(shown[:MOST_PLACES]) + (f" and {more} more" if more > 0 else "")


def render(found: Confirmation, request: Request) -> str:
    """The report in the format that is asked for."""
    if request.form == "json":
        from runtime_check.report import json

        return json.render(found)
    from runtime_check.report import text

    if request.form != "text":
        from runtime_check.report.findings import as_report
        from torchlint import report as formats

        return formats.render(as_report(found, request.fail_on), request.form)
    colour = request.output_file is None and wants_colour(sys.stdout)
    return text.render(found, colour=colour, summary=not request.quiet)


def status(found: Confirmation, fail_on: tuple[str, ...]) -> int:
    """The exit status for results."""
    return 2 if found.errors else int(any(one.counts(fail_on) for one in found.results))


def confirm(
    request: Request, *, lint_progress: Progress | None = None, progress: Progress | None = None
) -> Confirmation:
    """Checks the paths, runs an experiment for every finding whose rule makes a claim.

    ConfirmError if torch is missing or the device that was asked for is not there.
    """
    started = time.perf_counter()
    until = None if request.max_seconds is None else time.monotonic() + request.max_seconds
    options, report = lint(request, lint_progress)
    findings = [finding for finding in report.findings if wanted(finding, request.keyword)]
    cases = plan(report, findings, request)
    outcomes, environment = run(cases, jobs(options), request, progress, until)
    results = tuple(
        result(finding, outcomes.get(key, no_claim(finding)), claim_name(finding), request,
               report.sources.get(finding.path))
        for key, finding in enumerate(findings)
    )
    shown, examined = without_candidates(results)
    notes = (*report.notes, *unused_factories(options, report, outcomes, findings))
    errors = (*report.errors, *map(unchecked, (one for one in findings if one.code == UNCHECKED.meta.code)))
    if report.findings and not findings:
        errors = (*errors, Problem(none_wanted(request.keyword, places(report.findings))))
    seconds = time.perf_counter() - started
    return Confirmation(shown, errors, notes, environment, seconds, examined, report.sources)


def none_wanted(keyword: str, there: str) -> str:
    """What to say where -k leaves nothing: a mistyped word must not look like a clean run."""
    return f"-k {keyword} matches nothing of what is there: {there}"


def unchecked(finding: Finding) -> Problem:
    """Why a file could not be checked: no verdict can come of it, so the job is not done."""
    where = f"line {finding.span.line}: " if finding.span != Span(1, 1, 1, 1) else ""
    return Problem(where + finding.message, finding.path)


def run(
    cases: list[Case], processes: int, request: Request, progress: Progress | None, until: float | None = None
) -> tuple[dict[int, Outcome], Environment | None]:
    """The outcomes by key, and where they come from; what an earlier run has shown is not run again.

    What has not been run `until` some moment of the monotonic clock is not run.
    """
    from runtime_check.kept import Kept
    from runtime_check.pool import LateError, Pool, PoolError

    if not cases:
        return {}, None
    require_fork()
    kept = Kept(request.device) if request.choices.cache and found("torch") else None
    outcomes = {case.key: seen for case in cases if kept is not None and (seen := kept.get(case)) is not None}
    environment = kept.environment if kept is not None else None
    todo = [case for case in cases if case.key not in outcomes]
    if todo:
        try:
            with Pool(min(processes, len(todo)), request.device, until) as pool:
                environment = pool.environment
                assert environment is not None
                originals = {case.key: case for case in todo}
                placed = [replace(case, device=environment.device) for case in todo]
                for case, outcome in pool.run(placed):
                    outcomes[case.key] = outcome
                    if kept is not None:
                        kept.put(originals[case.key], outcome, environment)
                    if progress is not None:
                        progress(len(outcomes), len(cases))
        except LateError as error:
            outcomes |= {case.key: cannot_tell(f"not run: {error}") for case in todo if case.key not in outcomes}
        except PoolError as error:
            raise ConfirmError(str(error)) from None
        finally:
            if kept is not None:
                kept.close()
    return outcomes, environment


def found(package: str) -> bool:
    """Whether a package is installed. It is not imported."""
    return importlib.util.find_spec(package) is not None


def lint(request: Request, progress: Progress | None = None) -> tuple[Options, Report]:
    """The options of a request and its findings; among these each class that a run alone can judge."""
    options = request.choices.options(request.paths)
    known = rules(request.choices, request.check_modules)
    report = lint_paths(request.paths, options, rules=known, progress=progress)
    return options, report if report.files or report.errors else replace(report, notes=(*report.notes, NO_FILES))


def without_candidates(results: tuple[Result, ...]) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
    """Results for a report, and those for classes that were examined: of these, what was confirmed is in both."""
    examined = tuple(one for one in results if one.finding.code in CODES)
    shown = (one for one in results if one.finding.code not in CODES or one.outcome.verdict is Verdict.CONFIRMED)
    return tuple(shown), examined


def require_fork() -> None:
    """ConfirmError on systems where the experiments cannot be run."""
    if not hasattr(os, "fork"):
        raise ConfirmError("confirm needs a system that can fork processes (Linux or macOS)")


def wanted(finding: Finding, keyword: str) -> bool:
    """Whether a finding is chosen by -k."""
    words = (place_of(finding), finding.name, finding.message, finding.fingerprint)
    return keyword.lower() in " ".join(words).lower()


def plan(report: Report, findings: list[Finding], request: Request) -> list[Case]:
    """A case for every finding with a claim, numbered as the findings are."""
    claims = {rule.meta.code: rule.claim for rule in every_rule()}
    folders = tuple(str(root) for root in roots(request.paths))
    by_path: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_path.setdefault(finding.path, []).append(finding)
    factories = factories_for(request)
    cases = []
    for key, finding in enumerate(findings):
        claim, source = claim_of(finding, claims.get(finding.code)), report.sources.get(finding.path)
        if claim is None or source is None:
            continue
        cases.append(
            from_finding(
                in_source(finding, source),
                claim,
                source.text,
                key,
                others=tuple(by_path[finding.path]),
                path=os.path.abspath(finding.path),
                roots=folders,
                seconds=request.timeout,
                factories=factories,
            )
        )
    return cases


def factories_for(request: Request) -> tuple[tuple[str, str], ...]:
    """The user's factories with absolute paths. ConfirmError for one that is not there."""
    try:
        return factories_of(request.choices.options(request.paths))
    except FactoryError as error:
        raise ConfirmError(str(error)) from None


def unused_factories(options: Options, report: Report, outcomes: Mapping[int, Outcome],
                     findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line for each factory, and each marked function, that is for nothing."""
    tried = []
    for key, outcome in outcomes.items():
        finding = findings[key]
        target = target_of(finding, report.sources[finding.path])
        tried.append(Tried(finding.path, target.qualname, outcome.verdict is not Verdict.NOT_REACHED))
    folders = tuple({os.path.dirname(os.path.abspath(path)) for path in report.sources})
    return (*useless(options, tried), *useless_marks((one.path for one in findings), folders))


def claim_name(finding: Finding) -> str:
    """The name of what a finding claims, or an empty string."""
    rule = next((rule for rule in every_rule() if rule.meta.code == finding.code), None)
    claim = None if rule is None else claim_of(finding, rule.claim)
    return "" if claim is None else claim.name


def no_claim(finding: Finding) -> Outcome:
    """The outcome for a finding that no experiment can test."""
    if finding.code == UNCHECKED.meta.code:
        return cannot_tell(f"the file could not be checked: {finding.message}")
    return cannot_tell(f"{finding.code} makes no claim that running the code could test")


def result(finding: Finding, outcome: Outcome, claim: str, request: Request, source: Source | None) -> Result:
    """A result with the command that repeats it, and what the reader can do where nothing could be told."""
    place = os.path.basename(place_of(finding))
    words = ["torchlint", "confirm", finding.path, "--select", finding.code, "-k", place]
    if request.choices.preview:
        words.append("--preview")
    if request.device != "cpu":
        words += ["--device", request.device]
    unsettled = claim and outcome.verdict in (Verdict.NOT_REACHED, Verdict.CANNOT_TELL)
    name = target_of(finding, source).qualname if unsettled and source is not None else ""
    step = next_step(outcome, finding.path, name, request.timeout, finding.code) if unsettled else ""
    return Result(finding, outcome, claim, shlex.join(words) if claim else "", step)


def place_of(finding: Finding) -> str:
    """Path, cell, line and code of a finding."""
    cell = "" if finding.cell is None else f"cell {finding.cell}:"
    return f"{finding.path}:{cell}{finding.span.line}:{finding.code}"


def target_of(finding: Finding, source: Source) -> Target:
    """The code that has to run for a finding to be tested."""
    return target_at(source.text, in_source(finding, source).span.line)


def progress_line(*, off: bool) -> Callable[[int, int], None]:
    """A line on the terminal that says how far the experiments are; (0, 0) takes it away."""

    def show(done: int, total: int) -> None:
        if off:
            return
        put(f"\r{done} of {total} findings run" if total else "\r\x1b[K", err=True)

    return show
