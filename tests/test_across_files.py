"""Near misses that take more than one file."""
from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from torchlint.config import Options
from torchlint.runner import lint_paths


def codes(folder: Path, **files: str) -> dict[str, list[str]]:
    """Codes found in each file of a project."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    found: dict[str, list[str]] = {name: [] for name in files}
    for one in lint_paths([str(folder)], Options(preview=True, base=str(folder), jobs=1)).findings:
        found[Path(one.path).stem].append(one.code)
    return found


BASE = """
import torch


class Learner:
    def __init__(self, net, gamma):
        self.net, self.gamma = net, gamma
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(self, batches):
        for x in batches:
            self.opt.zero_grad()
            self.net(x).sum().backward()
            self.opt.step()

    def learn(self, batches):
        self.train(batches)
        return self
"""


def test_a_subclass_is_not_asked_for_the_steps_of_its_base(tmp_path: Path) -> None:
    """The text of the subclass's file has no step; that of the base has."""
    sub = """
    from base import Learner


    class Quick(Learner):
        def learn(self, batches):
            return super().learn(batches)
    """
    assert codes(tmp_path, base=BASE, sub=sub) == {"base": [], "sub": []}
    without = codes(tmp_path, base=BASE.replace("            self.opt.step()\n", ""), sub=sub)
    assert without["sub"] == []
