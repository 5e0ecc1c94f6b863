"""Shapes of faults that are no example of their rule: `confirm` cannot measure them yet, or there are too many."""
from __future__ import annotations

import pytest

from torchlint.config import Options
from torchlint.engine import lint_source

TAGGER = """
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.lstm = nn.LSTM(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, tokens):
        batch, steps = tokens.shape
        states, _ = self.lstm(self.words(tokens))
        return self.out(states).view(batch, steps, 3)
"""


def lines(text: str, code: str) -> list[int]:
    return [finding.span.line for finding in lint_source(text, options=Options(select=(code,), preview=True))]


def test_embedded_tokens_keep_the_batch_in_front() -> None:
    assert lines(TAGGER, "TL426") == [9]
    assert lines(TAGGER.replace("LSTM(4, 6)", "LSTM(4, 6, batch_first=True)"), "TL426") == []
    assert lines(TAGGER.replace("batch, steps = tokens", "steps, batch = tokens"), "TL426") == []


COLLECT = """
import torch


def collect(net, batches):
    outputs = None
    for batch in batches:
        output = net(batch)
        outputs = output if outputs is None else torch.cat([outputs, output])
    return outputs
"""


def test_the_first_part_may_be_chosen_in_the_statement_itself() -> None:
    assert lines(COLLECT, "TL606") == [9]
    assert lines(COLLECT.replace("return", "    print(outputs.shape)\n    return"), "TL606") == []
    assert lines(COLLECT.replace("else torch.cat([outputs, output])", "else output"), "TL606") == []


DATASET = """
import numpy as np
import torch
from torch.utils.data import Dataset


class Data(Dataset):
    def __init__(self, n):
        self.rows, self.images = np.ones((n, 3)), torch.ones(n, 3)
        self.samples = [{"x": np.ones(3)} for _ in range(n)]
        self.hits = torch.zeros(n)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row, image, sample = self.rows[index], self.images[index], self.samples[index]
        self.hits[index] += 1
        CHANGE
        return row, image, sample, self.rows[index]
"""


@pytest.mark.parametrize(("change", "found"), [
    ("self.rows[index] *= 0.5", True),
    ("self.rows[index] = row * 0.5", False),
    ("np.multiply(row, 0.5, out=row)", True),
    ("np.multiply(row, 0.5)", False),
    ("torch.nn.functional.relu_(image)", True),
    ("torch.nn.functional.relu(image)", False),
    ("sample = self.samples[index]; sample['x'] = sample['x'] / 2", True),
    ("sample = dict(self.samples[index]); sample['x'] = sample['x'] / 2", False),
    ("sample = self.samples[index]; sample['x'] = row / 2", False),
])
def test_stored_data_is_changed_in_many_ways(change: str, found: bool) -> None:
    assert lines(DATASET.replace("CHANGE", change), "TL525") == ([19] if found else [])


EVALUATED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.fc(x), 0.5, self.training)


net = MADE
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(3, 2, 8)).sum().backward()
optimizer.step()
with torch.no_grad():
    print(net(torch.ones(3, 2, 8)))
"""


@pytest.mark.parametrize(("made", "found"), [
    ("Net()", True),
    ("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 1)", True),
    ("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, dropout=0.0), 1)", False),
    ("nn.Sequential(nn.GRU(8, 8, 2, dropout=0.1))", True),
    ("nn.Sequential(nn.GRU(8, 8, dropout=0.1))", False),
    ("nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True))", True),
    ("nn.Sequential(nn.InstanceNorm1d(2))", False),
    ("nn.Sequential(nn.Dropout(0.0))", False),
])
def test_layers_tell_whether_the_mode_matters(made: str, found: bool) -> None:
    assert lines(EVALUATED.replace("MADE", made), "TL514") == ([20] if found else [])


LOADED = """
import torch


class Trainer:
    def save(self):
        torch.save({"net": self.net.state_dict()}, self.path)

    def load(self):
        return torch.load(self.path, weights_only=False)
