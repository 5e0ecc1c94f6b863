"""Rules as prose: the docstring's parts, the page, the index."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_samples import rule

from torchlint.builtin import every_rule
from torchlint.claims import Equivalent
from torchlint.docs import LAYER_TITLES, build, explain, index, page, page_name
from torchlint.new import PLACEHOLDER
from torchlint.rule import LAYERS, Example, Rule

RULES = every_rule()
each_rule = pytest.mark.parametrize("rule", [pytest.param(one, id=one.meta.name) for one in RULES])


def test_explain_takes_a_docstring_apart():
    lists = "    - one\n    - two\n\n    No claim: because\n    of that.\n"
    told = explain("A.\n\n    Why, in\n    two lines.\n\n    Do.\n\n" + lists)
    assert (told.summary, told.why, told.advice) == ("A.", "Why, in two lines.", "Do.")
    assert told.notes == ("- one\n- two", "No claim: because of that.")
    assert told.no_claim == "because of that."


@pytest.mark.parametrize("parts", [("", "", ""), ("A.", "", ""), ("A.", "B.", ""), ("A.", "B.", "C.")])
def test_explain_of_little_is_little(parts):
    told = explain("\n\n".join(parts))
    assert (told.summary, told.why, told.advice) == parts
    assert told.notes == () and told.no_claim == ""


def test_page_of_a_rule():
    text = page(rule())
    assert text.startswith("# TL201 graph-retained-in-loop\n\nA loss summed over a loop with its graph.\n")
    for part in (
        "| Severity | error: a wrong result or a crash |",
        "| Fix | with `--fix` |",
        "| Also known as | `TOR999` |",
        "## Why\n\nEvery summand keeps the graph of its step alive, so memory grows with the number",
        "## What to do\n\nAdd `loss.item()` or `loss.detach()`.",
        "**GraphGrows**: Autograd nodes reachable",
        "Reported on line 2:\n\n```python\nimport torch\nx = 1\n```\n\n"
        "Instead:\n\n```python\nimport torch\nx = 2\n```\n",
        "`# noqa: TL201`",
        "stay silent on 1 near miss.",
    ):
        assert part in text
    assert "#!" not in text
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_a_page_shows_every_example_and_every_line():
    examples = (Example("a  #!\nb  #!", "c"), Example("d  #!", "e"))
    text = page(Rule(rule().meta, rule().check, rule().doc, "graph", "m", None, examples))
    assert "## Example 1\n\nReported on lines 1, 2:" in text and "## Example 2\n\nReported on line 1:" in text
    assert "What running it shows" not in text


def test_code_with_fences_stays_a_block():
    examples = (Example('"""```python\n```"""  #!', "x = 1"),)
    text = page(Rule(rule().meta, rule().check, rule().doc, "graph", "m", None, examples))
    assert '````python\n"""```python\n```"""\n````' in text


@each_rule
def test_every_page_is_whole(rule: Rule):
    text = page(rule)
    for heading in ("## Why", "## What to do", "## Silence"):
        assert f"\n{heading}\n" in text
    fences = re.findall(r"^(`{3,})(?:python)?$", text, re.MULTILINE)
    assert len(fences) == 4 * len(rule.examples)
    assert "\n\n\n" not in re.sub(r"(?ms)^```.*?^```$", "code", text)


@each_rule
def test_no_placeholder_of_a_new_rule_is_left(rule: Rule):
    assert PLACEHOLDER not in page(rule)


def test_every_layer_has_a_title():
    assert set(LAYER_TITLES) == {"tool", *LAYERS}


def test_index_names_every_rule_once_in_order():
    text = index(reversed(RULES))
    assert re.findall(r"^\| (TL\d{3}) ", text, re.MULTILINE) == [one.meta.code for one in RULES]
    assert f"{len(RULES)} rules" in text


def test_index_escapes_bars():
    one = Rule(rule().meta, rule().check, "A | B.\n\nC.\n\nD.", "graph", "m")
    assert "| A \\| B |" in index([one])


def test_build_writes_every_page(tmp_path):
    folder = tmp_path / "a" / "b"
    written = build(RULES, folder)
    assert sorted(written) == sorted(folder.iterdir())
    assert {path.name for path in written} == {"index.md", *(page_name(one) for one in RULES)}
    links = re.findall(r"\]\(([^)]+)\)", (folder / "index.md").read_text(encoding="utf-8"))
    assert links and all((folder / link).is_file() for link in links)
    assert (folder / page_name(RULES[0])).read_text(encoding="utf-8") == page(RULES[0])


def test_build_into_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        build(RULES, tmp_path / "file")


def test_the_guide_names_the_rules_whose_fix_promises_to_change_nothing():
    text = (Path(__file__).parent.parent / "docs" / "confirm.md").read_text()
    (line,) = re.findall(r"claim that their fix changes nothing:\n(.*);", text)
    assert re.findall(r"TL\d+", line) == [one.meta.code for one in RULES if one.claim == Equivalent()]
