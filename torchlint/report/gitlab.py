"""GitLab's code quality report: a JSON list in a subset of the Code Climate form.

Fields as in GitLab's documentation of code quality reports; fingerprints must be unique in a report.
"""
from __future__ import annotations

import hashlib
import json
from typing import Any

from torchlint.findings import Finding, Severity
from torchlint.report.common import title
from torchlint.results import Problem, Report

LEVELS = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.ADVICE: "minor"}


def render(report: Report) -> str:
    """A JSON list with one entry for each finding and each problem with a file."""
    seen: set[str] = set()
    entries = [_entry(finding, seen) for finding in report.findings]
    entries += [_problem(error, seen) for error in report.errors if error.path]
    return json.dumps(entries, indent=2) + "\n"


def _entry(finding: Finding, seen: set[str]) -> dict[str, Any]:
    """One finding."""
    span = finding.span
    return {
        "description": f"{title(finding)}: {finding.message}",
        "check_name": finding.code,
        "fingerprint": _unique(finding.fingerprint or _digest(str(finding.order)), seen),
        "severity": LEVELS[finding.severity],
        "location": {
            "path": finding.path,
            "positions": {
                "begin": {"line": span.line, "column": span.column},
                "end": {"line": span.end_line, "column": span.end_column},
            },
        },
    }


def _problem(error: Problem, seen: set[str]) -> dict[str, Any]:
    """A file that could not be checked."""
    return {
        "description": error.message,
        "check_name": "torchlint",
        "fingerprint": _unique(_digest(str(error)), seen),
        "severity": "blocker",
        "location": {"path": error.path, "lines": {"begin": 1}},
    }


def _unique(fingerprint: str, seen: set[str]) -> str:
    """`fingerprint`, or one made from it if `seen` has it; adds the answer to `seen`."""
    candidate, count = fingerprint, 1
    while candidate in seen:
        count += 1
        candidate = _digest(f"{fingerprint} {count}")
    seen.add(candidate)
    return candidate


def _digest(text: str) -> str:
    """A short hash of any text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
