"""Comments that silence, and what is said of those that silence nothing."""
from __future__ import annotations

import pytest
from fake_rules import RAISES, RULES

from torchlint.config import Options
from torchlint.engine import lint_source
from torchlint.findings import Edit, Finding, Safety

HEAD = "import torch\n"


def lint(text: str, **options: object) -> list[Finding]:
    return lint_source(HEAD + text, rules=RULES, options=Options(**options))  # type: ignore[arg-type]


def seen(text: str, **options: object) -> list[tuple[str, int]]:
    """(code, line) of the findings, line 1 being the first of `text`."""
    return [(finding.code, finding.span.line - 1) for finding in lint(text, **options)]


def applied(text: str, **options: object) -> str:
    """`text` after the fixes of TL001."""
    lines = (HEAD + text).splitlines(keepends=True)
    edits: list[Edit] = [
        edit for f in lint(text, **options) if f.code == "TL001" and f.fix is not None for edit in f.fix.edits
    ]
    for edit in sorted(edits, reverse=True):
        span = edit.span
        after = lines[span.end_line - 1][span.end_column - 1 :]
        lines[span.line - 1 : span.end_line] = [lines[span.line - 1][: span.column - 1] + edit.text + after]
    return "".join(lines).removeprefix(HEAD)


@pytest.mark.parametrize(
    "comment",
    ["# noqa", "#noqa", "# NOQA", "# noqa: TL901", "# noqa:TL901", "# noqa: tl901", "# noqa: F401, TL901",
     "# noqa: F401 TL901", "# noqa: TL9", "# type: ignore  # noqa: TL901", "# noqa: TL901 as it is logged",
     "# torchlint: ignore[TL901]", "# torchlint: ignore[item-call]", "#torchlint:ignore[item-call]",
     "# torchlint: ignore[ Item-Call , cpu-call]", "# torchlint: ignore[TOR999]", "# torchlint: ignore",
     "# noqa: TOR999", "# torchlint: ignore[item-call] since it is cheap"],
)
def test_a_comment_silences_its_line(comment: str) -> None:
    assert seen("x.item()") == [("TL901", 1)]
    assert seen(f"x.item()  {comment}") == []


@pytest.mark.parametrize(
    "text",
    ["x.item()  # noqa: F401", "x.item()  # noqas", "'# noqa'; x.item()", "x.item(); '''\n# noqa: TL901'''",
     "x.item()  # torchlint: ignore[]", "# noqa: F401\nx.item()", "x.item()\n# torchlint: skip",
     "x.item()  # flake8: noqa", "x.item(  '# torchlint: ignore')"],
)
def test_what_is_no_comment_for_it_silences_nothing(text: str) -> None:
    assert [code for code, _ in seen(text)] == ["TL901"]


CALL = "y = [\n    1,\n    x.item(\n    ),\n    2,\n]"


@pytest.mark.parametrize("number", [1, 3, 4, 6])
def test_first_and_last_lines_of_statement_and_finding_count(number: int) -> None:
    lines = CALL.split("\n")
    lines[number - 1] += "  # noqa: TL901"
    assert seen("\n".join(lines)) == []


@pytest.mark.parametrize("number", [2, 5])
def test_other_lines_of_the_statement_do_not(number: int) -> None:
    lines = CALL.split("\n")
    lines[number - 1] += "  # noqa: TL901"
    assert seen("\n".join(lines)) == sorted([("TL901", 3), ("TL001", number)], key=lambda one: one[1])


def test_the_body_of_a_compound_statement_is_not_its_head() -> None:
    assert seen("for x in y.item(\n):  # noqa: TL901\n    pass") == []
    assert seen("for x in y.item():\n    pass  # noqa: TL901") == [("TL901", 1), ("TL001", 2)]
    assert seen("if x:  # noqa: TL901\n    x.item()") == [("TL001", 1), ("TL901", 2)]


def test_skip_file_silences_everything_even_in_a_file_that_does_not_parse() -> None:
    assert seen("x.item()\n# torchlint: skip-file") == []
    assert seen("# torchlint: skip-file\ndef f(:") == []
    assert seen("'# torchlint: skip-file'\nx.item()") == [("TL901", 2)]


def test_several_findings_and_comments_on_a_line() -> None:
    both = {"select": ("ALL",), "preview": True}
    assert seen("x.item().cpu()", **both) == [("TL901", 1), ("TL902", 1)]
    assert seen("x.item().cpu()  # noqa: TL902", **both) == [("TL901", 1)]
    assert seen("x.item().cpu()  # noqa: TL902  # torchlint: ignore[item-call]", **both) == []


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_any_line_end_will_do(newline: str) -> None:
    text = f"import torch{newline}x.item()  # noqa: TL901{newline}x.item(){newline}"
    assert [finding.span.line for finding in lint_source(text, rules=RULES)] == [3]


