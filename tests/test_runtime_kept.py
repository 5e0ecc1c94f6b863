"""Verdicts are kept from one run to the next, until something that they rest on changes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from runtime_check import pool
from runtime_check.kept import PASSING
from torchlint.cli import main

NET = """import torch
from torch import nn

from sizes import WIDTH


class Net(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each server process that is started."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("TORCHLINT_CACHE_DIR", str(tmp_path / "cache"))
    Path("net.py").write_text(NET)
    Path("sizes.py").write_text("WIDTH = 4\n")
    found: list[int] = []
    real = pool.Pool.start

    def start(self: pool.Pool) -> None:
        found.append(1)
        real(self)

    monkeypatch.setattr(pool.Pool, "start", start)
    return found


def confirm(*options: str, path: str = "net.py") -> dict[str, Any]:
    args = ["confirm", path, "--select", "TL405", "--output-format", "json", *options]
    data: dict[str, Any] = json.loads(CliRunner().invoke(main, args).stdout)
    return data


def test_what_is_known_is_not_run_again_and_reads_the_same(starts: list[int]) -> None:
    first, second = confirm(), confirm()
    assert len(starts) == 1
    assert first["results"] == second["results"] and first["environment"] == second["environment"]
    assert second["results"][0]["verdict"] == "confirmed"


def test_a_change_anywhere_in_the_project_runs_it_again(starts: list[int]) -> None:
    confirm()
    Path("sizes.py").write_text("WIDTH = 6\n")
    confirm()
    Path("net.py").write_text(NET + "\n\nMORE = 1\n")
    confirm()
    confirm("--timeout", "20")
    assert len(starts) == 4


def test_another_value_of_a_variable_that_is_read_runs_it_again(
    starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sizes.py").write_text("import os\n\nWIDTH = int(os.environ.get('NET_WIDTH', '4'))\n")
    confirm()
    monkeypatch.setenv("OTHER_WIDTH", "5")
    confirm()
    assert len(starts) == 1
    monkeypatch.setenv("NET_WIDTH", "5")
    confirm()
    assert len(starts) == 2
    confirm()
    assert len(starts) == 2


def test_no_cache_runs_it_again_and_keeps_nothing(starts: list[int], tmp_path: Path) -> None:
    confirm("--no-cache")
    confirm("--no-cache")
    assert len(starts) == 2 and not (tmp_path / "cache" / "verdicts.sqlite").exists()


def test_a_damaged_or_impossible_cache_costs_time_only(starts: list[int], tmp_path: Path) -> None:
    confirm()
    with sqlite3.connect(tmp_path / "cache" / "verdicts.sqlite") as store:
        store.execute("UPDATE verdicts SET value = '{'")
    assert confirm()["results"][0]["verdict"] == "confirmed"
    (tmp_path / "cache" / "verdicts.sqlite").write_bytes(b"no database" * 100)
    assert confirm()["results"][0]["verdict"] == "confirmed"
    assert len(starts) == 3
    confirm()
    assert len(starts) == 3  # a damaged file is made anew


@pytest.mark.parametrize("kind", ["below", "build", "beside", "link", "data"])
def test_a_change_of_any_file_that_was_read_runs_it_again(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text, folder = NET, Path("sub")
    if kind == "build":
        folder = Path("build")
    elif kind == "beside":  # in a folder above the project, from where it is run
        Path("inner").mkdir()
        Path("inner", "setup.py").touch()
        Path("net.py").rename("inner/net.py")
    elif kind == "link":
        Path(tmp_path, "far").mkdir()
        folder.symlink_to(tmp_path / "far")
    if kind == "below":
        Path(".git").rmdir()  # no project at all
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "sizes.py").write_text("WIDTH = 4\n")
    text = text.replace("from sizes", f"from {folder}.sizes")
    if kind == "data":
        (folder / "sizes.py").write_text("WIDTH = int(open('width.cfg').read())\n")
        Path("width.cfg").write_text("4")
    path = "inner/net.py" if kind == "beside" else "net.py"
    Path(path).write_text(text)
    for _ in range(3):  # what a busy machine may be to blame for is not kept
        confirm(path=path)
    before = len(starts)
    confirm(path=path)
    assert len(starts) == before
    (Path("width.cfg") if kind == "data" else folder / "sizes.py").write_text("6" if kind == "data" else "WIDTH = 6\n")
    confirm(path=path)
    assert len(starts) == before + 1


HERE = "import os\n\nHERE = os.path.dirname(os.path.abspath(__file__))\n"
IN_VAIN = {
    "exists": "4 if os.path.exists(os.path.join(HERE, 'ready')) else int('no')",
    "listed": "int(os.listdir(os.path.join(HERE, 'widths'))[0])",
    "more": "int(max(os.listdir(os.path.join(HERE, 'there'))))",
    "opened": "int(open(os.path.join(HERE, 'ready')).read())",
    "beside": "int(open('ready').read())",
}


@pytest.mark.parametrize("kind", [*IN_VAIN, "package", "hidden"])
def test_what_was_looked_for_in_vain_runs_it_again_when_it_is_there(starts: list[int], kind: str) -> None:
    Path("there").mkdir()
    Path("there", "3").touch()
    text, path, new = NET.replace("=WIDTH", f"={IN_VAIN.get(kind, 'WIDTH')}"), Path("net.py"), Path("ready")
    text = text if kind in ("package", "hidden") else text.replace("from sizes import WIDTH\n", HERE)
    if kind == "package":  # no file says what the project is; the module is to be above the folder of the code
        Path(".git").rmdir()
        path = Path("pkg", "sub", "net.py")
        path.parent.mkdir(parents=True)
        for folder in ("pkg", "pkg/sub"):
            Path(folder, "__init__.py").touch()
        text, new = text.replace("from sizes", "from pkg.widths"), Path("pkg", "widths.py")
    elif kind == "hidden":  # in a folder that usually holds no code
        text, new = text.replace("from sizes", "from build.sizes"), Path("build", "sizes.py")
    elif kind in ("listed", "more"):
        new = Path("widths" if kind == "listed" else "there", "4")
    path.write_text(text)
    first = confirm(path=str(path))["results"][0]
    assert (first["verdict"] == "not-reached") == (kind != "more") and not PASSING.search(first["why"]), first["why"]
    confirm(path=str(path))
    assert len(starts) == 1
    new.parent.mkdir(exist_ok=True)
    new.write_text("WIDTH = 4\n" if new.suffix else "4")
    confirm(path=str(path))
    assert len(starts) == 2


def test_what_a_busy_machine_may_be_to_blame_for_is_not_kept() -> None:
    for why in ("no result within 10 s; raise --timeout", "the flagged code was never executed: the time was over",
                "the process was killed, most likely for using too much memory"):
        assert PASSING.search(why)
    assert not PASSING.search("`scale` does not follow `.to`: it is no buffer or parameter")
