"""Scripts of `torchlint confirm --script`: run in a fresh process, they show the numbers of the verdict."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from runtime_check.cutout import cut_out
from runtime_check.evidence import Verdict
from runtime_check.main import Request, chosen, lint
from runtime_check.pool import Pool
from runtime_check.script import Place, literal, needed, packed, parted, write
from torchlint.cli import main
from torchlint.commands.check import Choices
from torchlint.rule import all_rules

#: One rule for each way of measuring, and some whose code is reached in other ways.
CODES = [
    *("TL101", "TL104", "TL110", "TL201", "TL202", "TL208", "TL301"),
    *("TL402", "TL405", "TL411", "TL423", "TL503", "TL516"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as running:
        yield running


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def script_for(path: str, line: int, code: str, pool: Pool) -> tuple[str, list[str], Verdict]:
    """The script for a finding, the numbers that it has to show, and the verdict."""
    request = Request((path,), Choices(select=(code,), preview=True, isolated=True), timeout=30)
    text, outcome = write(*chosen(request, Place(path, line)), pool)
    return text, [row.text for row in outcome.evidence], outcome.verdict


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script where nothing of torchlint can be imported."""
    script = folder / "elsewhere" / "repro.py"
    script.parent.mkdir()
    script.write_text(text)
    command = [sys.executable, "-I", script]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("code", CODES)
def test_a_script_shows_the_numbers_of_the_verdict(code: str, pool: Pool, tmp_path: Path) -> None:
    rule = next(rule for rule in all_rules() if rule.meta.code == code)
    example = rule.examples[0]
    Path("net.py").write_text(example.source)
    text, rows, verdict = script_for("net.py", example.flagged[0], code, pool)
    assert verdict is Verdict.CONFIRMED
    (tmp_path / "net.py").unlink()  # nothing but torch is needed
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{code} {rule.meta.name}: confirmed" in done.stdout
    shown = re.sub(r"line \d+", "line", done.stdout)
    assert rows and all(re.sub(r"line \d+", "line", row) in shown for row in rows), (rows, done.stdout)


LONG = '''"""A library."""
import torch
from torch import nn

WIDTH = 4


class Unrelated(nn.Module):
    def forward(self, x):
        return helper(x)


def helper(x):
    return x + 1


class Net(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(2)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
'''


def test_a_script_holds_what_is_needed_of_the_file_and_says_the_same_elsewhere(pool: Pool, tmp_path: Path) -> None:
    Path("net.py").write_text(LONG)
    text, rows, _ = script_for("net.py", 20, "TL405", pool)
    assert "class Net" in text and "WIDTH = 4" in text
    assert "class Unrelated" not in text and "def helper" not in text
    assert "It needs torch alone" in text and str(tmp_path) not in text
    assert run(text, tmp_path).returncode == 0 and rows


RAISES = '''"""One line."""
from __future__ import annotations

import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad


def run():
    x = torch.ones(2, requires_grad=True)
    Scale.apply(x, 2.0).sum().backward()
'''


def test_the_lines_that_a_script_names_are_those_of_the_code_in_it(pool: Pool, tmp_path: Path) -> None:
    Path("net.py").write_text(RAISES)
    _, report = lint(Request(("net.py",), Choices(select=("TL3",), preview=True, isolated=True)))
    found = next(one for one in report.findings if one.code == "TL303")
    text, _, _ = script_for("net.py", found.span.line, "TL303", pool)
    code = re.search(r"^CODE = r'''\n(.*?)'''\[1:\]", text, re.M | re.S)
    assert code is not None and code[1].startswith("from __future__")
    said = re.findall(r"\bline (\d+)", text[: text.index("import base64")])
    lines = code[1].splitlines()
    assert said and all("apply" in lines[int(number) - 1] for number in said), (said, code[1])


def test_a_script_names_the_project_if_its_files_are_needed(pool: Pool, tmp_path: Path) -> None:
    Path("base.py").write_text("WIDTH = 4\n")
    Path("net.py").write_text(LONG.replace("WIDTH = 4", "from base import WIDTH"))
    text, _, verdict = script_for("net.py", 20, "TL405", pool)
    assert verdict is Verdict.CONFIRMED
    assert str(tmp_path) in text and "It needs torch and the files around" in text
    assert run(text, tmp_path).returncode == 0


