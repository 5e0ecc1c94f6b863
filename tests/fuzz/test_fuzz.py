"""No program makes the linter fail, and no fix makes a program worse. Long form: TORCHLINT_FUZZ=long pytest tests/fuzz

Short: a few hundred generated programs, and a part of the installed packages. Long: many thousands,
and every file of every installed package.
"""
from __future__ import annotations

import ast
import os
import site
import sysconfig
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from programs import PROGRAMS, tampered

from torchlint.builtin import every_rule
from torchlint.config import Options
from torchlint.engine import check
from torchlint.files import Source, UnreadableFile, read_source
from torchlint.findings import Finding
from torchlint.fixes.apply import fix_source
from torchlint.project import Project
from torchlint.select import select

LONG = os.environ.get("TORCHLINT_FUZZ") == "long"
OUR_FAULT = "a fault of torchlint"
SELECTION = select(Options(select=("ALL",), preview=True), every_rule())
# Programs with several faults at once: what one fix repairs may show or leave another, and the guard says so.
OTHER_FAULTS = ("it brings a new finding", "the finding is still there")
SHORT = 24  # installed files that the short form looks at

fuzz = settings(
    max_examples=20_000 if LONG else 100,
    deadline=None,
    phases=list(Phase) if LONG else [Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    derandomize=not LONG,  # the short form is the same every time: a red build is never luck
    suppress_health_check=list(HealthCheck),
)


def lint(source: Source, project: Project | None = None) -> list[Finding]:
    """All findings; an AssertionError if one of them tells of a fault of torchlint."""
    found = check(source, SELECTION, project or Project())
    faults = [finding.message for finding in found if OUR_FAULT in finding.message]
    assert not faults, f"{faults}\n{source.text}"
    return found


def lint_and_fix(text: str) -> None:
    """Lint a program, make all its fixes, and see that it is still a program."""
    source = Source("fuzz.py", text)
    lint(source)
    result = fix_source(source, lint, unsafe=True)
    broken = [str(drop) for drop in result.dropped if not drop.why.startswith(OTHER_FAULTS)]
    assert not broken, f"{broken}\n{text}"
    if result.text != text:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as "str" object is not callable
            ast.parse(result.text)


@fuzz
@given(PROGRAMS)
def test_generated_programs(text: str):
    lint_and_fix(text)


@fuzz
@given(tampered())
def test_examples_tampered_with(text: str):
    lint_and_fix(text)


def test_the_generated_programs_are_programs():
    """A generator of nothing but syntax errors would test nothing."""
    seen: list[bool] = []

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(PROGRAMS)
    def look(text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ast.parse(text)
                seen.append(True)
            except SyntaxError:
                seen.append(False)

    look()
    assert sum(seen) / len(seen) > 0.6


def installed() -> list[Path]:
    """Python files of installed packages and of the standard library, each package's in order."""
    packages = {path for one in site.getsitepackages() for path in Path(one).rglob("*.py")}
    library = Path(sysconfig.get_paths()["stdlib"])  # may hold packages of another environment
    return sorted(packages | {path for path in library.rglob("*.py") if "site-packages" not in path.parts})


def test_installed_packages():
    paths = installed()
    if not LONG:
        paths = [path for path in paths if b"import torch" in path.read_bytes()]
    chosen = paths if LONG else paths[:: max(1, len(paths) // SHORT)]
    seen = 0
    project, folder = Project(), Path()
    for path in chosen:
        if path.parent != folder:  # files of one folder share what is known of their project, as in a real run
            project, folder = Project(), path.parent
        try:
            source = read_source(path)
        except UnreadableFile:  # the standard library's tests have files that are no Python on purpose
            continue
        lint(source, project)
        seen += 1
    print(f"{seen} of {len(paths)} installed files linted")
    assert seen >= 0.9 * len(chosen) >= 0.9 * min(SHORT, len(paths)), "is the sample empty?"


def test_faults_are_noticed(monkeypatch: pytest.MonkeyPatch):
    """The partner of all of the above: a rule that fails makes them fail."""
    import dataclasses

    broken = dataclasses.replace(every_rule()[-1], check=lambda model: 1 / 0)
    selection = select(Options(), (*every_rule()[:-1], dataclasses.replace(
        broken, meta=dataclasses.replace(broken.meta, triggers=(), stable=True, default=True))))
    monkeypatch.setitem(globals(), "SELECTION", selection)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        lint(Source("fuzz.py", "import torch\n"))
