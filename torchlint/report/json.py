"""The report for programs: one JSON object. Fields are only ever added."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchlint.findings import Edit, Finding, Fix, Safety
from torchlint.report.common import by_severity, whole
from torchlint.results import Made, Proof, Report

VERSION = 1


def render(report: Report) -> str:
    """The whole report as one JSON object, in ASCII, so that no encoding can break it."""
    return json.dumps(to_dict(report), indent=2) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain data; `fixed` is there after --fix has changed something."""
    made = {"fixed": [_made_dict(one) for one in report.made]} if report.made else {}
    return {
        "version": VERSION,
        "torchlint": report.version,
        "findings": [finding_dict(finding, report) for finding in report.findings],
        **made,
        "errors": [{"path": error.path or None, "message": error.message} for error in report.errors],
        "summary": _summary(report),
    }


def _made_dict(made: Made) -> dict[str, Any]:
    """A finding that --fix removed, where it stood when its turn came, and what running the code showed."""
    row = finding_dict(made.finding)
    row["fix"] = {key: value for key, value in (row["fix"] or {}).items() if key != "edits"}
    verified = made.proof is not Proof.NOT_RUN
    row["verification"] = {"result": made.proof.value, "why": made.why} if verified else None
    return row


def finding_dict(finding: Finding, report: Report | None = None) -> dict[str, Any]:
    """One finding as plain data; lines and columns as in `torchlint.findings`.

    With `report`, which has the source, the edits of its fix are complete with imports.
    """
    span, fix = finding.span, finding.fix
    return {
        "path": finding.path,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "cell": finding.cell,
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.word,
        "message": finding.message,
        "url": finding.url,
        "fix": None if fix is None else _fix_dict(fix, whole(fix, finding.path, report or Report())),
        "fingerprint": finding.fingerprint,
    }


def _fix_dict(fix: Fix, edits: Iterable[Edit]) -> dict[str, Any]:
    """A fix as plain data."""
    return {
        "safety": fix.safety.value,
        "title": fix.title,
        "edits": [
            {
                "line": edit.span.line,
                "column": edit.span.column,
                "end_line": edit.span.end_line,
                "end_column": edit.span.end_column,
                "text": edit.text,
            }
            for edit in edits
        ],
    }


def _summary(report: Report) -> dict[str, Any]:
    """Counts, so that nobody has to count."""
    return {
        "files": report.files,
        "findings": len(report.findings),
        "errors": len(report.errors),
        "fixed": report.fixed,
        "fixable": {safety.value: report.fixable(safety) for safety in Safety},
        "by_severity": {severity.value: count for severity, count in by_severity(report).items()},
        "by_code": dict(sorted(Counter(finding.code for finding in report.findings).items())),
        "seconds": round(report.seconds, 3),
    }
