"""What one run cannot decide is left open, and tried with the values that decide it where some can be made up."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from runtime_check import causes
from runtime_check.child import why_died
from runtime_check.evidence import Outcome, Verdict
from runtime_check.pictures import Image
from runtime_check.plan import claim_of, from_finding
from runtime_check.pool import Pool
from runtime_check.remedies import next_step
from runtime_check.trace import Printed
from torchlint.engine import lint_source
from torchlint.findings import Confidence, Finding, Severity, Span
from torchlint.rule import all_rules

RULES = {rule.meta.code: rule for rule in all_rules()}
CONFIRMED, REFUTED, OPEN = Verdict.CONFIRMED, Verdict.REFUTED, Verdict.CANNOT_TELL


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as running:
        yield running


def outcome(pool: Pool, text: str, code: str) -> Outcome:
    """The outcome of the one finding of a rule in a file, or of one on the line that `#!` marks."""
    text, rule = textwrap.dedent(text).lstrip("\n"), RULES[code]
    marked = [n for n, row in enumerate(text.splitlines(), 1) if row.endswith("#!")]
    found = [Finding("file.py", Span(n, 1, n, 2), code, "test", Severity.ERROR, Confidence.SURE, "-") for n in marked]
    (finding,) = found or lint_source(text, rules=[rule])
    claim = claim_of(finding, rule.claim)
    assert claim is not None
    ((_, seen),) = pool.run([from_finding(finding, claim, text, 0, seconds=25, path="file.py")])
    return seen


# -- writes that change no number -----------------------------------------------------------------

GATE = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.proj(x)
        g = torch.sigmoid(h)
        out = g * h
        g.data.{write}
        return out
"""


@pytest.mark.parametrize(
    ("write", "verdict", "said"),
    [
        ("clamp_(0.4, 0.6)", CONFIRMED, "torch.randn(2, 32))"),
        ("clamp_(0.01, 0.99)", CONFIRMED, "with inputs times 10"),
        ("clamp_(-1.0, 2.0)", OPEN, "changes no number"),
    ],
)
def test_a_write_that_changes_nothing_refutes_nothing(pool: Pool, write: str, verdict: Verdict, said: str) -> None:
    found = outcome(pool, GATE.format(write=write), "TL101")
    assert found.verdict is verdict, found
    assert said in f"{found.why} {found.how}", found


def test_a_write_to_what_backward_does_not_need_is_refuted(pool: Pool) -> None:
    text = GATE.format(write="clamp_(0.4, 0.6)  #!")
    text = text.replace("torch.sigmoid(h)", "self.proj(h)").replace("g * h", "added(g, h)")
    found = outcome(pool, f"{text}\n\ndef added(a, b):\n    return a + b\n", "TL101")
    assert found.verdict is REFUTED, found


# -- derivatives at zero ----------------------------------------------------------------------------

LENGTH = """
import torch


def length(x):
    n = (x * x).sum(-1).sqrt()
    return torch.where(n > 0, x[..., 0] / n, torch.zeros_like(n))  #!
"""
CALL = "w = torch.rand(4, 3) + 1\nlength(w.requires_grad_()).sum().backward()\n"


def test_zeros_are_among_the_inputs(pool: Pool) -> None:
    found = outcome(pool, LENGTH, "TL220")
    assert found.verdict is CONFIRMED and "with zeros" in found.how, found


def test_zeros_that_the_program_does_not_give_are_left_open(pool: Pool) -> None:
    found = outcome(pool, f"{LENGTH}\n\n{CALL}", "TL220")
    assert found.verdict is OPEN and "for zeros" in found.why, found


# -- datasets ---------------------------------------------------------------------------------------

STORED = """
import torch
from torch.utils.data import DataLoader, Dataset


class Stored(Dataset):
    def __init__(self):
        self.x = {values}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        item = self.x[index]
        item.{change}
        return item


for batch in DataLoader(Stored(), 2):
    print(batch)
"""
UNIT = "torch.nn.functional.normalize(torch.randn(8, 3), dim=1)"


