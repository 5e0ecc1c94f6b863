"""The checks on fixed repositories see what is wrong, and nothing where all is well."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fixes
import pytest
import same_tests

PROGRAM = """\
import torch

w = torch.ones(3, requires_grad=True)
print(w.data.sum())  # a reason
"""
FIXED = PROGRAM.replace(".data", ".detach()")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one fault that has a safe fix, and a test that needs its file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "loop.py").write_text(PROGRAM)
    (folder / "test_loop.py").write_text("def test_it():\n    import loop\n    assert loop.w.sum() == 3\n")
    return folder


def test_a_project_is_copied_and_fixed(project: Path) -> None:
    result = fixes.run(project, project.parent / "scratch")
    assert (result.files, result.changed, result.fixed, result.faults) == (2, 1, 1, [])
    assert (project / "loop.py").read_text() == PROGRAM
    assert (project.parent / "scratch" / "project" / "loop.py").read_text() == FIXED
    assert result.patch[0] == "=== loop.py:4 TL103\n"


@pytest.mark.parametrize(("new", "fault"), [
    (FIXED, ""),
    (FIXED + ")", "loop.py: does not compile any more"),
    (FIXED.replace("  # a reason", ""), "loop.py: the comment is lost: # a reason"),
    (FIXED.replace("ones", "zeros"), "loop.py:3: a line changed that no fix named"),
    (PROGRAM.replace("reason", "reason "), "loop.py:4: only white space at the end of the line changed"),
    (PROGRAM.replace("torch\n", "torch\r\n"), "loop.py:1: only white space at the end of the line changed"),
])
def test_what_went_wrong_is_seen(new: str, fault: str) -> None:
    faults, _ = fixes.compare("loop.py", PROGRAM.encode(), new.encode(), {4: {"TL103"}})
    assert (fault in faults) if fault else not faults


def test_a_fix_that_never_settles_is_seen(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fixes.torchlint

    def restless(folder: Path, *options: str) -> object:
        found = real(folder, *options)
        if "--fix" in options:
            path = folder / "loop.py"
            path.write_text(path.read_text() + "\n")
        return found

    monkeypatch.setattr(fixes, "torchlint", restless)
    result = fixes.run(project, project.parent / "scratch")
    assert "loop.py: a second run changes it" in result.faults


def test_the_projects_own_tests_are_compared(project: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["same_tests.py", str(project), "--", "test_loop.py"])
    assert same_tests.main() == 0
    assert capsys.readouterr().out == "project: 1 fixes; 1 tests (1 passed); 0 differ\n"


def test_a_test_that_breaks_is_seen(project: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (project / "test_loop.py").write_text("def test_it():\n    assert '.data' in open('loop.py').read()\n")
    monkeypatch.setattr(sys, "argv", ["same_tests.py", str(project), "--", "test_loop.py"])
    assert same_tests.main() == 1
    assert "test_loop::test_it: passed -> failed" in capsys.readouterr().out


def test_the_command_line(project: Path) -> None:
    command = [sys.executable, fixes.__file__, str(project), "--safe", "--floor", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "only 2 files seen, expected 3" in done.stderr
