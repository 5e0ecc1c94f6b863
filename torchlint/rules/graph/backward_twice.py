"""A second backward through a graph that the first one freed.

Backward frees the values that operations saved as soon as it has used them, unless `retain_graph=True` says that
they are needed again. A second backward through the same operations raises "Trying to backward through the graph
a second time". An optimizer step between two backwards is as bad: it changes parameters in place that the second
one still needs.

Compute the loss again for every backward, or add the losses and call backward once; do all backwards before the
first step.
"""
from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from torchlint import knowledge
from torchlint.claims import Raises
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, Kind, graphs, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL205", "backward-twice", Severity.ERROR, triggers=("backward",))
CLAIM = Raises("RuntimeError", "second time|modified by an inplace operation")
AGAIN = "an earlier backward has freed this graph; compute the loss again, or add the losses"
STEPPED = "the step above changed parameters that this backward needs; do it before the step"

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        for _ in range(3):
            optimizer.zero_grad()
            loss.backward()  #!
            optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = net(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def step(net, x):
            hidden = torch.tanh(net(x))
            near = hidden.pow(2).mean()
            far = hidden.abs().mean()
            near.backward()
            far.backward()  #!


        step(nn.Linear(2, 2), torch.ones(4, 2))
        """,
        good="""
        import torch
        from torch import nn


        def step(net, x):
            hidden = torch.tanh(net(x))
            near = hidden.pow(2).mean()
            far = hidden.abs().mean()
            (near + far).backward()


        step(nn.Linear(2, 2), torch.ones(4, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        encoder = nn.Linear(2, 1)
        head = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        out = head(encoder(torch.ones(4, 2)))
        near = out.pow(2).mean()
        far = out.abs().mean()
        near.backward(retain_graph=True)
        optimizer.step()
        far.backward()  #!
        """,
        good="""
        import torch
        from torch import nn

        encoder = nn.Linear(2, 1)
        head = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        out = head(encoder(torch.ones(4, 2)))
        near = out.pow(2).mean()
        far = out.abs().mean()
        near.backward(retain_graph=True)
        optimizer.step()
        head(encoder(torch.ones(4, 2))).abs().mean().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.net = nn.Linear(2, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def optimise(self, loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

            def train(self, x):
                out = self.net(x)
                self.optimise(out.pow(2).mean())
                self.optimise(out.exp().mean())  #!


        Trainer().train(torch.ones(4, 2))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.net = nn.Linear(2, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def optimise(self, loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

            def train(self, x):
                out = self.net(x)
                self.optimise(out.pow(2).mean() + out.exp().mean())


        Trainer().train(torch.ones(4, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def polish(net, x):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            loss = net(x).pow(2).mean()

            def closure():
                optimizer.zero_grad()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)  #!


        polish(nn.Linear(2, 1), torch.ones(4, 2))
        """,
        good="""
        import torch
        from torch import nn


        def polish(net, x):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

            def closure():
                optimizer.zero_grad()
                loss = net(x).pow(2).mean()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)


        polish(nn.Linear(2, 1), torch.ones(4, 2))
        """,
    ),
    Example(
        bad="""
        import torch

        body = torch.nn.Linear(3, 4)
        left, right = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        shared = torch.tanh(body(torch.ones(2, 3)))
        losses = (left(shared).mean(), right(shared).pow(2).mean())
        for loss in losses:
            loss.backward()  #!
        """,
        good="""
        import torch

        body = torch.nn.Linear(3, 4)
        left, right = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        shared = torch.tanh(body(torch.ones(2, 3)))
        losses = (left(shared).mean(), right(shared).pow(2).mean())
        sum(losses).backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Trainer:
        def __init__(self):
            self.net = nn.Linear(2, 2)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def optimise(self, loss, keep=False):
            self.optimizer.zero_grad()
            loss.backward(retain_graph=keep)
            self.optimizer.step()

        def train(self, x):
            for _ in range(2):
                self.optimise(self.net(x).pow(2).mean())
            self.optimise(self.net(x).exp().mean())

        def refine(self, x):
            def closure():
                loss = self.net(x).pow(2).mean()
                loss.backward()
                return loss

            for _ in range(2):
                self.optimizer.step(closure)


    Trainer().train(torch.ones(4, 2))
    Trainer().refine(torch.ones(4, 2))
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x)


    net = Net()
    for x in torch.ones(3, 4, 2):
        loss = net(x).pow(2).mean()
        loss.backward()
    """,
    """
    import torch
    from torch import nn

    net, head = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def steps(x, early):
        out = net(x)
        loss = head(out).pow(2).mean()
        if early:
            loss.backward()
            return
        loss.backward(retain_graph=True)
        out.sum().backward()
        shared = net(x)
        head(shared.detach()).pow(2).mean().backward()
        shared.pow(2).mean().backward()
        loss = net(x).pow(2).mean()
        if early:
            loss.backward()
        else:
            loss.backward()
        loss = net(x).pow(2).mean()
        for _ in range(3):
            loss.backward()
            break
        hidden = net(x)
        for _ in range(3):
            loss = net(hidden).pow(2).mean()
            loss.backward()
            optimizer.step()
            hidden = net(x).detach()
        y = torch.ones(2, requires_grad=True)
        total = (y + 1).sum()
        total.backward()
        total.backward()
        fake = net(x)
        fake.pow(2).mean().backward()
        optimizer.step()
        head(net(x)).mean().backward()
        with_scale = net(x)
        with_scale.mul(2).sum().backward(inputs=[net.weight])
    """,
    """
    import torch

    left, right = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    for loss in (left(torch.ones(2, 4)).mean(), right(torch.ones(2, 4)).mean()):
        loss.backward()
    shared = torch.tanh(left(torch.ones(2, 4)))
    for loss in (shared.mean(), shared.pow(2).mean()):
        loss.backward(retain_graph=True)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Pairs of backwards that share operations, and backwards of a loop on a graph made before it."""
    for function, flow in training.bodies(model):
        backwards = [e for e in flow.of("backward") if e.depth <= 1]
        for index, event in enumerate(backwards):
            message = ""
            if any(freed_before(model, flow, first, event) for first in backwards[:index]) or (
                    freed_by_last_round(model, function, flow, event)) or over_shared(model, flow, event):
                message = AGAIN
            elif event.depth == 0 and stepped_before(model, function, flow, event):
                message = STEPPED
            if message:
                yield Hit(event.node, message, confidence=min(event.target.sure, Confidence.LIKELY))
                break


def saving(model: FileModel, flow: Flow, keys: frozenset[Hashable]) -> set[Hashable]:
    """Operations of this function and iteration that surely keep something for backward."""
    found: set[Hashable] = set()
    for key in keys:
        node = graphs.outermost(key)
        if not isinstance(node, (ast.Call, ast.BinOp)) or not model.has(node):
            continue
        result = flow.values.get(node)
        if result is None or not result.attached:
            continue
        if isinstance(node, ast.Call) and model.value(node.func).kind is Kind.MODULE:
            found.add(key)  # layers keep their input or weights
        elif node is key and (overload := graphs.overload_at(node, result)) and keeps(model, node, overload):
            found.add(key)
    return found


def keeps(model: FileModel, node: ast.expr, overload: knowledge.Overload) -> bool:
    """Whether an operation keeps an operand or its result because an attached tensor needs it."""
    given = graphs.operands(model, node, overload)
    return any(name in given and given[name].attached for because in overload.saved_for.values() for name in because)


def freed_before(model: FileModel, flow: Flow, first: Event, second: Event) -> bool:
    """Whether the first backward frees operations that the second needs."""
    if first.node is second.node or first.loops != second.loops or not both_run(model, first, second) or (
            graphs.retains(first.inner or first.node) or partial(first)):
        return False
    shared = first.target.graph & second.target.graph
    return bool(saving(model, flow, shared)) and sure(first) and sure(second)


def sure(event: Event) -> bool:
    """Whether the target is one tensor with a known maker."""
    return event.target.attached and event.target.site is not None


def partial(event: Event) -> bool:
    """`backward(inputs=...)` frees only some of the graph."""
    call = event.inner or event.node
    return isinstance(call, ast.Call) and any(k.arg in ("inputs", None) for k in call.keywords)


def both_run(model: FileModel, first: Event, second: Event) -> bool:
    """Whether one pass may surely run both: no other arm, no leaving between them, no `except`."""
    if first.excludes(second) or set(map(id, (t for t, _ in first.guards))) - {id(t) for t, _ in second.guards}:
        return False
    return not model.place(first.node).tries and not model.place(second.node).tries


def freed_by_last_round(model: FileModel, function: ast.AST, flow: Flow, event: Event) -> bool:
    """Whether a backward in a loop goes through operations from before the loop, again in every round."""
    loop = event.loops[-1] if event.loops else None
    if not isinstance(loop, (ast.For, ast.While)) or not model.has(loop) or (
            graphs.retains(event.inner or event.node)) or (
            partial(event) or not sure(event) or model.place(event.node).guards != model.place(loop).guards):
        return False
    if model.place(event.node).tries or any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(loop)):
        return False
    inside = set(map(id, ast.walk(loop)))
    outer = {key for key in saving(model, flow, event.target.graph) if id(graphs.outermost(key)) not in inside}
    state = flow.loops.get(loop)
    if not outer or state is None or event.target.carried:
        return False
    changed = [value for name in state.carried() if (value := state.head.get(name)) is not None]
    return not any(outer & value.graph for value in changed)


def over_shared(model: FileModel, flow: Flow, event: Event) -> bool:
    """Whether a loop goes over losses that share operations: the first one's backward frees what the next one needs."""
    loop = event.loops[-1] if event.loops else None
    state = flow.loops.get(loop) if isinstance(loop, ast.For) else None
    members = state.iterated.elements if state is not None else None
    match event.node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if members is not None and len(members) > 1:
            if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.target.id == name):
                return False
            if graphs.retains(event.inner or event.node) or partial(event) or model.place(event.node).tries or (
                    model.place(event.node).guards != model.place(loop).guards):
                return False
            first, second = members[:2]
            return first.attached and second.attached and bool(saving(model, flow, first.graph & second.graph))
    return False


def stepped_before(model: FileModel, function: ast.AST, flow: Flow, event: Event) -> bool:
    """Whether an optimizer changed the parameters of a module that the backward goes through."""
    here = model.position(event.node)
    for step in flow.of("step"):
        params = step.target.elements[0] if step.target.elements else None
        at = model.position(step.node)
        if at > here or step.depth or step.loops != event.loops or params is None or params.bound is None or (
                params.bound.ident is None or not both_run(model, step, event) or not training.is_stepped(step)):
            continue
        for call in graphs.calls_before(model, function, {params.bound.ident}, step.node):
            if call.depth == 0 and call.loops == step.loops and graphs.grows_from(event.target, call.node) and (
                    needs_weights(model, call)):
                return True
    return False


def needs_weights(model: FileModel, call: Event) -> bool:
    """Whether the input of a module call carries a graph, so that every layer keeps its weights for backward."""
    return isinstance(call.node, ast.Call) and any(model.value(arg).attached for arg in call.node.args)
