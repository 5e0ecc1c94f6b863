"""For each check of the harness, a rule that is wrong in just that respect, and one that is right."""
from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import rule_harness as harness

from torchlint.claims import NoEffect
from torchlint.findings import Edit, Safety, Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair, Rule

DOC = """A sum that nobody keeps.

`torch.sum` returns its result and changes nothing, so a call whose result is dropped does nothing.

Assign the result, or remove the call. The rule is silent where the result is used.
"""
EXAMPLE = Example(
    bad="""
    import torch

    x = torch.ones(3)
    torch.sum(x)  #!
    """,
    good="""
    import torch

    x = torch.ones(3)
    _ = torch.sum(x)
    """,
)
NEAR_MISS = "import torch\n\nprint(torch.sum(torch.ones(3)))\n"


def dropped_sums(model: FileModel) -> Iterator[ast.Call]:
    """Calls of torch.sum whose result is dropped."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == "torch.sum" and isinstance(model.parent(call), ast.Expr):
            yield call


def assign(model: FileModel, call: ast.Call, text: str = "_ = ") -> Repair:
    """Puts `text` before a call."""
    span = model.span(call)
    start = dataclasses.replace(span, end_line=span.line, end_column=span.column)
    return Repair("assign the result", (Edit(start, text),))


def check(model: FileModel) -> Iterator[Hit]:
    for call in dropped_sums(model):
        yield Hit(call, "the sum is dropped: assign it", assign(model, call))


GOOD = Rule(
    meta=Meta("TL150", "dropped-sum", Severity.WARNING, fix=Safety.UNSAFE),
    check=check,
    doc=DOC,
    layer="tensor",
    module="torchlint.rules.tensor.dropped_sum",
    claim=NoEffect(),
    examples=(EXAMPLE,),
    clean=(NEAR_MISS,),
)


def spelled(model: FileModel) -> Iterator[Hit]:
    """A check that matches the spelling, not the name."""
    for call in model.nodes(ast.Call):
        if ast.unparse(call.func) == "torch.sum" and isinstance(model.parent(call), ast.Expr):
            yield Hit(call, "the sum is dropped: assign it", assign(model, call))


def any_call(model: FileModel) -> Iterator[Hit]:
    for call in model.nodes(ast.Call):
        yield Hit(call, "a call: do not call")


def raising(model: FileModel) -> Iterator[Hit]:
    yield from check(model)
    raise KeyError("a fault of the rule")


def twice(model: FileModel) -> Iterator[Hit]:
    for hit in check(model):
        yield hit
        yield dataclasses.replace(hit, message="the sum is dropped, as was said")


def says(message: str) -> Callable[[FileModel], Iterator[Hit]]:
    def check(model: FileModel) -> Iterator[Hit]:
        for call in dropped_sums(model):
            yield Hit(call, message, assign(model, call))

    return check


def fixes(text: str) -> Callable[[FileModel], Iterator[Hit]]:
    """A check whose fix puts `text` before the call, and that never has enough."""

    def check(model: FileModel) -> Iterator[Hit]:
        for call in model.nodes(ast.Call):
            if model.name_of(call.func) == "torch.sum":
                yield Hit(call, "the sum is dropped: assign it", assign(model, call, text))

    return check


def unfixed(model: FileModel) -> Iterator[Hit]:
    for call in dropped_sums(model):
        yield Hit(call, "the sum is dropped: assign it")


def rule(**changes: object) -> Rule:
    """GOOD with some parts replaced; those of META by their own names."""
    of_meta = {key: changes.pop(key) for key in list(changes) if hasattr(GOOD.meta, key)}
    return dataclasses.replace(GOOD, meta=dataclasses.replace(GOOD.meta, **of_meta), **changes)


def weaker(model: FileModel) -> Iterator[Hit]:
    """The fix never is what META promises."""
    for call in dropped_sums(model):
        repair = dataclasses.replace(assign(model, call), safety=Safety.SHOW)
        yield Hit(call, "the sum is dropped: assign it", repair)


def example(**changes: object) -> Example:
    return dataclasses.replace(EXAMPLE, **changes)


def by_example(check: Callable[..., object], *more: object) -> Callable[[Rule], object]:
    """A check of one example, as a check of the rule's first example."""
    return lambda rule: check(rule, rule.examples[0], *more)


