"""Edits made from nodes, over every layout that Python code comes in."""
from __future__ import annotations

import ast

import pytest

from torchlint.files import Source
from torchlint.fixes import edits
from torchlint.fixes.layout import FSTRING_POSITIONS, Layout, layout
from torchlint.model import FileModel

WITH = "with torch.no_grad():\n"


def model_of(text: str) -> FileModel:
    return FileModel(Source("t.py", text))


def find(model: FileModel, text: str, kind: type[ast.AST] = ast.expr, nth: int = 0) -> ast.AST:
    """The nth node of a kind whose own text is `text`."""
    placed = [node for node in ast.walk(model.tree) if isinstance(node, kind) and hasattr(node, "lineno")]
    return [node for node in placed if edits.source_of(model, node) == text][nth]


def statement(model: FileModel, text: str, nth: int = 0) -> ast.stmt:
    node = find(model, text, ast.stmt, nth)
    assert isinstance(node, ast.stmt)
    return node


def done(model: FileModel, made: tuple) -> str:
    """The text after the edits, which must still parse."""
    assert made, "no edit was made"
    text = layout(model.source).apply(made)
    ast.parse(text)
    return text


# -- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "", "x", "x\n", "é = 1; y = 2\r\nz = é\r\n", "a\rb\rc", "\f\nx = '\u2028'\n",
])
def test_offsets_and_spans_are_inverse(text):
    place = Layout(Source("t.py", text))
    for start in range(len(text) + 1):
        if text[start - 1 : start + 1] != "\r\n":
            assert place.offsets(place.span(start, len(text))) == (start, len(text))


def test_ast_columns_are_bytes_and_spans_are_characters():
    model = model_of("a = 'ü'; b = '𝔘', foo(x)\n")
    assert done(model, edits.replace(model, find(model, "foo(x)"), "bar")) == "a = 'ü'; b = '𝔘', bar\n"


def test_a_span_outside_the_text_is_an_error():
    from torchlint.findings import Span

    with pytest.raises(ValueError, match="outside"):
        Layout(Source("t.py", "x\n")).offsets(Span(1, 1, 5, 1))
    with pytest.raises(ValueError, match="ends before"):
        Layout(Source("t.py", "xyz\n")).offsets(Span(1, 3, 1, 1))


def test_overlapping_edits_are_an_error():
    place = Layout(Source("t.py", "abcdef\n"))
    with pytest.raises(ValueError, match="overlap"):
        place.apply([place.edit(0, 3, "x"), place.edit(2, 4, "y")])
    assert place.apply([place.edit(0, 2, "x"), place.edit(2, 4, "y"), place.edit(2, 2, "-")]) == "x-yef\n"


@pytest.mark.parametrize(("text", "unit"), [
    ("if x:\n  a\n", "  "), ("if x:\n\ta\n", "\t"), ("x = 1\n", "    "),
    ("if x:\n  a\nif y:\n  b\nif z:\n        c\n", "  "), ("if x:\n    if y:\n        z\n", "    "),
])
def test_indent_unit(text, unit):
    assert Layout(Source("t.py", text)).indent_unit == unit


@pytest.mark.parametrize(("text", "quote"), [
    ("a = 'x'\nb = 'y'\nc = \"z\"\n", "'"), ("'''doc'''\na = \"x\"\n", '"'), ("x = 1\n", '"'), ("f'{a}'\n",
     "'"),
])
def test_quote(text, quote):
    assert Layout(Source("t.py", text)).quote == quote


