"""Fixes in rounds, and the guards that no rule can skip."""
from __future__ import annotations

import ast
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchlint
from torchlint.config import Options
from torchlint.files import Source
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Severity, Span
from torchlint.fixes import edits
from torchlint.fixes.apply import Dropped, fix_source
from torchlint.fixes.guard import broken
from torchlint.fixes.layout import layout
from torchlint.fixes.no_grad import data_to_no_grad
from torchlint.fixing import repair
from torchlint.model import FileModel
from torchlint.results import Report


def finding(source, span, fix=None, code="XX1", message="m"):
    return Finding(source.path, span, code, "name", Severity.ERROR, Confidence.SURE, message, fix=fix)


def pattern_lint(*rules):
    """A lint that reports what patterns match and replaces it: (pattern, text, safety, code)."""

    def lint(source):
        place, found = layout(source), []
        for pattern, text, safety, code in rules:
            for match in re.finditer(pattern, source.text, re.MULTILINE):
                fix = None
                if text is not None:
                    edit = place.edit(match.start(), match.end(), match.expand(text))
                    fix = Fix(safety, "title", (edit,))
                found.append(finding(source, place.span(match.start(), match.end()), fix, code))
        return sorted(found, key=lambda one: one.order)

    return lint


def rule(pattern, text, safety=Safety.SAFE, code="XX1"):
    return pattern, text, safety, code


def fixed(text, *rules, **options):
    return fix_source(Source("t.py", text), pattern_lint(*rules), **options)


def test_all_findings_are_fixed_in_one_go():
    result = fixed("a = old\nb = old, old\n", rule("old", "0"))
    assert result.text == "a = 0\nb = 0, 0\n"
    assert len(result.applied) == 3 and result.left == () and result.dropped == ()


def test_nested_fixes_settle_in_rounds_and_each_is_counted():
    def lint(source):
        model = FileModel(source)
        return [
            finding(source, model.span(call), Fix(Safety.SAFE, "t", edits.unwrap_call(model, call)))
            for call in model.calls_named("float")
        ]

    result = fix_source(Source("t.py", "x = float(float(1) + float(float(2)))\n"), lint)
    assert result.text == "x = 1 + 2\n" and result.left == ()
    assert len(result.applied) == 4


def test_findings_that_go_with_the_fix_of_another_are_counted():
    def lint(source):
        found = pattern_lint(rule("old", "0"), rule("rest", "1", code="XX2"))(source)
        return [one for one in found if one.code == "XX1" or "old" in source.text]

    text = "x = old + old\ny = rest\n"
    overlapping = fix_source(Source("t.py", text), lint, choose=lambda finding, patch: finding.code == "XX1")
    assert overlapping.text == "x = 0 + 0\ny = rest\n"
    assert len(overlapping.applied) == 2 and overlapping.gone == 1 and overlapping.left == ()
    checker = SimpleNamespace(source=lambda source: SimpleNamespace(findings=lint(source)))
    source = Source("t.py", text)
    report = Report(tuple(lint(source)), files=1, sources={"t.py": source})
    repaired = repair(report, checker, unsafe=False, write=False, choose=lambda finding, patch: finding.code == "XX1")
    assert repaired.report.fixed == len(report.findings) == 3 and len(repaired.report.made) == 2
    assert fixed("x = old + old\n", rule("old", "0")).gone == 0


def test_the_same_fix_of_several_findings_is_made_once():
    def lint(source):
        place = layout(source)
        spots = [match.start() for match in re.finditer("old", source.text)]
        fix = Fix(Safety.SAFE, "t", tuple(place.edit(spot, spot + 3, "0") for spot in spots))
        return [finding(source, place.span(spot, spot + 3), fix) for spot in spots]

    result = fix_source(Source("t.py", "old, old\n"), lint)
    assert result.text == "0, 0\n" and len(result.applied) == 2


@pytest.mark.parametrize(("safety", "unsafe", "applied"), [
    (Safety.SAFE, False, True), (Safety.SAFE, True, True), (Safety.UNSAFE, False, False),
    (Safety.UNSAFE, True, True), (Safety.SHOW, False, False), (Safety.SHOW, True, False),
])
def test_safety_decides(safety, unsafe, applied):
    result = fixed("x = old\n", rule("old", "0", safety), unsafe=unsafe)
    assert (result.text == "x = 0\n") is applied
    assert len(result.left) == (not applied) and result.dropped == ()


def test_findings_without_a_fix_are_left():
    result = fixed("x = old + bad\n", rule("old", "0"), rule("bad", None, code="XX2"))
    assert result.text == "x = 0 + bad\n" and [one.code for one in result.left] == ["XX2"]


def test_text_that_does_not_parse_is_left():
    result = fixed("x = = old\n", rule("old", "new"))
    assert result.text == "x = = old\n" and len(result.left) == 1


