"""Which torch a project is for decides what is reported as gone, deprecated, or neither."""
from __future__ import annotations

from pathlib import Path

import pytest

from torchlint.config import Options
from torchlint.engine import lint_source
from torchlint.requirements import inline, newest_in, oldest_in

SOLVE = "import torch\nx = torch.solve(torch.ones(2, 1), torch.eye(2))\n"


@pytest.mark.parametrize(("text", "newest"), [
    ("torch==1.13.1\ntorchvision==0.14", "1.13"),
    ("torch>=1.8,<2", "1.99"),
    ("    'torch>=1.8.0',", ""),
    ('torch = "^1.13"', "1.99"),
    ("- pytorch=1.13", "1.13"),
    ("torch~=2.1.0", "2.1"),
    ("torch<=2.4.1", "2.4"),
    ("torch<2.1.2", "2.1"),
    ("torch<2.1", "2.0"),
    ('dependencies = ["torch>=2.0,<2.3"]', "2.2"),
    ("torchvision<0.5", ""),
    ("torch", ""),
    ("import torch\ntorch = None\ntorch.zeros(1)", ""),
])
def test_newest(text: str, newest: str) -> None:
    assert newest_in(text) == newest


@pytest.mark.parametrize(("text", "oldest"), [
    ("torch==1.13.1\ntorchvision==0.14", "1.13.1"),
    ("torch>=1.8,<2", "1.8"),
    ("    'torch>=1.8.0',", "1.8.0"),
    ('torch = "^1.13"', "1.13"),
    ("torch~=2.1.0", "2.1.0"),
    ("torch<=2.4.1", ""),
    ("torch!=2.1,>2.0", "2.0"),
    ("torch>=2.13\ntorch>=2.4; python_version < '3.12'", "2.4"),
    ("torch\ntorchvision>=0.5", ""),
])
def test_oldest(text: str, oldest: str) -> None:
    assert oldest_in(text) == oldest


def test_a_script_says_what_it_needs() -> None:
    block = '# /// script\n# dependencies = ["rich", "torch>=2.1,<2.5"]\n# ///\nimport torch\n'
    assert (oldest_in(inline(block)), newest_in(inline(block))) == ("2.1", "2.4")
    assert inline(block.replace("# ///\n", "")) == inline('x = "torch>=2.1"\n') == ""


APPLY = """
import torch
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor
Scale.apply(torch.ones(3), factor=2.0)
"""


@pytest.mark.parametrize(("requirement", "count"), [("torch>=2.4", 1), ("torch>=2.13", 0), ("torch", 0)])
def test_the_oldest_that_requirements_allow_decides(tmp_path: Path, requirement: str, count: int) -> None:
    (tmp_path / "requirements.txt").write_text(requirement + "\n", encoding="utf-8")
    found = lint_source(APPLY, str(tmp_path / "file.py"), Options(select=("TL310",)))
    assert len(found) == count


def codes(path: str, version: str = "") -> list[str]:
    options = Options(select=("TL901", "TL902"), torch_version=version)
    return [finding.code for finding in lint_source(SOLVE, path, options)]


def test_requirements_decide(tmp_path: Path) -> None:
    path = str(tmp_path / "file.py")
    assert codes(path) == ["TL901"]
    requirements = tmp_path / "sub" / "requirements.txt"
    requirements.parent.mkdir()
    requirements.write_text("torch==1.10.2\n", encoding="utf-8")
    assert codes(str(requirements.parent / "file.py")) == ["TL902"]


def test_the_configuration_wins(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.0,<2.3\n", encoding="utf-8")
    assert codes(str(tmp_path / "file.py"), "1.11") == ["TL902"]
    assert codes(str(tmp_path / "file.py"), "2.3") == ["TL901"]