@pytest.mark.parametrize(
    ("values", "change", "verdict"),
    [
        ("torch.rand(8, 3)", "clamp_(0, 1)", OPEN),
        ("torch.ones(8, 3)", "clamp_(0, 1)", OPEN),
        ("torch.rand(8, 3)", "relu_()", OPEN),
        (UNIT, "div_(item.norm())", OPEN),
        ("torch.randn(8, 3)", "clamp_(0, 1)", CONFIRMED),
        ("torch.rand(8, 3)", "div_(2)", CONFIRMED),
        ("torch.zeros(8, 3)", "add_(1)", CONFIRMED),
        ("torch.zeros(8, 3)", "mul_(2)", CONFIRMED),
        ("torch.rand(8, 3)", "mul_(1)", REFUTED),
    ],
)
def test_a_dataset_is_judged_with_the_data_that_the_program_makes(
    pool: Pool, values: str, change: str, verdict: Verdict
) -> None:
    found = outcome(pool, STORED.format(values=values, change=change), "TL525")
    assert found.verdict is verdict, found


# -- generators that are used up ----------------------------------------------------------------------

USED = """
import torch
from torch import nn


def main():
    net = nn.Linear(4, 3)
    params = net.parameters()
    {first}
    {second}
    return net


main()
"""


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("count = sum(p.numel() for p in params)", "torch.optim.SGD(params, lr=0.1)", CONFIRMED),
        ("torch.optim.SGD(params, lr=0.1)", "for p in params: p.requires_grad = False", CONFIRMED),
        ("torch.optim.SGD(params, lr=0.1)", "torch.nn.utils.clip_grad_norm_(params, float('inf'))", OPEN),
    ],
)
def test_what_is_used_up_gives_the_line_nothing(pool: Pool, first: str, second: str, verdict: Verdict) -> None:
    found = outcome(pool, USED.format(first=first, second=second), "TL511")
    assert found.verdict is verdict and "`params` is used up" in found.why, found


def test_a_limit_that_is_infinite_is_not_lowered(pool: Pool) -> None:
    text = """
    import torch

    net = torch.nn.Linear(3, 1)
    params = net.parameters()
    optimizer = torch.optim.SGD(params, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        torch.nn.utils.clip_grad_norm_(params, {limit})
        optimizer.step()
    """
    assert outcome(pool, text.replace("{limit}", "50.0"), "TL511").verdict is CONFIRMED
    found = outcome(pool, text.replace("{limit}", "float('inf')"), "TL511")
    assert found.verdict is OPEN and "nothing would be clipped" in found.why, found


# -- modules on their own -------------------------------------------------------------------------------

CALLED = """
import torch
from torch import nn

KEPT = {{}}


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.register_buffer("state", torch.zeros(dim))
        self.table = {{}}

    def again(self):
        {again}

    def forward(self, x):
        out = self.fc(x)
        {line}
        return out
"""
GROWS = "self.state = self.state * 0.9 + out.mean(0)"


@pytest.mark.parametrize(
    ("code", "line", "again", "verdict", "said"),
    [
        ("TL203", GROWS, "pass", CONFIRMED, "grows with every execution"),
        ("TL203", GROWS, "self.state = torch.zeros_like(self.state)", OPEN, "line 15 may empty it in between"),
        ("TL203", "self.state = out.mean(0)", "pass", REFUTED, "the graph kept alive has"),
        ("TL416", "self.fc.register_forward_hook(print)", "pass", CONFIRMED, "each call leaves hooks behind"),
        ("TL616", "KEPT[id(x)] = out.detach()", "pass", CONFIRMED, "the container keeps"),
        ("TL616", "KEPT[x.shape] = out.detach()", "pass", REFUTED, "do not grow"),
        ("TL616", "KEPT[id(x)] = out.detach()", "KEPT.clear()", OPEN, "line 15 may empty it in between"),
    ],
)
def test_a_module_alone_is_called_several_times(
    pool: Pool, code: str, line: str, again: str, verdict: Verdict, said: str
) -> None:
    found = outcome(pool, CALLED.format_map({"again": again, "line": f"{line}  #!"}), code)
    assert found.verdict is verdict and said in found.why and "several times on one object" in found.how, found