# -- expressions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "target", "new", "expected"), [
    ("y = f(x).z\n", "f(x)", "a + b", "y = (a + b).z\n"),
    ("y = f(x).z\n", "f(x)", "await a", "y = (await a).z\n"),
    ("y = (f(x)).z\n", "f(x)", "a + b", "y = (a + b).z\n"),
    ("y = f(x)\n", "x", "a + b", "y = f(a + b)\n"),
    ("y = f(x)\n", "x", "a, b", "y = f((a, b))\n"),
    ("y = f((x))\n", "x", "a, b", "y = f((a, b))\n"),
    ("y = f(x, z)\n", "x", "yield", "def g(): y = f((yield), z)\n"),
    ("y = -f(x)\n", "f(x)", "a + b", "y = -(a + b)\n"),
    ("y = -f(x)\n", "f(x)", "a ** b", "y = -a ** b\n"),
    ("y = f(x) ** 2\n", "f(x)", "-a", "y = (-a) ** 2\n"),
    ("y = 2 ** f(x)\n", "f(x)", "-a", "y = 2 ** -a\n"),
    ("y = a - f(x)\n", "f(x)", "b - c", "y = a - (b - c)\n"),
    ("y = f(x) - a\n", "f(x)", "b - c", "y = b - c - a\n"),
    ("y = a * f(x)\n", "f(x)", "b + c", "y = a * (b + c)\n"),
    ("y = f(x) < a\n", "f(x)", "b < c", "y = (b < c) < a\n"),
    ("y = not f(x)\n", "f(x)", "b and c", "y = not (b and c)\n"),
    ("y = a and f(x)\n", "f(x)", "b or c", "y = a and (b or c)\n"),
    ("y = f(x) if c else z\n", "f(x)", "lambda: 1", "y = (lambda: 1) if c else z\n"),
    ("y = z if c else f(x)\n", "f(x)", "lambda: 1", "y = z if c else lambda: 1\n"),
    ("y = [f(x) for x in z]\n", "z", "a if b else c", "y = [f(x) for x in (a if b else c)]\n"),
    ("y = {f(x): 1}\n", "f(x)", "a := 1", "y = {(a := 1): 1}\n"),
    ("y = f(*x)\n", "x", "a or b", "y = f(*(a or b))\n"),
    ("y = x[f(x)]\n", "f(x)", "a, b", "y = x[a, b]\n"),
    ("y = f(x)\n", "f(x)", "a, b", "y = a, b\n"),
    ("y = x.real\n", "x", "1", "y = (1).real\n"),
    ("y = x + 1\n", "x", "1", "y = 1 + 1\n"),
    ("y = f(x).z\n", "f(x)", "(a) + (b)", "y = ((a) + (b)).z\n"),
    ("y = f(x).z\n", "f(x)", "(a + b)", "y = (a + b).z\n"),
    ("y = f(x) * 2\n", "f(x)", "(a), (b)", "y = ((a), (b)) * 2\n"),
    ("y = not(x)\n", "x", "a + b", "y = not(a + b)\n"),
    ("y = x if[1]else 2\n", "[1]", "a", "y = x if a else 2\n"),
    ("y = x if(a)else 2\n", "a", "b or c", "y = x if(b or c)else 2\n"),
    ("assert-x\n", "-x", "x", "assert x\n"),
    ("y = sum(a for a in b)\n", "(a for a in b)", "z", "y = sum(z)\n"),
    ("with f(x): pass\n", "f(x)", "a, b", "with ((a, b)): pass\n"),
    ("with f(x) as y: pass\n", "f(x)", "(a, b)", "with ((a, b)) as y: pass\n"),
    ("y = sum((a for a in b))\n", "(a for a in b)", "z", "y = sum(z)\n"),
    ("class A(f(x)): pass\n", "f(x)", "g", "class A(g): pass\n"),
    ("@f(x)\ndef g(): pass\n", "f(x)", "h", "@h\ndef g(): pass\n"),
    ("for a in f(x): pass\n", "f(x)", "b, c", "for a in b, c: pass\n"),
    ("y = f(\n    x,  # why\n)\n", "x", "z", "y = f(\n    z,  # why\n)\n"),
    ("y = f(x)\n", "f(x)", "a +\n    b", "y = (a +\n    b)\n"),
    ("y = [f(x)]\n", "f(x)", "a +\n    b", "y = [a +\n    b]\n"),
    ("y = f(x)\n", "f(x)", "g(a,\n      b)", "y = g(a,\n      b)\n"),
    ("y = f(x)\r\nz = 1\r\n", "f(x)", "g(a,\n      b)", "y = g(a,\r\n      b)\r\nz = 1\r\n"),
    ("match f(x):\n    case 1: pass\n", "f(x)", "y", "match y:\n    case 1: pass\n"),
])
def test_replace_expression(text, target, new, expected):
    if "yield" in new:
        text = "def g(): " + text
    model = model_of(text)
    assert done(model, edits.replace(model, find(model, target), new)) == expected


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("y = f'{x.data}'\n", "x.data", "y = f'{z + 1}'\n"),
    ("y = 'a' f'{n} {(x.data)!r:>{w}} {{b}}'\n", "x.data", "y = 'a' f'{n} {(z + 1)!r:>{w}} {{b}}'\n"),
    ("y = f\"\"\"\n é {x.data}\n\"\"\"\n", "x.data", "y = f\"\"\"\n é {z + 1}\n\"\"\"\n"),
    ("y = f'{x.data.mean()}'\n", "x.data", "y = f'{(z + 1).mean()}'\n"),
])
def test_replace_inside_f_strings(text, target, expected):
    model = model_of(text)
    assert done(model, edits.replace(model, find(model, target), "z + 1")) == expected


