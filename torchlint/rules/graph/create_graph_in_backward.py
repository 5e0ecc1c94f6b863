"""A `backward(create_graph=True)` whose gradients are left in place.

With `create_graph` the gradient that backward puts into `p.grad` has a graph of its own, and that graph holds `p`.
Parameter and gradient then keep each other alive: the whole graph stays in memory until the garbage collector
happens to run. torch warns about the cycle.

Use `torch.autograd.grad(loss, params, create_graph=True)`, whose results can simply go out of scope, or set the
gradients to None afterwards (`optimizer.zero_grad()` does).
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.model.forms import says_true
from torchlint.rule import Example, Hit, Meta

META = Meta("TL215", "create-graph-in-backward", Severity.WARNING, triggers=("create_graph",))
CLAIM = Warns("create_graph=True will create a reference cycle")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        loss.backward(create_graph=True)  #!
        penalty = sum(p.grad.pow(2).sum() for p in net.parameters())
        penalty.backward()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        penalty = sum(grad.pow(2).sum() for grad in grads)
        penalty.backward()
        """,
    ),
    Example(
        bad="""
        import torch

        x = torch.tensor(2.0, requires_grad=True)
        y = x ** 3
        y.backward(create_graph=True)  #!
        print(x.grad)
        """,
        good="""
        import torch

        x = torch.tensor(2.0, requires_grad=True)
        y = x ** 3
        grad, = torch.autograd.grad(y, x, create_graph=True)
        print(grad)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    def step(net, optimizer, loss, create_graph):
        loss.backward(create_graph=create_graph)
        loss.backward(create_graph=False)
        loss.backward(create_graph=True)
        optimizer.step()
        optimizer.zero_grad()


    def reset(net, loss):
        loss.backward(create_graph=True)
        for p in net.parameters():
            p.grad = None


    def loop(batches, net, optimizer):
        for x in batches:
            optimizer.zero_grad(set_to_none=True)
            net(x).mean().backward(create_graph=True)
            optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards with a literal `create_graph=True` in functions that set no gradient to None."""
    for call in model.calls_named("backward"):
        if not says_true(call, "create_graph") or not isinstance(call.func, ast.Attribute):
            continue
        owner = model.owner(call)
        if model.value(call.func.value).is_tensor and not any(
                clears(model, node) for node in ast.walk(owner) if isinstance(node, (ast.Call, ast.Assign))):
            yield Hit(call, "each parameter and its gradient keep each other alive; use `torch.autograd.grad`")


def clears(model: FileModel, node: ast.Call | ast.Assign) -> bool:
    """`zero_grad()`, `p.grad = None`, or code that may do either."""
    match node:
        case ast.Call(func=ast.Attribute(attr="zero_grad"), keywords=keywords):
            return not any(k.arg == "set_to_none" and isinstance(k.value, ast.Constant) and not k.value.value
                           for k in keywords)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return "clear" in name or "reset" in name or "zero_grad" in name
        case ast.Assign(targets=[ast.Attribute(attr="grad")]):
            return True
    return False
