"""A rewrite that is whole only over several files: an old autograd Function and all its uses."""
from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_rules import ITEM

from torchlint import cli
from torchlint.builtin import BUILTIN
from torchlint.commands import check
from torchlint.fixes import edits, write
from torchlint.model import FileModel
from torchlint.rule import Hit

FILES = {
    "pkg/__init__.py": "",
    "pkg/fns.py": """\
import torch


class Double(torch.autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * 2

    def backward(self, grad):
        x, = self.saved_tensors
        return grad * 2
""",
    "pkg/net.py": """\
from torch import nn

from .fns import Double


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = Double()

    def forward(self, x):
        return self.op(x) + Double()(x)
""",
    "main.py": """\
import torch
from pkg import fns
from pkg.fns import Double as Twice
from pkg.net import Net

x = torch.ones(3, requires_grad=True)
(Net()(x) + Twice()(x) + fns.Double()(x)).sum().backward()
print(x.grad.tolist())
""",
}
CHANGED = ("main.py", "pkg/fns.py", "pkg/net.py")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pkg").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fix(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.main, ["--isolated", "--no-cache", "-j", "1", "--fix", ".", *words])
    return result.exit_code, result.stderr


def contents(project: Path) -> dict[str, str]:
    return {name: (project / name).read_text() for name in CHANGED}


def test_class_and_uses_change_in_all_files_at_once(project: Path) -> None:
    assert fix() == (0, "")
    after = contents(project)
    assert after["pkg/fns.py"].count("    @staticmethod\n    def ") == 2 and "self" not in after["pkg/fns.py"]
    assert "self.op = Double.apply\n" in after["pkg/net.py"] and "+ Double.apply(x)" in after["pkg/net.py"]
    assert "Twice.apply(x) + fns.Double.apply(x)" in after["main.py"]
    done = subprocess.run([sys.executable, "main.py"], cwd=project, capture_output=True, text=True)
    assert done.stdout == "[8.0, 8.0, 8.0]\n", done.stderr
    assert fix() == (0, "") and contents(project) == after


def test_if_one_file_cannot_be_written_none_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = write._prepare

    def refuse(change: write.Change) -> object:
        if change.path.endswith("net.py"):
            raise write._Unfit("permission denied")
        return real(change)

    monkeypatch.setattr(write, "_prepare", refuse)
    status, said = fix()
    assert status == 2 and contents(project) == {name: FILES[name] for name in CHANGED}
    assert "pkg/net.py: not fixed: permission denied" in said
    assert "pkg/fns.py: not fixed: its fixes go with those of pkg/net.py, which was not written" in said
    assert not [name for name in os.listdir(project / "pkg") if name.startswith(".")]


def test_other_files_are_written_all_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "alone.py").write_text("import torch\nw = torch.ones(2).requires_grad_()\nprint(w.data.sum())\n")
    real = write._prepare

    def refuse(change: write.Change) -> object:
        if change.path.endswith("net.py"):
            raise write._Unfit("permission denied")
        return real(change)

    monkeypatch.setattr(write, "_prepare", refuse)
    assert fix("--select", "TL103,TL301,TL302", "--preview")[0] == 2
    assert "w.detach().sum()" in (project / "alone.py").read_text()
    assert contents(project) == {name: FILES[name] for name in CHANGED}


INTERRUPT = """
import os, signal, sys
from torchlint.fixes import write
real, left = os.replace, [int(sys.argv[1])]
def replace(a, b):
    if left[0] == 0:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    left[0] -= 1
    real(a, b)
write.os.replace = replace
from torchlint.cli import main
main(["--isolated", "--no-cache", "-j", "1", "--fix", "."])
"""


@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_interrupted_at_any_point_each_file_is_old_or_new(project: Path, after: int, kind: str) -> None:
    fixed = project.parent / f"fixed-{kind}-{after}"
    shutil.copytree(project, fixed)
    subprocess.run([sys.executable, "-c", INTERRUPT, "9", kind], cwd=fixed, capture_output=True)
    new = contents(fixed)
    assert all(new[name] != FILES[name] for name in CHANGED)
    subprocess.run([sys.executable, "-c", INTERRUPT, str(after), kind], cwd=project, capture_output=True)
    found = contents(project)
    assert all(found[name] in (FILES[name], new[name]) for name in CHANGED)
    if kind == "SIGINT":  # held back until the renames are done
        assert len({found[name] == new[name] for name in CHANGED}) == 1


def test_threads_may_fix_too(project: Path) -> None:
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(fix()[0]))
    thread.start()
    thread.join()
    assert statuses == [0] and "@staticmethod" in contents(project)["pkg/fns.py"]


def ones(model: FileModel) -> Iterator[Hit]:
    """What returns 1, which a fix changes, and what shows a 1."""
    for node in model.nodes(ast.Return):
        if isinstance(node.value, ast.Constant) and node.value.value == 1:
            yield Hit(node, "1 is returned", edits.repair("Return 2", edits.replace(model, node.value, "2")))
    for call in model.calls_named("print"):
        if model.value(call.args[0]).const == 1:
            yield Hit(call, "1 is shown")


@pytest.mark.parametrize("how", [
    "from base import limit\nprint(limit())\n", "import base\nprint(base.limit())\n",
    "from between import *\nprint(limit())\n", "from between import limit\nprint(limit())\n",
])
def test_what_goes_away_with_a_fix_in_another_file_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.py").write_text("import torch\n\n\ndef limit():\n    return 1\n")
    (tmp_path / "between.py").write_text("from base import limit\n")
    (tmp_path / "a_user.py").write_text(f"import torch\n{how}print(1)\n")
    (tmp_path / "alone.py").write_text("import torch\nprint(1)\n")
    rules = (*BUILTIN, replace(ITEM, check=ones))
    report = check.run(check.Request((".",), check.Choices(isolated=True, jobs=1), fix=True), rules=rules).report
    assert (tmp_path / "base.py").read_text().endswith("    return 2\n")
    assert [(one.path, one.span.line) for one in report.findings] == [("a_user.py", 4), ("alone.py", 2)]
    assert report.fixed == 2 and len(report.made) == 1