def test_a_changed_result_is_1(pool: Pool, tmp_path: Path) -> None:
    Path("net.py").write_text(LONG)
    text, _, _ = script_for("net.py", 20, "TL405", pool)
    mended = text.replace("[nn.Linear(width, width) for _ in range(2)]", "nn.ModuleList([nn.Linear(4, 4)])")
    done = run(mended, tmp_path)
    assert done.returncode == 1 and "before: confirmed" in done.stdout


def test_the_command_prints_the_script() -> None:
    Path("net.py").write_text(LONG)
    done = CliRunner().invoke(main, ["confirm", "--isolated", "--script", "net.py:20:TL405"])
    assert done.exit_code == 0, done.output
    compile(done.stdout, "repro.py", "exec")
    assert "the script repeats: confirmed" in done.stderr


@pytest.mark.parametrize(("words", "said"), [
    ("net.py", "no place such as"),
    ("net.py:3:TL405", "no TL405 on line 3 of net.py (findings: net.py:20:TL405)"),
    ("net.py:3", "no finding on line 3 of net.py (findings: net.py:20:TL405)"),
    ("net.py:20:TL201", "no TL201 there; what is there: net.py:20:TL405"),
    ("gone.py:20", "there is no file gone.py"),
])
def test_a_finding_that_is_not_there_is_one_line_and_2(words: str, said: str) -> None:
    Path("net.py").write_text(LONG)
    done = CliRunner().invoke(main, ["confirm", "--isolated", "--script", words])
    assert done.exit_code == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_place_in_a_notebook_is_as_reports_spell_it() -> None:
    cells = ["import torch\nfrom torch import nn\n", LONG, "3\n"]
    data = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    Path("a b.ipynb").write_text(json.dumps({"cells": data, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    found = CliRunner().invoke(main, ["--isolated", "--output-format", "concise", "a b.ipynb"]).stdout.split(": ")[0]
    assert found.startswith("a b.ipynb:cell 2:20:")
    for cell, status in ((2, 0), (1, 2)):
        place = f"{found.replace('cell 2', f'cell {cell}')}:TL405"
        done = CliRunner().invoke(main, ["confirm", "--isolated", "--script", place])
        assert done.exit_code == status, done.output
    assert "no TL405 on line 20 of cell 1 of a b.ipynb (findings: a b.ipynb:cell 2:20:TL405)" in done.stderr


def test_a_place_has_a_line_and_perhaps_a_column_and_a_code() -> None:
    assert parted("a/net.py:8:TL405") == ("a/net.py", 8, "TL405", None)
    assert parted("a/net.py:8:3:TL405") == ("a/net.py", 8, "TL405", None)
    assert parted("net.py:8:3: TL405") == parted("net.py:8:TL405")
    assert parted("net.py:8") == ("net.py", 8, "", None)
    assert parted("a b.ipynb:cell 3:8:TL405") == ("a b.ipynb", 8, "TL405", 3)


def test_a_cut_keeps_what_is_read_and_maps_lines() -> None:
    text = "import os\nA = 1\nB = A\nC = 2\n\ndef f():\n    return B\n\ndef g():\n    return C\n"
    cut = cut_out(text, [7])
    assert "C = 2" not in cut.text and "import os" not in cut.text and "B = A" in cut.text
    lines = cut.text.splitlines()
    assert all(lines[new - 1] == text.splitlines()[old - 1] for old, new in cut.lines.items())
    assert cut_out(text, [7], "the file run as a script").text == text


@pytest.mark.parametrize(
    "text", ["a = 1\n", "a = '''x'''\n", "a = \"\"\"x\"\"\" + '''y'''\n", "a = 'x'", "a = '\\n'\n", ""]
)
def test_literals_are_what_they_show(text: str) -> None:
    assert eval(literal(text)) == text


def test_what_is_packed_is_complete_and_ours() -> None:
    names = needed("runtime_check.replay", "runtime_check.probes.not_registered")
    assert {"runtime_check.child", "runtime_check.drive", "torchlint.claims"} <= set(names)
    assert not [name for name in names if name.startswith("torchlint.rules.")]
    assert len(packed("runtime_check.probes.not_registered")) < 200_000  # to be sent along with a bug report


def test_a_folder_or_a_missing_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime_check.main.lint", lambda *args: pytest.fail("nothing need be checked for that"))
    for place, words in ((tmp_path, "is a folder; name one file and line"), (tmp_path / "no.py", "there is no file")):
        done = CliRunner().invoke(main, ["confirm", "--script", f"{place}:8:TL405"])
        assert done.exit_code == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1