# -- guards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "pattern", "new", "why"), [
    ("x = old\n", "old", "(", "does not parse"),
    ("x = old\n", "old", "(yield)", "does not compile"),
    ("x = 'a' + old\ny = 'b'\n", "old", "'", "does not parse"),
    ("x = old + y  # why\n", "old", "1 #", "read"),
    ("x = [old, y, '#']\n", "old", "z] #", "read"),
    ("x = 'an old string'\n", "old", "0", "inside of a string"),
    ("x = '''\nold\n'''\n", "old", "0", "inside of a string"),
    ("x = old\n", "x = .*old.*", "x = len('old')", "still there"),
    ("x = old\n", "old", "0; bad = 1", "new finding: XX2 in line 1"),
    ("x = old\n", "old", "old", "changes nothing"),
    ("x = old\n", "old", "torch.ones", "torch, which nothing binds"),
    ("y = len(x)\nold\n", "old", "len = 1", "gives len another meaning"),
    ("def f(x):\n    def g():\n        old\n        return x\n", "old", "x = 1", "gives x another meaning"),
    ("x = 1\ndef f():\n    print(x)\n    old\n", "old", "x = 2", "gives x another meaning"),
    ("return_ = 1\nx = return_, old\n", "return_, old", "return_old", "nothing binds"),
])
def test_a_guard_drops_the_fix_and_says_why(text, pattern, new, why):
    result = fixed(text, rule(pattern, new), rule("bad", None, code="XX2"))
    assert result.text == text
    assert len(result.dropped) == 1 and why in result.dropped[0].why
    assert result.applied == () and [one.code for one in result.left] == ["XX1"]
    assert result.left[0].fix is None  # nobody is to be told that --fix repairs it


def test_what_is_left_of_a_dropped_fix_is_known_after_other_fixes_moved_it():
    result = fixed("old\nx = bad\n", rule("old", "longer = 0"), rule("bad", "(", code="XX2"))
    assert result.text == "longer = 0\nx = bad\n"
    assert [(one.code, one.fix) for one in result.left] == [("XX2", None)]


KNOWN = "def f():\n    x = old\n    return 1\n\n\ndef g():\n    return bad\n"


def revealing(safety, text=KNOWN, code="XX2"):
    """Fix `old`; once it is gone, a rule sees `bad`."""
    def lint(source):
        hidden = () if "old" in source.text else (rule("bad", None, code=code),)
        return pattern_lint(rule("old", "0", safety), *hidden)(source)

    return fix_source(Source("t.py", text), lint, unsafe=True)


@pytest.mark.parametrize("safety", [Safety.SAFE, Safety.UNSAFE])
def test_what_another_rule_sees_elsewhere_after_a_fix_is_no_fault_of_it(safety):
    result = revealing(safety)
    assert result.text == KNOWN.replace("old", "0") and result.dropped == ()
    assert [one.code for one in result.left] == ["XX2"]


@pytest.mark.parametrize(("safety", "text", "code"), [
    (Safety.SAFE, KNOWN, "XX1"),  # the same rule
    (Safety.UNSAFE, KNOWN, "XX1"),
    (Safety.SAFE, KNOWN.replace("return 1", "return bad"), "XX2"),  # the same function
    (Safety.SAFE, "x = old\ny = bad\n", "XX2"),
    (Safety.UNSAFE, "x = old + bad\n", "XX2"),  # the same line
])
def test_what_a_fix_may_have_caused_is_a_fault_of_it(safety, text, code):
    result = revealing(safety, text, code)
    assert result.text == text and len(result.dropped) == 1


def test_an_unsafe_fix_may_uncover_something_in_the_same_function():
    text = KNOWN.replace("return 1", "return bad")
    assert revealing(Safety.UNSAFE, text).text == text.replace("old", "0")


def test_what_was_broken_before_is_no_fault_of_the_fix():
    result = fixed("return old\nx = y\n", rule("old", "new_"))
    assert "nothing binds" in result.dropped[0].why
    result = fixed("new = 1\nreturn old\nx = y\n", rule("old", "new"))
    assert result.text == "new = 1\nreturn new\nx = y\n"


def test_star_imports_may_bind_anything():
    text = "from torch import *\nx = old\n"
    assert fixed(text, rule("old", "ones")).text == "from torch import *\nx = ones\n"
    text = "from torch import *\nx = nn.Linear\nold\n"
    assert "gives nn another meaning" in fixed(text, rule("old", "nn = 1")).dropped[0].why


