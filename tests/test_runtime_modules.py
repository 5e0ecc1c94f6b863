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
