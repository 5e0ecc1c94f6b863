"""A class is one object, whichever file is looked at first."""
from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from torchlint.files import read_source
from torchlint.model import FileModel, Kind
from torchlint.model.session import MAX_WORK, Session
from torchlint.project import Project

FILES = {
    "base.py": "class Env:\n    def go(self): return 1\n",
    "a.py": "from base import Env\nclass A(Env):\n    pass\na = Env()\n",
    "b.py": "from base import Env\nclass B(Env):\n    pass\nb = Env()\n",
    "main.py": "from a import A\nfrom b import B\n"
    "def make(kind: type[A] | type[B]):\n    env = kind()\n    return env\n",
}
ORDERS = list(itertools.permutations(FILES))


@pytest.mark.parametrize("order", ORDERS, ids=[" ".join(order) for order in ORDERS])
def test_the_order_of_files_changes_no_answer(order: tuple[str, ...], tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    project = Project([tmp_path])
    for name in (*order, "main.py"):
        model = FileModel.begin(read_source(tmp_path / name), project)
        values = {ast.unparse(node): model.value(node) for node in model.nodes(ast.Name) if model.value(node).known}
    assert values["env"].kind is Kind.INSTANCE and values["env"].name == "base.Env"


def test_what_was_answered_without_time_left_is_forgotten(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    project = Project([tmp_path])
    source = read_source(tmp_path / "base.py")
    first = FileModel.begin(source, project)
    assert FileModel.begin(source, project) is first
    project.session(Session).work = MAX_WORK + 1
    assert FileModel.begin(source, project) is not first and project.session(Session).work == 0


def test_a_changed_text_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(FILES["base.py"])
    project = Project([tmp_path])
    first = FileModel.begin(read_source(tmp_path / "base.py"), project)
    (tmp_path / "base.py").write_text("class Env:\n    pass\n")
    second = FileModel.begin(read_source(tmp_path / "base.py"), project)
    assert first.index is not second.index and not second.classes[0].methods
