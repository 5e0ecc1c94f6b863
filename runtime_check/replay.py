"""Runs one experiment again, alone, and prints what it showed: the engine of stand-alone scripts."""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from runtime_check import clock, noted
from runtime_check.child import Job, kill, start, why_died
from runtime_check.evidence import Outcome, cannot_tell
from runtime_check.plan import Case, Lines
from torchlint import claims


def case_from(data: dict[str, Any], text: str, corrected: str | None) -> Case:
    """The case that `script.described` wrote down."""
    claim: claims.Claim = getattr(claims, data["claim"][0])(**data["claim"][1])
    return Case(
        0,
        data["path"],
        data["code"],
        data["name"],
        claim,
        text,
        tuple(Lines(*spot) for spot in data["flagged"]),
        corrected,
        tuple(Lines(*spot) for spot in data["mended"]),
        data["correction"],
        roots=tuple(data["roots"]),
        factories=tuple(map(tuple, data["factories"])),
        device=data["device"],
        seconds=data["seconds"],
        seed=data["seed"],
        only=data["only"],
    )


def alone(case: Case) -> Outcome:
    """The outcome of a case, run in one child of this process."""
    import torch

    torch.set_num_threads(1)  # with a second thread here, a backward in a forked child never ends
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    job = start(case, set())
    try:
        line = whole_line(job)
        return Outcome.from_line(line) if line else cannot_tell(why_died(job.status))
    finally:
        kill(job)
        os.close(job.pipe)
        noted.clean(job.scratch, job.process)


def whole_line(job: Job) -> str:
    """What the child writes, or nothing if it ends or is late."""
    data = b""
    while not data.endswith(b"\n"):
        left = clock.left(job.started, job.seconds, job.process)
        if left < 0:
            return ""
        if not select.select([job.pipe], [], [], left)[0]:
            continue
        part = os.read(job.pipe, 1 << 16)
        if not part:
            return ""
        data += part
    return data.decode("ascii")


def repeat(data: dict[str, Any], text: str, corrected: str | None, expected: tuple[str, tuple[str, ...]]) -> int:
    """Runs the experiment, prints verdict and numbers. 0 if the verdict is the expected one, else 1."""
    outcome = alone(case_from(data, text, corrected))
    verdict, rows = expected
    seen = tuple(row.text for row in outcome.evidence)
    print(f"{data['code']} {data['name']}: {outcome.verdict.value}\n    {outcome.why}")
    for row in seen:
        print(f"      {row}")
    print(f"    run: {outcome.how}")
    if outcome.verdict.value != verdict:
        print(f"    before: {verdict}", *rows, sep="\n      ")
    else:
        print("    the same as before" if seen == rows else "    the verdict is as before, some numbers are not")
    return int(outcome.verdict.value != verdict)


__all__ = ["repeat"]


if __name__ == "__main__":
    sys.exit("this is a part of scripts that `torchlint confirm --script` writes")
