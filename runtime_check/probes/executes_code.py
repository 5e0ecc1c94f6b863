"""ExecutesCode: loading a crafted file runs code that the file names.

Every `torch.load` that the flagged program makes is given a crafted file in place of its own; the code
in it counts a mark and nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful

marks = 0


def mark() -> dict[str, object]:
    """What the crafted file calls."""
    global marks
    marks += 1
    return {}


class Crafted:
    """An object whose pickle calls `mark` when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (mark, ())


@dataclass
class Loads:
    """Loads of a run, and how many ran the code."""

    run: Run
    loads: int = 0
    executed: int = 0
    refused: str = ""


def crafted() -> io.BytesIO:
    """The crafted file: a checkpoint with one such object."""
    buffer = io.BytesIO()
    torch.save({"state_dict": Crafted(), "model": Crafted()}, buffer)
    buffer.seek(0)
    return buffer


@contextmanager
def crafted_files(loads: Loads) -> Iterator[None]:
    """Makes every `torch.load` read the crafted file."""
    plain = torch.load

    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        loads.loads += 1
        before = marks
        try:
            return plain(crafted(), *args, **kwargs)
        except Exception as error:
            loads.refused = type(error).__name__
            raise
        finally:
            loads.executed += marks > before

    torch.load = load
    try:
        yield
    finally:
        torch.load = plain


def measure(bench: Bench, program: Program, way: Way) -> Loads:
    """Runs a program whose loads read the crafted file. Files that it asks for exist, empty."""
    loads = Loads(Run(way.label))
    loads.run = bench.run(program, way, crafted_files(loads), limit=0)
    return loads


def probe(bench: Bench) -> Outcome:
    """Confirmed when the crafted file's code runs, and with the correction is refused."""
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way),
        lambda bad, good: judge(bench, bad, good),
        reached=lambda loads: loads.loads > 0,
    )


def judge(bench: Bench, bad: Loads, good: Loads | None) -> Outcome:
    """The outcome of one way of running the program."""
    rows = [Evidence("loads that ran code of the file", str(bad.executed), "loads", str(bad.loads))]
    if not bad.executed:
        why = f"the crafted file is refused ({bad.refused})" if bad.refused else "no code of the file is run"
        return Outcome(Verdict.REFUTED, why, tuple(rows))
    if good is None or not good.loads:
        return doubtful(bad.run, "code of the file is run, and no corrected program shows that it need not be")
    rows.append(Evidence("loads that ran code of the file", str(bad.executed), bench.against, str(good.executed)))
    if good.executed:
        return cannot_tell("the corrected program runs code of the file as well", rows)
    return Outcome(Verdict.CONFIRMED, "loading a crafted file runs the code that it names", tuple(rows))
