"""Notebooks: code cells are read as one program, and findings are told by cell and line."""
from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from torchlint.config import Options
from torchlint.findings import Finding
from torchlint.runner import lint_paths


def notebook(path: Path, *cells: str, **metadata: object) -> Path:
    """A notebook with code cells, and a text before each."""
    rows = [row for cell in cells for row in (
        {"cell_type": "markdown", "source": ["x = torch.ones(3\n"]},
        {"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": []},
    )]
    path.write_text(json.dumps({"cells": rows, "metadata": metadata, "nbformat": 4}), encoding="utf-8")
    return path


def found(path: Path, *select: str) -> list[Finding]:
    report = lint_paths([str(path)], Options(select=select or None, base=str(path.parent)))
    for finding in report.findings:
        assert finding.cell and finding.fix is None
    return list(report.findings)


MAKE = "%matplotlib inline\nimport torch\n!pip install torch\nnames = !ls\nnet = torch.nn.Linear(3, 1)\nnet?"
TRAIN = """%%time
opt = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for x in torch.randn(5, 4, 3):
    opt.zero_grad()
    loss = net(x).mean()
    loss.backward()
    opt.step()
    kept.append(loss)
    if len(kept) > 3:
        !nvidia-smi"""


def test_findings_are_told_by_cell_and_line(tmp_path: Path) -> None:
    path = notebook(tmp_path / "a.ipynb", MAKE, "%%bash\necho $(ls", TRAIN)
    (one,) = found(path)
    assert (one.code, one.cell, one.span.line, one.span.end_line, one.span.column) == ("TL201", 3, 9, 9, 5)
    report = lint_paths([str(path)])
    assert report.line(report.findings[0]) == "    kept.append(loss)"


def test_what_a_cell_shows_is_not_thrown_away(tmp_path: Path) -> None:
    cells = ("import torch\nx = torch.ones(3)\nx.double()\nx.float()  # shown\n\n# so it is", "x.half()")
    assert [(one.code, one.cell, one.span.line) for one in found(notebook(tmp_path / "a.ipynb", *cells), "TL113")] == [
        ("TL113", 1, 3)]


def test_comments_silence_and_are_judged(tmp_path: Path) -> None:
    cells = ("import torch\nx = torch.ones(3)\nx.double()  # noqa: TL113\nx = 1  # noqa: TL113", "y = (")
    assert [(one.code, one.cell, one.span.line) for one in found(notebook(tmp_path / "a.ipynb", *cells[:1]))] == [
        ("TL001", 1, 4)]
    (broken,) = found(notebook(tmp_path / "b.ipynb", *cells))
    assert (broken.code, broken.cell, broken.span.line) == ("TL000", 2, 1)


@pytest.mark.parametrize(("text", "message"), [
    ("{}", "not a Jupyter notebook of format 4"),
    ("import torch", "not a Jupyter notebook of format 4"),
    ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "a notebook of R, not of Python"),
])
def test_what_is_no_notebook_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(text)
    (one,) = lint_paths([str(path)]).findings
    assert (one.code, one.message) == ("TL000", message)


def test_an_empty_notebook_and_one_without_torch_are_clean(tmp_path: Path) -> None:
    assert not found(notebook(tmp_path / "a.ipynb"))
    assert not found(notebook(tmp_path / "b.ipynb", "", "x = 1"))


def test_confirm_runs_the_cells_as_one_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from click.testing import CliRunner

    from torchlint.cli import main

    used = "def f():\n    with torch.no_grad:\n        return x\nf()"
    path = notebook(tmp_path / "a.ipynb", "import torch\nx = torch.ones(2)", used)
    run = CliRunner().invoke(main, ["confirm", str(path), "--isolated", "--no-cache"])
    assert "a.ipynb:cell 2:2:10: TL211 grad-mode-misuse: confirmed" in run.output, run.output
    assert "line 4 raises TypeError" in run.output
    path = notebook(tmp_path / "a.ipynb", "import torch\nx = torch.ones(2)", used, used)
    run = CliRunner().invoke(main, ["confirm", str(path), "--isolated", "--no-cache"])
    again = [line.partition("again: torchlint ")[2] for line in run.output.splitlines() if "again:" in line]
    assert len(again) == 2, run.output
    one = CliRunner().invoke(main, [*shlex.split(again[1]), "--isolated"])
    assert "a.ipynb:cell 3:2:10" in one.output and "1 finding:" in one.output, one.output
