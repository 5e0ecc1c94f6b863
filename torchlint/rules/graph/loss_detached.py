"""A loss that is cut from its parameters on the way to backward.

`.item()`, `float()`, `.detach()`, `.numpy()` and `torch.tensor(losses)` give numbers without a history. Backward
through them raises "does not require grad"; adding `requires_grad=True` silences the error and makes a new leaf
that ends the graph right there, so no parameter gets a gradient and the loss never falls.

Keep the tensor: `torch.stack(losses).mean()`, `loss` instead of `loss.item()`. Copies for the log, weights and
targets that are detached on purpose are fine while some term keeps its graph.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoGradient
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Grad
from torchlint.model.evaluate import path_of
from torchlint.rule import Example, Hit, Meta

META = Meta("TL206", "loss-detached", Severity.ERROR, triggers=("backward", "requires_grad"))
CLAIM = NoGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 2)
        parts = []
        for out in net(torch.ones(1, 2))[0]:
            parts.append(out.pow(2))
        loss = torch.tensor(parts, requires_grad=True).mean()  #!
        loss.backward()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 2)
        parts = []
        for out in net(torch.ones(1, 2))[0]:
            parts.append(out.pow(2))
        loss = torch.stack(parts).mean()
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def step(net, x):
            loss = net(x).pow(2).mean().detach()  #!
            loss.requires_grad_(True)
            loss.backward()


        step(nn.Linear(2, 1), torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn


        def step(net, x):
            loss = net(x).pow(2).mean()
            loss.backward()


        step(nn.Linear(2, 1), torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batches in torch.randn(3, 2, 4, 3):
            losses = []
            for x in batches:
                losses.append(net(x).pow(2).mean().item())
            loss = torch.tensor(losses, requires_grad=True).mean()  #!
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batches in torch.randn(3, 2, 4, 3):
            losses = []
            for x in batches:
                losses.append(net(x).pow(2).mean())
            loss = torch.stack(losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def train(net, xs):
            total = 0
            for x in xs:
                total += net(x).pow(2).mean().item()  #!
            loss = torch.tensor(total / len(xs), requires_grad=True)
            loss.backward()


        train(nn.Linear(2, 1), torch.ones(3, 1, 2))
        """,
        good="""
        import torch
        from torch import nn


        def train(net, xs):
            total = 0
            for x in xs:
                total += net(x).pow(2).mean()
            loss = total / len(xs)
            loss.backward()


        train(nn.Linear(2, 1), torch.ones(3, 1, 2))
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch
        from torch import nn


        def distance(a, b):
            mse = np.mean((a.detach().numpy() - b.numpy()) ** 2)  #!
            return torch.tensor(mse, requires_grad=True)


        net = nn.Linear(2, 2)
        loss = distance(net(torch.ones(1, 2)), torch.zeros(1, 2))
        loss.backward()
        """,
        good="""
        import torch
        from torch import nn


        def distance(a, b):
            return ((a - b) ** 2).mean()


        net = nn.Linear(2, 2)
        loss = distance(net(torch.ones(1, 2)), torch.zeros(1, 2))
        loss.backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 2)
    out = net(torch.ones(1, 2))
    weights = torch.tensor([0.5, 0.5])
    scale = out.detach().abs().mean()
    loss = (out * weights).sum() + scale
    print(loss.item())
    loss.backward()
    total = torch.zeros((), requires_grad=True)
    total = total + net(torch.ones(1, 2)).sum()
    total.backward()
    x = net(torch.ones(1, 2)).detach().requires_grad_(True)
    net(x).sum().backward()
    """,
]


SEVERAL = "the new leaf ends the graph of these losses; use `torch.stack` and keep their graphs"
SINGLE = "the new leaf ends the graph of the loss; keep the loss itself"


def check(model: FileModel) -> Iterator[Hit]:
    """Backward targets without a graph that come from a value with one; tensors of losses made into leaves."""
    seen: set[ast.AST] = set()
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == "torch.tensor" and makes_leaf(call) and (
                cuts(model, call) or collected(model, call.args)):
            seen.add(call)
            single = bool(call.args) and model.value(call.args[0]).is_tensor
            yield Hit(call, SINGLE if single else SEVERAL)
    for function in (model.tree, *(info.node for info in model.functions)):
        for event in model.flow(function).of("backward"):
            if event.depth:
                continue
            place = cut_before(model, function, event) if has_no_graph(event) else lost_term(model, function, event)
            if place is not None and place not in seen:
                seen.add(place)
                yield Hit(place, "the loss loses its graph here, so backward reaches no parameter; keep the tensor",
                          confidence=min(event.target.sure, Confidence.LIKELY))


def makes_leaf(call: ast.Call) -> bool:
    """`requires_grad=True`."""
    return any(k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value is True
               for k in call.keywords)


