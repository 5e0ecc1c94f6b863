"""The run over real code, in short: torch's own modules, and a comparison of two runs."""
from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import ecosystem
import pytest

PROGRAM = "import torch\n\nw = torch.ones(3, requires_grad=True)\ny = (w * w).sum()\n{line}\ny.backward()\n"
FAULT = "w.data.mul_(100)"
NAME = "TL101 data-mutation"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two files and one fault."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "loop.py").write_text(PROGRAM.format(line=FAULT))
    (tmp_path / "project" / "other.py").write_text("import torch\n")
    return tmp_path / "project"


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ecosystem.py", *words])
    return ecosystem.main()


def test_torch_itself_is_linted_without_a_fault(tmp_path, capsys, monkeypatch):
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    for name in ("nn", "optim"):
        shutil.copytree(Path(spec.origin).parent / name, tmp_path / name)
    floor = sum(1 for _ in tmp_path.rglob("*.py"))
    assert floor >= 150
    status = run_main(monkeypatch, str(tmp_path), "--floor", str(floor))
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert printed.err == ""
    assert printed.out.startswith(f"{floor} files, ")


def test_two_runs_are_compared(project, capsys, monkeypatch):
    store = project.parent / "run.json"
    assert run_main(monkeypatch, str(project), "--save", str(store)) == 0
    assert NAME in capsys.readouterr().out
    (project / "loop.py").write_text("# moved\n" + PROGRAM.format(line=FAULT))
    assert run_main(monkeypatch, str(project), "--against", str(store)) == 0
    assert capsys.readouterr().out.endswith("no change\n")
    (project / "loop.py").write_text(PROGRAM.format(line="print(w)"))
    assert run_main(monkeypatch, str(project), "--against", str(store)) == 0
    printed = capsys.readouterr().out
    assert f"{NAME}: 1 -> 0 (-1)" in printed
    assert f"\n- project/loop.py:5: {NAME}" in printed and "\n+ " not in printed


def test_too_few_files_fail(project, capsys, monkeypatch):
    assert run_main(monkeypatch, str(project), "--floor", "3") == 1
    assert "only 2 files seen" in capsys.readouterr().err


def test_a_fault_of_torchlint_fails(project, capsys, monkeypatch):
    real = ecosystem.run([project])
    broken = dict(real.findings[0], message=f"not checked, which is {ecosystem.OUR_FAULT}: KeyError")
    faulty = ecosystem.Run(real.files, real.seconds, real.counts, [broken])
    monkeypatch.setattr(ecosystem, "run", lambda folders, jobs=None: faulty)
    assert run_main(monkeypatch, str(project)) == 1
    assert "KeyError" in capsys.readouterr().err


def test_same_findings_twice_are_counted_twice(project):
    one = ecosystem.run([project])
    two = ecosystem.Run(one.files, 0.0, {NAME: 2}, one.findings * 2)
    assert ecosystem.difference(one, two).count("+ project/loop.py") == 1
    assert ecosystem.difference(two, one).count("- project/loop.py") == 1
    assert ecosystem.difference(one, ecosystem.from_json(ecosystem.as_json(one))) == ""
