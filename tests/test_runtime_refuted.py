"""Faults that a plain run with default arguments hides: nothing is refuted before they had a chance to show."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch")

from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import from_finding
from runtime_check.pool import Pool
from torchlint.claims import Claim, Raises
from torchlint.findings import Confidence, Finding, Severity, Span

OVERWRITTEN = Raises("RuntimeError", "modified by an inplace operation")


def outcome_of(pool: Pool, text: str, claim: Claim, code: str) -> Outcome:
    """The outcome for a finding in a file; `#!` marks the line."""
    text = textwrap.dedent(text).lstrip("\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "#!" in row)
    finding = Finding("file.py", Span(line, 1, line, 2), code, "test", Severity.ERROR, Confidence.SURE, "message")
    ((_, outcome),) = pool.run([from_finding(finding, claim, text, 0, seconds=20, path="file.py")])
    return outcome


FORWARD = """
import torch
from torch import nn


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("not written yet")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        y = {made}
        {flagged}  #!
        return {given}
"""


@pytest.mark.parametrize(
    ("made", "flagged", "given", "verdict", "reason"),
    [
        ("self.f(x).sigmoid()", "y += 1", "y", Verdict.CONFIRMED, "a backward from what the call returns raises"),
        ("self.f(x).sigmoid()", "y[:, 0] = 1", "y.sum()", Verdict.CONFIRMED, "modified by an inplace"),
        ("self.f(x)", "y += 1", "y", Verdict.REFUTED, "without the claimed exception"),
        ("self.f(x).detach().sigmoid()", "y += 1", "y", Verdict.CANNOT_TELL, "no backward could be run"),
        ("Broken.apply(self.f(x))", "y += 1", "y", Verdict.CANNOT_TELL, "another error (ValueError"),
        ("self.f(x).sigmoid()", "y += 1", "(self.f(x), y)", Verdict.CANNOT_TELL, "first output alone"),
    ],
)
def test_what_a_forward_overwrites_is_told_by_a_backward(
    pool: Pool, made: str, flagged: str, given: str, verdict: Verdict, reason: str
) -> None:
    program = FORWARD.format(made=made, flagged=flagged, given=given)
    outcome = outcome_of(pool, program, OVERWRITTEN, "TL105")
    assert outcome.verdict is verdict and reason in outcome.why, outcome
