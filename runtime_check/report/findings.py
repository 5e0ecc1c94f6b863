"""The results that count as findings of the check: for the formats that annotate code in other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runtime_check.report.text import verdict_word
from runtime_check.results import Confirmation
from torchlint.builtin import every_rule
from torchlint.results import Report


def as_report(confirmation: Confirmation, fail_on: Sequence[str]) -> Report:
    """What `fail_on` names, what is confirmed if that is nothing, with verdict and reason in each message."""
    kinds = [kind for kind in fail_on if kind != "never"] or ["confirmed"]
    findings = tuple(
        replace(one.finding, message=f"{one.finding.message} ({verdict_word(one)}: {one.outcome.why})")
        for one in confirmation.results
        if one.counts(kinds)
    )
    return Report(
        findings=findings,
        errors=confirmation.errors,
        files=len(confirmation.sources),
        sources=confirmation.sources,
        rules=tuple(every_rule()),
        seconds=confirmation.seconds,
    )
