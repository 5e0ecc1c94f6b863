"""Losses beside cross entropy."""
from __future__ import annotations

import torch
from torch import nn


class CentreLoss(nn.Module):
    """Mean squared distance of each output to a learned centre of its class."""

    def __init__(self, classes: int, device: torch.device) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.eye(classes, device=device))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs - self.centres[labels]).pow(2).sum(dim=1).mean()


def slope_penalty(model: nn.Module, pictures: torch.Tensor) -> torch.Tensor:
    """Penalty on the gradient of the outputs with respect to the pictures."""
    pictures = pictures.clone().requires_grad_()
    outputs = model(pictures)
    (slope,) = torch.autograd.grad(outputs.sum(), pictures)
    return slope.flatten(1).norm(dim=1).mean()


def mixture(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-likelihood gap that goes to zero as the right class becomes certain."""
    picked = probabilities.gather(1, labels[:, None])
    return -torch.log(1 + picked).mean()