def test_one_bad_fix_among_many_is_found_and_the_others_are_made():
    lines = [f"x{number} = old_{number}\n" for number in range(20)]

    def lint(source):
        place = layout(source)
        found = []
        for match in re.finditer(r"old_(\d+)", source.text):
            new = "(" if match[1] == "13" else match[1]
            fix = Fix(Safety.SAFE, "t", (place.edit(match.start(), match.end(), new),))
            found.append(finding(source, place.span(match.start(), match.end()), fix))
        return found

    result = fix_source(Source("t.py", "".join(lines)), lint)
    assert result.text == "".join(line if "old_13" in line else line.replace("old_", "") for line in lines)
    assert len(result.applied) == 19
    assert [one.finding.span.line for one in result.dropped] == [14] == [one.span.line for one in result.left]
    assert str(result.dropped[0]).startswith("t.py:14:7: the fix of XX1 (name) was dropped, which is a fault")


def test_two_fixes_that_undo_each_other_stop():
    result = fixed("x = 1.1\n", rule(r"1\.1", "2.2"), rule(r"2\.2", "1.1", code="XX2"))
    assert result.dropped and result.text == "x = 1.1\n"
    assert "new finding" in result.dropped[0].why


def test_an_endless_fix_ends():
    calls = []

    def lint(source):
        calls.append(1)
        place = layout(source)
        end = source.text.index("\n")
        fix = Fix(Safety.SAFE, "t", (place.edit(end, end, " + 1"),))
        return [finding(source, place.span(0, end), fix, message=str(len(calls)))]

    result = fix_source(Source("t.py", "x = 1\n"), lint)
    assert result.text == "x = 1\n" and "still there" in result.dropped[0].why
    assert len(calls) < 10


def test_edits_outside_the_text_or_overlapping_are_dropped():
    source = Source("t.py", "x = old\n")
    for bad in [(Edit(Span(9, 1, 9, 2), "y"),), (Edit(Span(1, 1, 1, 4), "y"), Edit(Span(1, 2, 1, 5), "z"))]:
        def lint(one, bad=bad):
            return [finding(one, Span(1, 5, 1, 8), Fix(Safety.SAFE, "t", bad))]

        result = fix_source(source, lint)
        assert result.text == source.text and "edits are wrong" in result.dropped[0].why


def test_a_finding_gone_with_another_ones_fix_is_fine():
    result = fixed("x = old(bad)\n", rule(r"old\(bad\)", "1"), rule("bad", None, code="XX2"))
    assert result.text == "x = 1\n" and result.left == ()


def test_a_comment_that_silences_nothing_any_more_is_no_new_fault():
    result = fixed("x = old  # noqa\n", rule("old", "1"), rule("(?<=1  )# noqa", "", code="TL001"))
    assert result.text == "x = 1  \n"


# -- comments --------------------------------------------------------------------------------


def test_a_fix_that_loses_a_comment_is_unsafe():
    text = "x = old(  # why\n    1)\n"
    lose = rule(r"old\((?:[^()]|\n)*\)", "1")
    result = fixed(text, lose)
    assert result.text == text and result.dropped == ()
    assert [one.fix.safety for one in result.left] == [Safety.UNSAFE]
    assert fixed(text, lose, unsafe=True).text == "x = 1\n"


def test_a_comment_that_is_written_again_is_not_lost():
    text = "x = old(  # why\n    1)\n"
    assert fixed(text, rule(r"old\((  # why\n)(.*)\)", r"(\1\2)")).text == "x = (  # why\n    1)\n"


def test_pragmas_of_a_removed_line_are_not_missed():
    assert fixed("old  # noqa: E501\ny = 1\n", rule(r"^old.*\n", "")).text == "y = 1\n"


# -- imports ---------------------------------------------------------------------------------


def import_lint(source):
    model = FileModel(source)
    return [
        finding(source, model.span(call), Fix(Safety.SAFE, "t", edits.replace(model, call.func, "torch.new"),
                                              ("import torch",)))
        for call in model.calls_named("old")
    ]


