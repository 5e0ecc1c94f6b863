"""Gradients from `autograd.grad` that enter a loss without a graph of their own.

`torch.autograd.grad` returns plain numbers unless it is told to record how it computed them. A loss made from
such gradients (gradient penalty, Hessian product, meta-learning step) treats them as constants: backward gives
the penalty no gradient, without an error as long as any other term has one.

Pass `create_graph=True`. Gradients that are only measured, shown or used for an attack need none.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, FunctionInfo
from torchlint.rule import Example, Hit, Meta

META = Meta("TL214", "missing-create-graph", Severity.ERROR, fix=Safety.UNSAFE, triggers=("grad",))
CLAIM = NoGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import autograd, nn


        def gradient_penalty(critic, x):
            x = x.clone().requires_grad_(True)
            grads = autograd.grad(critic(x).sum(), x)[0]  #!
            return (grads.norm(2, dim=1) - 1).pow(2).mean()


        critic = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        x = torch.ones(4, 2)
        loss = -critic(x).mean() + 10 * gradient_penalty(critic, x)
        loss.backward()
        """,
        good="""
        import torch
        from torch import autograd, nn


        def gradient_penalty(critic, x):
            x = x.clone().requires_grad_(True)
            grads = autograd.grad(critic(x).sum(), x, create_graph=True)[0]
            return (grads.norm(2, dim=1) - 1).pow(2).mean()


        critic = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        x = torch.ones(4, 2)
        loss = -critic(x).mean() + 10 * gradient_penalty(critic, x)
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch

        w = torch.ones(2, requires_grad=True)
        loss = w.pow(3).sum()
        (g,) = torch.autograd.grad(loss, w, retain_graph=True)  #!
        total = loss + (g * torch.ones(2)).sum()
        total.backward()
        """,
        good="""
        import torch

        w = torch.ones(2, requires_grad=True)
        loss = w.pow(3).sum()
        (g,) = torch.autograd.grad(loss, w, retain_graph=True, create_graph=True)
        total = loss + (g * torch.ones(2)).sum()
        total.backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 1)


    def saliency(x):
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(net(x).sum(), x)[0].abs()


    def attack(x, eps=0.1):
        x = x.clone().requires_grad_(True)
        (g,) = torch.autograd.grad(net(x).sum(), x)
        return (x + eps * g.sign()).detach()


    saliency(torch.ones(1, 2))
    net(attack(torch.ones(1, 2))).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`autograd.grad` calls whose result reaches a backward as a number."""
    reported: set[ast.AST] = set()
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != "torch.autograd.grad" or says_so(call) or call in reported:
            continue
        reached = any(reaches(event) and made_by(model, function, event, call)
                      for function in (model.tree, *(info.node for info in model.functions))
                      for event in model.flow(function).of("backward"))
        if reached or is_penalty(model, call):
            reported.add(call)
            yield Hit(
                call, "these gradients enter the loss as constants; pass `create_graph=True`",
                edits.repair("Record their graph", edits.add_keyword_argument(model, call, "create_graph=True")),
                confidence=Confidence.SURE if reached else Confidence.LIKELY)


def says_so(call: ast.Call) -> bool:
    """Whether the call says what it wants of create_graph."""
    return len(call.args) > 4 or any(keyword.arg in ("create_graph", None) for keyword in call.keywords)


def reaches(event: Event) -> bool:
    """Whether the target of a backward was computed from gradients without a graph."""
    return "first_order" in event.target.facts


def made_by(model: FileModel, function: ast.AST, backward: Event, call: ast.Call) -> bool:
    """Whether the call, here or in a helper, runs before the backward."""
    for event in model.flow(function).events:
        if event is backward:
            return False
        if event.what == "autograd_grad" and event.inner is call and event.grad is not False:
            return True
    return False


def is_penalty(model: FileModel, call: ast.Call) -> bool:
    """Whether the function is called a penalty and returns what it computed from the gradients."""
    info: FunctionInfo | None = model.function(call)
    return info is not None and "penalty" in info.name.lower() and any(
        "first_order" in value.facts for _, value in model.flow(info.node).return_values)
