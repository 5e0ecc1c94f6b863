"""What every rule must do, as functions that raise AssertionError: `test_rules.py` runs them for all rules.

`test_rule_harness.py` gives each of them a rule that is wrong in just that respect, so that none of
them can pass whatever it is given.
"""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from import_styles import rewritten

from torchlint.builtin import UNCHECKED
from torchlint.config import Options
from torchlint.docs import explain
from torchlint.engine import lint_source
from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.fixes.apply import fix_source
from torchlint.model import FileModel
from torchlint.rule import LAYERS, Example, Hit, Rule

EVERYTHING = Options(select=("ALL",), preview=True)
USUAL = Options(preview=True)  # what users see who did not ask for opt-in rules
HISTORY = Path(__file__).parent / "data" / "code_history.txt"

# Rules that may report a good example of another rule: (rule that reports, rule of the example) -> why.
ALLOWED: dict[tuple[str, str], str] = {
    ("data-parallel", "incompatible-keys-ignored"): "the wrapper is where the prefix of the keys comes from",
    ("data-parallel", "whole-model-saved"): "the wrapper is what gets pickled",
    ("deprecated-api", "compile-in-loop"): "torch.jit is deprecated; this is about those who trace",
    ("elementwise-python-loop", "cat-in-loop"): "the example is about how the parts are joined, not how they are made",
    ("deprecated-api", "jit-trace-control-flow"): "torch.jit is deprecated; this is about those who trace",
    ("deprecated-api", "jit-trace-in-training-mode"): "torch.jit is deprecated; this is about those who trace",
}


def findings(rule: Rule, text: str) -> list[Finding]:
    """What a rule reports; a rule that fails is reported, too."""
    return lint_source(text, options=EVERYTHING, rules=(UNCHECKED, rule))


def hits(rule: Rule, text: str) -> list[Hit]:
    """What the rule's `check` yields, untouched by the engine."""
    return list(rule.check(FileModel(Source("<example>", text))))


def fixed(rule: Rule, text: str) -> str:
    """The text after all fixes of a rule, unsafe ones too. No fix may trip a guard."""
    result = fix_source(Source("<example>", text), lambda one: findings(rule, one.text), unsafe=True)
    assert not result.dropped, "\n".join(map(str, result.dropped)) + program(text)
    return result.text


def told(found: Iterable[Finding]) -> str:
    """Findings, for the message of a failed test."""
    return "\n".join(f"{f.span.line}:{f.span.column} {f.code} {f.message}" for f in found) or "nothing"


def program(text: str) -> str:
    """A program with line numbers, for the message of a failed test."""
    return "\n" + "".join(f"{number:3} {line}\n" for number, line in enumerate(text.splitlines(), 1))


# ---- one example


def marked(rule: Rule, example: Example) -> None:
    """A bad example says which lines are wrong; a good one has no mark."""
    assert example.flagged, f"no line of the bad example ends in #!{program(example.source)}"
    assert "#!" not in example.corrected, "the good example has a mark"
    assert example.source != example.corrected, "bad and good are the same program"


