"""Deadlocks: two ranks on this machine do not finish, while with the correction they do.

The ranks are forked children of this process, joined by gloo through a file in the scratch folder. What
the program asks of `init_process_group` and `spawn` is replaced by that; each rank has a short time. A run in which
no rank came to the flagged code says nothing.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import os
import re
import signal
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from runtime_check import clock, trace
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.onerank import on_cpu, settled
from runtime_check.plan import translated
from runtime_check.probes.bench import Bench, Program, Run, Way, first_decisive
from runtime_check.sandbox import shorten

RANKS = 2
SECONDS = 2.0
ENTRY = "entry"  # the kind of a way that is a function to be called as each rank


@dataclass
class Ranks:
    """How the ranks of a program ended."""

    run: Run
    finished: int = 0
    stuck: int = 0
    failed: int = 0
    joined: bool = False  # the program made a process group
    why: str = ""  # the error that a rank ended with
    reached: int = 0  # ranks that came to a flagged statement


def rank_main(rank: int, store: str, action: Callable[[], object], joined: bool, program: Program) -> None:
    """Runs an action as one rank. Ends the process: 0 done, 1 failed, 2 no process group was made.

    `joined`: the group is made beforehand, for code that finds one when it is called. A file tells that the rank
    came to a flagged statement of the program: it may never leave it.
    """
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    made = False
    plain = dist.init_process_group

    def init(*args: Any, **kwargs: Any) -> None:
        nonlocal made
        if made:
            return
        made = True
        limit = datetime.timedelta(seconds=SECONDS * clock.MOST)  # the parent ends what hangs sooner
        plain("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit)

    def reached(frame: types.FrameType, index: int) -> None:
        with open(f"{store}.{rank}.reached", "w"):
            pass

    dist.destroy_process_group = settled(dist.destroy_process_group)
    dist.init_process_group = init
    torch.distributed.init_process_group = init
    if not torch.cuda.is_available():
        DistributedDataParallel.__init__ = on_cpu
    spots = [(spot.first, spot.last) for spot in program.spots]
    try:
        if joined:
            init()
        with trace.LineTrace(program.path, program.text, spots, before=reached):
            action()
        os._exit(0 if made else 2)
    except BaseException as error:
        with open(f"{store}.{rank}", "w") as file:
            file.write(f"{type(error).__name__}: {shorten(error)}")
        os._exit(1)


def run_ranks(
    ranks: Ranks, actions: list[Callable[[], object]], program: Program, *, joined: bool = False
) -> None:
    """Forks a process for each action of a program and waits. `joined`: they find a process group."""
    if dist.is_initialized():
        # The one of a single rank, in which arguments were looked for: its threads would be missing in a child.
        settled(dist.destroy_process_group)()
    store = os.path.join(tempfile.mkdtemp(), "store")
    running: dict[int, int] = {}
    for rank, action in enumerate(actions):
        process = os.fork()
        if process == 0:
            rank_main(rank, store, action, joined, program)
        running[process] = rank
    started, waited = time.monotonic(), dict.fromkeys(running, 0.0)
    while running and in_time(started, waited, running):
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
    for rank in range(len(actions)):
        ranks.reached += os.path.exists(f"{store}.{rank}.reached")
        if not ranks.why and os.path.exists(f"{store}.{rank}"):
            with open(f"{store}.{rank}") as file:
                ranks.why = file.read()


def in_time(started: float, waited: dict[int, float], running: Iterable[int]) -> bool:
    """Whether some ranks may run on. What one waits for a processor all may wait for it, so that is not counted."""
    waited |= {process: clock.waited(process) for process in running}
    spent = time.monotonic() - started
    return spent - sum(waited.values()) < SECONDS + 1 and spent < SECONDS * clock.MOST


@contextmanager
def spawning(ranks: Ranks, program: Program) -> Iterator[None]:
    """Makes `torch.multiprocessing.spawn` start our ranks."""
    plain = mp.spawn

    def spawn(fn: Callable[..., object], args: tuple[Any, ...] = (), nprocs: int = 1, **_: Any) -> None:
        run_ranks(ranks, [partial(fn, rank, *args) for rank in range(RANKS)], program)

    mp.spawn = spawn
    try:
        yield
    finally:
        mp.spawn = plain


# -- what each rank runs ------------------------------------------------------------------------


def entries(program: Program) -> list[str]:
    """Functions that make a process group and lead to a flagged statement, by the names they call."""
    functions = [node for node in ast.parse(program.text).body if isinstance(node, ast.FunctionDef)]
    calls = {node.name: called(node) for node in functions}
    holders = {
        node.name
        for node in functions
        if any(node.lineno <= spot.first <= (node.end_lineno or 0) for spot in program.spots)
    }

    def leads(name: str, depth: int = 0) -> bool:
        inner = calls.get(name, set())
        return name in holders or (depth < 5 and any(leads(n, depth + 1) for n in inner if n in calls))

    return [node.name for node in functions if "init_process_group" in calls[node.name] and leads(node.name)]


def called(node: ast.AST) -> set[str]:
    """The last names of everything that a piece of code calls."""
    found = set()
    for item in ast.walk(node):
        match item:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                found.add(name)
    return found


def argument(name: str, rank: int, store: str) -> object:
    """A value for a parameter of a function that runs as one rank."""
    for pattern, value in (
        (r"(local_|global_|proc(ess)?_)?(rank|id|index)|gpu(_id)?|i", rank),
        (r"world(_size)?|size|n_?(procs|gpus|proc)|num_\w+|ngpus\w*", RANKS),
        (r"port", 29500),
        (r"backend", "gloo"),
        (r"\w*(store|file|path|url|init\w*|addr\w*|host)\w*", store),
    ):
        if re.fullmatch(pattern, name):
            return value
    return types.SimpleNamespace()


def call_as_rank(function: Callable[..., object], rank: int) -> object:
    """Calls a function with what its required parameters are named after."""
    given = {
        name: argument(name, rank, "store")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    return function(**given)


def ways(bench: Bench, program: Program) -> Iterator[Way]:
    """Functions that run as a rank, then the usual ways; made-up calls only of what finds a group already made."""
    for name in entries(program):
        yield Way(f"{name} as each rank", partial(program.space.resolve, name), ENTRY)
    yield from bench.ways(program, made="init_process_group" not in program.text)


def measure(bench: Bench, program: Program, way: Way) -> Ranks:
    """Runs a program as two ranks: a function that is one, those that it spawns, or twice the whole."""
    ranks = Ranks(Run(way.label))
    if way.kind == ENTRY:
        function = way.run()
        if callable(function):
            run_ranks(ranks, [partial(call_as_rank, function, rank) for rank in range(RANKS)], program)
        return ranks
    with spawning(ranks, program):
        if "spawn" in program.text:
            ranks.run = bench.run(program, way, traced=False)
        else:
            run_ranks(ranks, [way.run] * RANKS, program, joined=way.made_up)
    return ranks


def probe(bench: Bench) -> Outcome:
    """Confirmed when ranks of the flagged program hang or run into the time limit, and all others finish."""

    def one(way: Way) -> Outcome | None:
        bad = measure(bench, bench.flagged, way)
        if not bad.joined:
            bench.note(bad.run.trouble or f"no process group was made ({way.label})")
            return None
        if not bad.reached:
            bench.note(bad.why or f"no rank came to the flagged line ({way.label})")
            return None
        corrected = bench.corrected
        others = ways(bench, corrected) if corrected is not None else iter(())
        label = translated(way.label, bench.case.text, bench.case.corrected or "")
        other = next((o for o in others if o.label == label), None)
        good = None if corrected is None or other is None else measure(bench, corrected, other)
        return replace(judge(bench, bad, good), how=way.label)

    return first_decisive(bench, ways(bench, bench.flagged), one)


def judge(bench: Bench, bad: Ranks, good: Ranks | None) -> Outcome:
    """The outcome of one way of running the program."""
    rows = [Evidence(f"ranks that finish within {SECONDS:g} s", str(bad.finished), "ranks", str(RANKS))]
    if bad.finished == RANKS:
        return Outcome(Verdict.REFUTED, "both ranks finish", tuple(rows))
    if good is None:
        return cannot_tell("not every rank finishes, and there is no corrected program to compare with", rows)
    rows.append(Evidence("ranks that finish", str(bad.finished), bench.against, str(good.finished)))
    if good.finished < RANKS:
        why = f" ({good.why})" if good.why else ""
        return cannot_tell(f"the ranks of the corrected program do not finish either{why}", rows)
    how = f"{bad.stuck} hang and {bad.failed} end with an error"
    return Outcome(Verdict.CONFIRMED, f"of {RANKS} ranks {bad.finished} finish, {how}", tuple(rows))
