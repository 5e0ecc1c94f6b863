"""The network: a stem, residual blocks, attention pooling, a linear head."""
from __future__ import annotations

import torch
from torch import nn

from shapes.layers import AttentionPool, Block, UnitNormConv


class ResidualBlock(Block):
    """Two convolutions around a shortcut."""

    def __init__(self, width: int, levels: int | None = None) -> None:
        super().__init__(width, levels)
        self.first = UnitNormConv(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.activate(self.first(x)))


class Encoder(nn.Module):
    """Pictures to feature maps."""

    def __init__(self, width: int, depth: int, levels: int | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 4, stride=4)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = [ResidualBlock(width, levels) for _ in range(depth)]

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(pictures))
        for block in self.blocks:
            x = block(x)
        return x


class ShapeNet(nn.Module):
    """Pictures to class probabilities."""

    def __init__(self, classes: int, width: int = 16, depth: int = 2, levels: int | None = None) -> None:
        super().__init__()
        self.encoder = Encoder(width, depth, levels)
        self.pool = AttentionPool(width)
        self.head = nn.Linear(2 * width, classes)
        prior = torch.full((classes,), 1 / classes, dtype=torch.float64)
        self.prior = nn.Parameter(prior.log()).float()
        self.head.weight.data.normal_(0.0, 0.02)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.encoder.forward(pictures))
        return torch.softmax(self.head(features) + self.prior, dim=1)


def freeze_stem(model: ShapeNet) -> None:
    """Keeps the first convolution as it is."""
    for parameter in model.encoder.stem.parameters():
        parameter.require_grad = False
