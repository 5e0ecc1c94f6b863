"""Lines that a fix made too long are broken the way their file breaks lines."""
from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from torchlint.files import Source
from torchlint.fixes.layout import Layout
from torchlint.fixes.style import Brackets, brackets, line_length
from torchlint.fixes.wrap import wrapped

LONG = "first_argument_of_a_call_that_is_long, second_argument_that_is_long_too"
BLACK = "".join(f"\nx{i} = call(\n    {LONG}\n)\ny{i} = call(\n    {LONG},\n    z,\n)\n" for i in range(3))
HANGING = "".join(f"\nx{i} = call(\n        {LONG}, z)\n" for i in range(4))
ALIGNED = "".join(f"\nx{i} = call({LONG},\n          z)\n" for i in range(4))
STYLES = {"black": BLACK, "hanging": HANGING, "aligned": ALIGNED}


def fixed(text: str, old: str, new: str, *, style: str = "", path: str = "") -> str:
    """The text with one edit, in a file whose other lines are in a style."""
    text = dedent(text).lstrip("\n")
    rest = STYLES.get(style, "")
    place = Layout(Source("t.py", text + rest))
    start = text.index(old)
    result = place.apply(wrapped(place, [place.edit(start, start + len(old), new)], path))
    assert result.endswith(rest)
    made = result[: len(result) - len(rest)]
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(text.replace(old, new, 1)))
    return made


ONE_LINE = "def f(mask):\n" \
    "    prefix = torch.ones(batch_size, number_of_virtual_tokens).to(attention_mask.device)  # why\n"
EXPECTED = {
    "black": """
        def f(mask):
            prefix = torch.ones(
                batch_size, number_of_virtual_tokens, device=attention_mask.device
            )  # why
        """,
    "hanging": """
        def f(mask):
            prefix = torch.ones(
                    batch_size, number_of_virtual_tokens, device=attention_mask.device)  # why
        """,
    "aligned": """
        def f(mask):
            prefix = torch.ones(batch_size, number_of_virtual_tokens,
                                device=attention_mask.device)  # why
        """,
}


@pytest.mark.parametrize("style", sorted(STYLES))
def test_one_line(style):
    made = fixed(ONE_LINE, ").to(attention_mask.device)", ", device=attention_mask.device)", style=style)
    assert made == dedent(EXPECTED[style]).lstrip("\n")


def test_items_get_lines_of_their_own():
    text = f"foo(\n    {LONG}, c.data\n)\n"
    made = fixed(text, ".data", ".detach().clone()", style="black")
    first, second = LONG.split(", ")
    assert made == f"foo(\n    {first},\n    {second},\n    c.detach().clone(),\n)\n"


def test_aligned_items_move_to_the_next_line():
    text = f"foo({LONG},\n    a, {'b' * 50}, cccccc.data, dddd)\n"
    made = fixed(text, ".data", ".detach().clone()", style="aligned")
    assert made.splitlines()[1:] == [f"    a, {'b' * 50}, cccccc.detach().clone(),", "    dddd)"]


def test_no_comma_behind_a_generator_or_an_only_item():
    text = "if True:\n    x = sum(aaaaaaaaaaaaaaaaaaaa.data for aaaaaaaaaaaaaaaaaaaa in bbbbbbbbbbbbbbbbbbbbbbbbbb)\n"
    made = fixed(text, ".data", ".detach()", style="black")
    assert made.splitlines()[1:] == [
        "    x = sum(", "        aaaaaaaaaaaaaaaaaaaa.detach() for aaaaaaaaaaaaaaaaaaaa in bbbbbbbbbbbbbbbbbbbbbbbbbb",
        "    )"]


