"""The report for programs: one JSON object. Fields are only ever added."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from runtime_check.results import Confirmation, Result
from torchlint.report.json import finding_dict

VERSION = 1


def render(confirmation: Confirmation) -> str:
    """The whole report as one JSON object, in ASCII."""
    return json.dumps(to_dict(confirmation), indent=2) + "\n"


def to_dict(confirmation: Confirmation) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "version": VERSION,
        "environment": None if confirmation.environment is None else asdict(confirmation.environment),
        "results": [result_dict(result) for result in confirmation.results],
        "examined": [
            {"path": one.finding.path, "line": one.finding.span.line, "code": one.finding.code, "name": one.subject,
             "verdict": one.outcome.verdict.value, "why": one.outcome.why}
            for one in confirmation.examined
        ],
        "errors": [{"path": error.path or None, "message": error.message} for error in confirmation.errors],
        "summary": {**confirmation.counts(), "seconds": round(confirmation.seconds, 3)},
    }


def result_dict(result: Result) -> dict[str, Any]:
    """A finding with its verdict."""
    outcome = result.outcome.as_row()
    more = {"next_step": result.next_step or None, "repeat": result.repeat}
    return {**finding_dict(result.finding), "claim": result.claim or None, **outcome, **more}
