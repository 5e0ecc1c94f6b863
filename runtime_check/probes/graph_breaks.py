"""GraphBreaks: torch.compile cuts the flagged program into more graphs than the corrected one.

A backend of our own counts the graphs and runs them as they are: nothing is compiled to native code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful


@dataclass
class Graphs:
    """Graphs that were made in a run, and the reasons for breaks."""

    run: Run
    graphs: int = 0
    compiled: int = 0
    reasons: list[str] = field(default_factory=list)


@contextmanager
def counting(graphs: Graphs) -> Iterator[None]:
    """Gives every `torch.compile` the counting backend."""
    plain = torch.compile

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.graphs += 1
        run: Callable[..., Any] = module.forward
        return run

    def compiled(model: Any = None, **options: Any) -> Any:
        graphs.compiled += 1
        kept = {name: value for name, value in options.items() if name in ("dynamic", "fullgraph", "disable")}
        return plain(model, backend=backend, **kept)

    torch._dynamo.reset()
    torch.compile = compiled
    try:
        yield
    finally:
        torch.compile = plain
        counters = torch._dynamo.utils.counters["graph_break"]
        graphs.reasons = [text.splitlines()[0] for text in counters]
        counters.clear()


def measure(bench: Bench, program: Program, way: Way) -> Graphs:
    """Runs a program and counts its graphs."""
    graphs = Graphs(Run(way.label))
    graphs.run = bench.run(program, way, counting(graphs), traced=False)
    return graphs


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program has more graphs than the corrected one."""
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way),
        lambda bad, good: judge(bench, bad, good),
        reached=lambda graphs: graphs.compiled > 0 and (graphs.graphs > 0 or graphs.run.error is not None),
    )


def judge(bench: Bench, bad: Graphs, good: Graphs | None) -> Outcome:
    """The outcome of one way of running the program."""
    row = Evidence("graphs", str(bad.graphs), "breaks", str(len(bad.reasons)))
    if bad.run.error is not None:
        return doubtful(bad.run, "the compiled code did not run")
    if bad.graphs < 2 and not bad.reasons:
        return Outcome(Verdict.REFUTED, "the code is compiled into one graph", (row,))
    if good is None or not good.graphs:
        return cannot_tell("there are breaks, and there is no corrected program to compare with", (row,))
    rows = (row, Evidence("graphs", str(bad.graphs), bench.against, str(good.graphs)))
    if good.graphs >= bad.graphs:
        if not bad.reasons:
            return Outcome(Verdict.REFUTED, "there are as many graphs as in the corrected program", rows)
        return cannot_tell("the corrected program has as many graphs", rows)
    why = f"torch.compile makes {bad.graphs} graphs, {good.graphs} {bench.against}"
    reason = f" ({bad.reasons[0][:80]})" if bad.reasons else ""
    return Outcome(Verdict.CONFIRMED, why + reason, rows)