def test_only_harmless_text_is_put_into_f_strings():
    model = model_of("y = f'{x.data}'\n")
    assert edits.replace(model, find(model, "x.data"), "z['a']") == ()


def test_a_node_that_is_not_where_it_says_is_left_alone(monkeypatch):
    monkeypatch.setattr("torchlint.fixes.expressions.FSTRING_POSITIONS", False)
    model = model_of("y = f'{x.data} {z.data}'\n")
    node = find(model, "x.data")
    node.col_offset += 9
    node.end_col_offset += 9
    assert edits.replace(model, node, "w") == ()
    assert edits.append_method_call(model, node, ".item()") == ()


@pytest.mark.skipif(FSTRING_POSITIONS, reason="tokens inside f-strings are known from Python 3.12 on")
def test_nothing_that_needs_tokens_is_edited_inside_f_strings_before_3_12():
    model = model_of("y = f'{x.sum(1)}'\n")
    assert edits.add_keyword_argument(model, find(model, "x.sum(1)", ast.Call), "keepdim=True") == ()


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("y = float(a + b) * 2\n", "float(a + b)", "y = (a + b) * 2\n"),
    ("y = float(a)\n", "float(a)", "y = a\n"),
    ("y = float(x=a)\n", "float(x=a)", "y = a\n"),
    ("y = float((a + b))\n", "float((a + b))", "y = a + b\n"),
    ("y = list(a for a in b)\n", "list(a for a in b)", "y = (a for a in b)\n"),
    ("y = float(\n    a +\n    b\n)\n", "float(\n    a +\n    b\n)", "y = (a +\n    b)\n"),
    ("y = (float(  # why\n    a))\n", "float(  # why\n    a)", "y = (a)\n"),
])
def test_unwrap_call(text, target, expected):
    model = model_of(text)
    call = find(model, target, ast.Call)
    assert isinstance(call, ast.Call)
    assert done(model, edits.unwrap_call(model, call)) == expected


