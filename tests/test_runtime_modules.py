"""What it takes to build Modules and to run their forward: values, inputs and repairs of real shapes of code."""
from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch")

import torch

from runtime_check.drive import Built, build_module
from runtime_check.extract import Namespace

torch.set_num_threads(1)


def built(text: str, name: str) -> Built:
    """The first way in which a class of some code runs; fails the test with the reason if there is none."""
    why = "nothing was tried"
    for item in build_module(Namespace(textwrap.dedent(text).lstrip("\n"), "module_case.py"), name):
        why = item.why
        if item.call is not None:
            item.call()
            return item
    raise AssertionError(why)


def test_spaces_stand_in_for_those_of_a_package_that_is_missing() -> None:
    built("""
        from torch import nn
        from gymnasium import spaces

        class Policy(nn.Module):
            def __init__(self, observation_space: spaces.Dict, action_space):
                super().__init__()
                assert isinstance(observation_space, spaces.Dict)
                size = sum(spaces.utils.flatdim(space) for space in observation_space.spaces.values())
                if isinstance(action_space, spaces.Discrete):
                    out = action_space.n
                elif isinstance(action_space, spaces.Box):
                    out = action_space.shape[0]
                else:
                    raise NotImplementedError(action_space)
                self.net = nn.Linear(size, int(out))

            def forward(self, x):
                return self.net(x)
    """, "Policy")


def test_annotations_of_structures_are_followed() -> None:
    item = built("""
        import torch
        from torch import nn

        class Parts(nn.Module):
            def __init__(self, width: int):
                super().__init__()
                self.a, self.b = nn.Linear(width, 4), nn.Linear(2 * width, 4)

            def forward(self, pair: tuple[torch.Tensor, torch.Tensor], extra: dict[str, torch.Tensor],
                        dtype: torch.dtype, sizes: list[tuple[int, int]]):
                first, second = pair
                (height, _), *rest = sizes
                total = sum(extra.values())
                return (self.a(first) + self.b(second)).to(dtype) + height * total.mean()
    """, "Parts")
    assert "torch.float32" in item.label


def test_an_object_gets_the_tensors_that_are_read_of_it() -> None:
    built("""
        from torch import nn

        class Layer(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.node, self.edge = nn.Linear(width, width), nn.Linear(16, width)

            def forward(self, data):
                x, (source, target) = self.node(data.x), data.edge_index
                data.x = x.index_add(0, target, x[source] + self.edge(data.edge_attr))
                return data
    """, "Layer")
