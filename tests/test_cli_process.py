"""The command line as a process: streams, pipes, terminals, locales."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchlint

TORCHLINT = [sys.executable, "-m", "torchlint"]
UNKNOWN = "x = 1  # torchlint: ignore[nothing-{}]\n"  # one TL002 each, whatever rules there are


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def run(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TORCHLINT, *args], capture_output=True, text=True, timeout=60, **more)  # type: ignore


def test_findings_go_to_standard_output_and_errors_to_standard_error() -> None:
    Path("a.py").write_text(UNKNOWN.format(1))
    done = run("a.py", "gone.py", "--output-format", "concise")
    assert done.returncode == 2
    assert done.stdout.startswith("a.py:1:28: TL002 ")
    assert done.stderr == "torchlint: error: gone.py: no such file or directory\n"
    assert run("a.py").returncode == 1
    assert run("a.py", "--exit-zero").returncode == 0


def test_little_is_loaded_before_ctrl_c_can_be_answered() -> None:
    code = "import sys; before = set(sys.modules); import torchlint.__main__; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True,
                          env={"PYTHONPATH": str(Path(torchlint.__file__).parents[1])})
    found = set(re.findall(r"[\w.]+", done.stdout))
    assert "torchlint.__main__" in found and not found & {"typing", "re", "enum", "signal", "click"}, done


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("torchlint")
    if not command.exists():
        pytest.skip("torchlint is not installed")
    Path("a.py").write_text(UNKNOWN.format(1))
    done = subprocess.run([command, "a.py", "--output-format", "sarif"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, run("a.py", "--output-format", "sarif").stdout)


def test_processes_give_the_same_report_in_the_same_order() -> None:
    for number in range(40):
        folder = Path(f"p{number % 3}")
        folder.mkdir(exist_ok=True)
        (folder / f"m{number}.py").write_text("import torch\n" + UNKNOWN.format(number) * (number % 3))
    outputs = {run(".", "-j", jobs, "--output-format", "sarif").stdout for jobs in ("1", "2", "4")}
    assert len(outputs) == 1
    assert outputs.pop().count('"ruleId": "TL002"') == 39


def test_a_reader_that_goes_away_is_no_error() -> None:
    Path("a.py").write_text("".join(UNKNOWN.format(number) for number in range(3000)))
    with subprocess.Popen([*TORCHLINT, "a.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"a.py:1:28: TL002")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(encoding: str) -> None:
    Path("ünï.py").write_text("x = '☃'  # torchlint: ignore[nothing]\n", encoding="utf-8")
    done = subprocess.run([*TORCHLINT, "."], capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (1, b"")
    assert "☃" in done.stdout.decode(encoding) or "\\u2603" in done.stdout.decode(encoding)


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not text")
@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit", "github", "gitlab", "concise"])
def test_a_file_name_that_is_no_text_can_be_reported(form: str) -> None:
    name = os.fsdecode(b"bad\xff.py")
    Path(name).write_text(UNKNOWN.format(1))
    done = subprocess.run([*TORCHLINT, ".", "--output-format", form], capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"TL002" in done.stdout


def test_a_report_can_go_to_a_device() -> None:
    Path("a.py").write_text(UNKNOWN.format(1))
    done = run("a.py", "--output-file", "/dev/stderr")
    assert (done.returncode, done.stdout) == (1, "")
    assert "TL002" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams by number")
@pytest.mark.parametrize("closed", ["0", "1", "2", "0, 1, 2"])
def test_streams_that_are_closed_are_no_fault(closed: str) -> None:
    Path("a.py").write_text(UNKNOWN.format(1))
    code = f"import os, sys; [os.close(n) for n in ({closed},)]; os.execv(sys.executable, {[*TORCHLINT, 'a.py']!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert ("TL002" in done.stdout) == ("1" not in closed)


def test_source_from_a_pipe_that_is_named() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    command = f"{sys.executable} -m torchlint -q <(printf 'x = 1  # torchlint: ignore[nothing]')"
    done = subprocess.run([bash, "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert ":1:28: TL002" in done.stdout


def test_progress_is_shown_on_a_terminal_only(monkeypatch, capsys) -> None:
    from torchlint.output import Progress

    with Progress() as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Progress, "WAIT", 0.0)
    with Progress() as progress:
        progress(1, 2)
        progress(2, 2)  # too soon after the one before
    assert capsys.readouterr().err == "\r1 of 2 files checked\r\x1b[K"
    with Progress(off=True) as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""


def test_progress_of_a_real_run_on_a_real_terminal() -> None:
    pty = pytest.importorskip("pty")
    for number in range(200):
        Path(f"m{number}.py").write_text("import torch\n" + "x = [1, (2, 3)]\n" * 300)
    main, terminal = pty.openpty()
    process = subprocess.Popen([*TORCHLINT, ".", "-j", "1"], stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(main)
    assert process.wait(60) == 0
    assert b" of 200 files checked" in shown
    assert shown.endswith(b"\r\x1b[K")


def test_confirm_without_torch_is_one_line() -> None:
    Path("net.py").write_text(
        "import torch\n\n\nclass F(torch.autograd.Function):\n    def forward(ctx, x):\n        return x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n\n\nF()(torch.ones(1))\n")
    Path("hidden").mkdir()
    Path("hidden/torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    done = run("confirm", "net.py", "--isolated", env={**os.environ, "PYTHONPATH": str(Path("hidden").absolute())})
    assert done.returncode == 2, done
    assert done.stderr.startswith("torchlint: error: ") and done.stderr.count("\n") == 1
    assert "torch" in done.stderr and "Traceback" not in done.stderr
