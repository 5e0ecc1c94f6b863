"""Every claim is executed: confirmed on the bad example, refuted on the good and on the fixed one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import rule_harness as harness

pytest.importorskip("torch")

from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import Case, check_example, example_path, from_example
from runtime_check.pool import Pool
from torchlint.claims import Raises
from torchlint.docs import explain
from torchlint.findings import Severity
from torchlint.rule import Example, Meta, Rule, all_rules

CLAIMED = [rule for rule in all_rules() if rule.claim is not None]
EXAMPLES = [(rule, index) for rule in CLAIMED for index in range(len(rule.examples))]
SECONDS = 40.0


def name(value: object) -> str:
    """Test ids: the rule's name, the example's number."""
    return value.meta.name if isinstance(value, Rule) else str(value)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool(2) as running:
        yield running


def cases_of(rule: Rule, example: Example) -> dict[str, Case]:
    """The programs to run, by kind; the fixed one only where it is not the good one."""
    cases = {kind: from_example(rule, example, kind, 0, seconds=SECONDS) for kind in ("bad", "good")}
    fixed = harness.fixed(rule, example.source)
    if fixed not in (example.source, example.corrected):
        case = from_example(rule, example, "fixed", 0, fixed=fixed, seconds=SECONDS)
        left = {finding.span.line for finding in harness.findings(rule, fixed)}  # places without a fix
        spots = tuple(s for s in case.flagged if not left & set(range(s.first, s.last + 1)))
        if spots:
            cases["fixed"] = dataclasses.replace(case, flagged=spots)
    return cases


def told(outcome: Outcome, case: Case) -> str:
    """An outcome with its program, for the message of a failed test."""
    rows = "\n".join(f"    {row.text}" for row in outcome.evidence)
    return f"{case.path} is {outcome.verdict.value}: {outcome.why}\n{rows}{harness.program(case.text)}"


@pytest.mark.parametrize(("rule", "index"), EXAMPLES, ids=name)
def test_claim(rule: Rule, index: int, pool: Pool) -> None:
    wanted = {"bad": Verdict.CONFIRMED, "good": Verdict.REFUTED, "fixed": Verdict.REFUTED}
    cases = cases_of(rule, rule.examples[index])
    numbered = [dataclasses.replace(case, key=key) for key, case in enumerate(cases.values())]
    outcomes = {case.key: outcome for case, outcome in pool.run(numbered)}
    wrong = [
        told(outcomes[case.key], case)
        for kind, case in zip(cases, numbered, strict=True)
        if outcomes[case.key].verdict is not wanted[kind]
    ]
    assert not wrong, "\n".join(wrong)
    assert all(outcome.evidence for outcome in outcomes.values()), "a verdict without numbers"


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.claim is None], ids=name)
def test_a_rule_without_a_claim_says_why(rule: Rule) -> None:
    reason = explain(rule.doc).no_claim
    assert reason
    pytest.skip(reason)


@pytest.mark.parametrize("rule", CLAIMED, ids=name)
def test_nothing_is_confirmed_without_a_contrast(rule: Rule, pool: Pool) -> None:
    """The partner of `test_claim`: if the good program has the same fault, the bad one is not confirmed."""
    example = rule.examples[0]
    alone = from_example(rule, dataclasses.replace(example, good=example.source), "bad", 0, seconds=SECONDS)
    ((_, outcome),) = pool.run([alone])
    assert outcome.verdict is not Verdict.CONFIRMED, told(outcome, alone)


def test_one_example_can_be_checked_alone() -> None:
    example = Example(bad="import torch\ntorch.ones(2).view(3)  #!\n", good="import torch\ntorch.ones(3).view(3)\n")
    rule = Rule(
        Meta("TL199", "test", Severity.ERROR),
        lambda model: iter(()),
        "",
        "tensor",
        "test",
        Raises("RuntimeError", "shape"),
        (example,),
    )
    checked = check_example(rule, example, fixed=example.corrected)
    assert checked.bad.verdict is Verdict.CONFIRMED
    assert checked.good.verdict is Verdict.REFUTED
    assert checked.fixed is not None and checked.fixed.verdict is Verdict.REFUTED
    assert example_path(rule, "bad") == "<TL199 bad>"
