"""Annotations for GitHub Actions: one workflow command for each finding.

The form, and that line breaks and percent signs must be escaped, is described in GitHub's
documentation of workflow commands. Columns may only be given within one line.
"""
from __future__ import annotations

from torchlint.findings import Finding, Severity
from torchlint.report.common import title
from torchlint.results import Report

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def render(report: Report) -> str:
    """A line for each finding and each problem; "" if there are none."""
    lines = [_annotation(finding) for finding in report.findings]
    for error in report.errors:
        place = {"file": error.path} if error.path else {}
        lines.append(_command("error", place | {"title": "torchlint"}, error.message))
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding) -> str:
    """One finding as a workflow command."""
    span = finding.span
    values = {"file": finding.path, "line": str(span.line)}
    if span.end_line == span.line:
        values |= {"col": str(span.column), "endLine": str(span.line), "endColumn": str(span.end_column)}
    else:
        values["endLine"] = str(span.end_line)
    values["title"] = title(finding)
    where = f"cell {finding.cell}: " if finding.cell is not None else ""
    return _command(LEVELS[finding.severity], values, where + finding.message)


def _command(level: str, values: dict[str, str], message: str) -> str:
    """A workflow command with everything escaped."""
    properties = ",".join(f"{key}={_escape(value, in_property=True)}" for key, value in values.items())
    return f"::{level} {properties}::{_escape(message)}"


def _escape(text: str, *, in_property: bool = False) -> str:
    """Text that cannot end a command or start another one."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
