"""An in-place change of a leaf that requires grad.

A leaf's value is what its gradient belongs to. Changing it in place while gradients are recorded would make it
the result of an operation, so torch refuses: "a leaf Variable that requires grad is being used in an in-place
operation".

Change it under `torch.no_grad()`, as optimizers do, or before `requires_grad_()`. A clone, a frozen tensor and
item assignment into a dict or list of tensors are fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes.no_grad import under_no_grad
from torchlint.model import Event, FileModel, FunctionInfo, Grad
from torchlint.rule import Example, Hit, Meta

META = Meta("TL104", "inplace-on-leaf", Severity.ERROR, fix=Safety.UNSAFE)
CLAIM = Raises("RuntimeError", "leaf Variable that requires grad")
HARMLESS = {"detach_", "requires_grad_", "retain_grad", "share_memory_", "set_", "rename_"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        w = torch.zeros(2, requires_grad=True)
        loss = (w * torch.ones(2) - 1).pow(2).sum()
        loss.backward()
        w -= 0.1 * w.grad  #!
        """,
        good="""
        import torch

        w = torch.zeros(2, requires_grad=True)
        loss = (w * torch.ones(2) - 1).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = nn.Parameter(torch.randn(3, 2))
                self.rows[0] = 0  #!


        Table()
        """,
        good="""
        import torch
        from torch import nn


        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = nn.Parameter(torch.randn(3, 2))
                with torch.no_grad():
                    self.rows[0] = 0


        Table()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def descend(net, lr):
            for p in net.parameters():
                p.sub_(lr * p.grad)  #!


        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).sum().backward()
        descend(net, 0.1)
        """,
        good="""
        import torch
        from torch import nn


        def descend(net, lr):
            for p in net.parameters():
                with torch.no_grad():
                    p.sub_(lr * p.grad)


        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).sum().backward()
        descend(net, 0.1)
        """,
    ),
]

CLEAN = [
    """
    from functools import partial

    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.apply(self.start)

        def start(self, module):
            fill = partial(nn.init.normal_, mean=0.0, std=0.1)
            if isinstance(module, nn.Linear):
                fill(module.weight)


    Net()
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fixed = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.fixed.add_(1)
            self.masks = nn.ParameterDict()
            self.masks["a"] = nn.Parameter(torch.ones(1))
            self.weight = nn.Parameter(torch.empty(2))
            nn.init.normal_(self.weight)
            self.reset()

        @torch.no_grad()
        def reset(self):
            self.weight.fill_(0.5)


    net = Net()
    copy = net.weight.clone()
    copy[0] = 1
    start = torch.zeros(2)
    start += 1
    start.requires_grad_()
    """,
    """
    import copy

    import torch
    from torch import nn

    net = nn.Linear(2, 2)
    average = copy.deepcopy(net).requires_grad_(False)
    for p, q in zip(average.parameters(), net.parameters()):
        p.mul_(0.9).add_(q.detach(), alpha=0.1)
    """,
    """
    import copy

    import torch
    from torch import nn


    class Average:
        def __init__(self, net):
            self.net, self.average = net, copy.deepcopy(net)
            for p in self.average.parameters():
                p.detach_()

        def update(self):
            fixed = nn.Linear(2, 2).requires_grad_(False)
            fixed.weight.copy_(torch.ones(2, 2))
            for p, q in zip(self.average.parameters(), self.net.parameters()):
                p.mul_(0.9).add_(q.detach(), alpha=0.1)


    Average(nn.Linear(2, 2)).update()
    """,
    """
    from torch import nn


    def replaced(model):
        for name, layer in model.named_children():
            if isinstance(layer, nn.Linear):
                new = nn.Linear(layer.in_features, layer.out_features)
                new.weight.copy_(layer.weight)
                setattr(model, name, new)
            else:
                replaced(layer)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """In-place events on leaves while gradients are recorded."""
    seen: set[ast.AST] = set()
    for function in (model.tree, *(info.node for info in model.functions if used_here(info))):
        for event in model.flow(function).of("inplace"):
            statement = model.statement(event.node)
            if statement not in seen and refused(model, event):
                seen.add(statement)
                yield Hit(event.node, "torch refuses to change a leaf that requires grad; use `torch.no_grad()`",
                          under_no_grad(model, [statement]), confidence=event.target.sure)


def used_here(info: FunctionInfo) -> bool:
    """Whether the file itself uses a plain function: callers in other files may have turned gradients off."""
    if info.cls is not None:
        return True
    inside = set(map(id, ast.walk(info.node)))
    return any(node.id == info.name and id(node) not in inside
               for node in info.model.nodes(ast.Name) if isinstance(node, ast.Name))


def refused(model: FileModel, event: Event) -> bool:
    """Whether the target is a leaf that requires grad, here and with gradients on."""
    target = event.target
    if event.depth or event.grad is not True or target.grad is not Grad.YES or target.role not in ("parameter", "leaf"):
        return False
    if event.name.startswith("torch.nn.init."):
        return False  # these turn gradients off themselves
    if event.name.rpartition(".")[2] in HARMLESS or "maybe_number" in target.facts or target.optional:
        return False
    made = isinstance(target.site, ast.Call) and model.holds(target.site) and model.name_of(
        target.site.func) == "torch.nn.Parameter"
    return made or target.role == "leaf" or not may_be_frozen(model)


def may_be_frozen(model: FileModel) -> bool:
    """Whether the file turns requires_grad off somewhere: which module's parameters are frozen is not followed."""
    if model.calls_named("detach_"):
        return True
    for call in model.calls_named("requires_grad_"):
        if call.args or call.keywords:
            return True
    return any(isinstance(node.ctx, ast.Store) for node in model.attributes_named("requires_grad"))