UNTOUCHED = [
    "assert value_of_something_long[0].with_names.that_are_long is another_one.that_is_long.data\n",
    "x = 'a string that is long and cannot be broken, whatever one does to it, ' + y.data.clone()\n",
    "xyz = call_of_it(y.data)  # a comment that is long is nobody's reason to break the line before it\n",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_cannot_be_broken_stays(text):
    assert fixed(text, ".data", ".detach()", style="black") == text.replace(".data", ".detach()")


def test_lines_that_were_too_long_already_stay():
    text = f"x.data, call({LONG}, {LONG})\n"
    made = fixed(text + "y.data\n", "y.data", "y.detach()", style="black")
    assert made == text + "y.detach()\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_of_the_file(newline):
    place = Layout(Source("t.py", (ONE_LINE + BLACK).replace("\n", newline)))
    start = place.text.index(").to(")
    edit = place.edit(start, start + len(").to(attention_mask.device)"), ", device=attention_mask.device)")
    made = place.apply(wrapped(place, [edit]))
    assert made.count("\n") == made.count(newline) and "ones(" + newline in made


def test_edits_elsewhere_are_kept_as_they_are():
    place = Layout(Source("t.py", ONE_LINE + "y = 1\n" + BLACK))
    start = place.text.index(").to(")
    long = place.edit(start, start + len(").to(attention_mask.device)"), ", device=attention_mask.device)")
    at = place.text.index("y = 1")
    short, first = place.edit(at, at + 1, "zz"), place.edit(0, 0, "import torch\n")
    edits = wrapped(place, [first, long, short])
    assert short in edits and first in edits and len(edits) == 3
    made = place.apply(edits)
    assert made.startswith("import torch\ndef f(mask):\n    prefix = torch.ones(\n") and "\nzz = 1\n" in made


def test_styles_are_told_apart():
    found = {name: brackets(Layout(Source("t.py", text))) for name, text in STYLES.items()}
    assert found == {
        "black": Brackets(),
        "hanging": Brackets(step=" " * 8, own_line=False, comma=False),
        "aligned": Brackets(hanging=False, own_line=False, comma=False),
    }


def test_line_length_is_what_the_project_says_if_the_file_keeps_to_it(tmp_path):
    place = Layout(Source("t.py", BLACK))
    assert line_length(place) == (79, True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 110\n")
    assert line_length(place, str(tmp_path / "src" / "t.py")) == (110, True)
    wide = Layout(Source("t.py", BLACK + "".join(f"name_{i} = {'1' * 105}\n" for i in range(10))))
    assert line_length(wide, str(tmp_path / "t.py")) == (120, True)


@pytest.mark.parametrize(("name", "text"), [
    ("setup.cfg", "[flake8]\nmax-line-length = 93\n"), ("ruff.toml", "line-length = 93\n"),
    ("pyproject.toml", "[tool.ruff]\nline-length = 93\n"), (".flake8", "[flake8]\nmax_line_length: 93\n"),
])
def test_where_a_project_says_its_line_length(tmp_path, name, text):
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    assert line_length(Layout(Source("t.py", "x = 1\n")), str(tmp_path / "t.py")) == (93, True)


def test_two_edits_at_one_place_in_a_statement():
    text = "def f(device):\n    edge_weight = torch.ones(data.edge_index.size(1)).to(the_device_of_it).float()\n"
    place = Layout(Source("t.py", text + ALIGNED))
    first, second = text.index(".to("), text.index(".float")
    argument = place.edit(first - 1, first - 1, ", device=the_device_of_it, dtype=torch.float")
    made = place.apply(wrapped(place, [argument, place.edit(first, second, ""), place.edit(second, len(text) - 1, "")]))
    assert made.startswith(
        "def f(device):\n    edge_weight = torch.ones(data.edge_index.size(1), device=the_device_of_it,\n"
        "                             dtype=torch.float)\n\nx0 = ")


def test_a_bracket_that_closes_on_a_later_line():
    text = "if True:\n    return torch.sum(torch.norm(x @ x.transpose(1, 2) - diags_of_it, p=p_of_the_norm,\n" \
           "                                dim=(1, 2)))\n"
    made = fixed(text, "torch.norm", "torch.linalg.vector_norm", style="aligned")
    assert made.splitlines()[1:3] == [
        "    return torch.sum(torch.linalg.vector_norm(x @ x.transpose(1, 2) - diags_of_it,",
        "                                              p=p_of_the_norm,"]


MOVED = [
    ("x = f(a,\n      b)\n", "f", "long", "x = long(a,\n         b)\n"),
    ("x = long(a,\n         b)\n", "long", "f", "x = f(a,\n      b)\n"),
    ("x = float(f(a,\n            b,\n            c))\n", "float(f(a,\n            b,\n            c))",
     "f(a,\n            b,\n            c)", "x = f(a,\n      b,\n      c)\n"),
    ("x = f([1,\n       2,\n      ], a)\n", "f", "long", "x = long([1,\n          2,\n         ], a)\n"),
    ("x = f(a,\n      # why\n      b)\n", "f", "long", "x = long(a,\n         # why\n         b)\n"),
    ("x = f(g(a,\n        b),\n      c=h(d,\n          e))\n", "f", "long",
     "x = long(g(a,\n           b),\n         c=h(d,\n             e))\n"),
    ("x = f(g(\n          a,\n      ), b,\n      c)\n", "f", "long",
     "x = long(g(\n          a,\n      ), b,\n         c)\n"),
    ("x = f(a, {\n      1: 2,\n      }, b)\n", "f", "long", "x = long(a, {\n      1: 2,\n      }, b)\n"),
    ("x = f(\n    a,\n    b)\n", "f", "long", "x = long(\n    a,\n    b)\n"),
    ("x = f(a,\n    b)\n", "f", "long", "x = long(a,\n    b)\n"),
    ("x = f(a,\n\t  b)\n", "f", "long", "x = long(a,\n\t  b)\n"),
    ("x = f(a, \'\'\'\n      \'\'\',\n      b)\n", "f", "long", "x = long(a, \'\'\'\n      \'\'\',\n         b)\n"),
    ("if f(a,\n     b):\n    c\n", "f(a", "long(a", "if long(a,\n        b):\n    c\n"),
    ("x = f(a,\n      b) + g(c,\n             d)\n", "g", "long", "x = f(a,\n      b) + long(c,\n                d)\n"),
]


@pytest.mark.parametrize(("text", "old", "new", "expected"), MOVED)
def test_lines_below_a_bracket_move_with_it(text, old, new, expected):
    assert fixed(text, old, new) == expected


def test_an_edit_that_takes_a_bracket_along_leaves_the_lines_below():
    assert fixed("x = f(a,\n      b)\n", "f(a", "long(g(1), a") == "x = long(g(1), a,\n      b)\n"


def test_two_edits_before_a_bracket():
    place = Layout(Source("t.py", "y.data = f(a.data,\n           b.data)\n"))
    edits = [place.edit(start, start + 4, "detach()") for start in (2, 13, 32)]
    made = place.apply(wrapped(place, edits))
    assert made == "y.detach() = f(a.detach(),\n               b.detach())\n"


LONGER = "if True:\n    value.with_names = another_one_that_is_long.too.and_even_longer_than_that.data  # why\n"


@pytest.mark.parametrize(("style", "expected"), [
    ("black", """
        if True:
            value.with_names = (
                another_one_that_is_long.too.and_even_longer_than_that.detach()
            )  # why
        """),
    ("hanging", """
        if True:
            value.with_names = (
                    another_one_that_is_long.too.and_even_longer_than_that.detach())  # why
        """),
])
def test_what_has_no_brackets_gets_them_where_a_limit_is_kept(style, expected, tmp_path):
    (tmp_path / "ruff.toml").write_text("line-length = 83\n")
    made = fixed(LONGER, ".data", ".detach()", style=style, path=str(tmp_path / "t.py"))
    assert made == dedent(expected).lstrip("\n")
    assert fixed(LONGER, ".data", ".detach()") == LONGER.replace(".data", ".detach()")


@pytest.mark.parametrize("text", [
    "if aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.data > aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.bb: pass\n",
    "bbbb = aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.data, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; b\n",
    "aa = aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.data + aaaaaaaaaaaaaaaaaaaaaaaaaaa.bbb\n",
])
def test_other_statements_without_brackets_stay(text):
    assert fixed(text, ".data", ".detach()", style="black") == text.replace(".data", ".detach()")


HUNG = [
    ("""
     class A:
         def f(self):
             vector[mask_of_it] = vector[mask_of_it] / torch.norm(vector[mask_of_it],
                                                                  dim=1).unsqueeze(1)
     """, """
     class A:
         def f(self):
             vector[mask_of_it] = vector[mask_of_it] / torch.linalg.vector_norm(
                 vector[mask_of_it], dim=1).unsqueeze(1)
     """),
    ("""
     class A:
         def f(self):
             vector[mask_of_it] = vector[mask_of_it] / torch.norm(vector_of_something[mask_of_it],
                                                                  [one, another,
                                                                   and_one_more], a_long_one_that_does_not_fit)
     """, """
     class A:
         def f(self):
             vector[mask_of_it] = vector[mask_of_it] / torch.linalg.vector_norm(
                 vector_of_something[mask_of_it],
                 [one, another,
                  and_one_more], a_long_one_that_does_not_fit)
     """),
]


@pytest.mark.parametrize(("text", "expected"), HUNG)
def test_what_is_too_long_below_its_first_item_goes_below_the_line(text, expected, tmp_path):
    (tmp_path / "ruff.toml").write_text("line-length = 83\n")
    made = fixed(dedent(text), "torch.norm", "torch.linalg.vector_norm", style="aligned", path=str(tmp_path / "t.py"))
    assert made == dedent(expected).lstrip("\n")


def test_signatures_say_nothing_of_how_calls_are_broken():
    signatures = "".join(f"def f{i}(\n        a,\n        b,\n):\n    pass\n" for i in range(3))
    assert brackets(Layout(Source("t.py", signatures))) == Brackets(step=" " * 8)
    assert brackets(Layout(Source("t.py", signatures + ALIGNED))) == Brackets(False, own_line=False, comma=False)
