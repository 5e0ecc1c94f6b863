"""SARIF 2.1.0, the exchange form of static analysis results (OASIS standard)."""
from __future__ import annotations

import json
import posixpath
import re
from typing import Any
from urllib.parse import quote

from torchlint import docs
from torchlint.findings import Edit, Finding, Severity, Span
from torchlint.report.common import whole
from torchlint.results import Problem, Report
from torchlint.rule import Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_SNIPPET = 20  # lines of source quoted for one finding
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
_DRIVE = re.compile(r"^[A-Za-z]:/")


def render(report: Report) -> str:
    """The report as a SARIF log with one run."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report)]}
    return json.dumps(log, indent=2) + "\n"


def _run(report: Report) -> dict[str, Any]:
    """The run: the tool with its rules, whether it went well, what it found."""
    used = {finding.code for finding in report.findings}
    rules = [rule for rule in report.rules if rule.meta.code in used]  # all of them are some hundred pages
    positions = {rule.meta.code: number for number, rule in enumerate(rules)}
    return {
        "tool": {
            "driver": {
                "name": "torchlint",
                "version": report.version,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.errors,
                "toolExecutionNotifications": [_notification(error) for error in report.errors],
            }
        ],
        "results": [_result(finding, report, positions) for finding in report.findings],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    """One row of the table of rules."""
    told = docs.explain(rule.doc)
    text = "\n\n".join(part for part in (told.summary, told.why, told.advice) if part)
    return {
        "id": rule.meta.code,
        "name": rule.meta.name,
        "shortDescription": {"text": told.summary or rule.meta.name},
        "fullDescription": {"text": text or rule.meta.name},
        "help": {"text": text or rule.meta.name, "markdown": docs.page(rule)},
        "defaultConfiguration": {
            "level": LEVELS[rule.meta.severity],
            "enabled": rule.meta.stable and rule.meta.default,
        },
        "properties": {"tags": ["pytorch", rule.layer]},
    }


def _notification(error: Problem) -> dict[str, Any]:
    """Something that kept a part of the job from being done."""
    row: dict[str, Any] = {"level": "error", "message": {"text": error.message}}
    if error.path:
        row["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri(error.path)}}}]
    return row


def _result(finding: Finding, report: Report, positions: dict[str, int]) -> dict[str, Any]:
    """One finding."""
    properties: dict[str, Any] = {"confidence": finding.confidence.word}
    if finding.cell is not None:
        properties["cell"] = finding.cell
    row: dict[str, Any] = {
        "ruleId": finding.code,
        "level": LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [_location(finding, report)],
        "properties": properties,
    }
    if finding.code in positions:
        row["ruleIndex"] = positions[finding.code]
    if finding.fingerprint:
        row["partialFingerprints"] = {"torchlint/v1": finding.fingerprint}
    if finding.fix is not None and finding.fix.edits:
        properties["fixSafety"] = finding.fix.safety.value
        change = {
            "artifactLocation": {"uri": uri(finding.path)},
            "replacements": [_replacement(edit) for edit in whole(finding.fix, finding.path, report)],
        }
        row["fixes"] = [{"description": {"text": finding.fix.title}, "artifactChanges": [change]}]
    return row


def _location(finding: Finding, report: Report) -> dict[str, Any]:
    """File and region, with the lines of source if they are known and not too many."""
    span = finding.span
    place: dict[str, Any] = {"artifactLocation": {"uri": uri(finding.path)}, "region": _region(span)}
    source = report.sources.get(finding.path)
    lines = source.lines_of(finding.cell)[span.line - 1 : span.end_line] if source else ()
    if 0 < len(lines) <= MAX_SNIPPET:
        snippet = {"text": "".join(lines).rstrip("\r\n")}
        place["contextRegion"] = {"startLine": span.line, "endLine": span.end_line, "snippet": snippet}
    return {"physicalLocation": place}


def _replacement(edit: Edit) -> dict[str, Any]:
    """One edit of a fix."""
    return {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}


def _region(span: Span) -> dict[str, int]:
    """A span; SARIF's columns are 1-based with exclusive ends, as ours are."""
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def uri(path: str) -> str:
    """A path as a URI reference: relative stays relative, absolute becomes a file URI.

    Bytes that are no UTF-8 (surrogates in `path`) and everything special is percent-encoded.
    """
    encoded = quote(path.encode("utf-8", "surrogateescape"), safe="/")
    if _DRIVE.match(path):
        return f"file:///{path[:2]}{encoded.split('%3A', 1)[1]}"
    if posixpath.isabs(path):
        return f"file://{encoded}"
    return encoded
