"""The client of the server process: hands out cases, yields outcomes as they come.

`with Pool(jobs=2) as pool: for case, outcome in pool.run(cases)`. torch is never imported here.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from runtime_check.child import HEADER
from runtime_check.evidence import Environment, Outcome, cannot_tell
from runtime_check.plan import Case

ROOT = str(Path(__file__).resolve().parents[1])
START = (
    "import sys; sys.path[0] = {root!r}; from runtime_check.child import serve; "
    "serve({requests}, {replies}, {device!r})"
)


LATE = "the time for all findings (--max-seconds) was over"


class PoolError(RuntimeError):
    """The server process could not be started; the message is one line for the user."""


class LateError(PoolError):
    """The time was over before the server process was ready."""


class Pool:
    """A server process and up to `jobs` children of it at a time, until some moment of the monotonic clock."""

    def __init__(self, jobs: int = 1, device: str = "cpu", until: float | None = None) -> None:
        self.jobs, self.device, self.until = max(1, jobs), device, until
        self.environment: Environment | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.requests = -1
        self.replies = -1
        self.pending = b""

    def __enter__(self) -> Pool:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts the server and waits until torch is loaded. PoolError if it cannot be, or not in time."""
        request_in, self.requests = os.pipe()
        self.replies, reply_out = os.pipe()
        code = START.format(root=ROOT, requests=request_in, replies=reply_out, device=self.device)
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        # A session of its own, so that Ctrl-C reaches the client alone.
        self.server = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(request_in, reply_out),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(request_in)
        os.close(reply_out)
        try:
            row = self.read(self.until)
        except BaseException as error:  # Ctrl-C: a server that still loads torch would not notice for seconds
            self.server.kill()
            self.close()
            if isinstance(error, TimeoutError):
                raise LateError(LATE) from None
            raise
        if row is None or "error" in row:
            self.close()
            raise PoolError(str(row["error"]) if row else "the process that runs the code did not start")
        described = row["environment"]
        assert isinstance(described, dict)
        self.environment = Environment(**described)

    def close(self) -> None:
        """Ends the server and its children."""
        for pipe in (self.requests, self.replies):
            if pipe >= 0:
                os.close(pipe)
        self.requests = self.replies = -1
        self.pending = b""
        if self.server is not None:
            try:
                self.server.wait(5)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server = None

    def run(self, cases: Iterable[Case]) -> Iterator[tuple[Case, Outcome]]:
        """Outcomes in the order in which they are ready. When the time is over, what runs is stopped.

        A case whose server dies gets a cannot-tell outcome, and the server is started again.
        """
        end = self.until
        waiting = iter(cases)
        running: dict[int, Case] = {}
        while True:
            while len(running) < self.jobs:
                case = next(waiting, None)
                if case is None:
                    break
                if end is not None and time.monotonic() > end:
                    yield case, cannot_tell(f"not run: {LATE}")
                    continue
                running[case.key] = case
                self.send(case)
            if not running:
                return
            try:
                row = self.read(end)
            except TimeoutError:
                self.close()
                yield from ((case, cannot_tell(f"stopped: {LATE}")) for case in running.values())
                running.clear()
                continue
            if row is None:
                yield from ((case, cannot_tell("the process that runs the code died")) for case in running.values())
                running.clear()
                self.close()
                self.start()
                continue
            key = row.pop("key")
            assert isinstance(key, int)
            yield running.pop(key), Outcome.from_row(row)

    def send(self, case: Case) -> None:
        """Writes a case to the server; a dead server is noticed when its reply is read."""
        data = pickle.dumps(case)
        view = memoryview(HEADER.pack(len(data)) + data)
        try:
            while view:
                view = view[os.write(self.requests, view) :]
        except BrokenPipeError:
            pass

    def read(self, end: float | None = None) -> dict[str, object] | None:
        """The server's next line, or None when it has ended. TimeoutError if there is none until `end`."""
        while b"\n" not in self.pending:
            if end is not None and not select.select([self.replies], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            data = os.read(self.replies, 1 << 16)
            if not data:
                return None
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        row: dict[str, object] = json.loads(line)
        return row