def test_an_import_is_added_once():
    result = fix_source(Source("t.py", "'''doc'''\nimport os\n\nx = old(old(1))\ny = old(2)\n"), import_lint)
    assert result.text == (
        "'''doc'''\nimport os\nimport torch\n\nx = torch.new(torch.new(1))\ny = torch.new(2)\n"
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_newlines_of_the_file_are_used(newline):
    text = "import os\n\nx = old(\n    1)".replace("\n", newline)
    result = fix_source(Source("t.py", text), import_lint)
    assert result.text == "import os\nimport torch\n\nx = torch.new(\n    1)".replace("\n", newline)


# -- choosing --------------------------------------------------------------------------------


def test_the_user_is_asked_about_each_fix():
    asked = []

    def choose(one, patch):
        asked.append((one.span.line, patch))
        return one.span.line != 2

    result = fixed("1\nold\nold + 3\n", rule("^old", "2"), choose=choose)
    assert result.text == "1\nold\n2 + 3\n" and result.dropped == ()
    assert [line for line, _ in asked] == [2, 3]
    assert asked[0][1] == "--- a/t.py\n+++ b/t.py\n@@ -1,3 +1,3 @@\n 1\n-old\n+2\n old + 3\n"


def test_the_project_is_left_with_the_text_that_stays():
    seen = []

    def lint(source):
        seen.append(source.text)
        return pattern_lint(rule("old", "0; bad = 1"), rule("bad", None, code="XX2"))(source)

    result = fix_source(Source("t.py", "x = old\n"), lint)
    assert result.text == seen[-1] == "x = old\n"


def test_dropped_is_a_pair():
    one = finding(Source("t.py", ""), Span(1, 1, 1, 1))
    assert tuple(Dropped(one, "why")) == (one, "why")


# -- generated programs ----------------------------------------------------------------------

LINES = st.sampled_from([
    "w.data.add_(1)", "v.data[0] = w.data", "x = 1  # keep me", "", "# a comment",
    "s = '''a\n  # no comment\n'''", "f(w,\n  v)",
    "w.data.mul_(2); y = 3", "u = w.data.zero_(); v.data.zero_()  # two", "print(f'{x} {{}}')",
    "λ = 'ü'; w.data.sub_(λ)", "w.data.add_(\n    1,  # one\n)",
])


@st.composite
def blocks(draw, depth=0):
    """The lines of a block, nested at most three deep."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        head = draw(st.sampled_from(["", "", "for p in q:", "if a:", "while b:", "def g():", "with c:"]))
        if head and depth < 3:
            out += [head, *(indent(line) for line in draw(blocks(depth + 1)))]
        else:
            out.append(draw(LINES))
    return [*out, "pass"]


def indent(text):
    """Move the lines of an element in, unless it holds a string over several lines."""
    if "'''" in text:
        first, _, rest = text.partition("\n")
        return f"    {first}\n{rest}"
    return "\n".join("    " + line if line else line for line in text.split("\n"))


def data_lint(source):
    model = FileModel(source)
    writes = [node for node in model.attributes_named("data") if isinstance(model.statement(node), (
        ast.Expr, ast.Assign))]
    repairs = data_to_no_grad(model, writes)
    return [
        finding(source, model.span(node), Fix(Safety.SAFE, "t", repairs[node].edits, repairs[node].imports))
        for node in writes if node in repairs
    ]


@settings(max_examples=150, deadline=None)
@given(blocks(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(["    ", "  ", "\t"]))
def test_generated_programs(lines, newline, final, step):
    text = "import torch\n" + "\n".join(lines) + "\n"
    # Indentation inside strings belongs to them: only whole steps of code lines are exchanged.
    if "'''" not in text:
        text = re.sub("^( {4})+", lambda match: step * (len(match[0]) // 4), text, flags=re.MULTILINE)
    text = text.replace("\n", newline)
    text = text if final else text.removesuffix(newline)
    result = fix_source(Source("t.py", text), data_lint)
    assert not result.dropped, result.dropped[0].why
    ast.parse(result.text)
    assert not data_lint(Source("t.py", result.text))
    assert fix_source(Source("t.py", result.text), data_lint).text == result.text
    assert result.text.endswith(newline) is final
    assert newline == "\n" or "\n" not in result.text.replace("\r\n", "")
    before, after = (layout(Source("t.py", one)).tokens for one in (text, result.text))
    assert [t.text for t in before if t.comment] == [t.text for t in after if t.comment]
    assert [t.text for t in before if t.text[:1] in "'\""] == [t.text for t in after if t.text[:1] in "'\""]
    assert squeezed(result.text) == squeezed(text)


def squeezed(text):
    """What must be left of a program: everything but white space, `;`, `.data` and the blocks."""
    text = text.replace("with torch.no_grad():", "").replace(".data", "")
    return re.sub(r"[\s;]+", "", text)


@pytest.mark.parametrize(("old", "new", "kept"), [
    ("x.data", "x.detach()", True), ("loss ", "lost ", False), ("!r", "!s", False), ("c'", "d'", False),
    (":>3", ":>4", False), ("{{b}}", "{{z}}", False),
])
def test_of_an_f_string_only_fields_may_change(old, new, kept):
    text = "x = y = 1\nprint('a' f'loss {x.data!r:>3} {{b}}' 'c')\n"
    place = layout(Source("t.py", text))
    at = text.index(old)
    after = Source("t.py", text.replace(old, new, 1))
    why = broken(Source("t.py", text), after, [place.edit(at, at + len(old), new)])
    assert (why == "") is kept and (kept or "string" in why or "read" in why)


def test_an_import_takes_the_line_of_one_that_goes_away():
    text = "import torch.nn.functional as F\n\nprint(F.sigmoid(x))\n"
    expected = "import torch\n\nprint(torch.sigmoid(x))\n"
    assert torchlint.fix_source(text, options=Options(select=("TL908",))) == expected
