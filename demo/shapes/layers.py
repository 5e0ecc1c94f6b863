"""Building blocks: rounding activations, convolutions of fixed norm, pooling, temperature."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function


class Round(Function):
    """Rounds to a number of levels, and lets the gradient through as if it had not."""

    def forward(ctx, x, levels):
        return torch.round(x * levels) / levels

    def backward(ctx, grad_output):
        return grad_output, None


class SoftSign(Function):
    """tanh(sharpness * x), with a backward that reuses the result."""

    @staticmethod
    def forward(ctx, x, sharpness):
        y = torch.tanh(sharpness * x)
        ctx.sharpness = sharpness
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.sharpness * (1 - ctx.y * ctx.y), None


class Block(nn.Module):
    """What all blocks share: a width, and an activation that may be rounded."""

    def __init__(self, width: int, levels: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.levels = levels

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        x = SoftSign.apply(x, 1.5)
        return x if self.levels is None else Round()(x, self.levels)


class UnitNormConv(nn.Module):
    """A 3x3 convolution whose filter bank has norm one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, 3, 3) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, self.weight, padding=1)
        self.weight.data.div_(self.weight.data.norm())
        return y


class AttentionPool(nn.Module):
    """Learned queries look at every place of a feature map; the answers are joined."""

    def __init__(self, width: int, queries: int = 2, drop: float = 0.1) -> None:
        super().__init__()
        self.queries = torch.randn(queries, width, requires_grad=True)
        self.scale = 1 / math.sqrt(width)
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.flatten(2)
        weights = F.softmax(self.scale * self.queries @ places, dim=-1)
        weights = F.dropout(weights, self.drop)
        answers = places @ weights.transpose(1, 2)
        return answers.flatten(1)


class Temperature(nn.Module):
    """Divides logits by a learned temperature: calibration after training."""

    def __init__(self, start: float = 1.0) -> None:
        self.log_value = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / self.log_value.exp()
