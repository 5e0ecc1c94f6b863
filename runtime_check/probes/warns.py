"""Warns: torch itself warns about the flagged line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.sandbox import shorten
from torchlint.claims import Warns


@dataclass
class Heard:
    """The warnings of a run that fit the claim."""

    run: Run
    texts: list[str] = field(default_factory=list)
    here: int = 0  # given for, or while, one of the flagged lines
    missing: str = ""  # the error of a name that torch does not have


@contextmanager
def every_time() -> Iterator[None]:
    """Makes torch repeat warnings that it gives once per process."""
    old = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(old)


def measure(bench: Bench, program: Program, way: Way, pattern: str) -> Heard:
    """Runs a program and picks the warnings that fit, by text or by place."""
    heard = Heard(Run(way.label))
    during: set[int] = set()
    start = 0

    def begin(frame: FrameType, index: int) -> None:
        nonlocal start
        start = len(bench.seen.warnings)

    def end(frame: FrameType, index: int) -> None:
        during.update(range(start, len(bench.seen.warnings)))

    heard.run = bench.run(program, way, every_time(), before=begin, after=end)
    for number, warning in enumerate(heard.run.warnings):
        text = str(warning.message)
        place = warning.filename == program.path and any(s.first <= warning.lineno <= s.last for s in program.spots)
        here = place or number in during
        if re.search(pattern, text) if pattern else here:
            heard.texts.append(text)
            heard.here += here
    for error in (*heard.run.raised, heard.run.error):
        if isinstance(error, (AttributeError, ImportError)) and not heard.missing:
            heard.missing = f"{type(error).__name__}: {error}"
    return heard


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program warns, or lacks the name, and the corrected one does neither."""
    claim = bench.case.claim
    pattern = claim.match if isinstance(claim, Warns) else ""
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way, pattern),
        lambda bad, good: judge(bench, bad, good),
    )


def judge(bench: Bench, bad: Heard, good: Heard | None) -> Outcome:
    """The outcome of one way of running the program."""
    said = bad.texts[0] if bad.texts else bad.missing
    if not said and bad.run.failed:
        return doubtful(bad.run, "the flagged line did not run to its end")
    if not said and good is None:
        row = Evidence("warnings that fit", "0", "warnings in all", str(len(bad.run.warnings)))
        return cannot_tell("torch itself says nothing about the line, which other releases may", (row,))
    if not said:
        row = Evidence("warnings that fit", "0", "warnings in all", str(len(bad.run.warnings)))
        return Outcome(Verdict.REFUTED, "torch gives no such warning", (row,))
    text = shorten(said, 120)
    if good is None:
        row = Evidence(
            "warnings while the flagged line runs", str(bad.here), "elsewhere", str(len(bad.texts) - bad.here)
        )
        if bad.here and bad.here == len(bad.texts):
            return Outcome(Verdict.CONFIRMED, f"torch warns: {text}", (row,))
        return cannot_tell(f"torch warns, and there is no corrected program to compare with: {text}", (row,))
    row = Evidence("warnings that fit", str(len(bad.texts)), bench.against, str(len(good.texts)))
    if len(good.texts) >= len(bad.texts) and not (bad.missing and not good.missing):
        return cannot_tell(f"the corrected program warns as well: {text}", (row,))
    return Outcome(Verdict.CONFIRMED, f"torch {'warns' if bad.texts else 'lacks the name'}: {text}", (row,))
