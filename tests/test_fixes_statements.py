"""Edits of statements, blocks and names, over every layout that Python code comes in."""
from __future__ import annotations

import ast

import pytest
from test_edits import WITH, done, find, model_of, statement

from torchlint.findings import Safety
from torchlint.fixes import edits
from torchlint.fixes.layout import layout

# -- statements ------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("a\nb\nc\n", ["b"], "a\nc\n"),
    ("a\nb  # why\nc\n", ["b"], "a\n# why\nc\n"),
    ("a\nb  # noqa: TL101\nc\n", ["b"], "a\nc\n"),
    ("a; b; c\n", ["a"], "b; c\n"),
    ("a; b; c\n", ["b"], "a; c\n"),
    ("a; b; c\n", ["c"], "a; b\n"),
    ("a; b; c\n", ["a", "b"], "c\n"),
    ("a; b; c\n", ["b", "c"], "a\n"),
    ("a; b;\n", ["b"], "a\n"),
    ("a; b\nc\n", ["a", "b"], "c\n"),
    ("if x:\n    y\n    a; b  # why\n", ["a", "b"], "if x:\n    y\n    # why\n"),
    ("if x: a; b; c\n", ["a", "b", "c"], "if x: pass\n"),
    ("if x: a; b;\n", ["a", "b"], "if x: pass\n"),
    ("a; b; c; d\n", ["a", "c"], "b; d\n"),
    ("a; b; c; d\n", ["b", "d"], "a; c\n"),
    ("a;\nb\n", ["a"], "b\n"),
    ("if x: a\n", ["a"], "if x: pass\n"),
    ("if x: a; b\n", ["a"], "if x: b\n"),
    ("if x: a; b\n", ["b"], "if x: a\n"),
    ("if x:\n    a\n", ["a"], "if x:\n    pass\n"),
    ("if x:\n    a  # why\nelse:\n    b\n", ["a"], "if x:\n    pass  # why\nelse:\n    b\n"),
    ("if x:\n    c\nelse:\n    a\n", ["a"], "if x:\n    c\nelse:\n    pass\n"),
    ("try:\n    a\nexcept E: b\nfinally: c\n", ["c"], "try:\n    a\nexcept E: b\nfinally: pass\n"),
    ("match x:\n    case 1: a\n    case _:\n        b\n", ["b"],
     "match x:\n    case 1: a\n    case _:\n        pass\n"),
    ("if x:\n    a\n    b\n", ["a", "b"], "if x:\n    pass\n"),
    ("@d\n@e(1)\ndef f(): pass\nx\n", ["@d\n@e(1)\ndef f(): pass"], "x\n"),
    ("a\n\nb\n\nc\n", ["b"], "a\n\nc\n"),
    ("def f():\n    a\n\n    b\n", ["a"], "def f():\n    b\n"),
    ("a\nb", ["b"], "a"),
    ("a", ["a"], ""),
    ("f(x,\n  y)\nb\n", ["f(x,\n  y)"], "b\n"),
    ("a\r\nb\r\nc\r\n", ["b"], "a\r\nc\r\n"),
    ("if x: \\\n  a\n", ["a"], "if x: \\\n  pass\n"),
])
def test_remove(text, target, expected):
    model = model_of(text)
    stmts = [statement(model, item) for item in target]
    if expected:
        assert done(model, edits.remove(model, *stmts)) == expected
    else:
        assert layout(model.source).apply(edits.remove(model, *stmts)) == expected


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("a\nb\n", "b", "a\nnew()\nb\n"),
    ("if x:\n    a\n    # about b\n    b\n", "b", "if x:\n    a\n    new()\n    # about b\n    b\n"),
    ("# licence\n\n# about a\na\n", "a", "# licence\n\nnew()\n# about a\na\n"),
    ("#!/bin/python\n# -*- coding: utf-8 -*-\na\n", "a",
     "#!/bin/python\n# -*- coding: utf-8 -*-\nnew()\na\n"),
    ("if x: a\n", "a", "if x:\n    new()\n    a\n"),
    ("if x: a; b  # c\n", "b", "if x:\n    a\n    new()\n    b  # c\n"),
    ("a; b\n", "a", "new()\na; b\n"),
    ("a; b\n", "b", "a\nnew()\nb\n"),
    ("@d\ndef f(): pass\n", "@d\ndef f(): pass", "new()\n@d\ndef f(): pass\n"),
    ("if x:\n\ta\n", "a", "if x:\n\tnew()\n\ta\n"),
    ("class A:\n  def f(self): return 1\n", "return 1",
     "class A:\n  def f(self):\n    new()\n    return 1\n"),
])
def test_insert_before(text, target, expected):
    model = model_of(text)
    assert done(model, edits.insert_before(model, statement(model, target), "new()")) == expected


