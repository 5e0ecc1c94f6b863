"""Results of earlier runs are used exactly as long as they hold."""
from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchlint import cache, runner
from torchlint.config import Options
from torchlint.discover import Found
from torchlint.findings import Finding
from torchlint.requirements import _nearest

ROOT = Path(__file__).parent.parent
BASE = "from torch import nn\n\n\nclass Base(nn.Module):\n    pass\n"
NET = """from torch import nn

from base import Base


class Net(Base):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a class, its base in another file, and a cache of its own."""
    monkeypatch.setenv("TORCHLINT_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "base.py").write_text(BASE)
    (folder / "net.py").write_text(NET)
    return folder


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the files that were checked, not taken from the cache."""
    names: list[str] = []
    original = runner.Checker.file

    def counting(self: runner.Checker, found: Found) -> runner.Checked:
        names.append(Path(found.path).name)
        return original(self, found)

    monkeypatch.setattr(runner.Checker, "file", counting)
    yield names


def lint(folder: Path, cached: bool = True, **options: object) -> tuple[Finding, ...]:
    """The findings in a folder."""
    settings = Options(base=str(folder), jobs=1, **options)  # type: ignore[arg-type]
    return runner.lint_paths([str(folder)], settings, cached=cached).findings


def test_second_run_looks_at_nothing(project: Path, looked_at: list[str]) -> None:
    """And says the same, fixes, fingerprints and sources included."""
    first = runner.lint_paths([str(project)], Options(jobs=1), cached=True)
    assert sorted(looked_at) == ["base.py", "net.py"] and [one.code for one in first.findings] == ["TL405"]
    looked_at.clear()
    second = runner.lint_paths([str(project)], Options(jobs=1), cached=True)
    assert looked_at == [] and second.findings == first.findings and second.files == first.files == 2
    assert first.findings[0].fix is not None and second.line(second.findings[0]) == first.line(first.findings[0])


def test_a_changed_file_is_looked_at_again_with_those_that_rest_on_it(project: Path, looked_at: list[str]) -> None:
    """When the base is no Module any more, the finding in the other file is gone."""
    (project / "other.py").write_text("import torch\n\nx = torch.zeros(2)\n")
    assert lint(project)
    (project / "base.py").write_text(BASE.replace("nn.Module", "object"))
    looked_at.clear()
    assert lint(project) == () and sorted(looked_at) == ["base.py", "net.py"]


def test_a_new_file_that_hides_another_counts(project: Path) -> None:
    """`base/__init__.py` does not win over `base.py`, but a file that was missing appears."""
    (project / "base.py").unlink()
    assert lint(project) == ()
    (project / "base.py").write_text(BASE)
    assert [one.code for one in lint(project)] == ["TL405"]
    (project / "base.py").write_text("class Base(:\n")
    assert "TL405" not in [one.code for one in lint(project)]
    (project / "base.py").write_text(BASE)
    assert [one.code for one in lint(project)] == ["TL405"]


def test_files_that_are_looked_at_beside_a_file_count(project: Path) -> None:
    """A layer that no method uses, until another file in the folder reaches for it."""
    unused = NET.replace("self.layers = [nn.Linear(2, 2)]", "self.fc, self.head = nn.Linear(2, 2), nn.Linear(2, 2)")
    loop = "for layer in self.layers:\n            x = layer(x)\n        return x"
    unused = unused.replace(loop, "return self.fc(x)")
    (project / "net.py").write_text(unused)
    (project / "use.py").write_text("import net\n")
    assert [one.code for one in lint(project, preview=True)] == ["TL421"]
    (project / "use.py").write_text("import net\n\n\ndef f(model: net.Net, x):\n    return model.head(x)\n")
    assert lint(project, preview=True) == ()
    (project / "use.py").unlink()
    assert [one.code for one in lint(project, preview=True)] == ["TL421"]


def test_the_package_that_a_folder_is_counts(project: Path) -> None:
    """`from ..base import Base` reads another file when the folder is no package any more."""
    deep = project / "pkg" / "sub"
    deep.mkdir(parents=True)
    for folder in (project / "pkg", deep):
        (folder / "__init__.py").touch()
    (project / "pkg" / "base.py").write_text(BASE)
    (deep / "base.py").write_text("class Base:\n    pass\n")
    (deep / "model.py").write_text("import torch\nfrom ..base import Base\n\n\nclass Net(Base):\n"
                                   "    def __call__(self, x):\n        return x\n")
    assert "TL401" in [one.code for one in lint(project)]
    (deep / "__init__.py").unlink()
    assert lint(project) == lint(project, cached=False)
    (deep / "__init__.py").touch()
    assert "TL401" in [one.code for one in lint(project)]


def test_configuration_and_place_count(project: Path, looked_at: list[str]) -> None:
    """Another selection, or the same text elsewhere, is another question."""
    assert lint(project) and lint(project, ignore=("TL405",)) == ()
    assert [one.code for one in lint(project)] == ["TL405"]
    copy = project.parent / "copy"
    copy.mkdir()
    shutil.copy(project / "net.py", copy)
    assert lint(copy) == ()


def test_the_torch_that_a_project_asks_for_counts(project: Path) -> None:
    """What is deprecated depends on its requirements."""
    (project / "net.py").write_text("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n")
    assert [one.code for one in lint(project)] == ["TL902"]
    (project / "requirements.txt").write_text("torch==2.0\n")
    _nearest.cache_clear()
    assert lint(project) == ()


def test_a_file_that_could_not_be_checked_is_not_kept(project: Path, looked_at: list[str]) -> None:
    """A fault may lie in this run."""
    (project / "broken.py").write_text("import torch\ndef (:\n")
    assert "TL000" in [one.code for one in lint(project)]
    looked_at.clear()
    assert "TL000" in [one.code for one in lint(project)] and looked_at == ["broken.py"]


@pytest.mark.parametrize("damage", ["garbage", "schema", "rows", "folder"])
def test_whatever_is_wrong_with_the_cache_costs_no_finding(project: Path, damage: str) -> None:
    """A damaged database, values of another form, a folder in its place."""
    expected = lint(project)
    store = cache.folder() / "results.sqlite"
    if damage == "garbage":
        store.write_bytes(b"not a database" * 500)
    elif damage == "schema":
        data = store.read_bytes()
        data = data.replace(b"results (key", b"\xff\xffsults (key").replace(b"tableresults", b"table\xff\xffsults")
        store.write_bytes(data)
    elif damage == "rows":
        import sqlite3

        with sqlite3.connect(store) as connection:
            connection.execute("UPDATE results SET value = x'00'")
    else:
        store.unlink()
        store.mkdir()
    assert lint(project) == expected and lint(project) == expected


def test_a_folder_that_cannot_be_made_is_no_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is an offer."""
    monkeypatch.setenv("TORCHLINT_CACHE_DIR", str(project / "base.py" / "below"))
    assert [one.code for one in lint(project)] == ["TL405"]


def test_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was consulted comes back from the processes."""
    monkeypatch.setenv("TORCHLINT_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    for number in range(20):
        (tmp_path / "demo" / f"more{number}.py").write_text(f"import torch\nx = torch.Tensor({number})\n")
    options = Options(base=str(tmp_path), jobs=2)
    first = runner.lint_paths([str(tmp_path / "demo")], options, cached=True)
    assert first.findings == runner.lint_paths([str(tmp_path / "demo")], options, cached=True).findings
    assert first.findings == runner.lint_paths([str(tmp_path / "demo")], options).findings


def test_random_changes_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every change of the shipped project, cached and fresh findings are equal."""
    monkeypatch.setenv("TORCHLINT_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    files = sorted((tmp_path / "demo").rglob("*.py"))
    chance = random.Random(0)
    changed = 0
    for _ in range(25):
        file = chance.choice(files)
        text = file.read_text() if file.exists() else ""
        lines = text.splitlines(keepends=True)
        what = chance.choice(["drop", "rename", "remove", "restore"])
        if what == "drop" and lines:
            del lines[chance.randrange(len(lines))]
            file.write_text("".join(lines))
        elif what == "rename":
            file.write_text(text.replace("nn.Module", "object") if "nn.Module" in text else text + "\nx = 1\n")
        elif what == "remove" and file.exists():
            file.unlink()
        else:
            original = ROOT / "demo" / file.relative_to(tmp_path / "demo")
            file.write_text(original.read_text())
        fresh = lint(tmp_path / "demo", cached=False)
        assert lint(tmp_path / "demo") == fresh, (what, file)
        changed += bool(fresh)
    assert changed > 5


def test_command_says_where_and_forgets(project: Path) -> None:
    """`torchlint cache` and `torchlint cache --clear`."""
    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "torchlint", *words], capture_output=True, text=True,
                              cwd=project, check=False)
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        return done.stdout

    run("-q", ".")
    assert str(cache.folder()) in run("cache") and (cache.folder() / "results.sqlite").exists()
    assert "forgotten" in run("cache", "--clear") and not (cache.folder() / "results.sqlite").exists()
    run("--no-cache", "-q", ".")
    assert not (cache.folder() / "results.sqlite").exists() and "nothing" in run("cache", "--clear")