@pytest.mark.parametrize(
    ("again", "more", "verdict"),
    [
        ("pass", "class Other:\n    def clear(self):\n        self.state = None\n", CONFIRMED),
        ("state = []\n        state.clear()", "", CONFIRMED),
        ("pass", "class Child(Net):\n    def clear(self):\n        self.state = None\n", OPEN),
        ("pass", "def clear(net):\n    net.state = None\n", OPEN),
    ],
)
def test_what_another_class_or_a_local_name_empties_is_something_else(
    pool: Pool, again: str, more: str, verdict: Verdict
) -> None:
    text = CALLED.format_map({"again": again, "line": f"{GROWS}  #!"}) + f"\n\n{more}"
    found = outcome(pool, text, "TL203")
    assert found.verdict is verdict and ("may empty it" in found.why) is (verdict is OPEN), found


def test_a_line_that_does_not_run_in_each_call_is_left_open(pool: Pool) -> None:
    line = "if x.shape not in KEPT:\n            KEPT[x.shape] = out.detach()  #!"
    found = outcome(pool, CALLED.format_map({"again": "pass", "line": line}), "TL616")
    assert found.verdict is OPEN and "in 9 calls of one object" in found.why, found


# -- code that changes or ends its process ----------------------------------------------------------------

ODD = """
import os
import signal
import torch
from torch import nn
from torch.nn import functional as F


def train(x, y):
    {line}
    return F.cross_entropy(F.softmax(x, dim=1), y)


train(torch.randn(8, 4), torch.randint(0, 3, (8,)))
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch.equal = torch.manual_seed = None", "the code replaces torch.manual_seed, torch.equal"),
        ("import builtins; builtins.len = None", "the code replaces builtins.len"),
        ("import sys; sys.modules.clear()", "the code replaces sys.modules"),
        ("x = x.to('meta'); y = y.to('meta')", "on the meta device"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was killed (signal 9)"),
    ],
)
def test_what_the_code_does_to_its_process_is_said(pool: Pool, line: str, said: str) -> None:
    found = outcome(pool, ODD.format(line=line), "TL516")
    assert found.verdict is OPEN and said in found.why, found
    assert "example_for" not in next_step(found, "file.py", "train", 10, "TL516")


def test_very_much_output_takes_no_memory() -> None:
    printed = Printed()
    for _ in range(40):
        assert printed.write("x" * 100_000) == 100_000
    assert Printed.MOST <= len(printed.getvalue()) < Printed.MOST + 100_000


def test_lack_of_memory_is_said_only_where_the_system_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = int(signal.SIGKILL)
    monkeypatch.setattr(causes, "kills_for_memory", lambda: 3)
    assert "memory" in why_died(killed, kills=2)
    assert why_died(killed, kills=3) == "the process was killed (signal 9)"


# -- pictures -----------------------------------------------------------------------------------------------


def test_the_pixels_of_a_picture_come_row_by_row() -> None:
    torch = pytest.importorskip("torch")
    picture = Image(torch.arange(12, dtype=torch.uint8).reshape(1, 4, 3))
    assert picture.getdata() == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]
    assert picture.getdata(1) == [1, 4, 7, 10]
    assert Image(torch.arange(3, dtype=torch.uint8).reshape(1, 3, 1)).getdata() == [0, 1, 2]


# -- checkpoints --------------------------------------------------------------------------------------------

LOADED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout({p})
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.drop(x))


net = Net()
net.load_state_dict(torch.load("model.pt"))  #!
with torch.no_grad():
    print(net(torch.ones(2, 4)))
"""


@pytest.mark.parametrize(("p", "verdict"), [("0.5", CONFIRMED), ("0.0", REFUTED)])
def test_a_made_up_checkpoint_shows_what_eval_changes(pool: Pool, p: str, verdict: Verdict) -> None:
    found = outcome(pool, LOADED.format(p=p), "TL529")
    assert found.verdict is verdict and "made-up files" in found.how, found
