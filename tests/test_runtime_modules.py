"""What it takes to build Modules and to run their forward: values, inputs and repairs of real shapes of code."""
from __future__ import annotations

import importlib.util
import itertools
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from runtime_check.blame import Context
from runtime_check.drive import Built, build_module
from runtime_check.extract import Namespace
from runtime_check.inputs import InputGuesser
from runtime_check.repair import repairs
from runtime_check.search import Failure
from runtime_check.specs import Assignment, Tensor

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


def test_positions_and_conditions_are_known_by_name() -> None:
    item = built("""
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self, dim, num_heads):
                super().__init__()
                self.num_heads, self.head_dim = num_heads, dim // num_heads
                self.qkv, self.mod = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

            def forward(self, hidden_states, temb, position_embeddings=None):
                b, t, _ = hidden_states.shape
                x = hidden_states + self.mod(temb)[:, None]
                q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
                cos, sin = position_embeddings
                q = q * cos.unsqueeze(1) + q * sin.unsqueeze(1)
                return (q @ k.transpose(-1, -2)).softmax(-1) @ v
    """, "Block")
    assert "position_embeddings=(" in item.label


def test_an_optional_input_in_the_failing_statement_is_filled_in() -> None:
    item = built("""
        from torch import nn

        class Attend(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k = nn.Linear(32, 16), nn.Linear(48, 16)

            def attend(self, x, y):
                y = x if y is None else y
                return self.q(x) @ self.k(y).transpose(-1, -2)

            def forward(self, x, other=None):
                return self.attend(x, other)
    """, "Attend")
    assert "other=torch.randn(2, 8, 48)" in item.label or "other=torch.randn(2, 48)" in item.label


def test_layers_on_graphs_get_edges_between_their_nodes() -> None:
    item = built("""
        import torch
        from torch import nn

        class Conv(nn.Module):
            def __init__(self, in_channels, out_channels, num_relations):
                super().__init__()
                self.num_relations = num_relations
                self.weight = nn.Parameter(torch.randn(num_relations, in_channels, out_channels))

            def forward(self, x, edge_index, edge_type):
                source, target = edge_index
                sent = (x[source].unsqueeze(1) @ self.weight[edge_type]).squeeze(1)
                return torch.zeros(x.size(0), sent.size(-1)).index_add(0, target, sent)
    """, "Conv")
    assert "edge_type=torch.randint(4, (12,))" in item.label or "torch.randint(4, (12,))" in item.label


def test_a_size_that_the_code_takes_apart_becomes_several() -> None:
    item = built("""
        from torch import nn

        class Up(nn.Module):
            def __init__(self, channels: int, stride: int = 1):
                super().__init__()
                self.conv = nn.Conv2d(channels, channels * stride[0] * stride[1], 3, padding=1)

            def forward(self, x):
                return self.conv(x)
    """, "Up")
    assert "stride=(1, 1" in item.label


def test_parts_of_a_configuration_are_made_small_too() -> None:
    item = built("""
        from torch import nn

        class TextConfig:
            def __init__(self, hidden_size=100_000, vocab_size=100_000, **options):
                self.hidden_size, self.vocab_size = hidden_size, vocab_size

        class ModelConfig:
            def __init__(self, text_config=None):
                self.text_config = TextConfig(**(text_config or {}))

        class Model(nn.Module):
            def __init__(self, config: ModelConfig):
                super().__init__()
                sizes = config.text_config
                self.embed = nn.Embedding(sizes.vocab_size, sizes.hidden_size)

            def forward(self, input_ids):
                return self.embed(input_ids)
    """, "Model")
    assert "randint(40" in item.label


def test_a_tensor_that_was_used_as_a_key_becomes_a_key() -> None:
    item = built("""
        from torch import nn

        class Rotary(nn.Module):
            def __init__(self):
                super().__init__()
                self.scales = {"full": 1.0, "sliding": 2.0}
                self.side = 4

            def forward(self, x, layer_type):
                b, _, c = x.shape
                x = x.sin() * self.scales[layer_type]
                return x.view(b, self.side, self.side, c)[:, ::2]
    """, "Rotary")
    assert "'full'" in item.label or "'sliding'" in item.label


def test_what_the_code_calls_becomes_something_to_call() -> None:
    solver = built("""
        import torch
        from torch import nn
        class Solver(nn.Module):
            def __init__(self, encoder: nn.Module):
                super().__init__()
                self.encoder = encoder
                self.encoder.reset_parameters()
                self.shape = self.encoder(torch.ones(1, 3, 5)).shape
            def forward(self, x, thing):
                return [thing][0](x)
    """, "Solver")
    assert solver.label.endswith("a layer that passes its input through)"), solver.label