@pytest.mark.parametrize(("text", "target", "expected"), [
    ("a\nb\n", "a", "a\nnew()\nb\n"),
    ("a  # why\nb\n", "a", "a  # why\nnew()\nb\n"),
    ("a", "a", "a\nnew()"),
    ("a; b\n", "a", "a\nnew()\nb\n"),
    ("a; b\n", "b", "a; b\nnew()\n"),
    ("if x: a\ny\n", "a", "if x:\n    a\n    new()\ny\n"),
    ("if x: a; b\n", "a", "if x:\n    a\n    new()\n    b\n"),
    ("if x:\n    a\n    # end of if\ny\n", "if x:\n    a", "if x:\n    a\n    # end of if\nnew()\ny\n"),
    ("if x:\n    f(1,\n      2)\n", "f(1,\n      2)", "if x:\n    f(1,\n      2)\n    new()\n"),
    ("for a in b: c\nelse: d\n", "c", "for a in b:\n    c\n    new()\nelse: d\n"),
    ("while x:\r\n  a\r\n", "a", "while x:\r\n  a\r\n  new()\r\n"),
])
def test_insert_after(text, target, expected):
    model = model_of(text)
    assert done(model, edits.insert_after(model, statement(model, target), "new()")) == expected


def test_inserted_strings_over_several_lines_are_not_indented():
    model = model_of("if x:\n    a\n")
    made = edits.insert_before(model, statement(model, "a"), 'b = """one\ntwo"""\nif c:\n    d\n')
    assert done(model, made) == 'if x:\n    b = """one\ntwo"""\n    if c:\n        d\n    a\n'


@pytest.mark.parametrize(("text", "expected"), [
    ("def f():\n    a\n", "def f():\n    new()\n    a\n"),
    ("def f():\n    '''doc'''\n    a\n", "def f():\n    '''doc'''\n    new()\n    a\n"),
    ("def f():\n    '''doc'''\n", "def f():\n    '''doc'''\n    new()\n"),
    ("def f(): pass\n", "def f():\n    new()\n    pass\n"),
    ("async def f(\n    a,\n): return a\n", "async def f(\n    a,\n):\n    new()\n    return a\n"),
    ("class A:\n    '''doc'''; x = 1\n", "class A:\n    '''doc'''\n    new()\n    x = 1\n"),
])
def test_insert_first_in_body(text, expected):
    model = model_of(text)
    node = model.tree.body[0]
    assert done(model, edits.insert_first_in_body(model, node, "new()")) == expected


def test_insert_first_in_module():
    for text, expected in [
        ("'''doc'''\nfrom __future__ import annotations\na\n",
         "'''doc'''\nfrom __future__ import annotations\nnew()\na\n"),
        ("", "new()\n"), ("# only a comment", "# only a comment\nnew()\n"),
    ]:
        model = model_of(text)
        assert done(model, edits.insert_first_in_body(model, model.tree, "new()")) == expected


def test_insert_last_in_body_stays_before_the_return():
    model = model_of("def f():\n    a\n    return b\ndef g():\n    a\n")
    f, g = model.nodes(ast.FunctionDef)
    made = edits.insert_last_in_body(model, f, "new()") + edits.insert_last_in_body(model, g, "new()")
    assert done(model, made) == "def f():\n    a\n    new()\n    return b\ndef g():\n    a\n    new()\n"