def test_comments_before_tokens_that_cannot_be_read_count() -> None:
    text = "import torch\nx.item()  # noqa: TL901\nx = '''"
    assert [f.code for f in lint_source(text, rules=RULES)] == ["TL000"]


# -- TL001 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # noqa: TL901\n", "x = 1\n"),
        ("x = 1  # noqa: TL901", "x = 1"),
        ("x = 1  # noqa: TL901, F401\n", "x = 1  # noqa: F401\n"),
        ("x = 1  # noqa: F401,TL901,E501\n", "x = 1  # noqa: F401, E501\n"),
        ("x = 1  # torchlint: ignore[item-call]\n", "x = 1\n"),
        ("x = 1  # torchlint: ignore\n", "x = 1\n"),
        ("x = 1  # type: ignore  # noqa: TL901\n", "x = 1  # type: ignore\n"),
        ("x = 1  # noqa: TL901  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("x = 1  # noqa: TL901 -- only logged\n", "x = 1  # only logged\n"),
        ("x = 1\n    # noqa: TL901\ny = 2\n", "x = 1\ny = 2\n"),
        ("x = 1\n# noqa: TL901", "x = 1\n"),
        ("x = 'é'  # noqa: TL901\n", "x = 'é'\n"),
        ("x.item()  # torchlint: ignore[item-call, TL901, TL9, unused-suppression]\n",) * 2,
    ],
)
def test_the_fix_takes_away_what_silences_nothing(before: str, after: str) -> None:
    assert applied(before) == after
    assert seen(after) == []


def test_an_unused_comment_is_reported_where_it_stands() -> None:
    (finding,) = lint("x = 'é'  # type: ignore  # noqa: F401, TL901")
    assert (finding.code, finding.span.line, finding.span.column) == ("TL001", 2, 26)
    assert finding.span.end_column == 26 + len("# noqa: F401, TL901")
    assert finding.message == "nothing to silence here: no finding of TL901"
    assert finding.fix is not None and finding.fix.safety is Safety.SAFE


@pytest.mark.parametrize(
    "comment", ["# noqa", "# noqa: F401", "# noqa: TOR999", "# noqa: E501, W291", "# noqa: TL902",
                "# noqa: TL911", "# torchlint: ignore[cpu-call, cuda-call]",
                "# noqa: TL001", "# torchlint: ignore[TL002]"],
)
def test_not_reported_bare_foreign_or_not_looked_for(comment: str) -> None:
    assert seen(f"x = 1  {comment}") == []


def test_not_reported_for_what_the_run_did_not_select() -> None:
    text = "x = 1  # noqa: TL901\ny = 2  # torchlint: ignore\nz = 3  # noqa: TL9"
    assert seen(text) == [("TL001", 1), ("TL001", 2), ("TL001", 3)]
    assert seen(text, select=("TL0",)) == []
    assert seen(text, ignore=("TL001",)) == []
    assert seen(text, per_file=(("*.py", ("TL901",)),)) == [("TL001", 1), ("TL001", 2), ("TL001", 3)]
    on_file = lint_source(HEAD + text, "a.py", Options(per_file=(("*.py", ("TL901",)),)), rules=RULES)
    assert on_file == []


def test_not_reported_for_a_rule_that_failed() -> None:
    rules = (*RULES, RAISES)
    found = lint_source("import torch\nx.item()  # noqa: TL901, TL921\n", rules=rules)
    assert [finding.code for finding in found] == ["TL000"]


def test_reported_in_a_file_without_torch() -> None:
    assert [f.code for f in lint_source("x = 1  # noqa: TL901\n", rules=RULES)] == ["TL001"]


def test_complaints_can_be_silenced_by_name() -> None:
    assert seen("x = 1  # noqa: TL901  # torchlint: ignore[unused-suppression]") == []
    assert seen("x = 1  # noqa: TL901, TL001") == []


# -- TL002 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# noqa: TL999", "`TL999` is no code or name of a rule and silences nothing; did you mean"),
        ("# torchlint: ignore[item-cal]", "`item-cal` is no code or name of a rule and silences nothing; "
                                          "did you mean 'item-call'?"),
        ("# torchlint: ignore[F401]", "`F401` is no code or name"),
        ("# torchlint: ignore[TL]", "`TL` is no code or name"),
    ],
)
def test_an_unknown_word_is_reported_where_it_stands(comment: str, message: str) -> None:
    (finding,) = lint(f"x = 1  {comment}")
    assert finding.code == "TL002"
    assert finding.message.startswith(message)
    span = finding.span
    text = f"x = 1  {comment}"
    assert text[span.column - 1 : span.end_column - 1] == finding.message.split("`")[1]


def test_an_unknown_word_does_not_hide_what_the_others_silence() -> None:
    assert seen("x.item()  # noqa: TL999, TL901") == [("TL002", 1)]
