"""JUnit XML, for servers that show tests: each file a suite, each finding a failed case."""
from __future__ import annotations

import re
from xml.etree import ElementTree

from torchlint.findings import Finding
from torchlint.report.common import title
from torchlint.results import Report

# XML 1.0 cannot hold these, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """The report as XML. Without findings there is one passed case: an empty report counts as broken."""
    failures, errors = len(report.findings), len(report.errors)
    seconds = f"{report.seconds:.3f}"
    root = ElementTree.Element(
        "testsuites",
        name="torchlint",
        tests=str(failures + errors or 1),
        failures=str(failures),
        errors=str(errors),
        time=seconds,
    )
    for path in dict.fromkeys(finding.path for finding in report.findings):
        _suite(root, path, [finding for finding in report.findings if finding.path == path])
    if report.errors:
        suite = _element(root, "testsuite", name="torchlint", tests=errors, failures=0, errors=errors)
        for error in report.errors:
            where = error.path or "torchlint"
            case = _element(suite, "testcase", classname=where, name="could not be checked")
            _element(case, "error", type="error", message=error.message).text = _clean(str(error))
    if not failures and not errors:
        suite = _element(root, "testsuite", name="torchlint", tests=1, failures=0, errors=0)
        _element(suite, "testcase", classname="torchlint", name=f"nothing found in {report.files} files")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(root: ElementTree.Element, path: str, findings: list[Finding]) -> None:
    """The findings of one file."""
    suite = _element(root, "testsuite", name=path, tests=len(findings), failures=len(findings), errors=0)
    for finding in findings:
        span = finding.span
        cell = "" if finding.cell is None else f"cell {finding.cell}, "
        place = f"{cell}line {span.line}, column {span.column}"
        case = _element(suite, "testcase", classname=path, name=f"{title(finding)}, {place}")
        failure = _element(case, "failure", type=finding.severity.value, message=finding.message)
        part = "" if finding.cell is None else f"cell {finding.cell}:"
        failure.text = _clean(f"{path}:{part}{span.line}:{span.column}: {title(finding)}: {finding.message}")


def _element(parent: ElementTree.Element, tag: str, **values: object) -> ElementTree.Element:
    """A child with these attributes, in the order given."""
    return ElementTree.SubElement(parent, tag, {key: _clean(str(value)) for key, value in values.items()})


def _clean(text: str) -> str:
    """Text without the characters that XML forbids."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
