"""Where faults of a training step are reported when helpers of another file make it."""
from __future__ import annotations

from pathlib import Path

import pytest

from torchlint.files import Source
from torchlint.model import FileModel
from torchlint.project import Project
from torchlint.rule import all_rules

HELPERS = """
import torch


def update(optimizer):
    optimizer.step()


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def evaluate(net, x):
    net.eval()
    with torch.no_grad():
        return net(x)
"""
HEAD = """
import helpers
import torch
from torch import nn

"""
SETUP = """    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
PROGRAMS = {
    "TL501": """
def train(net, optimizer, batches):
    for x in batches:
        net(x).sum().backward()
        helpers.update(optimizer)  #!


def main():
{setup}    train(net, optimizer, torch.ones(3, 2, 3))


main()
""",
    "TL507": """
def main():
{setup}    for x in torch.ones(3, 2, 3):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        helpers.clip(net)  #!


main()
""",
    "TL515": """
def validate(net):
    print(helpers.evaluate(net, torch.ones(2, 3)))


def main():
{setup}    for x in torch.ones(3, 2, 3):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        validate(net)  #!


main()
""",
}


@pytest.mark.parametrize(("code", "text"), PROGRAMS.items(), ids=PROGRAMS)
def test_reported_once_and_where_the_code_leads_there(code: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS, encoding="utf-8")
    path = tmp_path / "main.py"
    path.write_text(HEAD + text.format(setup=SETUP), encoding="utf-8")
    source = Source(str(path), path.read_text(encoding="utf-8"))
    rule = next(rule for rule in all_rules() if rule.meta.code == code)
    model = FileModel(source, Project([tmp_path]))
    found = [model.span(hit.node).line for hit in rule.check(model)]
    assert found == [number for number, line in enumerate(source.text.splitlines(), 1) if "#!" in line]
