"""One source or many paths to findings: places, order, failures, processes."""
from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_rules import CUDA, DIES, ITEM, RAISES, RULES

import torchlint
from torchlint.builtin import BUILTIN
from torchlint.config import ConfigError, Options
from torchlint.engine import lint_source
from torchlint.findings import Confidence, Finding, Safety, Severity, Span
from torchlint.results import Report
from torchlint.rule import Hit, Repair, Rule
from torchlint.runner import lint_paths

ALL = Options(select=("ALL",), preview=True)


def lint(text: str, *rules: Rule, path: str = "<stdin>", options: Options | None = None) -> list[Finding]:
    return lint_source(text, path, options, rules=(*BUILTIN, *rules) if rules else RULES)


def brief(findings: list[Finding] | tuple[Finding, ...]) -> list[tuple[str, int, int, str]]:
    return [(one.path, one.span.line, one.span.column, one.code) for one in findings]


def test_a_finding_holds_what_rule_and_place_say() -> None:
    (finding,) = lint("import torch\nx = 'é', y.item()\n", path="pkg/a.py")
    assert replace(finding, fix=None, fingerprint="") == Finding(
        "pkg/a.py", Span(2, 10, 2, 18), "TL901", "item-call", Severity.WARNING, Confidence.SURE,
        "`.item()` is called", "https://torchlint.readthedocs.io/en/latest/rules/item-call/",
    )
    assert finding.fix is not None
    assert (finding.fix.safety, finding.fix.edits[0].text) == (Safety.SAFE, "y.tolist()")


@pytest.mark.parametrize(
    ("best", "here", "expected"),
    [(Safety.SAFE, None, Safety.SAFE), (Safety.SAFE, Safety.UNSAFE, Safety.UNSAFE),
     (Safety.UNSAFE, Safety.SAFE, Safety.UNSAFE), (Safety.UNSAFE, None, Safety.UNSAFE),
     (Safety.SAFE, Safety.SHOW, Safety.SHOW), (None, Safety.SAFE, None)],
)
def test_a_fix_is_never_safer_than_the_rule_may_claim(best, here, expected) -> None:
    def check(model):
        yield Hit(model.tree.body[0], "message", Repair("Repair", (), safety=here))

    rule = Rule(replace(ITEM.meta, fix=best), check, ITEM.doc, "api", __name__)
    (finding,) = lint("import torch\n", rule)
    assert (finding.fix.safety if finding.fix else None) == expected


def test_a_hit_may_differ_from_its_rule_in_severity_and_confidence() -> None:
    def check(model):
        yield Hit(model.tree.body[0], "message", severity=Severity.ERROR, confidence=Confidence.GUESS)

    (finding,) = lint("import torch\n", Rule(ITEM.meta, check, ITEM.doc, "api", __name__))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.GUESS)


def test_findings_are_sorted_by_place_and_each_comes_once() -> None:
    def check(model):
        for node in [*reversed(model.tree.body), *model.tree.body]:
            yield Hit(node, "message")

    found = lint("import torch\nx = 1\ny = 2\n", Rule(ITEM.meta, check, ITEM.doc, "api", __name__))
    assert [finding.span.line for finding in found] == [1, 2, 3]


def test_a_rule_that_raises_loses_its_own_findings_only() -> None:
    found = lint("import torch\nx.item()\ny.item()\n", ITEM, RAISES)
    assert [(one.span.line, one.code) for one in found] == [(1, "TL000"), (2, "TL901"), (3, "TL901")]
    assert "TL921 (failing-rule)" in found[0].message
    assert "KeyError: 'no\\nsuch key'" in found[0].message
    assert "\n" not in found[0].message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("import torch\nx = = 1\n", 2, "syntax error: invalid syntax"),
        ("import torch\nif x:\ny = 1\n", 3, "syntax error: expected an indented block"),
        ("x = '\n", 1, "syntax error: unterminated string literal"),
        ("x = 1\0\n", 1, "null bytes"),
        ("(" * 300 + ")" * 300, 1, "too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1", 1, "nested too deep"),
        ("import torch\nx = '\ud800'\n", 1, "cannot be parsed"),
    ],
)
def test_a_source_that_cannot_be_parsed_is_reported(text: str, line: int, message: str) -> None:
    (finding,) = lint(text)
    assert (finding.code, finding.span.line, finding.severity) == ("TL000", line, Severity.ERROR)
    assert message in finding.message
    assert "\n" not in finding.message


