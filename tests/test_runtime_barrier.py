"""Writes outside the scratch folder: what Python cannot see, the kernel stops, or a check in front of it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from runtime_check import barrier, sandbox  # noqa: E402

WAYS = {
    "jit_method": "torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)).save('{path}')",
    "jit_save": "torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)), '{path}')",
    "from_file": "torch.from_file('{path}', shared=True, size=16, dtype=torch.uint8)",
    "storage": "torch.UntypedStorage.from_file('{path}', True, 16)",
    "writer": "torch._C.PyTorchFileWriter('{path}').write_end_of_file()",
    "trace": "p = torch.profiler.profile(); p.start(); torch.ones(1) + 1; p.stop(); p.export_chrome_trace('{path}')",
    "fifo": "os.mkfifo('{path}')",
    "dir_fd": "os.open('{name}', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('{folder}', os.O_RDONLY))",
    "unlink": "os.unlink('there', dir_fd=os.open('{folder}', os.O_RDONLY))",
    "rename": "d = os.open('{folder}', os.O_RDONLY); os.rename('there', '{name}', src_dir_fd=d, dst_dir_fd=d)",
    "chdir": "os.chdir('{folder}'); torch._C.PyTorchFileWriter('{name}').write_end_of_file()",
}
INSIDE = """
torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)).save('in.pt')
os.rename('in.pt', '../in.pt')
open('/dev/null', 'w').write('x')
torch.ones(4).share_memory_()
folder = os.open('..', os.O_RDONLY)
os.close(os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=folder))
os.unlink('x', dir_fd=folder)
"""


def attempt(code: str, scratch: Path, *, kernel: bool) -> int:
    """The exit status of a process that enters the sandbox and runs some code: 0, or 1 after an exception."""
    process = os.fork()
    if process == 0:
        status = 2
        try:
            if not kernel:
                sandbox.raise_barrier = lambda folders: False  # type: ignore[assignment]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            sandbox.enter(str(scratch))
            try:
                exec(code, {"torch": torch, "os": os})
                status = 0
            except BaseException:
                status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "hooks"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_outside_is_written_or_removed(way: str, kernel: bool, tmp_path: Path) -> None:
    if kernel and not barrier.version():
        pytest.skip("this kernel has no Landlock")
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    scratch.mkdir()
    outside.mkdir()
    (outside / "there").write_text("here")
    code = WAYS[way].format(path=outside / "new", folder=outside, name="new")
    status = attempt(code, scratch, kernel=kernel)
    assert status == 1 or (kernel and way == "trace")  # the profiler is silent about what it cannot write
    assert [path.name for path in outside.iterdir()] == ["there"]


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "hooks"])
def test_the_scratch_folder_can_be_used(kernel: bool, tmp_path: Path) -> None:
    assert attempt(textwrap.dedent(INSIDE), tmp_path, kernel=kernel) == 0


def test_what_a_forked_process_reads_is_known(tmp_path: Path) -> None:
    scratch, file = tmp_path / "scratch", tmp_path / "project" / "data.txt"
    for folder in (scratch, file.parent):
        folder.mkdir()
    file.write_text("text")
    process = os.fork()
    if process == 0:
        try:
            guard = sandbox.enter(str(scratch), around=(str(file.parent),))
            if os.fork() == 0:
                file.read_text()
                os.path.exists(file.with_name("absent.txt"))
                os._exit(0)
            os.wait()
            (scratch / "found").write_text("\n".join(guard.files_read()))
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    found = (scratch / "found").read_text().splitlines()
    assert str(file) in found and str(file.with_name("absent.txt")) in found


def test_a_system_without_landlock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert barrier.version() == 0 and not barrier.raise_barrier(["/"])


def test_a_compiled_file_with_dots_in_its_name_is_no_failure() -> None:
    """Generated modules may be written to files that Python's own naming does not foresee."""
    odd = "/some/where/__pycache__/package.layer_propagate.cpython-311.pyc"
    assert sandbox.source_of(odd) == odd
    assert sandbox.source_of("/some/where/__pycache__/net.cpython-311.pyc") == "/some/where/net.py"
