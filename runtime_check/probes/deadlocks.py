"""Deadlocks: two ranks on this machine do not finish, while with the correction they do.

The ranks are forked children of this process, joined by gloo through a file in the scratch folder. What
the program asks of `init_process_group` and `spawn` is replaced by that; each rank has a short time.
"""

from __future__ import annotations

import datetime
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast

RANKS = 2
SECONDS = 3.0


@dataclass
class Ranks:
    """How the ranks of a program ended."""

    run: Run
    finished: int = 0
    stuck: int = 0
    failed: int = 0
    joined: bool = False  # the program made a process group


def rank_main(rank: int, store: str, action: Callable[[], object]) -> None:
    """Runs an action as one rank. Ends the process: 0 done, 1 failed, 2 no process group was made."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    made = False
    plain = dist.init_process_group

    def init(*args: Any, **kwargs: Any) -> None:
        nonlocal made
        made = True
        limit = datetime.timedelta(seconds=SECONDS)
        plain("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit)

    dist.init_process_group = init
    torch.distributed.init_process_group = init
    try:
        action()
        os._exit(0 if made else 2)
    except BaseException:
        os._exit(1)


def run_ranks(ranks: Ranks, actions: list[Callable[[], object]]) -> None:
    """Forks a process for each action and waits."""
    store = os.path.join(tempfile.mkdtemp(), "store")
    running: dict[int, int] = {}
    for rank, action in enumerate(actions):
        process = os.fork()
        if process == 0:
            rank_main(rank, store, action)
        running[process] = rank
    end = time.monotonic() + SECONDS + 1
    while running and time.monotonic() < end:
        for process in list(running):
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                del running[process]
                code = os.waitstatus_to_exitcode(status)
                ranks.joined |= code in (0, 1)
                ranks.finished += code in (0, 2)
                ranks.failed += code not in (0, 2)
        time.sleep(0.01)
    for process in running:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        ranks.stuck += 1
        ranks.joined = True


@contextmanager
def spawning(ranks: Ranks) -> Iterator[None]:
    """Makes `torch.multiprocessing.spawn` start our ranks."""
    plain = mp.spawn

    def spawn(fn: Callable[..., object], args: tuple[Any, ...] = (), nprocs: int = 1, **_: Any) -> None:
        run_ranks(ranks, [lambda rank=rank: fn(rank, *args) for rank in range(RANKS)])  # type: ignore[misc]

    mp.spawn = spawn
    try:
        yield
    finally:
        mp.spawn = plain


def measure(bench: Bench, program: Program, way: Way) -> Ranks:
    """Runs a program as two ranks: the ones that it spawns itself, else two runs of the whole."""
    ranks = Ranks(Run(way.label))
    with spawning(ranks):
        if "spawn" in program.text:
            ranks.run = bench.run(program, way, traced=False)
        else:
            run_ranks(ranks, [way.run] * RANKS)
    return ranks


def probe(bench: Bench) -> Outcome:
    """Confirmed when ranks of the flagged program hang or run into the time limit, and all others finish."""
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way),
        lambda bad, good: judge(bench, bad, good),
        reached=lambda ranks: ranks.joined,
    )


def judge(bench: Bench, bad: Ranks, good: Ranks | None) -> Outcome:
    """The outcome of one way of running the program."""
    rows = [Evidence(f"ranks that finish within {SECONDS:g} s", str(bad.finished), "ranks", str(RANKS))]
    if bad.finished == RANKS:
        return Outcome(Verdict.REFUTED, "both ranks finish", tuple(rows))
    if good is None:
        return cannot_tell("not every rank finishes, and there is no corrected program to compare with", rows)
    rows.append(Evidence("ranks that finish", str(bad.finished), bench.against, str(good.finished)))
    if good.finished < RANKS:
        return cannot_tell("the ranks of the corrected program do not finish either", rows)
    how = f"{bad.stuck} hang and {bad.failed} end with an error"
    return Outcome(Verdict.CONFIRMED, f"of {RANKS} ranks {bad.finished} finish, {how}", tuple(rows))