def test_deep_code_that_parses_costs_no_more_than_a_finding() -> None:
    deep = "import torch\nx = " + "+".join(["y"] * 3000) + "\nz.item()\n"
    assert {finding.code for finding in lint(deep)} <= {"TL000", "TL901"}


def test_rules_see_only_files_with_their_words() -> None:
    def check(model):
        asked.append(model.source.text)
        return iter(())

    asked: list[str] = []
    rule = Rule(replace(CUDA.meta, default=True), check, CUDA.doc, "api", __name__)
    for text in ("import torch\n", "import torch\nx.cuda()\n"):
        lint(text, rule)
    assert asked == ["import torch\nx.cuda()\n"]


def test_options_select_and_a_wrong_one_is_refused() -> None:
    text = "import torch\nx.item().cpu().cuda()\n"
    assert [finding.code for finding in lint(text, options=ALL)] == ["TL901", "TL902", "TL911"]
    with pytest.raises(ConfigError, match="unknown rule 'TL77'"):
        lint(text, options=Options(select=("TL77",)))


def test_a_byte_order_mark_in_text_is_no_character() -> None:
    assert brief(lint("\ufeffimport torch\nx.item()\n")) == [("<stdin>", 2, 1, "TL901")]


def test_the_public_surface() -> None:
    assert torchlint.lint_source("import torch\n") == []
    assert torchlint.Finding is Finding
    assert set(torchlint.__all__) <= {*dir(torchlint), *torchlint._HOMES}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torchlint.nothing  # noqa: B018


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_fixing_text_in_memory(mark: str) -> None:
    text = mark + "import torch\r\nx.item()\r\n"
    fixed = torchlint.fix_source(text, rules=RULES)
    assert fixed == mark + "import torch\r\nx.tolist()\r\n"
    assert torchlint.fix_source(fixed, rules=RULES) == fixed
    assert torchlint.fix_source("x = = 1", rules=RULES) == "x = = 1"


# -- fingerprints -------------------------------------------------------------------------------


BODY = """
class Net:
    def a(self):
        x.item()
        y.item()
        x.item()

    def b(self):
        x.item()
"""


def prints(text: str, path: str = "a.py") -> list[str]:
    return [finding.fingerprint for finding in lint("import torch\n" + text, path=path)]


def test_fingerprints_differ_and_survive_what_moves_lines() -> None:
    before = prints(BODY)
    assert len(set(before)) == 4
    assert prints("\n\nz = 1\n" + BODY) == before
    assert prints(BODY.replace("    ", "\t").replace("x.item()", "x.item()  ")) == before
    assert prints(BODY.replace("        y.item()\n", "")) == [before[0], *before[2:]]
    assert not set(prints(BODY, path="b.py")) & set(before)


def test_a_fingerprint_changes_with_the_code_it_is_about() -> None:
    assert prints("x.item()") != prints("y.item()") != prints("def f():\n    y.item()")


# -- paths --------------------------------------------------------------------------------------


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_ipynb", ".ipynb")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def run(*paths: str, options: Options | None = None, rules: tuple[Rule, ...] = RULES) -> Report:
    return lint_paths(paths, options, rules=rules)


def test_every_bad_file_is_one_finding_and_the_others_are_checked(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, good_py="import torch\nx.item()\n", syntax_py="import torch\nx = = 1\n",
          bytes_py=b"import torch\nx = '\xff'\n", cookie_py="# coding: nonsense\n", note_ipynb="{}")
    os.symlink(".", tmp_path / "loop")
    report = run(".", "note.ipynb", "gone.py")
    assert [str(error) for error in report.errors] == ["gone.py: no such file or directory"]
    assert brief(report.findings) == [
        ("bytes.py", 1, 1, "TL000"), ("cookie.py", 1, 1, "TL000"), ("good.py", 2, 1, "TL901"),
        ("note.ipynb", 1, 1, "TL000"), ("syntax.py", 2, 5, "TL000"),
    ]
    assert [finding.message for finding in report.findings if finding.code == "TL000"] == [
        "line 2: byte 0xff is not valid utf-8", "unknown encoding: nonsense",
        "not a Jupyter notebook of format 4", "syntax error: invalid syntax",
    ]
    assert report.files == 5
    assert set(report.sources) == {"good.py", "syntax.py"}
    assert report.line(report.findings[2]) == "x.item()"


