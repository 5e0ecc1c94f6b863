"""`torchlint rule` and `torchlint docs`: rules as text."""
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from torchlint import __version__
from torchlint.builtin import rule_url
from torchlint.docs import page
from torchlint.rule import Rule


def listing(rules: Iterable[Rule]) -> str:
    """One line for each rule: code, name, and what is wrong."""
    rules = list(rules)
    width = max((len(rule.meta.name) for rule in rules), default=0)
    return "".join(
        f"{rule.meta.code}  {rule.meta.name:<{width}}  {rule.summary}{_remark(rule)}\n" for rule in rules
    )


def pages(rules: Iterable[Rule]) -> str:
    """The pages of rules, one below the other."""
    return "\n".join(page(rule) for rule in rules)


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
