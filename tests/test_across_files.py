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


STEPS = """
import torch


def train(net, batches, opt, sched):
    for x in batches:
        net(x).sum().backward()
        sched.step()
        opt.step()


def scaled(net, batches, opt, scaler):
    for x in batches:
        opt.zero_grad()
        scaler.scale(net(x).sum()).backward()
        scaler.step(opt)
        scaler.update()


@torch.no_grad()
def evaluate(net, batches):
    return [net(x).sum().item() for x in batches]
"""
MAIN = """
import torch
from torch import nn

from steps import evaluate, scaled, train

net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = torch.randn(4, 5, 3)
"""


def test_a_helper_of_another_file_is_seen_where_the_optimizer_is_made(tmp_path: Path) -> None:
    """The words `step`, `zero_grad` and `no_grad` stand in the helper's file alone, which knows no optimizer."""
    call = "train(net, batches, opt, torch.optim.lr_scheduler.StepLR(opt, 5))\nprint(evaluate(net, batches))\n"
    found = codes(tmp_path, steps=STEPS, main=MAIN + call)
    assert found == {"steps": [], "main": ["TL501", "TL506", "TL514"]}


def test_a_scaler_that_another_file_uses_is_used(tmp_path: Path) -> None:
    call = 'scaled(net, batches, opt, torch.amp.GradScaler("cpu"))\n'
    assert codes(tmp_path, steps=STEPS, main=MAIN + call)["main"] == []
