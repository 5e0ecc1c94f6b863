"""The hooks, installed and run by the real pre-commit on a scratch repository. Needs a package index."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FAULTY = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def git(folder: Path, *words: str) -> str:
    """Run git with an identity of its own, and no configuration of the user's."""
    settings = ["-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *settings, *words], cwd=folder, capture_output=True, text=True, env=environment(folder)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def environment(folder: Path) -> dict[str, str]:
    """The environment without what an outer git or pre-commit put there."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PRE_COMMIT"))}
    return kept | {"PRE_COMMIT_HOME": str(folder.parent / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """This working tree as a repository that offers hooks, and its commit."""
    folder = tmp_path_factory.mktemp("precommit") / "torchlint"
    folder.mkdir()
    for name in ("torchlint", "runtime_check"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "hooks")
    return folder, git(folder, "rev-parse", "HEAD")


def run_hook(hooks: tuple[Path, str], hook: str, text: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run one hook on a repository with one file; what pre-commit said, and the file afterwards."""
    folder = hooks[0].parent / f"user-{hook}-{len(text)}"
    folder.mkdir()
    config = {"repos": [{"repo": str(hooks[0]), "rev": hooks[1], "hooks": [{"id": hook}]}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    (folder / "net.py").write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "--all")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never", "--verbose"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(folder),
        timeout=300,
    )
    return done, (folder / "net.py").read_text()


@pytest.mark.slow
def test_the_check_hook_reports(hooks):
    done, text = run_hook(hooks, "torchlint", FAULTY)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "net.py:8:" in done.stdout and "modules-in-plain-container" in done.stdout
    assert text == FAULTY


@pytest.mark.slow
def test_the_fix_hook_fixes(hooks):
    done, text = run_hook(hooks, "torchlint-fix", FAULTY)
    assert done.returncode == 1, done.stdout + done.stderr  # files were modified by this hook
    assert "self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])" in text


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["torchlint", "torchlint-fix"])
def test_right_code_passes(hooks, hook):
    right = FAULTY.replace("[nn.Linear(4, 4) for _ in range(3)]", "nn.ModuleList([nn.Linear(4, 4)])")
    done, text = run_hook(hooks, hook, right)
    assert done.returncode == 0, done.stdout + done.stderr
    assert text == right


def test_the_hooks_offered_are_the_hooks_tested():
    offered = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {hook["id"] for hook in offered} == {"torchlint", "torchlint-fix"}
    assert all(hook["language"] == "python" for hook in offered)
