"""Classes and functions that need each other are understood from whatever side the first question comes."""
from __future__ import annotations

import ast
import random

import pytest

from torchlint.files import Source
from torchlint.model import FileModel

MEMORY = """
import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.register_buffer("memory", torch.zeros(dim, dim))

    def forward(self, segment):
        k, v = self.key(segment), self.value(segment)
        recalled = k @ self.memory
        self.memory = self.memory + k.transpose(0, 1) @ v
        return v + recalled


def train(segments):
    layer = Memory(4)
    opt = torch.optim.SGD(layer.parameters(), lr=0.01)
    for segment in segments:
        loss = layer(segment).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    train(torch.randn(3, 6, 4))
"""


@pytest.mark.parametrize("seed", range(12))
def test_what_forward_adds_to_a_memory_is_attached(seed: int) -> None:
    """The memory depends on forward, forward on the memory, and its argument on the function that calls it."""
    model = FileModel(Source("<memory>", MEMORY))
    nodes = model.nodes(ast.Name, ast.Call, ast.Attribute)
    random.Random(seed).shuffle(nodes)
    for node in nodes[: seed * 4]:
        model.value(node)
    stored = next(node for node in model.nodes(ast.Assign) if ast.unparse(node.targets[0]) == "self.memory")
    assert model.value(stored.value).attached


FREEZER = """
from torch import nn


class Outer(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.body = nn.Linear(2, 2)
        if frozen:
            self.freeze()

    def forward(self, x):
        return self.body(x)

    def freeze(self):
        for p in self.body.parameters():
            p.requires_grad = False
"""


@pytest.mark.parametrize("first", ["forward", "freeze", "__init__"])
def test_a_layer_that_a_method_freezes_may_be_frozen_whatever_is_asked_first(first: str) -> None:
    model = FileModel(Source("m.py", FREEZER))
    methods = model.classes[0].methods
    model.flow(methods[first].node)
    assert not model.flow(methods["forward"].node).returns.attached
