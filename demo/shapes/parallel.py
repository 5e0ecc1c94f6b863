"""Trains in several processes: torchrun --nproc-per-node 2 -m shapes.parallel"""
from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from shapes.data import NAMES, Shapes
from shapes.model import ShapeNet


def main(epochs: int = 4) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(ShapeNet(len(NAMES)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    training = Shapes(512)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=32, sampler=sampler)
    for epoch in range(epochs):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(pictures).log(), labels)
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()}, epoch {epoch}: {loss.item():.3f}")
    torch.save(model.module.state_dict(), "shapes.pt")


if __name__ == "__main__":
    main()
