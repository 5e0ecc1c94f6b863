"""Trains the network: python -m shapes.train --epochs 2"""
from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from shapes.data import NAMES, loaders
from shapes.losses import CentreLoss, slope_penalty
from shapes.model import ShapeNet, freeze_stem


def train_epoch(model: ShapeNet, loader, optimizer, scheduler, criterion, centre, device, penalty):
    """One pass over the training pictures; the mean loss and the accuracy."""
    model.train()
    total, hits = 0.0, 0
    for pictures, labels in loader:
        pictures.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        outputs = model(pictures)
        loss = criterion(outputs, labels) + 0.1 * centre(outputs, labels)
        if penalty:
            loss = loss + penalty * slope_penalty(model, pictures)
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scheduler.step()
        total += loss
        hits += (outputs.argmax(dim=1) == labels).sum().item()
        torch.cuda.empty_cache()
    return total / len(loader), hits / len(loader.dataset)


def evaluate(model: ShapeNet, loader, device):
    """Mean loss, accuracy and a confusion matrix over the validation pictures."""
    model.eval()
    losses, right = [], 0
    confusion = torch.zeros(len(NAMES), len(NAMES)).to(device)
    for pictures, labels in loader:
        pictures, labels = pictures.to(device), labels.to(device)
        scores = model(pictures)
        losses.append(F.cross_entropy(scores, labels))
        predicted = scores.argmax(dim=1)
        right += (predicted == labels).sum().item()
        confusion.index_put_((labels, predicted), torch.ones(len(labels), device=device), accumulate=True)
    mean = sum(loss.item() for loss in losses) / len(losses)
    return mean, right / len(loader.dataset), confusion


def warm_up(model: ShapeNet, loader, device, steps=10):
    """A few steps with a small learning rate, so that BatchNorm has seen some data."""
    sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _, (pictures, labels) in zip(range(steps), loader):
        loss = F.nll_loss(model(pictures.to(device)).log(), labels.to(device))
        loss.backward()
        sgd.step()


def export(checkpoint, path, size=24):
    """Writes a trained network in a form that needs no Python."""
    model = ShapeNet(len(NAMES))
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    traced = torch.jit.trace(model, torch.zeros(1, 1, size, size))
    traced.save(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--levels", type=int, help="round activations to this many levels")
    parser.add_argument("--penalty", type=float, default=0.0)
    parser.add_argument("--resume", help="a checkpoint to start from")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--export", help="where to write the traced network")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = ShapeNet(len(NAMES), levels=options.levels).to(device)
    if options.resume:
        model.load_state_dict(torch.load(options.resume, weights_only=False)["model"])
    if options.freeze:
        freeze_stem(model)
    train_loader, validation_loader = loaders(options.count, options.batch_size)
    criterion, centre = nn.CrossEntropyLoss(), CentreLoss(len(NAMES), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train_loader))

    warm_up(model, train_loader, device)
    best, best_state = -1.0, None
    for epoch in range(options.epochs):
        loss, fitted = train_epoch(
            model, train_loader, optimizer, scheduler, criterion, centre, device, options.penalty
        )
        _, accuracy, _ = evaluate(model, validation_loader, device)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {fitted:.2f} in training, {accuracy:.2f} in validation")
        if accuracy > best:
            best = accuracy
            best_state = model.state_dict()
    model.load_state_dict(best_state)
    torch.save({"model": model.state_dict(), "accuracy": best}, "shapes.pt")
    if options.export:
        export("shapes.pt", options.export)


if __name__ == "__main__":
    main()
