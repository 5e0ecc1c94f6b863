"""What the command line says about fixes, and what it refuses to do."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchlint import cli
from torchlint.builtin import every_rule
from torchlint.commands.show import pages
from torchlint.files import Source
from torchlint.findings import Edit, Span
from torchlint.fixes.layout import layout
from torchlint.results import Made, Proof, Report

UNSAFE = "import torch\nfrom torch import nn\n\nw = nn.Parameter(torch.ones(2))\nw.mul_(2)\n"
SAFE = "import torch\nw = torch.ones(2, requires_grad=True)\nprint(w.data.sum())\n"
INIT = """\
from torch.nn import Linear, Module


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = Linear(2, 2)
        self.layer.weight.data.zero_()


Net()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, typed: str | None = None, columns: str = "") -> Result:
    environment = {"COLUMNS": columns} if columns else {}
    return CliRunner(env=environment).invoke(cli.main, list(words), input=typed)


def lint(*words: str, **more: str) -> Result:
    return run("--no-cache", "--isolated", "--preview", "-j", "1", *words, **more)


def test_a_patch_says_what_it_leaves_out(here: Path) -> None:
    (here / "a.py").write_text(UNSAFE)
    result = lint("a.py", "--diff", "--select", "TL104")
    assert result.stdout == ""
    assert result.stderr == "torchlint: warning: 1 more fix needs --unsafe-fixes: it may change what runs\n"
    full = lint("a.py", "--diff", "--select", "TL104", "--unsafe-fixes")
    assert "+with torch.no_grad():" in full.stdout and full.stderr == ""


def test_several_fixes_that_a_patch_leaves_out_are_told_in_the_plural(here: Path) -> None:
    (here / "a.py").write_text(UNSAFE + "v = nn.Parameter(torch.ones(2))\nv.mul_(2)\n")
    result = lint("a.py", "--diff", "--select", "TL104")
    assert result.stderr == "torchlint: warning: 2 more fixes need --unsafe-fixes: they may change what runs\n"


def test_a_patch_of_files_above_says_where_to_apply_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "pkg").mkdir()
    (here / "sub").mkdir()
    (here / ".git").mkdir()
    (here / "pkg" / "a.py").write_text(UNSAFE)
    monkeypatch.chdir(here / "sub")
    result = lint("../pkg/a.py", "--diff", "--select", "TL104", "--unsafe-fixes")
    assert result.stdout.startswith("--- a/pkg/a.py\n+++ b/pkg/a.py\n")
    assert result.stderr == "torchlint: warning: this patch has to be applied in ..\n"


def test_what_was_fixed_is_told_and_what_is_left(here: Path) -> None:
    (here / "a.py").write_text(SAFE + "v = torch.nn.Parameter(torch.ones(2))\nv.mul_(2)\n")
    result = lint("a.py", "--fix", "--select", "TL103,TL104")
    lines = result.stdout.splitlines()
    assert lines[0] == "fixed a.py:3:7: TL103 data-read: Use .detach()"
    assert "--fix --unsafe-fixes applies it" in result.stdout
    assert lines[-1].startswith("Fixed 1 finding. 1 finding (1 error) in 1 of 1 file.")


@pytest.mark.parametrize("target", ["a.py", "./a.py", "b/../a.py"])
def test_the_report_never_overwrites_what_is_checked(here: Path, target: str) -> None:
    (here / "b").mkdir()
    (here / "a.py").write_text(SAFE)
    for paths in (("a.py",), (".",), ("b/..",)):
        result = lint(*paths, "--output-file", target)
        assert result.exit_code == 2 and "one of the files to check" in result.stderr
    assert (here / "a.py").read_text() == SAFE
    (here / "report.json").write_text("old")
    assert lint(".", "--output-file", "report.json", "--output-format", "json").exit_code == 1
    assert json.loads((here / "report.json").read_text())["findings"]


def test_excluded_standard_input_is_not_checked(here: Path) -> None:
    words = ("--stdin-filename", "old/a.py", "--exclude", "old/")
    result = lint(*words, typed=SAFE)
    assert result.exit_code == 0 and "in 0 files" in result.stdout
    assert result.stderr == "torchlint: warning: old/a.py is excluded\n"
    assert lint(*words, "--fix", typed=SAFE).stdout == SAFE
    assert lint(*words, "--diff", typed=SAFE).stdout == ""
    assert lint("--stdin-filename", "new/a.py", "--exclude", "old/", typed=SAFE).exit_code == 1


