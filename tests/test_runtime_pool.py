"""Experiments that misbehave: each costs one verdict with a clear reason, and nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from runtime_check import child, clock, noted, outline, trace
from runtime_check.evidence import Environment, Evidence, Outcome, Verdict
from runtime_check.plan import Case, statement_lines
from runtime_check.pool import LateError, Pool, PoolError
from runtime_check.sandbox import Guard
from torchlint.claims import Claim, GraphGrows, Raises

ENDLESS = "while True:\n    pass\n"
HARMLESS = "import torch\nx = torch.ones(2)\nx.view(3)\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as running:
        yield running


def case(text: str, line: int = 0, key: int = 0, claim: Claim | None = None, seconds: float = 10.0) -> Case:
    """A whole program; the flagged line is the last one unless given."""
    text = textwrap.dedent(text).lstrip("\n")
    lines = statement_lines(text, line or text.count("\n"))
    claim = claim or Raises("RuntimeError", "shape")
    return Case(key, "program.py", "TL000", "test", claim, text, (lines,), whole=True, seconds=seconds)


def outcome(pool: Pool, text: str, **given: float) -> Outcome:
    """What comes of running one program. Another experiment beside it must not notice."""
    good = case(HARMLESS, key=1)
    results = {c.key: o for c, o in pool.run([case(text, **given), good])}  # type: ignore[arg-type]
    assert results[1].verdict is Verdict.CONFIRMED, results[1]
    return results[0]


def test_the_environment_is_described(pool: Pool) -> None:
    import torch

    assert pool.environment is not None
    assert pool.environment.torch == torch.__version__
    assert pool.environment.device == "cpu"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\nos._exit(3)\n", "exit status 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "segmentation fault"),
        ("import ctypes\nctypes.string_at(0)\n", "segmentation fault"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "killed (signal 9)"),
        ("import os\nos.closerange(3, 64)\nos._exit(0)\n", "exit status 0"),
        ("import os\nos.closerange(3, 64)\nwhile True:\n    pass\n", "closed the pipe"),
    ],
)
def test_a_crash_costs_one_verdict(pool: Pool, program: str, reason: str) -> None:
    result = outcome(pool, program)
    assert result.verdict is Verdict.CANNOT_TELL
    assert reason in result.why


def test_a_hang_outside_python_is_ended_by_the_parent(pool: Pool) -> None:
    started = time.monotonic()
    # Signals wait until a call in C returns: only the parent can end this.
    result = outcome(pool, "x = 10**13\nsum(range(x))\n", seconds=1.5)
    assert result.verdict is Verdict.CANNOT_TELL
    assert "no result within 1.5 s" in result.why
    assert time.monotonic() - started < 1.5 * clock.MOST + 6  # waiting for a processor does not count


def test_an_endless_loop_ends_in_time(pool: Pool) -> None:
    result = outcome(pool, "x = 0\nwhile True:\n    x += 1\n", line=3, seconds=2)
    assert result.verdict in (Verdict.CANNOT_TELL, Verdict.NOT_REACHED)
    assert result.seconds < 2 * clock.MOST  # time spent waiting for a processor does not count


def test_processes_of_a_child_end_with_it(pool: Pool, tmp_path: Path) -> None:
    program = """
    import os, time
    if os.fork() == 0:
        while True:
            time.sleep(0.5)
    os._exit(0)
    """
    before = forked(pool)
    result = outcome(pool, program)
    assert "exit status 0" in result.why and result.seconds < 5
    time.sleep(0.3)
    assert forked(pool) <= before == 1


def forked(pool: Pool) -> int:
    """How many living processes there are in the session of a pool's server."""
    assert pool.server is not None
    count = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session, *_ = entry.read_text().rpartition(")")[2].split()
            count += state != "Z" and int(session) == pool.server.pid
    return count


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("open('/tmp/torchlint-must-not-exist', 'w')\n", "write /tmp/torchlint-must-not-exist"),
        ("import os\nos.mkdir('/tmp/torchlint-must-not-exist')\n", "create /tmp/torchlint-must-not-exist"),
        ("import os\nos.remove('/tmp/torchlint-no-such-file')\n", "delete /tmp/torchlint-no-such-file"),
        ("import pathlib\npathlib.Path('../' * 5 + 'x').write_text('')\n", "write ../../../../../x"),
        ("import torch\ntorch.save({}, '/tmp/torchlint-must-not-exist')\n", "write /tmp/torchlint-must-not-exist"),
        ("open('/dev/shm/torchlint-must-not-exist', 'w')\n", "write /dev/shm/torchlint-must-not-exist"),
        ("import torch\ntorch.from_file('/dev/shm/torchlint-must-not-exist', True, 9)\n", "write /dev/shm/torchlint"),
        ("import subprocess\nsubprocess.run(['true'])\n", "start another program"),
        ("import os\nos.system('true')\n", "start another program"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))\n", "use the network"),
        ("import urllib.request\nurllib.request.urlopen('http://localhost:9')\n", "use the network"),
        ("import time\ntime.sleep(100)\n", "sleep for 100 s"),
        ("import os\nos.kill(1, 0)\n", "signal to process 1"),
        ("import os\nos.kill(-os.getppid(), 0)\n", "signal to process -"),
        ("import os\nos.killpg(os.getppid(), 0)\n", "signal to the processes of group"),
        ("import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)\n", "limit process"),
        ("import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 19)\n", "change the priority of process"),
        ("import os\nos.chmod(os.open('/usr', os.O_RDONLY), 0o755)\n", "change /usr"),
        ("try:\n    open('/tmp/torchlint-must-not-exist', 'w')\nexcept OSError:\n    pass\n", "write /tmp"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_stopped_with_a_reason(pool: Pool, program: str, reason: str) -> None:
    result = outcome(pool, program, line=program.count("\n"))
    assert result.verdict in (Verdict.CANNOT_TELL, Verdict.NOT_REACHED), result
    assert reason in result.why
    assert not os.path.exists("/tmp/torchlint-must-not-exist")
    assert not os.path.exists("/dev/shm/torchlint-must-not-exist")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm")
@pytest.mark.parametrize("end", ["raise RuntimeError('shape')", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_shared_memory_is_free_again_after_a_run(pool: Pool, end: str) -> None:
    program = f"""
    import os, torch
    from multiprocessing.shared_memory import SharedMemory
    SharedMemory('torchlint-test-a', create=True, size=99)
    if os.fork() == 0:
        SharedMemory('torchlint-test-b', create=True, size=99)
        os._exit(0)
    os.wait()
    {end}
    """
    mine = Path("/dev/shm/torchlint-test-not-ours")
    mine.touch()
    try:
        result = outcome(pool, program)
        assert result.verdict is (Verdict.CONFIRMED if "raise" in end else Verdict.CANNOT_TELL), result
        assert [path.name for path in mine.parent.glob("torchlint-test-*")] == [mine.name]
    finally:
        mine.unlink()


def test_what_a_run_writes_is_limited_in_all(pool: Pool) -> None:
    program = """
    import os
    for number in range(12):
        os.posix_fallocate(os.open(f'big{number}', os.O_CREAT | os.O_WRONLY), 0, 50 << 20)
    while True:
        pass
    """
    result = outcome(pool, program)
    assert result.verdict is Verdict.CANNOT_TELL and "512 MB" in result.why
    assert outcome(pool, program.replace("range(12)", "range(4)").replace("while True", "for _ in range(9)") + (
        "    raise RuntimeError('shape')\n")).verdict is Verdict.CONFIRMED


def test_much_output_is_no_failure(pool: Pool) -> None:
    program = "import os\nfor _ in range(80):\n    os.write(1, bytes(1 << 20))\nraise RuntimeError('shape')\n"
    assert outcome(pool, program).verdict is Verdict.CONFIRMED


def test_a_folder_that_forbids_its_removal_is_removed(tmp_path: Path) -> None:
    inner = tmp_path / "scratch" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    noted.clean(str(tmp_path / "scratch"), 0)
    assert not (tmp_path / "scratch").exists()


def test_processes_that_start_processes_come_to_an_end(tmp_path: Path) -> None:
    guard = Guard((str(tmp_path),))
    for _ in range(3):
        assert not guard.objection("os.fork", ())
        guard.after_fork()
    assert "processes" in guard.objection("os.fork", ())


def test_no_connection_is_made(pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        outcome(pool, f"import socket\nsocket.create_connection(('127.0.0.1', {port}))\n")
        with pytest.raises(TimeoutError):
            server.accept()


def test_memory_is_limited(pool: Pool) -> None:
    result = outcome(pool, "import torch\nx = torch.ones(1 << 30)\n")
    assert result.verdict is not Verdict.CONFIRMED
    assert "memory" in result.why


def test_file_size_is_limited(pool: Pool) -> None:
    result = outcome(pool, "with open('big', 'wb') as f:\n    f.write(bytes(100 << 20))\n")
    assert result.verdict is not Verdict.CONFIRMED
    assert "File too large" in result.why


def test_writing_into_the_scratch_folder_is_allowed(pool: Pool) -> None:
    program = """
    import pathlib, tempfile, torch
    pathlib.Path('a').write_text('x')
    torch.save({}, 'b.pt')
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, 'c').write_text('y')
    torch.ones(2).view(3)
    """
    assert outcome(pool, program).verdict is Verdict.CONFIRMED


def test_the_scratch_folder_goes_away(pool: Pool, tmp_path: Path) -> None:
    result = outcome(pool, "import os\nraise RuntimeError('shape ' + os.getcwd())\n")
    folder = result.why.split("shape ")[1].split()[0]
    assert "tl-" in folder
    assert not os.path.exists(folder)


def test_standard_input_is_empty_and_output_does_not_leak(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    program = """
    import os, sys
    print('to stdout'); print('to stderr', file=sys.stderr); os.write(1, b'raw')
    assert sys.stdin.read() == ''
    raise RuntimeError('shape')
    """
    assert outcome(pool, program).verdict is Verdict.CONFIRMED
    out, err = capfd.readouterr()
    assert "to std" not in out + err and "raw" not in out


def test_workers_of_a_data_loader_may_run(pool: Pool) -> None:
    program = """
    import torch
    from torch.utils.data import DataLoader
    rows = [x for x in DataLoader(torch.arange(8), batch_size=2, num_workers=2)]
    assert len(rows) == 4
    raise RuntimeError('shape')
    """
    assert outcome(pool, program).verdict is Verdict.CONFIRMED


def test_backward_works_in_children(pool: Pool) -> None:
    # With a parent that has computed on two threads, this would hang.
    program = """
    import torch
    w = torch.ones(64, 64, requires_grad=True)
    (w @ w).sum().backward()
    raise RuntimeError('shape')
    """
    assert outcome(pool, program).verdict is Verdict.CONFIRMED


def test_a_failure_of_the_check_is_cannot_tell(pool: Pool) -> None:
    broken = case(HARMLESS, claim=GraphGrows())
    broken = Case(**{**broken.__dict__, "flagged": ("no lines",)})
    ((_, result),) = pool.run([broken])
    assert result.verdict is Verdict.CANNOT_TELL
    assert result.why.startswith("the check itself failed at ")


def test_a_dead_server_is_started_again(pool: Pool) -> None:
    assert pool.server is not None
    first = pool.server.pid
    # The parent of a child is the server: the child may not end it, so the test does.
    pool.server.kill()
    results = list(pool.run([case(HARMLESS, key=n) for n in range(4)]))
    assert pool.server is not None and pool.server.pid != first
    verdicts = [o.verdict for _, o in results]
    assert len(verdicts) == 4 and verdicts[-1] is Verdict.CONFIRMED
    assert all("died" in o.why for _, o in results if o.verdict is not Verdict.CONFIRMED)


def test_what_runs_when_the_time_is_over_is_stopped_and_nothing_is_started() -> None:
    with Pool(2) as pool:
        started = time.monotonic()
        pool.until = started + 1.5
        results = dict(enumerate(o for _, o in pool.run([case(ENDLESS, key=n, seconds=60) for n in range(4)])))
        assert time.monotonic() - started < 8
    assert {o.verdict for o in results.values()} == {Verdict.CANNOT_TELL} and len(results) == 4
    assert [o.why.partition(":")[0] for o in results.values()] == ["stopped", "stopped", "not run", "not run"]
    assert "the time for all findings (--max-seconds) was over" in results[0].why


def test_no_server_is_waited_for_longer_than_there_is_time() -> None:
    started, late = time.monotonic(), Pool(1, until=time.monotonic() + 0.05)
    with pytest.raises(LateError, match="--max-seconds"):
        late.start()
    assert late.server is None and time.monotonic() - started < 3


def test_an_experiment_costs_far_less_than_a_process_of_its_own(pool: Pool) -> None:
    """A ratio within one run: a forked experiment against loading torch anew."""
    cases = [case(HARMLESS, key=n) for n in range(40)]
    started = time.monotonic()
    verdicts = [o.verdict for _, o in pool.run(cases)]
    forked = (time.monotonic() - started) / len(cases)
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    fresh = time.monotonic() - started
    assert verdicts == [Verdict.CONFIRMED] * 40
    assert forked < fresh / 2, f"{forked:.3f} s against {fresh:.3f} s"


def test_a_missing_torch_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.setattr("runtime_check.pool.START", "import sys; sys.path.insert(0, {root!r});" + (
        f"sys.path.insert(0, {str(tmp_path)!r});"
        "from runtime_check.child import serve; serve({requests}, {replies}, {device!r})"
    ))  # fmt: skip
    with pytest.raises(PoolError, match=r"^torch cannot be imported \(no torch here\)$"):
        Pool().start()


def test_a_device_that_is_not_there_is_one_clear_line() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    with pytest.raises(PoolError, match="no CUDA device"):
        Pool(device="cuda").start()
    with Pool(device="auto") as automatic:
        assert automatic.environment is not None and automatic.environment.device == "cpu"


def test_outcomes_survive_the_way_through_json() -> None:
    rows = (Evidence("nodes", "12", "after 3", "4 – “x”"),)
    before = Outcome(Verdict.REFUTED, "why\nnot", rows, "the program", 1.25)
    assert "\n" not in before.to_line()
    assert Outcome.from_line(before.to_line()) == before
    for bad in (
        "",
        "[]",
        "{}",
        '{"verdict": "sure"}',
        '{"verdict":"refuted","why":"","evidence":[1],"how":"","seconds":0}',
    ):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            Outcome.from_line(bad)
    assert Environment("2", "3", "x").device == "cpu"


def test_a_client_that_leaves_early_sees_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool(1) as leaving:
        leaving.send(case("import time\nwhile True:\n    time.sleep(0.1)\n"))
        time.sleep(0.5)
    assert capfd.readouterr().err == ""


def test_a_process_that_leaves_its_group_ends_with_the_experiment(pool: Pool, tmp_path: Path) -> None:
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        pytest.skip("the system does not list children")
    program = """
    import os
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                pass
        os._exit(0)
    os.wait()
    raise RuntimeError('shape')
    """
    assert outcome(pool, program).verdict is Verdict.CONFIRMED
    assert pool.server is not None
    left = Path(f"/proc/{pool.server.pid}/task/{pool.server.pid}/children").read_text()
    assert left.split() == []


def test_a_client_that_is_interrupted_while_torch_is_loaded_ends_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Pool, end: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pool, "read", interrupted)
    started, leaving = time.monotonic(), Pool(1)
    with pytest.raises(KeyboardInterrupt):
        leaving.start()
    assert leaving.server is None and time.monotonic() - started < 1.0
    assert capfd.readouterr().err == ""


def test_time_spent_waiting_for_a_processor_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "waited", lambda process="self": 0.0)
    before, wall = clock.now(), time.monotonic()
    assert clock.left(wall - 3, 2.0, os.getpid()) < 0
    monkeypatch.setattr(clock, "waited", lambda process="self": 5.0)
    assert clock.now() < before
    assert clock.left(wall - 3, 2.0, os.getpid()) > 0, "two seconds are not over: five were spent waiting"
    assert clock.left(wall - 21, 2.0, os.getpid()) < 0, "but no limit is stretched without end"


def test_a_limit_rings_again_where_a_part_of_it_was_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = iter([0.0] * 2)
    monkeypatch.setattr(clock, "waited", lambda process="self": next(waiting, 0.3))
    started = time.monotonic()
    with pytest.raises(trace.OutOfTime), trace.time_limit(0.2):
        while time.monotonic() < started + 5:
            pass
    assert 0.4 < time.monotonic() - started < 2


def test_what_one_experiment_has_loaded_is_parsed_for_those_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child starts from the server, which has parsed the files and run nothing of them."""
    parts, broken = tmp_path / "parts.py", tmp_path / "broken.py"
    parts.write_text("import os\nos.environ['TORCHLINT_RAN'] = '1'\n")
    broken.write_text("def (:\n")
    there: list[tuple[str, ...]] = []

    def start(case: Case, keep: set[int]) -> child.Job:
        there.append(outline.paths())
        raise OSError

    monkeypatch.setattr(child, "start", start)
    monkeypatch.setattr(child.Server, "reply", lambda *of: None)
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        server = child.Server(reading, writing)
        stack.callback(server.selector.close)
        server.begin(case(HARMLESS))
        server.loaded = (str(broken), str(tmp_path / "gone.py"), str(tmp_path), str(parts))
        server.begin(case(HARMLESS))
    assert [str(parts) in paths for paths in there] == [False, True]
    assert "TORCHLINT_RAN" not in os.environ


def test_an_experiment_says_what_it_has_loaded(tmp_path: Path) -> None:
    from runtime_check.extract import Namespace

    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "parts.py").write_text("SIZE = 4\n")
    (tmp_path / "other.py").write_text("SIZE = 5\n")
    text = "from parts import SIZE\n"
    assert Namespace(text, str(tmp_path / "net.py")).get("SIZE") == 4
    loaded = [path for path in outline.paths() if path.startswith(str(tmp_path))]
    assert [os.path.basename(path) for path in loaded] == ["net.py", "parts.py"]
    told = Outcome.from_line(Outcome(Verdict.REFUTED, "", loaded=tuple(loaded)).to_line())
    assert told.loaded == tuple(loaded)
