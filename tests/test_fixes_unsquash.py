"""Softmax and sigmoid before losses that have their own: where they are taken away, and where that is only shown."""
from __future__ import annotations

import textwrap

import pytest
import rule_harness as harness

from torchlint.findings import Safety
from torchlint.rule import all_rules

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
RULES = {rule.meta.code: rule for rule in all_rules()}
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        out = self.fc(x)
        return {}

"""


def fixed(code: str, text: str) -> str:
    """The program after the rule's fixes, without its head."""
    rule = RULES[code]
    text = HEAD + textwrap.dedent(text).strip("\n") + "\n"
    assert harness.findings(rule, text)
    return harness.fixed(rule, text).partition("\n\n")[2].lstrip("\n")  # an import that is unused then goes as well


def body(text: str) -> str:
    return textwrap.dedent(text).strip("\n") + "\n"


CASES = {
    "in the call": ("TL516", "F.cross_entropy(F.softmax(x * 2, dim=1), y)", "F.cross_entropy(x * 2, y)"),
    "a method": ("TL516", "F.cross_entropy((x * 2).softmax(1), y)", "F.cross_entropy((x * 2), y)"),
    "a layer": ("TL516", "F.cross_entropy(nn.Softmax(dim=1)(x), y)", "F.cross_entropy(x, y)"),
    "by keyword": ("TL516", "F.cross_entropy(torch.softmax(input=x, dim=1), y)", "F.cross_entropy(x, y)"),
    "a view between": (
        "TL516",
        "p = F.softmax(x, 1)\nF.cross_entropy(p.view(-1, 3), y)",
        "p = x\nF.cross_entropy(p.view(-1, 3), y)",
    ),
    "argmax may look": (
        "TL516",
        "p = torch.softmax(x * 2, 1)\nloss = F.cross_entropy(p, y)\nprint(p.argmax(1), torch.argmax(p, 1), p.shape)",
        "p = x * 2\nloss = F.cross_entropy(p, y)\nprint(p.argmax(1), torch.argmax(p, 1), p.shape)",
    ),
    "the same name": (
        "TL516",
        "out = x * 2\nout = F.softmax(out, dim=1)\nF.cross_entropy(out, y)",
        "out = x * 2\nF.cross_entropy(out, y)",
    ),
    "others need the probabilities": (
        "TL516",
        "p = F.softmax(x, dim=1)\nF.cross_entropy(p, y)\nprint(p)",
        "p = F.softmax(x, dim=1)\nF.cross_entropy(x, y)\nprint(p)",
    ),
    "two losses": (
        "TL518",
        "p = x.sigmoid()\nF.binary_cross_entropy_with_logits(p, x)\nnn.BCEWithLogitsLoss()(p, x)",
        "p = x\nF.binary_cross_entropy_with_logits(p, x)\nnn.BCEWithLogitsLoss()(p, x)",
    ),
    "the last layer": (
        "TL516",
        "net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))\nF.cross_entropy(net(torch.ones(2, 4)), y)",
        "net = nn.Sequential(nn.Linear(4, 3))\nF.cross_entropy(net(torch.ones(2, 4)), y)",
    ),
    "a forward that only the loss calls": (
        "TL516",
        NET.format("self.softmax(out)") + "out = Net()(torch.ones(2, 4))\nF.cross_entropy(out, y)",
        NET.format("out") + "out = Net()(torch.ones(2, 4))\nF.cross_entropy(out, y)",
    ),
    "a logarithm": (
        "TL520",
        "p = F.softmax(x, dim=1)\nF.kl_div(p, q)",
        "p = F.log_softmax(x, dim=1)\nF.kl_div(p, q)",
    ),
    "the logarithm's layer": (
        "TL520",
        "nn.KLDivLoss()(nn.Softmax(dim=1)(x), q)",
        "nn.KLDivLoss()(nn.LogSoftmax(dim=1)(x), q)",
    ),
}
GIVEN = "x = torch.randn(2, 3, requires_grad=True)\ny = torch.tensor([0, 1])\nq = torch.full((2, 3), 1 / 3)\n"


@pytest.mark.parametrize(("code", "text", "wanted"), CASES.values(), ids=CASES)
def test_taken_away(code: str, text: str, wanted: str) -> None:
    assert fixed(code, GIVEN + body(text)) == GIVEN + body(wanted)


def test_a_bare_name_is_imported() -> None:
    made = fixed("TL520", "from torch.nn.functional import kl_div, softmax\n" + GIVEN + "kl_div(softmax(x, 1), q)\n")
    assert made.endswith("kl_div(F.log_softmax(x, 1), q)\n")


SHOWN = {
    "a threshold looks": (
        "TL518", "p = torch.sigmoid(x * 2)\nF.binary_cross_entropy_with_logits(p, x)\nprint(p > 0.5)"),
    "the argument has changed": (
        "TL516", "p = F.softmax(x, 1)\nx = x + 1\nF.cross_entropy(p, y)\nprint(p, x)"),
    "it is returned": (
        "TL516", "def f(x):\n    p = F.softmax(x * 2, 1)\n    return F.cross_entropy(p, y), p\n\n\nf(x)"),
    "a forward that others call": (
        "TL516", NET.format("self.softmax(out)") + "net = Net()\nF.cross_entropy(net(torch.ones(2, 4)), y)\n"
        "print(net(torch.ones(2, 4)))"),
    "a Sequential that others call": (
        "TL516", "net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))\nF.cross_entropy(net(torch.ones(2, 4)), y)\n"
        "print(net(torch.ones(2, 4)))"),
    "a logarithm for one of two": ("TL520", "p = F.softmax(x, 1)\nF.kl_div(p, q)\nprint(p)"),
}


@pytest.mark.parametrize(("code", "text"), SHOWN.values(), ids=SHOWN)
def test_only_shown(code: str, text: str) -> None:
    text = HEAD + GIVEN + body(text)
    found = harness.findings(RULES[code], text)
    assert [f.fix.safety for f in found if f.fix is not None] == [Safety.SHOW]
    assert harness.fixed(RULES[code], text) == text


def test_no_fix_for_a_layer_that_logs_elsewhere() -> None:
    text = HEAD + GIVEN + NET.format("self.softmax(out)") + "F.kl_div(Net()(torch.ones(2, 4)), q)\n"
    assert [f.fix for f in harness.findings(RULES["TL520"], text)] == [None]