def test_replace_statement():
    model = model_of("if x:\n    a  # why\n    b\nc; d\n")
    made = edits.replace(model, statement(model, "a"), "if y:\n    z\n")
    assert done(model, made) == "if x:\n    if y:\n        z  # why\n    b\nc; d\n"
    assert edits.replace(model, statement(model, "c"), "if y:\n    z\n") == ()
    assert done(model, edits.replace(model, statement(model, "c"), "e")).endswith("e; d\n")


def test_add_decorator():
    model = model_of("class A:\n\t# about f\n\t@property\n\tasync def f(self): pass\n")
    function = model.nodes(ast.AsyncFunctionDef)[0]
    assert done(model, edits.add_decorator(model, function, "d")) == (
        "class A:\n\t# about f\n\t@d\n\t@property\n\tasync def f(self): pass\n"
    )
    assert done(model, edits.add_decorator(model, function, "d()", inner=True)) == (
        "class A:\n\t# about f\n\t@property\n\t@d()\n\tasync def f(self): pass\n"
    )


@pytest.mark.parametrize(("text", "moved", "before", "after", "expected"), [
    ("a\nb\nc\n", "c", "a", None, "c\na\nb\n"),
    ("a\nb\nc\n", "a", None, "c", "b\nc\na\n"),
    ("a\nb\nc", "c", "a", None, "c\na\nb"),
    ("if x:\n    a  # one\n    # about b\n    b  # two\n", "b", "a", None,
     "if x:\n    # about b\n    b  # two\n    a  # one\n"),
    ("if x:\n    a\nb\n", "a", None, "b", "if x:\n    pass\nb\na\n"),
    ("if x:\n    a\n    f('''\n  s''')\nb\n", "f('''\n  s''')", "b", None,
     "if x:\n    a\nf('''\n  s''')\nb\n"),
    ("for i in x:\n    a\n    f(1,\n      2)\nb\n", "f(1,\n      2)", None, "b",
     "for i in x:\n    a\nb\nf(1,\n  2)\n"),
    ("a\r\nb\r\n", "b", "a", None, "b\r\na\r\n"),
])
def test_move_statement(text, moved, before, after, expected):
    model = model_of(text)
    made = edits.move_statement(
        model, statement(model, moved),
        before=statement(model, before) if before else None, after=statement(model, after) if after else None,
    )
    assert done(model, made) == expected


def test_move_statement_that_shares_its_line_is_refused():
    model = model_of("a; b\nc\n")
    assert edits.move_statement(model, statement(model, "b"), after=statement(model, "c")) == ()


