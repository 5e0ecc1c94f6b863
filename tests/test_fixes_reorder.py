"""Moving one statement of a block: made where only the order changes, refused where more would."""
from __future__ import annotations

import ast
import textwrap

import pytest

from torchlint.files import Source
from torchlint.fixes.layout import layout
from torchlint.fixes.reorder import reorder
from torchlint.model import FileModel


def call(model: FileModel, name: str) -> ast.Call:
    """The first call of a function or method of that name."""
    return model.calls_named(name)[0]


def moved(text: str, *, before: str = "", after: str = "") -> str:
    """The text with the statement that calls `move` moved; the same text where that is refused."""
    source = Source("<test>", textwrap.dedent(text).strip("\n") + "\n")
    model = FileModel(source)
    if before:
        edits = reorder(model, call(model, "move"), before=call(model, before))
    else:
        edits = reorder(model, call(model, "move"), after=call(model, after))
    return layout(source).apply(edits)


def program(text: str) -> str:
    return textwrap.dedent(text).strip("\n") + "\n"


def test_before_with_its_comments() -> None:
    made = moved(
        """
        for x in xs:
            first(x)
            # why it moves
            a.move()  # and this

            last()
        """,
        before="first",
    )
    assert made == program(
        """
        for x in xs:
            # why it moves
            a.move()  # and this
            first(x)

            last()
        """
    )


def test_behind_the_loop_that_holds_the_target() -> None:
    made = moved(
        """
        for x in xs:
            a.move()
            for y in x:
                if y:
                    step()
            last()
        """,
        after="step",
    )
    assert made == program(
        """
        for x in xs:
            for y in x:
                if y:
                    step()
            a.move()
            last()
        """
    )


def test_a_guard_moves_with_what_it_guards() -> None:
    made = moved("step()\nif limit:\n    move(\n        limit,\n    )\n", before="step")
    assert made == "if limit:\n    move(\n        limit,\n    )\nstep()\n"


REFUSED = {
    "gives a name that is used": "step(norm)\nnorm = move()\n",
    "gives a part of what is used": "step(self.x)\nself.x.y = move()\n",
    "uses a name that is given": "step()\nlimit = 1\nmove(limit)\n",
    "uses an attribute that is given": "step()\nself.limit = 1\nmove(self.limit)\n",
    "a loop gives what it uses": "step()\nfor limit in xs:\n    pass\nmove(limit)\n",
    "an import gives what it uses": "step()\nimport limit\nmove(limit)\n",
    "the block may be left": "while True:\n    step()\n    if bad:\n        break\n    move()\n",
    "the function may be left": "def f():\n    step()\n    with a:\n        return\n    move()\n",
    "other code runs in between": "def f():\n    step()\n    yield\n    move()\n",
    "its object is looked at": "step()\nprint(a.rate())\na.move()\n",
    "no common block": "def f():\n    step()\ndef g():\n    move()\n",
    "a guard with another arm": "step()\nif a:\n    move()\nelse:\n    b()\n",
    "a shared line": "step(); move()\n",
    "the target shares its line": "step(); other()\nmove()\n",
    "its own name is given": "made = step()\nmade = [move() for x in xs] or made\n",
    "the same statement": "f(step(), move())\n",
    "no simple statement": "step()\nwith move():\n    pass\n",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_refused(text: str) -> None:
    assert moved(text, before="step") == program(text)


ALLOWED = {
    "a break of a loop in between": "step()\nfor x in xs:\n    break\nmove()\n",
    "a return of a function in between": "step()\ndef f():\n    return 1\nmove()\n",
    "a plain call on its object": "step()\na.other()\nb.use(a)\na.move()\n",
    "a function of an imported module": "import nn\nstep()\nx = nn.relu(y)\nnn.move()\n",
    "other names": "step()\nx = y\nself.a.b = 1\nself.b.move(z)\n",
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_allowed(text: str) -> None:
    made = moved(text, before="step")
    assert made.index("move(") < made.index("step(")
    assert sorted(made.splitlines()) == sorted(text.splitlines())


def test_never_past_a_node() -> None:
    text = "if a:\n    bar()\n    step()\nmove()\n"
    source = Source("<test>", text)
    model = FileModel(source)
    node, target = call(model, "move"), call(model, "step")
    assert not reorder(model, node, before=target, never=[call(model, "bar")])
    assert layout(source).apply(reorder(model, node, before=target)) == "move()\nif a:\n    bar()\n    step()\n"