@pytest.mark.parametrize("text", ["f()\n", "f(a, b)\n", "f(*a)\n", "f(**a)\n", "f(a, b=1)\n"])
def test_unwrap_call_needs_one_argument(text):
    model = model_of(text)
    assert edits.unwrap_call(model, model.nodes(ast.Call)[0]) == ()


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("t += loss\n", "loss", "t += loss.detach()\n"),
    ("t += a + b\n", "a + b", "t += (a + b).detach()\n"),
    ("t += (a + b)\n", "a + b", "t += (a + b).detach()\n"),
    ("t += ((a + b))\n", "a + b", "t += ((a + b).detach())\n"),
    ("f(a + b)\n", "a + b", "f((a + b).detach())\n"),
    ("f((a + b), c)\n", "a + b", "f((a + b).detach(), c)\n"),
    ("f(x)[0]\n", "f(x)[0]", "f(x)[0].detach()\n"),
    ("async def g():\n    return await x\n", "await x", "async def g():\n    return (await x).detach()\n"),
    ("y = -x\n", "-x", "y = (-x).detach()\n"),
    ("def f():\n    return-x\n", "-x", "def f():\n    return (-x).detach()\n"),
    ("y = 1\n", "1", "y = (1).detach()\n"),
    ("y = a if b else c\n", "a if b else c", "y = (a if b else c).detach()\n"),
    ("y = lambda: x\n", "x", "y = lambda: x.detach()\n"),
    ("y = [a * b for a in c]\n", "a * b", "y = [(a * b).detach() for a in c]\n"),
    ("y = (a\n     + b)\n", "a\n     + b", "y = (a\n     + b).detach()\n"),
    ("y = f(\n    x,\n)  # total\n", "f(\n    x,\n)", "y = f(\n    x,\n).detach()  # total\n"),
    ("if (y := x): pass\n", "y := x", "if (y := x).detach(): pass\n"),
    ("d['a', a + b]\n", "a + b", "d['a', (a + b).detach()]\n"),
    ("sum(a for a in b)\n", "(a for a in b)", "sum((a for a in b).detach())\n"),
    ("y = a, b\n", "a, b", "y = (a, b).detach()\n"),
])
def test_append_method_call(text, target, expected):
    model = model_of(text)
    node = find(model, target)
    assert isinstance(node, ast.expr)
    assert done(model, edits.append_method_call(model, node, ".detach()")) == expected


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("y = x.detach()\n", "x.detach()", "y = x\n"),
    ("y = (a + b).detach() * 2\n", "(a + b).detach()", "y = (a + b) * 2\n"),
    ("y = (x\n     .detach()\n     .cpu())\n", "x\n     .detach()", "y = (x\n     .cpu())\n"),
    ("y = f(x).cpu().detach()\n", "f(x).cpu()", "y = f(x).detach()\n"),
])
def test_drop_method_call(text, target, expected):
    model = model_of(text)
    call = find(model, target, ast.Call)
    assert isinstance(call, ast.Call)
    assert done(model, edits.drop_method_call(model, call)) == expected


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("y = x\n", "x", "y = list(x)\n"),
    ("y = a + b\n", "a + b", "y = list(a + b)\n"),
    ("y = (a + b)\n", "a + b", "y = list(a + b)\n"),
    ("def f():\n    return(x)\n", "x", "def f():\n    return list(x)\n"),
    ("y = a, b\n", "a, b", "y = list((a, b))\n"),
    ("y = (a, b)\n", "(a, b)", "y = list((a, b))\n"),
    ("y = (a for a in b)\n", "(a for a in b)", "y = list(a for a in b)\n"),
    ("y = f(a for a in b)\n", "(a for a in b)", "y = f(list(a for a in b))\n"),
    ("y = f(a, b)\n", "a", "y = f(list(a), b)\n"),
])
def test_wrap_call(text, target, expected):
    model = model_of(text)
    node = find(model, target)
    assert isinstance(node, ast.expr)
    assert done(model, edits.wrap_call(model, node, "list")) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("y = (a for a in b)\n", "y = [a for a in b]\n"),
    ("y = f(a for a in b)\n", "y = f([a for a in b])\n"),
    ("y = f((a for a in b), c)\n", "y = f([a for a in b], c)\n"),
    ("y = f(\n    a  # why\n    for a in b\n)\n", "y = f([\n    a  # why\n    for a in b\n])\n"),
])
def test_generator_to_list(text, expected):
    model = model_of(text)
    assert done(model, edits.generator_to_list(model, model.nodes(ast.GeneratorExp)[0])) == expected


def test_rename_parts():
    model = model_of("class Ä:\n    async def __call__ (self, x): return ctx . saved_tensor, f(k = x)\n")
    function = model.nodes(ast.AsyncFunctionDef)[0]
    attribute, keyword = model.nodes(ast.Attribute)[0], model.nodes(ast.keyword)[0]
    made = (
        *edits.rename_definition(model, function, "forward"),
        *edits.rename_definition(model, model.nodes(ast.ClassDef)[0], "B"),
        *edits.rename_attribute(model, attribute, "saved_tensors"),
        *edits.rename_keyword(model, keyword, "key"),
    )
    assert done(model, made) == (
        "class B:\n    async def forward (self, x): return ctx . saved_tensors, f(key = x)\n"
    )


def test_replace_callee_keeps_arguments():
    model = model_of("y = Fn()(x,  # the input\n         z)\n")
    call = model.nodes(ast.Call)[0]
    assert done(model, edits.replace_callee(model, call, "Fn.apply")) == (
        "y = Fn.apply(x,  # the input\n         z)\n"
    )


# -- arguments -------------------------------------------------------------------------------

