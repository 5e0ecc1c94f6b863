"""Every rule against its own examples and data. No test here is written for one rule."""
from __future__ import annotations

import inspect
import re
import sys

import pytest
import rule_harness as harness
from import_styles import STYLES

from torchlint.rule import Example, Rule, all_rules

RULES = all_rules()


def label(rule: Rule, number: int = 0) -> str:
    """A test id such as TL101-data-mutation-2."""
    return f"{rule.meta.code}-{rule.meta.name}" + (f"-{number}" if number else "")


def each_example() -> list[object]:
    return [
        pytest.param(rule, example, id=label(rule, number))
        for rule in RULES
        for number, example in enumerate(rule.examples, 1)
    ]


def each_clean() -> list[object]:
    return [
        pytest.param(rule, text, id=label(rule, number))
        for rule in RULES
        for number, text in enumerate(rule.clean, 1)
    ]


per_rule = pytest.mark.parametrize("rule", [pytest.param(rule, id=label(rule)) for rule in RULES])
per_example = pytest.mark.parametrize("rule, example", each_example())
per_clean = pytest.mark.parametrize("rule, text", each_clean())


@per_example
def test_bad_is_flagged(rule: Rule, example: Example):
    harness.bad_is_flagged(rule, example)


@per_example
def test_good_is_silent(rule: Rule, example: Example):
    harness.good_is_silent(rule, example)


@per_example
def test_fix_makes_good(rule: Rule, example: Example):
    harness.fix_makes_good(rule, example)


@per_example
def test_fixing_again_changes_nothing(rule: Rule, example: Example):
    harness.fixing_again_changes_nothing(rule, example)


@pytest.mark.parametrize("style", STYLES)
@per_example
def test_imports_do_not_matter(rule: Rule, example: Example, style: str):
    harness.imports_do_not_matter(rule, example, style)


@per_example
def test_examples_are_programs(rule: Rule, example: Example):
    harness.marked(rule, example)
    harness.compiles(example.source)
    harness.compiles(example.corrected)


@per_example
def test_messages(rule: Rule, example: Example):
    harness.spoken(rule, example)


@per_example
def test_dead_without_check(rule: Rule, example: Example):
    harness.dead_without_check(rule, example)


@per_clean
def test_near_misses(rule: Rule, text: str):
    harness.clean_is_silent(rule, text)


@per_rule
def test_metadata(rule: Rule):
    harness.named(rule)
    harness.documented(rule)
    harness.claimed(rule)
    harness.has_examples(rule)
    harness.fix_is_promised(rule)


@per_rule
def test_every_severity_is_promised(rule: Rule):
    source = inspect.getsource(sys.modules[rule.module])
    assert set(re.findall(r"Severity\.([A-Z]+)", source)) == {one.name for one in (rule.meta.severity, *rule.meta.also)}


@per_example
def test_good_is_silent_under_all_rules(rule: Rule, example: Example):
    harness.others_are_silent(rule, example.corrected, RULES)


def test_every_allowance_is_needed():
    used = set()
    for rule in RULES:
        for example in rule.examples:
            used |= harness.others_are_silent(rule, example.corrected, RULES)
    assert used == set(harness.ALLOWED)
    assert all(len(reason) > 20 for reason in harness.ALLOWED.values())


def test_codes_and_names():
    harness.unique(RULES)
    harness.never_reused(RULES, harness.history(harness.HISTORY.read_text(encoding="utf-8")))


def test_there_are_rules():
    """Without rules every test above would be left out, and the run would pass."""
    assert len(RULES) >= 8
    assert len(each_example()) >= len(RULES)
