"""The server process: it loads torch once and forks a child for every case.

Protocol, over two pipes that are given by number on the command line. In: pickled cases, each after
its length in four bytes. Out: one JSON line when ready, then one line per case. A child's own pipe
carries one JSON line; what else a child does, crash or hang, ends in one verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import platform
import selectors
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from runtime_check import causes, clock, noted, outline
from runtime_check.evidence import Environment, Outcome, cannot_tell

if TYPE_CHECKING:
    from runtime_check.plan import Case

HEADER = struct.Struct("!I")
TICK = 0.05  # seconds between looks at deadlines
LONGEST_LINE = 1 << 22
LOOKS = 0.5  # seconds between looks at how much a child has written
BECOME_SUBREAPER = 36  # prctl


class NoDevice(RuntimeError):
    """The device that was asked for is not there."""


@dataclass
class Job:
    """A running child."""

    key: int
    process: int
    pipe: int
    scratch: str
    started: float
    seconds: float  # that it may take
    look: float = 0.0  # when to see next how much it has written
    status: int | None = None  # the wait status, once the child has been waited for
    line: bytearray = field(default_factory=bytearray)
    kills: int = 0  # for lack of memory, in the whole system, before it began


def warm_up(device: str) -> Environment:
    """Loads torch and what torch loads late, single threaded. ImportError if torch is missing."""
    import torch

    # With a second thread in the parent, a backward in a forked child never ends.
    torch.set_num_threads(1)
    # The first optimizer imports torch._dynamo; a child would pay for that in every case.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    import torch.utils.data

    from runtime_check.probes import load_all

    load_all()
    system = f"{platform.system()} {platform.machine()}"
    return Environment(torch.__version__, platform.python_version(), system, choose_device(device))


def choose_device(wanted: str) -> str:
    """The device for a wanted cpu, cuda or auto. NoDevice if cuda is wanted and absent.

    Asked in a child: a process that has touched CUDA can no longer fork children that use it.
    """
    if wanted == "cpu":
        return "cpu"
    import torch

    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if torch.cuda.is_available() else 3)
        finally:
            os._exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0:
        return "cuda"
    if wanted == "cuda":
        raise NoDevice("--device cuda: torch finds no CUDA device here")
    return "cpu"


def conduct(case: Case, scratch: str) -> Outcome:
    """Runs one case in this process, which is spent afterwards. Never raises."""
    started = clock.now()
    known: causes.Known | None = None
    try:
        import torch

        from runtime_check import nearby, sandbox
        from runtime_check.probes import examine

        torch.set_num_threads(1)
        around = nearby.places(case.path, case.roots)
        guard = sandbox.enter(scratch, case.memory, address_space=case.device == "cpu", around=around)
        known = causes.Known()
        outcome = replace(examine(case, guard), files=guard.files_read(), loaded=outline.paths())
        known.put_back()
    except (SystemExit, KeyboardInterrupt) as error:  # the check itself never raises these
        outcome = cannot_tell(f"the code raised {type(error).__name__}, which ended the run")
    except BaseException as error:  # the verdict on a failure of ours, or on what the code has done to us
        replaced = [] if known is None else known.put_back()
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        outcome = cannot_tell(causes.explained(error, replaced, where))
    return replace(outcome, seconds=clock.now() - started)


def become_child(pipe: int, keep: set[int]) -> None:
    """Leaves the server's descriptors and signals behind."""
    for number in keep - {pipe}:
        os.close(number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def redirect_output() -> None:
    """Sends what the code prints, from Python and from C, where nobody reads it, however much that is."""
    output = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def start(case: Case, keep: set[int]) -> Job:
    """Forks a child for a case. OSError when no process or folder can be made."""
    scratch = tempfile.mkdtemp(prefix="tl-")
    reading, writing = os.pipe()
    now, kills = time.monotonic(), causes.kills_for_memory()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            become_child(writing, keep | {reading, writing})
            redirect_output()
            mine = os.getpid()
            outcome = conduct(case, scratch)
            if os.getpid() != mine:
                os._exit(0)  # forked by the code, and gone astray: only the one that was asked answers
            line = outcome.to_line().encode("ascii") + b"\n"
            view = memoryview(line)
            while view:
                view = view[os.write(writing, view) :]
            status = 0
        finally:
            os._exit(status)
    with contextlib.suppress(OSError):
        os.setpgid(process, process)  # whoever comes first, parent or child
    os.close(writing)
    os.set_blocking(reading, False)
    return Job(case.key, process, reading, scratch, now, case.seconds, look=now + LOOKS, kills=kills)


def ended(job: Job) -> bool:
    """Whether a child has ended; takes note of its status."""
    if job.status is None:
        process, status = os.waitpid(job.process, os.WNOHANG)
        if process:
            job.status = status
    return job.status is not None


def settle(job: Job) -> None:
    """Gives a child that has closed its pipe, and so is about to end, a moment to do so."""
    for _ in range(20):
        if ended(job):
            return
        time.sleep(TICK / 10)


def wrote_too_much(job: Job) -> bool:
    """Whether the files of a job have grown too large, all together; looked at now and then."""
    now = time.monotonic()
    if now < job.look:
        return False
    size = noted.written(job.scratch)
    job.look = now + max(LOOKS, 20 * (time.monotonic() - now))
    return size > noted.MOST_WRITTEN


def kill(job: Job) -> None:
    """Ends a job's whole process group, be its leader gone already."""
    for send in (os.killpg, os.kill) if job.status is None else (os.killpg,):
        with contextlib.suppress(OSError):
            send(job.process, signal.SIGKILL)
    if job.status is None:
        os.waitpid(job.process, 0)


def why_died(status: int | None, kills: int = 0) -> str:
    """A sentence about a child that ended without a result. `kills`: those for lack of memory before it began."""
    if status is None:
        return "the code closed the pipe of the check, so no result came back"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {
            signal.SIGSEGV: "the code crashed with a segmentation fault",
            signal.SIGKILL: "the process was killed (signal 9)",
            signal.SIGXFSZ: "the code wrote a file larger than the limit",
            signal.SIGABRT: "the code was aborted by a native library",
        }
        if number == signal.SIGKILL and causes.kills_for_memory() > kills:
            return "the process was killed, most likely for using too much memory"
        return known.get(signal.Signals(number), f"the process was ended by signal {number}")
    return f"the process ended without a result (exit status {os.WEXITSTATUS(status)})"


class Server:
    """Reads cases, keeps children running, writes outcomes."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ, None)
        self.jobs: dict[int, Job] = {}
        self.buffer = bytearray()
        self.loaded: tuple[str, ...] = ()  # files that the last experiment has loaded
        self.open = True

    def run(self) -> None:
        """Serves until the request pipe is closed and every child has ended."""
        os.set_blocking(self.requests, False)
        while self.open or self.jobs:
            for key, _ in self.selector.select(TICK if self.jobs else None):
                self.receive() if key.data is None else self.collect(key.data)
            self.expire()

    def receive(self) -> None:
        """Takes requests from the pipe and starts them; the client limits how many run at once."""
        data = os.read(self.requests, 1 << 16)
        if not data:
            self.open = False
            self.selector.unregister(self.requests)
            for job in list(self.jobs.values()):
                self.finish(job, cannot_tell("interrupted"))
            return
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self.buffer)[0]
            if len(self.buffer) < end:
                return
            case: Case = pickle.loads(bytes(self.buffer[HEADER.size : end]))
            del self.buffer[:end]
            self.begin(case)

    def begin(self, case: Case) -> None:
        """Starts one case."""
        keep = {self.requests, self.replies, *(job.pipe for job in self.jobs.values())}
        outline.read_ahead(self.loaded)  # parsed once for all that follow; only the children run anything of it
        self.loaded = ()
        try:
            job = start(case, keep)
        except OSError as error:
            self.reply(case.key, cannot_tell(f"no process could be started ({error.strerror})"))
            return
        self.jobs[job.process] = job
        self.selector.register(job.pipe, selectors.EVENT_READ, job)

    def collect(self, job: Job) -> None:
        """Takes what a child wrote; a full line or a closed pipe ends it."""
        try:
            data = os.read(job.pipe, 1 << 16)
        except BlockingIOError:
            return
        job.line += data
        if data and not job.line.endswith(b"\n") and len(job.line) <= LONGEST_LINE:
            return
        if not data:
            settle(job)
        try:
            outcome = Outcome.from_line(job.line.decode("ascii"))
        except (ValueError, KeyError, TypeError):
            outcome = cannot_tell(why_died(job.status, job.kills))
        self.finish(job, outcome)

    def expire(self) -> None:
        """Ends children that are past their time, or gone while something else holds their pipe."""
        for job in list(self.jobs.values()):
            if ended(job):
                self.collect(job)
                if job.process in self.jobs:
                    self.finish(job, cannot_tell(why_died(job.status, job.kills)))
            elif clock.left(job.started, job.seconds, job.process) < 0:
                limit = f"{job.seconds:g} s"
                self.finish(job, cannot_tell(f"no result within {limit}; raise --timeout to wait longer"))
            elif wrote_too_much(job):
                limit = f"{noted.MOST_WRITTEN >> 20} MB"
                self.finish(job, cannot_tell(f"stopped when it tried to write more than {limit} of files in all"))

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Frees what a job held and sends its outcome."""
        kill(job)
        self.selector.unregister(job.pipe)
        os.close(job.pipe)
        del self.jobs[job.process]
        kill_strays(self.jobs.keys())
        noted.clean(job.scratch, job.process)
        self.loaded = outcome.loaded or self.loaded
        self.reply(job.key, replace(outcome, seconds=outcome.seconds or time.monotonic() - job.started))

    def reply(self, key: int, outcome: Outcome) -> None:
        """Writes one line. A client that is gone wants none; the end of its requests ends the server."""
        with contextlib.suppress(BrokenPipeError):
            send_line(self.replies, {"key": key, **outcome.as_row(), "files": outcome.files})


def send_line(pipe: int, row: dict[str, object]) -> None:
    """Writes a JSON line to a pipe."""
    view = memoryview(json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n")
    while view:
        view = view[os.write(pipe, view) :]


def serve(requests: int, replies: int, device: str = "cpu") -> None:
    """Entry of the server process. `device` is cpu, cuda or auto."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client decides; it closes the pipe
    adopt_orphans()
    try:
        first: dict[str, object] = {"environment": asdict(warm_up(device))}
    except ImportError as error:
        first = {"error": f"torch cannot be imported ({error})"}
    except NoDevice as error:
        first = {"error": str(error)}
    # What exists now is never garbage: leave it out of the children's collections.
    gc.collect()
    gc.freeze()
    try:
        send_line(replies, first)
    except BrokenPipeError:
        return  # the client is gone already
    if "environment" in first:
        Server(requests, replies).run()


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave behind, where Linux can do that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def kill_strays(running: Collection[int]) -> None:
    """Ends what jobs that are over have left behind: children of this process in no running job's group."""
    for _ in range(100):
        strays = [process for process in children() if process not in running and group_of(process) not in running]
        if not strays:
            return
        for process in strays:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(process, 0)  # what it has started is ours now


def children() -> list[int]:
    """The direct children of this process; none where the system does not say."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def group_of(process: int) -> int:
    """The process group of a process; 0 if it is gone."""
    try:
        return os.getpgid(process)
    except OSError:
        return 0