# -- blocks ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "targets", "expected"), [
    ("a\nb\nc\n", ["b"], f"a\n{WITH}    b\nc\n"),
    ("a\nb\nc\n", ["a", "b"], f"{WITH}    a\n    b\nc\n"),
    ("# about a\na  # why\n\n# about b\nb\n", ["a", "b"],
     f"# about a\n{WITH}    a  # why\n\n    # about b\n    b\n"),
    ("if x:\n  a\n  b\n", ["b"], "if x:\n  a\n  with torch.no_grad():\n    b\n"),
    ("if x:\n\ta\n", ["a"], "if x:\n\twith torch.no_grad():\n\t\ta\n"),
    ("f(1,\n  2)\n", ["f(1,\n  2)"], f"{WITH}    f(1,\n      2)\n"),
    ("f('''\nx\n''', 1,\n  2)\n", ["f('''\nx\n''', 1,\n  2)"], f"{WITH}    f('''\nx\n''', 1,\n      2)\n"),
    ("a + \\\n  b\n", ["a + \\\n  b"], f"{WITH}    a + \\\n      b\n"),
    ("for i in x:\n    a\n    # end\nb\n", ["for i in x:\n    a"],
     f"{WITH}    for i in x:\n        a\n        # end\nb\n"),
    ("if x: a\n", ["a"], "if x:\n    with torch.no_grad():\n        a\n"),
    ("if x: a; b; c  # d\n", ["b"], "if x:\n    a\n    with torch.no_grad():\n        b\n    c  # d\n"),
    ("if x: a; b\n", ["a", "b"], "if x:\n    with torch.no_grad():\n        a; b\n"),
    ("a\nb; c  # d\n", ["a", "b", "c"], f"{WITH}    a\n    b; c  # d\n"),
    ("a\nb; c\n", ["a", "b"], f"{WITH}    a\n    b\nc\n"),
    ("a; f(1,\n  2); c\n", ["f(1,\n  2)", "c"], f"a\n{WITH}    f(1,\n      2); c\n"),
    ("a; b; c\n", ["b"], f"a\n{WITH}    b\nc\n"),
    ("a; b\n", ["a"], f"{WITH}    a\nb\n"),
    ("a; b\n", ["a", "b"], f"{WITH}    a; b\n"),
    (f"{WITH}    a\nb\n", ["b"], f"{WITH}    a\n    b\n"),
    (f"{WITH}    a\n\n# about b\nb\nc\n", ["b"], f"{WITH}    a\n\n    # about b\n    b\nc\n"),
    (f"a\n{WITH}    b\n", ["a"], f"{WITH}    a\n    b\n"),
    (f"{WITH}    a\nb\n{WITH}    c\nd\n", ["b"], f"{WITH}    a\n    b\n    c\nd\n"),
    (f"a\n{WITH[:-1]}  # why\n    b\n", ["a"], f"{WITH}    a\n{WITH[:-1]}  # why\n    b\n"),
    ("with torch.no_grad(): a\nb\n", ["b"], f"with torch.no_grad(): a\n{WITH}    b\n"),
    ("with torch.no_grad() as g:\n    a\nb\n", ["b"], f"with torch.no_grad() as g:\n    a\n{WITH}    b\n"),
    ("a\r\nb\r\n", ["b"], "a\r\nwith torch.no_grad():\r\n    b\r\n"),
    ("a\nb", ["b"], f"a\n{WITH}    b"),
    ("async def f():\n    await a\n", ["await a"],
     "async def f():\n    with torch.no_grad():\n        await a\n"),
    ("match x:\n    case 1:\n        a\n", ["a"],
     "match x:\n    case 1:\n        with torch.no_grad():\n            a\n"),
    ("x = f'''{\n a}\n'''\n", ["x = f'''{\n a}\n'''"], f"{WITH}    x = f'''{{\n a}}\n'''\n"),
])
def test_wrap_in_with(text, targets, expected):
    model = model_of(text)
    stmts = [statement(model, target) for target in targets]
    assert done(model, edits.wrap_in_with(model, stmts, "torch.no_grad()")) == expected


def test_wrap_in_with_without_merging():
    model = model_of(f"{WITH}    a\nb\n")
    made = edits.wrap_in_with(model, [statement(model, "b")], "torch.no_grad()", merge=False)
    assert done(model, made) == f"{WITH}    a\n{WITH}    b\n"


def test_wrap_in_with_refuses_what_it_cannot_do():
    model = model_of("a\nb\nc\n")
    assert edits.wrap_in_with(model, [statement(model, "a"), statement(model, "c")], "torch.no_grad()") == ()
    model = model_of("if x:\n\f    a\n")
    assert edits.wrap_in_with(model, [statement(model, "a")], "torch.no_grad()") == ()


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ("def f(self, x):\n    return self.a + x\n", "def f(ctx, x):\n    return ctx.a + x\n"),
    ("def f(self: T, x): self.x = 1; del self\n", "def f(ctx: T, x): ctx.x = 1; del ctx\n"),
    ("def f(self):\n    def g(y): return self, y\n    return g\n",
     "def f(ctx):\n    def g(y): return ctx, y\n    return g\n"),
    ("def f(self):\n    def g(self): return self\n    return g(self)\n",
     "def f(ctx):\n    def g(self): return self\n    return g(ctx)\n"),
    ("def f(self):\n    def g(a=self):\n        self = 1\n        return self\n    return g\n",
     "def f(ctx):\n    def g(a=ctx):\n        self = 1\n        return self\n    return g\n"),
    ("def f(self):\n    return [self for self in self.items]\n",
     "def f(ctx):\n    return [self for self in ctx.items]\n"),
    ("def f(self):\n    return [i for i in a if self]\n", "def f(ctx):\n    return [i for i in a if ctx]\n"),
    ("def f(self):\n    return lambda x, self: self, lambda: self\n",
     "def f(ctx):\n    return lambda x, self: self, lambda: ctx\n"),
    ("def f(self):\n    class A(self.B):\n        def g(self): return self\n        x = self\n",
     "def f(ctx):\n    class A(ctx.B):\n        def g(self): return self\n        x = ctx\n"),
    ("def f(self):\n    def g():\n        global self\n        self = 1\n    return self\n",
     "def f(ctx):\n    def g():\n        global self\n        self = 1\n    return ctx\n"),
    ("def f(self):\n    'self is here'\n    x.self = g(self=self)\n",
     "def f(ctx):\n    'self is here'\n    x.self = g(self=ctx)\n"),
    ("async def f(x, *self, **k):\n    return self\n", "async def f(x, *ctx, **k):\n    return ctx\n"),
    ("def f(self, x=self) -> self:\n    return self\n", "def f(ctx, x=self) -> self:\n    return ctx\n"),
])
def test_rename_parameter(text, expected):
    model = model_of(text)
    assert done(model, edits.rename_parameter(model, model.tree.body[0], "self", "ctx")) == expected


