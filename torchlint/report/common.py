"""What several reports need: rules by code, text that cannot harm a terminal, sizes on the screen."""
from __future__ import annotations

import unicodedata

from torchlint.findings import Edit, Finding, Fix, Severity
from torchlint.results import Report
from torchlint.rule import Rule

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories


def rules_by_code(report: Report) -> dict[str, Rule]:
    """The rules of a report by their codes."""
    return {rule.meta.code: rule for rule in report.rules}


def visible(text: str) -> str:
    """`text` on one line, with control characters, lone surrogates and the like written as escapes.

    A file name or a line of code may hold anything, also what would move a terminal's cursor or
    reverse the reading direction.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


def _escape(char: str) -> str:
    """`char` as Python would write it in a string literal."""
    return char.encode("unicode_escape").decode("ascii")


def width(char: str) -> int:
    """Columns that `char` takes in a terminal: 2 if wide (East Asian, emoji), 0 if combining, else 1."""
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def plural(count: int, word: str) -> str:
    """`count` and `word` in the right number: 1 file, 2 files."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def by_severity(report: Report) -> dict[Severity, int]:
    """How many findings there are of each severity, worst first."""
    return {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}


def whole(fix: Fix, path: str, report: Report) -> tuple[Edit, ...]:
    """All edits of a fix, those for the imports that it needs included, if the source is known."""
    source = report.sources.get(path)
    if source is None or not fix.imports or not fix.edits:
        return fix.edits
    from torchlint.fixes.imports import import_edits  # late: few reports have such a fix

    try:
        return (*import_edits(source, fix.imports), *fix.edits)
    except (SyntaxError, ValueError):
        return fix.edits


def title(finding: Finding) -> str:
    """Code and name."""
    return f"{finding.code} {finding.name}"