def test_a_mistyped_command_is_no_path(here: Path) -> None:
    result = run("confrim", "x")
    assert result.exit_code == 2
    assert "confrim: no such file, directory or command; did you mean 'confirm'?" in result.stderr
    (here / "confrim").mkdir()
    assert run("confrim").exit_code == 0


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_fixes_of_reports_bring_their_imports(here: Path, form: str) -> None:
    (here / "a.py").write_text(INIT)
    data = json.loads(lint("a.py", "--select", "TL102", "--output-format", form).stdout)
    if form == "json":
        rows = data["findings"][0]["fix"]["edits"]
        spans = [(Span(row["line"], row["column"], row["end_line"], row["end_column"]), row["text"]) for row in rows]
    else:
        rows = data["runs"][0]["results"][0]["fixes"][0]["artifactChanges"][0]["replacements"]
        places = [(row["deletedRegion"], row["insertedContent"]["text"]) for row in rows]
        spans = [(Span(*(place[key] for key in ("startLine", "startColumn", "endLine", "endColumn"))), text)
                 for place, text in places]
    text = layout(Source("a.py", INIT)).apply([Edit(*one) for one in spans])
    names: dict[str, object] = {}
    exec(compile(text, "a.py", "exec"), names)
    assert "zeros_(" in text and "import" in text.splitlines()[0]
    assert lint("-", "--select", "TL102", typed=text).exit_code == 0


def test_sarif_explains_the_rules_that_found_something_only(here: Path) -> None:
    (here / "a.py").write_text(SAFE)
    data = json.loads(lint("a.py", "--select", "ALL", "--output-format", "sarif").stdout)
    (one,) = data["runs"]
    assert {rule["id"] for rule in one["tool"]["driver"]["rules"]} == {row["ruleId"] for row in one["results"]}


def test_json_tells_of_fixes_that_were_made(here: Path) -> None:
    (here / "a.py").write_text(SAFE)
    data = json.loads(lint("a.py", "--fix", "--select", "TL103", "--output-format", "json").stdout)
    (row,) = data["fixed"]
    assert (row["code"], row["line"], row["verification"]) == ("TL103", 3, None)
    assert row["fix"] == {"safety": "safe", "title": "Use .detach()"}
    assert data["summary"]["fixed"] == 1


def test_text_is_as_wide_as_the_terminal_is_said_to_be(here: Path) -> None:
    (here / "a.py").write_text(SAFE)
    for columns in (50, 160):
        lines = lint("a.py", "--select", "TL103", columns=str(columns)).stdout.splitlines()
        widths = [len(line) for line in lines if line.startswith(("  why", "  do", "       "))]
        assert columns - 25 < max(widths) <= columns


def test_proofs_are_shown_below_their_fixes() -> None:
    from torchlint.api import lint_source
    from torchlint.report import render

    (finding,) = [one for one in lint_source(SAFE, path="a.py") if one.code == "TL103"]
    made = (Made(finding, Proof.VERIFIED, "all is well"), Made(finding, Proof.UNVERIFIED, "never reached"))
    text = render(Report(files=1, fixed=2, made=made))
    assert text.splitlines()[1] == "  verified: all is well" and "  not verified: never reached\n" in text
    assert "Fixed 2 findings (1 verified by running the code)." in text


# -- rules -----------------------------------------------------------------------------------


def test_a_prefix_lists_its_rules() -> None:
    lines = run("rule", "TL80").stdout.splitlines()
    wanted = [rule.meta.code for rule in every_rule() if rule.meta.code.startswith("TL80")]
    assert [line.split()[0] for line in lines] == wanted and len(wanted) > 1


def test_all_rules_come_with_severity_and_fix() -> None:
    rows = dict(line.split(maxsplit=1) for line in run("rule", "--all").stdout.splitlines())
    for rule in every_rule():
        words = rows[rule.meta.code].split()
        assert words[1] == rule.meta.severity.value
        if rule.meta.fix is not None and rule.meta.fix.value != "show":
            assert words[2:4] == [rule.meta.fix.value, "fix"]


def test_pages_for_a_terminal_have_no_markup() -> None:
    for rule in every_rule():
        text = pages([rule], plain=True)
        assert "```" not in text and "| ---" not in text and "\n#" not in text.replace("\n    #", "")
        for example in rule.examples:
            first = next(line for line in example.source.splitlines() if line.strip())
            assert f"    {first}" in text


def test_files_that_cannot_be_read_are_told_beside_what_was_fixed(here: Path) -> None:
    (here / "a.py").write_text(SAFE)
    (here / "b.py").write_bytes(b"import torch  # \xff\n")
    (here / "c.py").write_text("import torch\nx = (\n")
    result = lint("--fix", ".")
    assert result.exit_code == 1 and "detach()" in (here / "a.py").read_text()
    assert "b.py:1:1: TL000" in result.stdout and "c.py:2:5: TL000" in result.stdout