"""


@pytest.mark.parametrize(("old", "new", "severity"), [
    ("", "", "advice"),
    ("load(self.path", "load(self.other", "warning"),
    ("        return", "        # weights_only=False: the sampler is in there too\n        return", "advice"),
])
def test_a_file_of_its_own_is_less_of_a_risk(old: str, new: str, severity: str) -> None:
    text = LOADED.replace("torch.save", "print") if old.startswith(" ") else LOADED
    found = lint_source(text.replace(old, new) if old else text, options=Options(select=("TL904",)))
    assert [finding.severity.value for finding in found] == [severity]


PHASES = """
import torch
from torch import nn


def epoch(phase, net, batches, optimizer=None):
    net.train()
    total = 0.0
    for x, y in batches:
        if phase == "fit":
            loss = (net(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            with torch.no_grad():
                loss = (net(x) - y).square().mean()
        total += loss.item()
    return total


net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
"""


def test_the_steps_of_another_phase_show_that_a_net_is_trained() -> None:
    data = "[(torch.ones(3, 2), torch.ones(3, 2))]"
    fit, check = f"epoch('fit', net, {data}, torch.optim.SGD(net.parameters()))", f"print(epoch('check', net, {data}))"
    text = f"{PHASES}{fit}\n{check}\n"
    assert lines(text, "TL514") == [7]
    assert lines(text.replace("net.train()", "net.train(phase == 'fit')"), "TL514") == []


LAZY = """
import torch
from torch.utils.data import Dataset


class Lazy(Dataset):
    def __init__(self, size):
        self.size = size
        self.x = None

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.x is None:
            self.x = torch.randint(0, 9, (self.size, 4))
            self.x[:, :2].fill_(0)
        return self.x[index]
"""


def test_data_may_be_made_when_they_are_first_asked_for() -> None:
    assert lines(LAZY, "TL525") == []
    kept = LAZY.replace("self.x = None", "self.x = torch.ones(size, 4)").replace("if self.x is None:", "if index:")
    assert lines(kept.replace("self.x = torch.randint(0, 9, (self.size, 4))", "pass"), "TL525") == [17]


GAN = """
import torch
from torch import nn

g, d = nn.Linear(2, 2), nn.Linear(2, 1)
og, od = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
for _ in range(4):
    fake = g(torch.ones(4, 2))
    loss_d = d(fake).mean()
    od.zero_grad()
    loss_d.backward(retain_graph=True)
    od.step()
    loss_g = -d(fake).mean()
    loss_g.backward()
    og.step()
"""


def test_what_another_optimizer_was_stepped_with_is_cleared_too() -> None:
    (found,) = lint_source(GAN, options=Options(select=("TL501",)))
    assert found.fix is not None
    (edit,) = found.fix.edits
    assert edit.text.strip() == "og.zero_grad()" and GAN.splitlines()[edit.span.line - 1].strip() == "loss_g.backward()"


ACCUMULATED = """
import torch
from torch import nn

net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
for i in range(8):
    scaler.scale(net(torch.ones(4, 2)).mean() / 2).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_gradients_are_unscaled_once_for_each_step() -> None:
    (found,) = lint_source(ACCUMULATED, options=Options(select=("TL509",)))
    assert found.fix is None
    always = ACCUMULATED.replace("    if i % 2:\n", "").replace("        ", "    ")
    (found,) = lint_source(always, options=Options(select=("TL509",)))
    assert found.fix is not None


MIDDLE = """
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, k, w):
        ctx.save_for_backward(x, w)
        ctx.k = k
        return x * w * k

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * ctx.k, g * x * ctx.k
"""


def test_none_is_added_only_for_a_last_argument_without_gradient() -> None:
    (found,) = lint_source(MIDDLE, options=Options(select=("TL303",)))
    assert found.fix is None
    (found,) = lint_source(MIDDLE.replace("x, k, w", "x, w, k"), options=Options(select=("TL303",)))
    assert found.fix is not None
