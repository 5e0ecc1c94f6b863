"""DistributedDataParallel: how many forwards prepare a gradient reduction.

DDP decides in forward whether the following backward reduces gradients over the ranks (measured on
torch 2.13: `no_sync` around backward alone changes nothing), so forwards are counted by that decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful


@dataclass
class Forwards:
    """Forwards of DDP modules in a run."""

    run: Run
    total: int = 0
    reducing: int = 0
    blocks: int = 0  # `no_sync` blocks that were entered


@contextmanager
def watched(forwards: Forwards) -> Iterator[None]:
    """Counts while it lasts."""
    forward, no_sync = DistributedDataParallel.forward, DistributedDataParallel.no_sync

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        forwards.total += 1
        forwards.reducing += bool(self.require_backward_grad_sync)
        return forward(self, *args, **kwargs)

    def entered(self: Any) -> Any:
        forwards.blocks += 1
        return no_sync(self)

    DistributedDataParallel.forward, DistributedDataParallel.no_sync = counted, entered
    try:
        yield
    finally:
        DistributedDataParallel.forward, DistributedDataParallel.no_sync = forward, no_sync


def measure(bench: Bench, program: Program, way: Way) -> Forwards:
    """Runs a program and counts."""
    forwards = Forwards(Run(way.label))
    forwards.run = bench.run(program, way, watched(forwards), limit=0)
    return forwards


def probe_no_sync(bench: Bench) -> Outcome:
    """Confirmed when `no_sync` saves no reduction, and with the correction does."""
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge(bench: Bench, bad: Forwards, good: Forwards | None) -> Outcome:
    """The outcome of counting forwards."""
    if not bad.total:
        return doubtful(bad.run, "no DistributedDataParallel module was called")
    label = "forwards that prepare a gradient reduction"
    rows = [Evidence(label, str(bad.reducing), "forwards", str(bad.total))]
    rows.append(
        Evidence("forwards that no_sync spares", str(bad.total - bad.reducing), "no_sync blocks", str(bad.blocks))
    )
    if bad.total - bad.reducing >= bad.blocks:
        return Outcome(Verdict.REFUTED, "every no_sync block spares a gradient reduction", tuple(rows))
    if good is not None and good.total:
        rows.append(Evidence(label, str(bad.reducing), bench.against, str(good.reducing)))
        if good.reducing >= bad.reducing:
            return cannot_tell("the corrected program prepares as many reductions", rows)
    why = f"{bad.blocks} no_sync blocks spare {bad.total - bad.reducing} of {bad.total} gradient reductions"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))
