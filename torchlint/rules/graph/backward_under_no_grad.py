"""A backward on a value that was computed without gradients.

Under `torch.no_grad()` and `torch.inference_mode()` operations record nothing, so their results have no graph.
`backward()` on one raises "element 0 of tensors does not require grad and does not have a grad_fn".

Compute the loss outside the block. A backward that stands in the block is fine when its graph was recorded
before, or under `torch.enable_grad()`.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Grad, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL223", "backward-under-no-grad", Severity.ERROR, triggers=("no_grad", "inference_mode"))
CLAIM = Raises("RuntimeError", match="does not require grad|Inference tensors")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        with torch.no_grad():
            loss = net(torch.ones(4, 2)).pow(2).mean()
        loss.backward()  #!
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        @torch.no_grad()
        def saliency(net, image):
            image.requires_grad_(True)
            score = net(image).max()
            score.backward()  #!
            return image.grad


        saliency(nn.Linear(3, 2), torch.ones(3))
        """,
        good="""
        import torch
        from torch import nn


        def saliency(net, image):
            image.requires_grad_(True)
            score = net(image).max()
            score.backward()
            return image.grad


        saliency(nn.Linear(3, 2), torch.ones(3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 1)
    x = torch.ones(4, 2)
    loss = net(x).mean()
    with torch.no_grad():
        loss.backward()
        with torch.enable_grad():
            again = net(x).mean()
        again.backward()
        target = net(x)
    (net(x) - target).pow(2).mean().backward()


    @torch.no_grad()
    def step(closure, x):
        leaf = x.mean().requires_grad_(True)
        leaf.backward()
        with torch.enable_grad():
            loss = closure()
        loss.backward()


    def either(train):
        with torch.set_grad_enabled(train):
            loss = net(x).mean()
            if train:
                loss.backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards on values whose last operation ran with gradients off."""
    for call in model.calls_named("backward"):
        if not isinstance(call.func, ast.Attribute):
            continue
        for expr in (call.func.value, *call.args[:1]):
            value = model.value(expr)
            if value.is_tensor and value.grad is Grad.NO and made_without_grad(model, value):
                yield Hit(call, "this value was computed with gradients off and has no graph; compute it outside",
                          confidence=min(value.sure, Confidence.LIKELY))
                break


def made_without_grad(model: FileModel, value: Value) -> bool:
    """Whether the operation that made a value stands where gradients are off."""
    site = value.site
    return isinstance(site, ast.expr) and model.holds(site) and model.grad_at(site) is False