def collected(model: FileModel, args: list[ast.expr]) -> bool:
    """Whether the data is a list into which numbers of attached tensors are put, or the sum of such."""
    match args:
        case [ast.Attribute() as data, *_] if path_of(data):
            return any(model.value(call.args[0]).attached for call in model.calls_named("append")
                       if isinstance(call.func, ast.Attribute) and path_of(call.func.value) == path_of(data)
                       and len(call.args) == 1 and model.class_of(call) is model.class_of(data))
        case [ast.Name(id=name) as data, *_]:
            return summed_up(model, model.owner(data), name) is not None or any(
                cuts(model, call.args[0]) for call in model.calls_named("append")
                if isinstance(call.func, ast.Attribute) and path_of(call.func.value) == name and len(call.args) == 1
                and model.owner(call) is model.owner(data))
    return False


def has_no_graph(event: Event) -> bool:
    """Whether the target of a backward is a number or a leaf of its own."""
    target = event.target
    return target.is_tensor and (target.grad is Grad.NO or (target.role == "leaf" and not target.graph))


def cut_before(model: FileModel, function: ast.AST, event: Event) -> ast.expr | None:
    """The expression that drops the graph of what the backward's target was made from."""
    match event.node:
        case ast.Call(func=ast.Attribute(value=target), args=[]) | ast.Call(args=[target, *_]):
            made = model.value(target).site
            if isinstance(made, ast.expr) and model.has(made) and model.owner(made) is not function:
                return cut_in(model, made, model.owner(made), made, 0)  # in the function that returned it
            return cut_in(model, target, function, event.node, 0)
    return None


def cut_in(model: FileModel, expr: ast.expr, function: ast.AST, place: ast.AST, depth: int) -> ast.expr | None:
    """A cut inside an expression, or in what its names were assigned last before `place`."""
    for node in ast.walk(expr):
        if isinstance(node, ast.expr) and cuts(model, node):
            return node
    if depth >= 3:
        return None
    for name in [node.id for node in ast.walk(expr) if isinstance(node, ast.Name)]:
        for made in makers(model, name, function, place):
            found = cut_in(model, made.value, function, made, depth + 1)
            if found is not None:
                return found
    return None


def makers(model: FileModel, name: str, function: ast.AST, place: ast.AST) -> list[ast.Assign | ast.AugAssign]:
    """What a name was assigned last before a place, and what was added to it since."""
    before: list[ast.Assign | ast.AugAssign] = []
    statements: list[ast.Assign | ast.AugAssign] = [*model.nodes(ast.Assign), *model.nodes(ast.AugAssign)]
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if model.owner(node) is function and model.position(node) < model.position(place) and any(
                isinstance(target, ast.Name) and target.id == name for target in targets):
            before.append(node)
    before.sort(key=model.position)
    last = max((i for i, node in enumerate(before) if isinstance(node, ast.Assign)), default=0)
    return before[last:]


def cuts(model: FileModel, node: ast.expr) -> bool:
    """Whether an expression gives the numbers of an attached tensor without its graph."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="item" | "detach" | "numpy" | "tolist"), args=[]):
            return model.value(inner).attached
        case ast.Attribute(value=inner, attr="data", ctx=ast.Load()):
            return model.value(inner).attached
        case ast.Call(func=func, args=[inner, *_]) if model.name_of(func) in (
                "builtins.float", "torch.tensor", "torch.Tensor", "torch.FloatTensor"):
            value = model.value(inner)
            return value.attached or any(part.attached for part in value.parts())
    return False


def lost_term(model: FileModel, function: ast.AST, event: Event) -> ast.expr | None:
    """A term of the loss that was summed up as numbers and made a tensor again."""
    match event.node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=[]):
            made = [a.value for a in model.nodes(ast.Assign) if model.owner(a) is function
                    and any(isinstance(t, ast.Name) and t.id == name for t in a.targets)]
            for term in (term for value in made for term in terms(value)):
                match term:
                    case ast.Call(func=func, args=[ast.Name(id=source), *_]) if model.name_of(func) in (
                            "torch.as_tensor", "torch.from_numpy", "torch.tensor"):
                        return summed_up(model, function, source)
    return None


def terms(expr: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum."""
    match expr:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from terms(left)
            yield from terms(right)
        case _:
            yield expr


def summed_up(model: FileModel, function: ast.AST, name: str) -> ast.expr | None:
    """A cut inside what is added to a name."""
    for node in model.nodes(ast.AugAssign):
        if model.owner(node) is function and isinstance(node.target, ast.Name) and node.target.id == name:
            for part in ast.walk(node.value):
                if isinstance(part, ast.expr) and cuts(model, part):
                    return part
    return None
