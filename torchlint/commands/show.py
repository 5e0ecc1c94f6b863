"""`torchlint rule` and `torchlint docs`: rules as text."""
from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import asdict

from torchlint import __version__
from torchlint.builtin import rule_url
from torchlint.docs import FIX_WORDS, page
from torchlint.rule import Rule

WIDTH = 100


def listing(rules: Iterable[Rule]) -> str:
    """One line for each rule: code, name, severity, fix, and what is wrong."""
    rules = list(rules)
    width = max((len(rule.meta.name) for rule in rules), default=0)
    return "".join(
        f"{rule.meta.code}  {rule.meta.name:<{width}}  {rule.meta.severity.value:<7}  {_fix(rule):<10}  "
        f"{rule.summary}{_remark(rule)}\n"
        for rule in rules
    )


def _fix(rule: Rule) -> str:
    word = FIX_WORDS[rule.meta.fix]
    return f"{word} fix" if word in ("safe", "unsafe") else word


def pages(rules: Iterable[Rule], *, plain: bool = False) -> str:
    """The pages of rules, one below the other: in Markdown, or `plain`, for the eyes alone."""
    return "\n".join(_plain(page(rule)) if plain else page(rule) for rule in rules)


def _plain(text: str) -> str:
    """Markdown as it would be typed for a terminal: code indented, tables as lists, headings without marks."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        if not fence and (opened := re.match(r"`{3,}", line)):
            fence = opened[0]
        elif fence:
            if line == fence:
                fence = ""
            else:
                lines.append(f"    {line}".rstrip())
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if any(cell.strip("-") for cell in cells):
                lines.append(f"{cells[0] + ':':<15}{_unmarked(' | '.join(cells[1:]))}")
        elif line.startswith("#"):
            lines.append(line.lstrip("# ") if line.startswith("# ") else line.lstrip("# ").upper())
        else:
            lines += textwrap.wrap(_unmarked(line), WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(lines) + "\n"


def _unmarked(text: str) -> str:
    return text.replace("**", "")


def as_json(rules: Iterable[Rule]) -> str:
    """Rules as one JSON object; fields are only added."""
    data = {"version": 1, "torchlint": __version__, "rules": [_rule(rule) for rule in rules]}
    return json.dumps(data, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    meta = rule.meta
    return {
        "code": meta.code,
        "name": meta.name,
        "layer": rule.layer,
        "severity": meta.severity.value,
        "severities": [one.value for one in (meta.severity, *meta.also)],
        "since": meta.since,
        "preview": not meta.stable,
        "default": meta.default,
        "fix": meta.fix.value if meta.fix is not None else None,
        "torch": meta.torch,
        "aliases": list(meta.aliases),
        "summary": rule.summary,
        "doc": rule.doc.strip(),
        "claim": None if rule.claim is None else {"name": rule.claim.name, **asdict(rule.claim)},
        "examples": [
            {"bad": one.source, "good": one.corrected, "lines": list(one.flagged)} for one in rule.examples
        ],
        "url": rule_url(meta.name),
    }


def _remark(rule: Rule) -> str:
    words = [] if rule.meta.stable else ["preview"]
    if rule.meta.runtime:
        words.append("found by torchlint confirm only")
    if not rule.meta.default:
        words.append("opt-in")
    return f" ({', '.join(words)})" if words else ""