def test_a_file_that_vanishes_or_cannot_be_read_is_reported(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a_py="import torch\nx.item()\n", b_py="", c_py="import torch\nx.item()\n")
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        (tmp_path / "b.py").unlink(missing_ok=True)

    report = lint_paths(["."], rules=RULES, progress=progress)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [(one.path, one.code) for one in report.findings] == [
        ("a.py", "TL901"), ("b.py", "TL000"), ("c.py", "TL901")]
    assert report.findings[1].message == "cannot be read: No such file or directory"


def test_a_walk_does_not_parse_what_has_nothing_to_do_with_torch(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a_py="import os\nx = = 1\n", b_py="import numpy\nx.item()\n")
    assert run(".").findings == ()
    assert brief(run("a.py", ".").findings) == [("a.py", 2, 5, "TL000")]


def test_the_gate_sees_a_project_file_behind_a_standard_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, profile_py="import torch\n", a_py="import profile\nx.item()\n")
    write(tmp_path, sub__b_py="import code\nx.item()\n")
    assert brief(run(".").findings) == [("a.py", 2, 1, "TL901")]


def test_exclude_and_per_file_ignores(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "tests__b", "old__c"):
        write(tmp_path, **{f"{name}_py": "import torch\nx.item()\n"})
    options = Options(exclude=("old/",), per_file=(("tests/", ("TL9",)),), base=str(tmp_path))
    report = run(".", options=options)
    assert brief(report.findings) == [("a.py", 2, 1, "TL901")]
    assert report.files == 2


def test_an_unchecked_file_is_silent_only_where_that_is_asked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a_py=b"\xff", n_ipynb="{}")
    assert len(run("a.py", "n.ipynb", options=Options(select=("TL901",))).findings) == 2
    assert not run("a.py", "n.ipynb", options=Options(ignore=("TL000",))).findings


def many(folder: Path, count: int = 60) -> None:
    for number in range(count):
        body = "x.item()\n" * (number % 4) + ("x = = 1\n" if number % 9 == 0 else "")
        write(folder, **{f"p{number % 5}__m{number}_py": f"import torch\n{body}"})


def test_any_number_of_processes_gives_the_same_report(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    many(tmp_path)
    one, *others = [run(".", options=Options(jobs=jobs)) for jobs in (1, 2, 3)]
    assert len(one.findings) > 50 and one.files == 60
    for other in others:
        assert (other.findings, other.files, other.sources) == (one.findings, one.files, one.sources)


def test_a_process_that_dies_costs_one_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    many(tmp_path)
    without = run(".", options=Options(jobs=2))
    write(tmp_path, p3__killer_py="import torch\ndie_here\n")
    report = run(".", options=Options(jobs=2), rules=(*RULES, DIES))
    dead = [finding for finding in report.findings if finding.path == "p3/killer.py"]
    assert [finding.message for finding in dead] == ["the process that checked it died"]
    assert [finding for finding in report.findings if finding not in dead] == list(without.findings)


@pytest.mark.parametrize("module", ["torchlint.cli", "torchlint.flake8_plugin", "torchlint.api"])
def test_everything_but_confirm_works_without_torch(module: str, tmp_path) -> None:
    (tmp_path / "a.py").write_text("import torch\nx = 1  # torchlint: ignore[nothing]\n")
    program = f"""
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "runtime_check"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import {module}, torchlint
for found in pkgutil.walk_packages(torchlint.__path__, "torchlint."):
    if found.name != "torchlint.__main__":
        importlib.import_module(found.name)
from torchlint.cli import main
main(["a.py", "--output-format", "concise"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("a.py:2:28: TL002 ")


def test_linting_loads_no_libcst() -> None:
    program = "import sys, torchlint.cli, torchlint.flake8_plugin\n" \
              "torchlint.lint_source('import torch\\nx.item()\\n')\n" \
              "print([name for name in sys.modules if name.startswith(('libcst', 'torch.'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
