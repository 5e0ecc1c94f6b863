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
from torchlint.model import FileModel, Grad, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL223", "backward-under-no-grad", Severity.ERROR, triggers=("no_grad", "inference_mode"))
CLAIM = Raises("RuntimeError", match="does not require grad|Inference tensors")
DEPTH = 4

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
    Example(
        bad="""
        import torch
        from torch import nn

        body, head = nn.Linear(2, 3), nn.Linear(3, 1)


        @torch.no_grad()
        def features(x):
            return body(x).relu()


        def train(x):
            loss = features(x).pow(2).mean()
            loss.backward()  #!


        def finetune(x, target):
            with torch.no_grad():
                out = head(body(x))
            error = out - torch.ones(1)
            error.pow(2).mean().backward()  #!


        for run in (lambda: train(torch.ones(4, 2)), lambda: finetune(torch.ones(4, 2), torch.ones(4, 1))):
            try:
                run()
            except RuntimeError as error:
                print(error)
        """,
        good="""
        import torch
        from torch import nn

        body, head = nn.Linear(2, 3), nn.Linear(3, 1)


        def features(x):
            return body(x).relu()


        def train(x):
            loss = features(x).pow(2).mean()
            loss.backward()


        def finetune(x, target):
            with torch.no_grad():
                hidden = body(x)
            error = head(hidden) - torch.ones(1)
            error.pow(2).mean().backward()


        for run in (lambda: train(torch.ones(4, 2)), lambda: finetune(torch.ones(4, 2), torch.ones(4, 1))):
            try:
                run()
            except RuntimeError as error:
                print(error)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    from losses import unknown_loss

    net = nn.Linear(2, 1)
    x = torch.ones(4, 2)
    loss = net(x).mean()
    with torch.no_grad():
        seed = net(x).mean() * 2
    net(x).mean().backward(seed)
    unknown_loss(net).backward(seed)
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
        for expr in losses(model, call, call.func.value):
            value = model.value(expr)
            if value.is_tensor and value.grad is Grad.NO and made_without_grad(model, value, model.owner(call)):
                yield Hit(call, "this value was computed with gradients off and has no graph; compute it outside",
                          confidence=min(value.sure, Confidence.LIKELY))
                break


def losses(model: FileModel, call: ast.Call, receiver: ast.expr) -> list[ast.expr]:
    """What `x.backward(...)` goes back from: x; the argument where x is an engine or a namespace.

    The argument of `Tensor.backward` is the gradient to begin with, which needs no graph.
    """
    if model.value(receiver).is_tensor:
        return [receiver]
    known = model.value(receiver).kind is not Kind.UNKNOWN or model.name_of(receiver) == "torch.autograd"
    return call.args[:1] if known else []


def made_without_grad(model: FileModel, value: Value, home: ast.AST, depth: int = 0) -> bool:
    """Whether the operation that made a value, or a module that it was computed from, ran with gradients off."""
    site = value.site
    if not isinstance(site, ast.expr) or not model.holds(site) or depth > DEPTH:
        return False
    function = model.function_named(site.func) if isinstance(site, ast.Call) else None
    if function is not None and function.declared_grad is False:
        return True
    if model.grad_at(site) is False:
        module = isinstance(site, ast.Call) and model.value(site.func).kind is Kind.MODULE
        return depth == 0 or module or model.owner(site) is not home
    for each in map(model.value, parts(site)):
        if each.is_tensor and each.grad is Grad.NO and each.site is not site and (
                made_without_grad(model, each, home, depth + 1)):
            return True
    return False


def parts(node: ast.expr) -> list[ast.expr]:
    """What an arithmetic expression or a call computes from."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=inner):
            return [inner]
        case ast.Call(func=ast.Attribute(value=receiver), args=args):
            return [receiver, *args]
        case ast.Call(args=args):
            return list(args)
    return []