@pytest.mark.parametrize("text", [
    "def f(self, ctx): return self\n",
    "def f(self):\n    ctx = 1\n    return self\n",
    "def f(self):\n    def g():\n        nonlocal self\n        self = 1\n    return self\n",
    "def f(self):\n    try: pass\n    except E as self: pass\n",
    "def f(self):\n    import self\n",
    "def f(self):\n    match x:\n        case [*self]: pass\n",
    "def f(self):\n    match x:\n        case {'a': 1, **self}: pass\n",
    "def f(self):\n    def self(): pass\n",
    "def f(self):\n    return locals()\n",
    "def f(x): return x\n",
    "def f(self):\n    for ctx in x: pass\n",
])
def test_rename_parameter_refuses_what_it_cannot_follow(text):
    model = model_of(text)
    assert edits.rename_parameter(model, model.tree.body[0], "self", "ctx") == ()


# -- repair ----------------------------------------------------------------------------------


def test_repair_is_none_if_a_part_could_not_be_made():
    model = model_of("f(x)\n")
    one = edits.replace(model, find(model, "x"), "y")
    assert edits.repair("Do it", one, ()) is None
    assert edits.repair("Do it") is None
    made = edits.repair("Do it", one, imports=("import torch",), safety=Safety.UNSAFE)
    assert made is not None and made.edits == one and made.imports == ("import torch",)
    assert made.safety is Safety.UNSAFE


@pytest.mark.parametrize(("text", "expected"), [
    ("def f(x):\n    x = cast(x)\n    return x\n", "def f(x):\n    return x\n"),
    ("def f(x):\n    x = cast(x)  # why\n    return x\n", "def f(x):\n    # why\n    return x\n"),
    ("def f(x):\n    if x:\n        x = cast(x)\n    return x\n", "def f(x):\n    if x:\n        pass\n    return x\n"),
    ("def f(x):\n    x: int = cast(x)\n    return x\n", "def f(x):\n    x: int = x\n    return x\n"),
    ("def f():\n    x = cast(x)\n    return x\n", "def f():\n    x = x\n    return x\n"),
    ("class A:\n    x = cast(x)\n", "class A:\n    x = x\n"),
    ("self.x = cast(self.x)\n", "self.x = self.x\n"),
    ("x = 1\nx = y = cast(x)\n", "x = 1\nx = y = x\n"),
])
def test_an_assignment_of_a_name_to_itself_goes_away(text, expected):
    model = model_of(text)
    call = find(model, "cast(self.x)" if "self" in text else "cast(x)")
    assert done(model, edits.unwrap_call(model, call)) == expected
    model = model_of(text.replace("cast(self.x)", "self.x.float()").replace("cast(x)", "x.float()"))
    call = find(model, "self.x.float()" if "self" in text else "x.float()")
    assert done(model, edits.drop_method_call(model, call)) == expected
