"""The reports for people: what is on which line, and where the marks stand."""
from __future__ import annotations

import io
import re

import pytest
from report_samples import DOC, EMPTY, FULL, ONE, THREE, TWO, finding, report

from torchlint.files import Source
from torchlint.findings import Fix, Safety, Span
from torchlint.report import render, wants_colour
from torchlint.report.text import LINE_WIDTH
from torchlint.results import Problem


def excerpt(line: str, start: int, end: int) -> tuple[str, str]:
    """The shown line and the line of marks for columns `start` to `end` (exclusive) of `line`."""
    one = finding(path="x.py", span=Span(1, start, 1, end), fix=None)
    text = render(report(one, rules=(), sources={"x.py": Source("x.py", line + "\n")}))
    shown, marks = text.splitlines()[1:3]
    return shown.removeprefix("  1 | "), marks.removeprefix("    | ")


def test_full_says_where_what_why_and_what_to_do():
    lines = render(report(ONE)).splitlines()
    assert lines == [
        "src/train loop.py:3:2: TL201 graph-retained-in-loop: "
        "`total` keeps the graph of every `損失`: 100% of it, always [error]",
        "  3 |     total += 損失  # 损失",
        "    |     ^^^^^^^^^^^^^",
        "  why  Every summand keeps the graph of its step alive, so memory grows with the number of steps.",
        "  do   Add `loss.item()` or `loss.detach()`.",
        "  fix  add `.detach()` (--fix applies it)",
        "",
        "1 finding (1 error) in 1 of 7 files. --fix repairs 1.",
    ]


def test_reasons_are_told_once_for_each_rule():
    text = render(report(ONE, ONE, TWO))
    assert text.count("  why  ") == 2  # TL201 and TL402
    assert text.count("  fix  ") == 3


def test_a_code_without_a_rule_still_shows():
    assert "TL201 graph-retained-in-loop" in render(report(ONE, rules=()))
    assert "why" not in render(report(ONE, rules=()))


@pytest.mark.parametrize(
    "line, start, end, shown, marks",
    [
        ("abc", 1, 2, "abc", "^"),
        ("abc", 2, 4, "abc", " ^^"),
        ("\tx = 1", 2, 3, "    x = 1", "    ^"),
        ("a\tx", 3, 4, "a   x", "    ^"),
        ("a\tx", 2, 3, "a   x", " ^^^"),
        ("数 = x", 5, 6, "数 = x", "     ^"),
        ("f(数据)", 3, 5, "f(数据)", "  ^^^^"),
        ("e\u0301 = x", 6, 7, "e\u0301 = x", "    ^"),
        ("\x1b[31m = x", 9, 10, "\\x1b[31m = x", "           ^"),
        ("a\u202e = x", 6, 7, "a\\u202e = x", "          ^"),
        ("abc", 4, 5, "abc", "   ^"),
        ("abc", 9, 10, "abc", "   ^"),
        ("abc  ", 2, 2, "abc", " ^"),
    ],
)
def test_marks_stand_under_the_characters(line, start, end, shown, marks):
    assert excerpt(line, start, end) == (shown, marks)


@pytest.mark.parametrize("column", [1, 40, 500, 995])
def test_long_lines_are_cut_around_the_marks(column):
    line = "".join(chr(97 + number % 26) for number in range(1000))
    shown, marks = excerpt(line, column, column + 5)
    assert len(shown) <= LINE_WIDTH + 2
    at = marks.index("^")
    assert shown[at : at + 5] == line[column - 1 : column + 4]
    assert marks.count("^") == 5


def test_a_finding_wider_than_the_screen_is_marked_to_the_edge():
    shown, marks = excerpt("x" * 1000, 1, 1000)
    assert marks == "^" * (len(shown) - 1)  # all but the sign that says there is more


def test_a_finding_over_several_lines_is_marked_to_the_end_of_the_first():
    assert "  4 | model(\n    | ^^^^^^\n" in render(report(TWO))


def test_unknown_source_leaves_out_the_excerpt():
    assert " | " not in render(report(THREE, rules=()))


def test_nothing_in_a_report_can_steer_the_terminal():
    for form in ("text", "concise"):
        text = render(FULL, form)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
        text.encode()  # no lone surrogate: any UTF-8 stream takes it


def test_concise_is_one_parsable_line_each():
    lines = render(FULL, "concise").splitlines()
    assert len(lines) == 3
    pattern = re.compile(r"^(?P<path>.+?):(?:cell \d+:)?(\d+):(\d+): (TL\d{3}) ([a-z-]+): .+$")
    assert [pattern.match(line)[2] for line in lines] == ["3", "4", "1"]
    tags = ["[error, fix]", "[advice, guess, unsafe fix]", "[warning]"]
    assert [line[line.rindex("[") :] for line in lines] == tags


@pytest.mark.parametrize(
    "shown, words",
    [
        (EMPTY, "Nothing found in 7 files."),
        (report(fixed=2), "Fixed 2 findings. Nothing left to report in 7 files."),
        (
            report(ONE, TWO, fixed=1),
            "Fixed 1 finding. 2 findings (1 error, 1 advice) in 1 of 7 files."
            " --fix repairs 1. --fix --unsafe-fixes repairs 2.",
        ),
        (
            report(files=1, errors=(Problem("x", "y"),)),
            "Nothing found in 1 file. 1 error: not everything was checked.",
        ),
        (
            FULL,
            "3 findings (1 error, 1 warning, 1 advice) in 2 of 7 files."
            " --fix repairs 1. --fix --unsafe-fixes repairs 2. 2 errors: not everything was checked.",
        ),
    ],
)
def test_summary_counts(shown, words):
    assert render(shown).splitlines()[-1] == words


def test_a_fix_that_is_only_shown_does_not_promise_to_be_applied():
    shown = finding(fix=Fix(Safety.SHOW, "swap the axes", ()))
    text = render(report(shown))
    assert "swap the axes (to be made by hand)" in text
    assert "repairs" not in text


def test_colour_adds_only_colour():
    for form in ("text", "concise"):
        plain, coloured = render(FULL, form), render(FULL, form, colour=True)
        assert "\x1b[" in coloured
        assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "stream, environ, wanted",
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),  # set, but empty: counts as not set
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals(stream, environ, wanted):
    assert wants_colour(stream, environ) is wanted


def test_a_closed_stream_wants_no_colour():
    stream = io.StringIO()
    stream.close()
    assert wants_colour(stream, {}) is False


def test_the_sample_docstring_is_used():
    assert DOC.splitlines()[0].rstrip(".") == report(ONE).rules[0].summary
