"""Pictures of shapes, drawn on the fly: nothing has to be downloaded."""
from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

NAMES = ("circle", "square", "cross", "stripes")


def draw(kind: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """One picture of a shape at a random place, with noise: (1, size, size)."""
    centre = size * (0.35 + 0.3 * torch.rand(2, generator=generator))
    radius = size * (0.18 + 0.12 * torch.rand(1, generator=generator))
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dy, dx = rows - centre[0], columns - centre[1]
    inside = (dy.abs() < radius) & (dx.abs() < radius)
    match NAMES[kind]:
        case "circle":
            picture = (dy**2 + dx**2).sqrt() < radius
        case "square":
            picture = inside
        case "cross":
            picture = inside & ((dy.abs() < radius / 3) | (dx.abs() < radius / 3))
        case _:
            picture = inside & (columns % 4 < 2)
    return picture.float()[None] + 0.2 * torch.randn(1, size, size, generator=generator)


class Shapes(Dataset):
    """`count` pictures in memory; labels are indices into NAMES."""

    def __init__(self, count: int, size: int = 24, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(len(NAMES), (count,), generator=generator)
        self.pictures = [draw(int(kind), size, generator) for kind in self.labels]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index]
        picture -= picture.mean()
        return picture / picture.std(), self.labels[index]


def loaders(count: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The loaders for training and for validation."""
    training, validation = Shapes(count), Shapes(count // 4, seed=1)
    return DataLoader(training, batch_size, shuffle=True), DataLoader(validation, batch_size)