def test_an_annotated_function_is_given_first() -> None:
    def solve(x: torch.Tensor, energy: Callable[[torch.Tensor], torch.Tensor] | None, part: torch.nn.Module) -> None:
        """Does nothing with them."""

    _, candidates = InputGuesser(solve).starts()
    assert [candidates[name][0].label for name in ("energy", "part")] == ["a layer that passes its input through"] * 2


def test_sizes_that_add_up_are_made_smaller_together() -> None:
    built("""
        import torch
        from torch import nn
        class Beside(nn.Module):
            def __init__(self, wide=3, more=5):
                super().__init__()
                self.first = nn.Sequential(nn.Conv2d(wide + more, 16, 7, 1, 3), nn.ReLU())
            def forward(self, x, c):
                c = c.view(c.size(0), c.size(1), 1, 1)
                c = c.repeat(1, 1, x.size(2), x.size(3))
                return self.first(torch.cat((x, c), 1))
    """, "Beside")


@pytest.mark.parametrize(("text", "shape", "wanted"), [
    ("Sizes of tensors must match except in dimension 1. Expected size 6 but got size 7", (2, 3, 224, 224),
     [(2, 3, 64, 64), (2, 3, 128, 128), (2, 3, 256, 256)]),
    ("Expected more than 1 spatial element when training, got input size torch.Size([2, 512, 1, 1])", (2, 3, 64, 64),
     [(2, 3, 128, 128), (2, 3, 224, 224), (2, 3, 256, 256)]),
    ("Tensors must have same number of dimensions: got 2 and 4", (2, 32),
     [(2, 32, 64, 64), (2, 32, 32, 32), (2, 8, 8, 32)]),
])
def test_an_error_names_the_shapes_to_try(
    text: str, shape: tuple[int, ...], wanted: list[tuple[int, ...]]
) -> None:
    given = Assignment((("x", Tensor(shape)),))
    found = repairs(Context(given, Failure(RuntimeError(text), 9, ()), lambda x: x, {}))
    assert [spec.shape for one in itertools.islice(found, 3) for _, spec in one.leaves()] == wanted


def test_a_configuration_says_which_attention() -> None:
    built("""
        import torch
        from torch import nn
        class BlockConfig:
            def __init__(self, hidden_size=64, **more):
                self.hidden_size = hidden_size
                self._attn_implementation = None
        ATTENTION = {"eager": nn.Linear, "sdpa": nn.Linear}
        class Block(nn.Module):
            def __init__(self, config: BlockConfig):
                super().__init__()
                self.attention = ATTENTION[config._attn_implementation](config.hidden_size, config.hidden_size)
            def forward(self, x):
                return self.attention(x)
    """, "Block")


VALIDATED = """
import dataclasses
import torch
from torch import nn
from huggingface_hub.dataclasses import as_validated_field, strict


@as_validated_field
def positive(value):
    if value < 0:
        raise ValueError("too small")


@strict(accept_kwargs=True)
@dataclasses.dataclass
class NetConfig:
    vocab_size: int = 50000
    pad_token_id: int | None = 40001
    width: int = 8
    scale: float = positive(default=0.5, metadata={"a": 1}, strict=True)


class Net(nn.Module):
    def __init__(self, config: NetConfig):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.width, config.pad_token_id)
        self.scale = config.scale

    def forward(self, ids: torch.LongTensor):
        return self.table(ids) * self.scale
"""


@pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is not None, reason="nothing has to stand in")
def test_fields_that_an_absent_package_validates_are_plain_and_padding_fits_a_small_table() -> None:
    module: Any = built(VALIDATED, "Net").module
    assert module.scale == 0.5 and module.table.num_embeddings <= 40
    assert module.table.padding_idx == 40001 % module.table.num_embeddings


def test_hidden_states_of_another_module_are_no_tokens() -> None:
    text = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden_size = 8
                self.table = nn.Embedding(40, 8)

            def forward(self, ids: torch.LongTensor, encoder_hidden_states=None, inputs_embeds=None):
                return self.table(ids)
    """
    module: Any = built(text, "Net").module
    guesser = InputGuesser(type(module).forward, module)
    found = {item.name: guesser.inputs(guesser.asked(item)) for item in guesser.parameters()}
    assert found["ids"][0].label == "torch.randint(40, (2, 8))"
    assert {found[name][1].label for name in ("encoder_hidden_states", "inputs_embeds")} == {"torch.randn(2, 8, 8)"}
