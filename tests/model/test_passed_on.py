"""Which variables an iteration never sees from the one before, and that a second pass is left out only for those."""
from __future__ import annotations

import ast
from pathlib import Path

import ask
import pytest

from torchlint.files import Source
from torchlint.model import FileModel
from torchlint.model.passed_on import bound_anew
from torchlint.model.session import Session

PROGRAMS = ask.all_programs()
FORMS = {
    "for x in xs: y = x": "x y",
    "for x in xs: y = y + x": "x",
    "for x in xs: y += x": "x",
    "for x in xs:\n if x: y = 1\n print(y)": "x",
    "for x in xs:\n if x: y = 1\n else: y = 2\n print(y)": "x y",
    "for x in xs:\n if x: continue\n y = 1": "x",
    "for x in xs:\n y = 1\n if x: break\n z = y": "x y",
    "for x in xs:\n if x:\n  if x.a: break\n  y = 1\n else: y = 2": "x",
    "for x in xs:\n for z in x:\n  break\n y = 1": "x y",
    "for x in xs:\n for z in x: y = z": "x",
    "for x in xs:\n try: y = x\n except E: pass\n print(y)": "x",
    "for x in xs:\n with x as z: y = z": "x y z",
    "for x in xs:\n with x: \n  y = 1\n  if y: continue\n  z = 1": "x y",
    "for x in xs:\n with suppress(E): y = x": "x",
    "for x in xs: y.h = x": "x",
    "for x in xs: y, (z, *w) = x": "w x y z",
    "for x in xs:\n f = lambda: y\n y = x": "f x",
    "for x in xs:\n y = [y for y in x]": "x",
    "while y: y = f()": "",
    "while f(): y = 1": "y",
    "for x in xs:\n match x:\n  case 1: y = 1\n print(y)": "x",
    "for x in xs:\n z = (y := x)": "x z",
    "for x in xs:\n y = f(y := x)": "x y",
}


@pytest.mark.parametrize("code", FORMS)
def test_says_what_is_bound_anew(code: str) -> None:
    model = FileModel(Source("m.py", f"def go(xs, f, E):\n    pass\n{code}\n"))
    loop = next(node for node in model.tree.body if isinstance(node, (ast.For, ast.While)))
    assert sorted(bound_anew(model, loop, model.tree)) == FORMS[code].split()


def test_a_function_that_is_called_later_reads_what_was_left() -> None:
    model = FileModel(Source("m.py", "for x in xs:\n    y = last()\n    h = y\ndef last():\n    return h\n"))
    assert bound_anew(model, model.tree.body[0], model.tree) == {"x", "y"}  # type: ignore[arg-type]


def test_leaving_the_second_pass_out_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(folder: Path) -> list[set[str]]:
        models = (model for p in PROGRAMS for model in ask.place(p, folder / p.title).values())
        places = ((model, node) for model in models for node in ast.walk(model.tree))
        return [ask.describe(model.value(node)) for model, node in places if isinstance(node, ast.expr)]

    once = answers(tmp_path / "once")
    monkeypatch.setattr(FileModel, "is_anew", lambda *_: False)
    assert answers(tmp_path / "twice") == once


def test_what_rests_on_a_running_analysis_is_kept_until_that_is_done() -> None:
    session = Session()
    with session.nested("outer", lambda: None):
        with session.remembering("call") as keep:
            session.meets("outer")
        assert keep()
        session.followed["call"] = object()  # type: ignore[assignment]
    assert "call" not in session.followed


def test_what_holds_for_the_moment_is_not_kept() -> None:
    session = Session()
    with session.remembering("call") as keep:
        session.moments += 1
    assert not keep()