ADD = [
    ("f()\n", "f(dim=1)\n"),
    ("f( )\n", "f(dim=1)\n"),
    ("f(x)\n", "f(x, dim=1)\n"),
    ("f(x,)\n", "f(x, dim=1,)\n"),
    ("f(x, **kw)\n", "f(x, dim=1, **kw)\n"),
    ("f(**a, **b)\n", "f(dim=1, **a, **b)\n"),
    ("f(*x)\n", "f(*x, dim=1)\n"),
    ("f((x))\n", "f((x), dim=1)\n"),
    ("f(a for a in b)\n", "f((a for a in b), dim=1)\n"),
    ("f((a for a in b))\n", "f((a for a in b), dim=1)\n"),
    ("f(a=(1))\n", "f(a=(1), dim=1)\n"),
    ("f(\n    x,\n    y,\n)\n", "f(\n    x,\n    y,\n    dim=1,\n)\n"),
    ("f(\n    x,\n    y\n)\n", "f(\n    x,\n    y,\n    dim=1\n)\n"),
    ("f(\n    x,\n    y  # why\n)\n", "f(\n    x,\n    y,  # why\n    dim=1\n)\n"),
    ("f(\n    x,\n    y,  # why\n)\n", "f(\n    x,\n    y,  # why\n    dim=1,\n)\n"),
    ("f(\n    x,  # why\n)\n", "f(\n    x,  # why\n    dim=1,\n)\n"),
    ("f(\n    x\n)\n", "f(\n    x, dim=1\n)\n"),
    ("f(x,\n  y)\n", "f(x,\n  y,\n  dim=1)\n"),
    ("f(a, b,\n  c, d)\n", "f(a, b,\n  c, d, dim=1)\n"),
    ("f(\n\tx,\n\ty,\n)\n", "f(\n\tx,\n\ty,\n\tdim=1,\n)\n"),
    ("f(\r\n    x,\r\n    y,\r\n)\r\n", "f(\r\n    x,\r\n    y,\r\n    dim=1,\r\n)\r\n"),
    ("f(\n    x,\n    **kw,\n)\n", "f(\n    x,\n    dim=1,\n    **kw,\n)\n"),
    ("f(  # none yet\n)\n", "f(  # none yet\ndim=1)\n"),
    ("f(x)(y)\n", "f(x)(y, dim=1)\n"),
    ("f('(', \")\")\n", "f('(', \")\", dim=1)\n"),
    ("f(lambda a: (a))\n", "f(lambda a: (a), dim=1)\n"),
    ("f(g(x), h(y)[0:(1)])\n", "f(g(x), h(y)[0:(1)], dim=1)\n"),
]


@pytest.mark.parametrize(("text", "expected"), ADD)
def test_add_keyword_argument(text, expected):
    model = model_of(text)
    call = model.nodes(ast.Call)[0]
    text = done(model, edits.add_keyword_argument(model, call, "dim=1"))
    assert text == expected
    again = model_of(text)
    assert any(keyword.arg == "dim" for keyword in again.nodes(ast.Call)[0].keywords)


@pytest.mark.parametrize(("text", "expected"), ADD)
def test_remove_argument_takes_back_what_was_added(text, expected):
    model = model_of(expected)
    call = model.nodes(ast.Call)[0]
    keyword = next(keyword for keyword in call.keywords if keyword.arg == "dim")
    removed = done(model, edits.remove_argument(model, call, keyword))
    shape = ast.dump(ast.parse(text))
    assert ast.dump(ast.parse(removed)) == shape
    assert removed.count("#") == text.count("#")


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("f(a, b, c)\n", "a", "f(b, c)\n"),
    ("f(a, b, c)\n", "b", "f(a, c)\n"),
    ("f(a, b, c)\n", "c", "f(a, b)\n"),
    ("f(a, (b), c)\n", "b", "f(a, c)\n"),
    ("f(a,)\n", "a", "f()\n"),
    ("f(a for a in b)\n", "(a for a in b)", "f()\n"),
    ("f(\n    a,\n    b,\n)\n", "a", "f(\n    b,\n)\n"),
    ("f(\n    a,\n    b,\n)\n", "b", "f(\n    a,\n)\n"),
    ("f(\n    a,  # one\n    b,  # two\n)\n", "b", "f(\n    a,  # one\n      # two\n)\n"),
    ("f(\n    a,  # one\n    b,\n)\n", "b", "f(\n    a,  # one\n)\n"),
    ("f(\n    a,  # one\n    b\n)\n", "b", "f(\n    a,  # one\n)\n"),
    ("f(a,\n  b)\n", "a", "f(b)\n"),
])
def test_remove_argument(text, target, expected):
    model = model_of(text)
    call = model.nodes(ast.Call)[0]
    argument = next(arg for arg in call.args if edits.source_of(model, arg) == target)
    assert done(model, edits.remove_argument(model, call, argument)) == expected


def test_remove_argument_of_another_call_does_nothing():
    model = model_of("f(g(a))\n")
    outer, inner = model.nodes(ast.Call)
    assert edits.remove_argument(model, outer, inner.args[0]) == ()
