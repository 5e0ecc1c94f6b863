"""What the layers of a built module want as input: shapes, kind of values, range of indices."""
from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from runtime_check import names
from runtime_check.usage import usage

STEPS = 8  # length of made sequences


@dataclass(frozen=True)
class Entry:
    """What the first layer that sees an input wants: forms of shapes, and the kind of values."""

    shapes: tuple[tuple[int, ...], ...]
    kind: str = "float"
    high: int = 8


def entry_of(module: Any, depth: int = 4) -> Entry | None:
    """The inputs that a layer takes, looking into containers and user-made modules; None if unknown."""
    found = _entry_of(module, depth)
    # A layer that was made with something else than numbers says nothing.
    return found if found is not None and all(type(n) is int for shape in found.shapes for n in shape) else None


def _entry_of(module: Any, depth: int) -> Entry | None:
    b, t = names.BATCH, STEPS
    match module:
        case nn.Linear():
            return Entry(((b, module.in_features), (b, t, module.in_features)))
        case nn.Bilinear():
            return Entry(((b, module.in1_features),))
        case nn.Embedding():
            return Entry(((b, t), (b,), (t,)), "long", module.num_embeddings)
        case nn.EmbeddingBag():
            return Entry(((b, t),), "long", module.num_embeddings)
        case nn.RNNBase():
            return Entry(((b, t, module.input_size), (t, module.input_size)))
        case nn.RNNCellBase():
            return Entry(((b, module.input_size),))
        case nn.MultiheadAttention():
            return Entry(((t, b, module.embed_dim),))
        case nn.LayerNorm():
            return Entry(((b, t, *module.normalized_shape), (b, *module.normalized_shape)))
        case nn.modules.conv._ConvNd():
            return _images(module.in_channels, len(module.kernel_size), module)
        case nn.BatchNorm1d():
            return Entry(((b, module.num_features), (b, module.num_features, t)))
        case nn.modules.batchnorm._BatchNorm() | nn.modules.instancenorm._InstanceNorm():
            rank = 3 if "3d" in type(module).__name__ else 1 if "1d" in type(module).__name__ else 2
            return _images(module.num_features, rank)
        case nn.GroupNorm():
            return _images(module.num_channels, 2)
    return _entry_inside(module, depth) if isinstance(module, nn.Module) and depth else None


def _images(channels: int, rank: int, module: Any = None) -> Entry:
    sizes = {1: (64, 32, 256), 2: (64, 32, 28, 224), 3: (16, 32, 8)}[rank]
    kernel = max(module.kernel_size) if module is not None and isinstance(module.kernel_size[0], int) else 1
    stride = max(module.stride) if module is not None and isinstance(module.stride[0], int) else 1
    fitting = [max(size, kernel, 4 * stride if stride > 4 else 0) for size in sizes]
    return Entry(tuple((names.BATCH, channels, *(size,) * rank) for size in dict.fromkeys(fitting)))


def _entry_inside(module: nn.Module, depth: int) -> Entry | None:
    """Look at the layers that the forward method hands its first argument to, else at the first layers."""
    forward = type(module).forward
    first = next((name for name in _positional(forward) if name != "self"), "")
    if first and not type(module).__module__.startswith("torch.nn"):
        for path in usage(forward, first, type(module), 1).layers:
            found = entry_of(member(module, path), depth - 1)
            if found is not None:
                return found
    for child in module.children():
        found = entry_of(child, depth - 1)
        if found is not None:
            return found
    return None


def _positional(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def member(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