def compiles(text: str) -> None:
    """An example is a whole program."""
    try:
        compile(text, "<example>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise AssertionError(f"does not compile: {error}{program(text)}") from None


def bad_is_flagged(rule: Rule, example: Example) -> None:
    """The bad example is reported on the marked lines, each as often as it is marked, and nowhere else."""
    found = findings(rule, example.source)
    lines = sorted(finding.span.line for finding in found)
    expected = sorted(example.flagged)
    assert lines == expected, f"expected lines {expected}, found\n{told(found)}{program(example.source)}"
    assert all(finding.code == rule.meta.code for finding in found), told(found)


def spoken(rule: Rule, example: Example) -> None:
    """Messages are one line of reasonable length without a full stop at its end."""
    for finding in findings(rule, example.source):
        said = finding.message
        assert "\n" not in said and said == said.strip(), repr(said)
        assert 10 <= len(said) <= 240, f"{len(said)} characters: {said}"
        assert not said.endswith("."), said


def good_is_silent(rule: Rule, example: Example) -> None:
    """The good example is not reported."""
    found = findings(rule, example.corrected)
    assert not found, f"the good example is reported:\n{told(found)}{program(example.corrected)}"


def clean_is_silent(rule: Rule, text: str) -> None:
    """A near miss is a program, and is not reported."""
    compiles(text)
    found = findings(rule, text)
    assert not found, f"a near miss is reported:\n{told(found)}{program(text)}"


def fix_makes_good(rule: Rule, example: Example) -> None:
    """The fix turns the bad example into the good one; if `fixed` is False, into some other program."""
    result = fixed(rule, example.source)
    if rule.meta.fix in (None, Safety.SHOW):
        assert result == example.source, f"a fix that may not be applied was{program(result)}"
    elif example.fixed:
        wanted = program(example.corrected)
        assert result == example.corrected, f"the fix makes{program(result)}instead of{wanted}"
    else:
        assert result != example.corrected, "the fix makes the good example: drop `fixed=False`"
        compiles(result)


def fixing_again_changes_nothing(rule: Rule, example: Example) -> None:
    """A fixed program has nothing left to fix, and a good one never had."""
    for text in (fixed(rule, example.source), example.corrected):
        again = fixed(rule, text)
        assert again == text, f"fixing again changes{program(text)}into{program(again)}"


def imports_do_not_matter(rule: Rule, example: Example, style: str) -> None:
    """The bad example is reported as often when it imports torch in another way."""
    text = rewritten(example.source, style)
    compiles(text)
    found = findings(rule, text)
    expected = len(example.flagged)
    assert len(found) == expected, f"expected {expected} findings, got\n{told(found)}{program(text)}"
    assert all(finding.code == rule.meta.code for finding in found), told(found)


def dead_without_check(rule: Rule, example: Example) -> None:
    """With its `check` emptied the rule fails its own example."""
    dead = dataclasses.replace(rule, check=lambda model: iter(()))
    try:
        bad_is_flagged(dead, example)
    except AssertionError:
        return
    raise AssertionError("the example passes although the rule hears nothing")


# ---- one rule


def has_examples(rule: Rule) -> None:
    """At least one example and one near miss."""
    assert rule.examples, "no EXAMPLES"
    assert rule.clean, "no CLEAN: what would a careless check report?"


def fix_is_promised(rule: Rule) -> None:
    """META.fix is set exactly if some example has a fix, and is the best that any example has."""
    seen = [hit.fix for example in rule.examples for hit in hits(rule, example.source) if hit.fix]
    if rule.meta.fix is None:
        assert not seen, "`check` makes fixes, but META.fix is not set"
        return
    assert seen, "META.fix is set, but no example has a fix"
    ranks = [max(rule.meta.fix, fix.safety or Safety.SAFE, key=lambda one: one.rank) for fix in seen]
    assert rule.meta.fix in ranks, f"META.fix promises {rule.meta.fix.value}, no example has that"


def named(rule: Rule) -> None:
    """Name, file name, code and layer fit together."""
    meta = rule.meta
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", meta.name), meta.name
    file = rule.module.rpartition(".")[2]
    assert file == meta.name.replace("-", "_"), f"{meta.name} lives in {file}.py"
    assert rule.layer in LAYERS, rule.layer
    hundred = LAYERS.index(rule.layer) + 1
    assert re.fullmatch(rf"TL{hundred}\d\d", meta.code), f"{meta.code} is no code of layer {rule.layer}"
    assert re.fullmatch(r"\d+\.\d+", meta.since), f"since={meta.since!r}"
    assert re.fullmatch(r"((<|<=|>|>=|==|!=)\d+(\.\d+)*(,(?!$)|$))*", meta.torch), f"torch={meta.torch!r}"


def documented(rule: Rule) -> None:
    """The docstring says what is wrong in its first line, then why, then what to do."""
    told_by = explain(rule.doc)
    first = rule.doc.splitlines()[0] if rule.doc else ""
    assert first.strip(), "the docstring does not begin in its first line"
    assert told_by.summary == first, "a blank line must follow the first line"
    assert first.endswith(".") and first[0].isupper() and len(first) <= 100, f"first line: {first!r}"
    assert len(told_by.why) >= 40, "the second paragraph says why it is wrong"
    assert len(told_by.advice) >= 30, "the third paragraph says what to do"


def claimed(rule: Rule) -> None:
    """The rule has a claim, or its docstring says why it can have none."""
    if rule.claim is None:
        assert len(explain(rule.doc).no_claim) >= 20, "no CLAIM, and no paragraph `No claim: ...`"
    else:
        assert not explain(rule.doc).no_claim, "a CLAIM, and a paragraph that says there is none"


# ---- all rules


def unique(rules: Iterable[Rule]) -> None:
    """No two rules share a code, a name or an alias's meaning as a code."""
    rules = list(rules)
    for field in ("code", "name"):
        values = [getattr(rule.meta, field) for rule in rules]
        twice = sorted({value for value in values if values.count(value) > 1})
        assert not twice, f"{field}s used twice: {twice}"
    codes = {rule.meta.code for rule in rules} | {rule.meta.name for rule in rules}
    for rule in rules:
        assert not codes & set(rule.meta.aliases), f"{rule.meta.code} has an alias that is a code or a name"


def history(text: str) -> list[tuple[str, str]]:
    """The rows (code, name) of a code history."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(len(row) == 2 for row in rows), "a row is a code and a name"
    return [(code, name) for code, name in rows]


def never_reused(rules: Iterable[Rule], rows: list[tuple[str, str]]) -> None:
    """Every rule stands in the history under its code and name, and the history gives nothing twice."""
    codes, names = [code for code, _ in rows], [name for _, name in rows]
    assert len(set(codes)) == len(codes), "the history gives a code twice"
    assert len(set(names)) == len(names), "the history gives a name twice"
    for rule in rules:
        row = (rule.meta.code, rule.meta.name)
        assert row in rows, f"add a line to tests/data/code_history.txt: {' '.join(row)}"


def others_are_silent(rule: Rule, text: str, rules: tuple[Rule, ...]) -> set[tuple[str, str]]:
    """No rule on by default reports a good example, unless it is allowed to. Returns the allowances used."""
    found = lint_source(text, options=USUAL, rules=(UNCHECKED, *rules))
    used = {(finding.name, rule.meta.name) for finding in found} & set(ALLOWED)
    left = [finding for finding in found if (finding.name, rule.meta.name) not in ALLOWED]
    assert not left, f"a good example is reported:\n{told(left)}{program(text)}"
    return used