def both_compile(rule: Rule) -> None:
    harness.compiles(rule.examples[0].source)
    harness.compiles(rule.examples[0].corrected)


BAD = EXAMPLE.bad
CHECKS: dict[str, tuple[Callable[[Rule], object], list[Rule]]] = {
    "marked": (
        by_example(harness.marked),
        [
            rule(examples=(example(bad=BAD.replace("#!", "")),)),
            rule(examples=(example(good=BAD),)),
            rule(examples=(example(good=EXAMPLE.source),)),
        ],
    ),
    "compiles": (
        both_compile,
        [
            rule(examples=(example(bad="torch.sum(x  #!"),)),
            rule(examples=(example(good="return"),)),
        ],
    ),
    "bad_is_flagged": (
        by_example(harness.bad_is_flagged),
        [
            rule(check=lambda model: iter(())),
            rule(check=any_call),
            rule(check=raising),
            rule(check=twice),
            rule(examples=(example(bad=BAD.replace("torch.ones(3)", "torch.ones(3)  #!")),)),
            rule(examples=(example(bad=BAD.replace("#!", "#! #!")),)),
        ],
    ),
    "spoken": (
        by_example(harness.spoken),
        [
            rule(check=says("the sum is dropped.")),
            rule(check=says("two\nlines of text")),
            rule(check=says("short")),
            rule(check=says("long " * 60)),
        ],
    ),
    "good_is_silent": (
        by_example(harness.good_is_silent),
        [rule(check=any_call), rule(examples=(example(good=EXAMPLE.source),)), rule(check=raising)],
    ),
    "clean_is_silent": (
        lambda rule: harness.clean_is_silent(rule, rule.clean[0]),
        [rule(check=any_call), rule(clean=(EXAMPLE.source,)), rule(clean=("x = (",)), rule(check=raising)],
    ),
    "fix_makes_good": (
        by_example(harness.fix_makes_good),
        [
            rule(examples=(example(good=EXAMPLE.good.replace("_ =", "total =")),)),
            rule(check=unfixed),
            rule(examples=(example(fixed=False),)),
        ],
    ),
    "fixing_again_changes_nothing": (
        by_example(harness.fixing_again_changes_nothing),
        [rule(examples=(example(good=EXAMPLE.good.replace("_ = ", "")),))],
    ),
    "imports_do_not_matter as": (by_example(harness.imports_do_not_matter, "as"), [rule(check=spelled)]),
    "imports_do_not_matter from": (by_example(harness.imports_do_not_matter, "from"), [rule(check=spelled)]),
    "imports_do_not_matter from-as": (
        by_example(harness.imports_do_not_matter, "from-as"),
        [rule(check=spelled), rule(check=any_call)],
    ),
    "dead_without_check": (
        by_example(harness.dead_without_check),
        [rule(examples=(example(bad=BAD.replace("#!", "")),))],
    ),
    "has_examples": (harness.has_examples, [rule(examples=()), rule(clean=())]),
    "fix_is_promised": (
        harness.fix_is_promised,
        [rule(fix=None), rule(check=unfixed), rule(check=weaker)],
    ),
    "named": (
        harness.named,
        [
            rule(name="Dropped-Sum"),
            rule(name="lost-sum"),
            rule(code="TL250"),
            rule(code="TL15"),
            rule(layer="tensors"),
            rule(layer="graph"),
            rule(since="1"),
            rule(torch="<2.6,"),
            rule(torch="2.6"),
        ],
    ),
    "documented": (
        harness.documented,
        [
            rule(doc=""),
            rule(doc="\n" + DOC),
            rule(doc=DOC.replace("keeps.\n\n", "keeps.\n")),
            rule(doc=DOC.replace("keeps.", "keeps")),
            rule(doc=DOC.replace("A sum", "a sum")),
            rule(doc=DOC.replace("A sum", "A sum " * 20)),
            rule(doc=DOC.split("Assign")[0]),
            rule(doc="A sum that nobody keeps.\n\nShort.\n\nAlso short.\n"),
        ],
    ),
    "claimed": (
        harness.claimed,
        [
            rule(claim=None),
            rule(claim=None, doc=DOC + "\nNo claim: why?\n"),
            rule(doc=DOC + "\nNo claim: nothing can be seen from the outside.\n"),
        ],
    ),
    "unique": (
        lambda one: harness.unique([GOOD, one]),
        [rule(code="TL151"), rule(name="other-sum"), rule(code="TL151", name="other", aliases=("TL150",))],
    ),
    "never_reused": (
        lambda one: harness.never_reused([one], [("TL150", "dropped-sum"), ("TL151", "other-sum")]),
        [rule(code="TL151"), rule(name="other-sum"), rule(code="TL152", name="third-sum")],
    ),
}
RIGHT = {"unique": rule(code="TL151", name="other-sum")}


