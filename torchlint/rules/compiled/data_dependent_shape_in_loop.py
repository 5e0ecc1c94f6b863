"""A result whose size depends on values, in every step of a training loop.

`nonzero`, `unique`, `masked_select` and indexing with a mask return as many elements as there are hits. The host must
know that number before it can go on, so each of them waits for the device; and compiled code is recompiled, or broken
up, because the next step has another size.

Compute on everything and weigh with the mask (`torch.where`, `mask * loss`), or do it once outside the loop. It is off
unless it is asked for, since many losses need it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WaitsEveryStep
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, training
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL807", "data-dependent-shape-in-loop", Severity.ADVICE, default=False, triggers=("backward",))
CLAIM = WaitsEveryStep()
FUNCTIONS = {"torch.nonzero", "torch.unique", "torch.masked_select", "torch.argwhere", "torch.unique_consecutive"}
METHODS = {"nonzero", "unique", "masked_select", "argwhere", "unique_consecutive"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        STEPS = 4
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in torch.randn(STEPS, 8, 3):
            losses = net(batch).pow(2)
            hard = torch.nonzero(losses > 0.01)  #!
            loss = losses.sum() / (len(hard) + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch

        STEPS = 4
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in torch.randn(STEPS, 8, 3):
            losses = net(batch).pow(2)
            hard = (losses > 0.01).sum()
            loss = losses.sum() / (hard + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
]

CLEAN = [
    """
    import torch

    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    classes = torch.unique(torch.arange(3))
    for batch in torch.randn(4, 8, 3):
        losses = net(batch).pow(2)
        first = losses[0] + losses[:2].sum() + losses[classes].sum()
        loss = torch.where(losses > 0.01, losses, 0.0).mean() + first.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for batch in torch.randn(4, 8, 3):
        print(torch.nonzero(batch))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Operations with a result of unknown size, in loops that train."""
    seen: set[ast.AST] = set()
    for _, flow in training.bodies(model):
        for event in flow.of("backward"):
            loop = innermost(model, event)
            if loop is None or loop in seen:
                continue
            seen.add(loop)
            for node in ast.walk(loop):
                if model.has(node) and model.place(node).loops[-1:] == (loop,) and sized_by_values(model, node):
                    yield Hit(
                        node, "the size of this depends on values, so every step waits; use the mask as a weight",
                        confidence=Confidence.LIKELY)


def innermost(model: FileModel, event: Event) -> ast.AST | None:
    """The loop whose every pass is a training step."""
    loop = event.loops[-1] if event.loops else None
    return loop if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)) and model.has(loop) else None


def sized_by_values(model: FileModel, node: ast.AST) -> bool:
    """Whether the size of an expression's result depends on what is in a tensor."""
    match node:
        case ast.Call(func=func) if model.name_of(func) in FUNCTIONS:
            return True
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in METHODS:
            return model.value(base).is_tensor
        case ast.Subscript(value=base, slice=ast.Compare() as mask, ctx=ast.Load()):
            return model.value(base).is_tensor and model.value(mask).is_tensor
    return False