@pytest.mark.parametrize("name", CHECKS)
def test_a_right_rule_passes(name: str):
    CHECKS[name][0](RIGHT.get(name, GOOD))


WRONG = [
    pytest.param(name, rule, id=f"{name}-{number}")
    for name, (_, rules) in CHECKS.items()
    for number, rule in enumerate(rules, 1)
]


@pytest.mark.parametrize("name, wrong", WRONG)
def test_a_wrong_rule_fails(name: str, wrong: Rule):
    with pytest.raises(AssertionError):
        CHECKS[name][0](wrong)


def test_a_fix_that_never_ends_is_noticed():
    endless = rule(check=fixes("_ = "))
    with pytest.raises(AssertionError):
        harness.fix_makes_good(endless, EXAMPLE)
    with pytest.raises(AssertionError):
        harness.fixing_again_changes_nothing(endless, EXAMPLE)


def test_no_claim_may_be_explained():
    harness.claimed(rule(claim=None, doc=DOC + "\nNo claim: nothing can be seen from the outside.\n"))


def test_other_rules_on_good_examples(monkeypatch: pytest.MonkeyPatch):
    loud = rule(code="TL151", name="any-call", check=any_call)
    assert harness.others_are_silent(GOOD, EXAMPLE.corrected, (GOOD,)) == set()
    with pytest.raises(AssertionError):
        harness.others_are_silent(GOOD, EXAMPLE.corrected, (GOOD, loud))
    with pytest.raises(AssertionError):
        harness.others_are_silent(GOOD, EXAMPLE.corrected, (GOOD, rule(code="TL152", check=raising)))
    monkeypatch.setitem(harness.ALLOWED, ("any-call", "dropped-sum"), "a reason")
    used = harness.others_are_silent(GOOD, EXAMPLE.corrected, (GOOD, loud))
    assert used == {("any-call", "dropped-sum")}
    opt_in = rule(code="TL153", name="opt-in", check=any_call, default=False)
    assert harness.others_are_silent(GOOD, EXAMPLE.corrected, (GOOD, opt_in)) == set()


@pytest.mark.parametrize("text", ["TL1", "TL1 a\nTL2 a\n", "TL1 a\nTL1 b\n"])
def test_a_broken_history_is_noticed(text: str):
    with pytest.raises(AssertionError):
        harness.never_reused([], harness.history(text))


def test_every_check_has_a_partner():
    """A check that is added to the harness must be added here."""
    named = {name.split()[0] for name in CHECKS} | {"others_are_silent"}
    checks = {
        name
        for name, value in vars(harness).items()
        if callable(value) and getattr(value, "__module__", "") == harness.__name__
    }
    assert checks - named == {"findings", "hits", "fixed", "told", "program", "history"}
