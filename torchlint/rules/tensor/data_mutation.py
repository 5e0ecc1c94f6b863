"""A write through `.data` to a tensor that a graph still needs.

`.data` gives a tensor that shares memory with x but not its version counter. Backward compares versions to
notice that a saved value was changed; a write through `.data` does not count as a change. So sigmoid, exp,
matmul and the rest read the new numbers as if they were the old ones, and the gradient is wrong without an
error, where the same write to x itself raises.

Use an out-of-place operation (`x = x.masked_fill(mask, 0)`), or change parameters after `backward()` and
`step()`. Writes to tensors that no graph holds are fine: initialisation, clamping after the optimizer's step,
moving averages of a copy. So are attributes that are called `data` but hold no tensor's data.
"""
from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from torchlint import knowledge
from torchlint.claims import WrongGradient
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Kind, Value, graphs
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL101", "data-mutation", Severity.ERROR, fix=Safety.UNSAFE, triggers=("data",))
CLAIM = WrongGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.proj = nn.Linear(4, 4)

            def forward(self, x, dead):
                scores = torch.sigmoid(self.proj(x))
                penalty = scores.sum()
                scores.data[:, dead] = 0.0  #!
                return (x * scores).sum() + penalty


        torch.manual_seed(0)
        gate = Gate()
        gate(torch.randn(3, 4), torch.tensor([True, False, False, True])).backward()
        """,
        good="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.proj = nn.Linear(4, 4)

            def forward(self, x, dead):
                scores = torch.sigmoid(self.proj(x))
                penalty = scores.sum()
                scores = scores.clone()
                scores[:, dead] = 0.0
                return (x * scores).sum() + penalty


        torch.manual_seed(0)
        gate = Gate()
        gate(torch.randn(3, 4), torch.tensor([True, False, False, True])).backward()
        """,
    ),
    Example(
        bad="""
        import torch

        w = torch.ones(3, requires_grad=True)
        x = torch.ones(3, requires_grad=True)
        y = w * x
        w.data.mul_(100)  #!
        y.sum().backward()
        """,
        good="""
        import torch

        w = torch.ones(3, requires_grad=True)
        x = torch.ones(3, requires_grad=True)
        y = w * x
        y.sum().backward()
        w.data.mul_(100)
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 2
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


        def limit(module):
            for p in module.parameters():
                p.data.clamp_(-0.01, 0.01)


        for _ in range(STEPS):
            loss = net(torch.ones(2, 3)).sum()
            optimizer.zero_grad()
            limit(net)  #!
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 2
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


        def limit(module):
            for p in module.parameters():
                p.data.clamp_(-0.01, 0.01)


        for _ in range(STEPS):
            loss = net(torch.ones(2, 3)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            limit(net)
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch

        logits = torch.zeros(4, requires_grad=True)
        weights = logits.exp()
        kept = weights.data
        kept *= torch.tensor([1.0, 0.0, 1.0, 0.0])  #!
        weights.sum().backward()
        """,
        good="""
        import torch

        logits = torch.zeros(4, requires_grad=True)
        weights = logits.exp()
        kept = weights * torch.tensor([1.0, 0.0, 1.0, 0.0])
        kept.sum().backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    # An attribute of this name that holds no tensor's data.
    """
    import torch
    from torch import nn


    class Ring:
        def __init__(self, size):
            self.data = torch.zeros(size, 4)
            self.at = 0

        def push(self, row):
            self.data[self.at] = row
            self.data.mul_(0.9)
            self.at += 1


    net = nn.Linear(4, 4)
    ring = Ring(3)
    out = torch.sigmoid(net(torch.ones(2, 4)))
    ring.push(out.detach().mean(0))
    out.sum().backward()
    """,
    # After the step, no graph is alive.
    """
    import torch
    from torch import nn

    critic = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.RMSprop(critic.parameters())
    for _ in range(3):
        loss = critic(torch.ones(2, 3)).mean()
        loss.backward()
        optimizer.step()
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)
        optimizer.zero_grad()
        other = -critic(torch.zeros(2, 3)).mean()
        other.backward()
    """,
    # Before the first use in this forward.
    """
    import torch
    from torch import nn
    import torch.nn.functional as F


    class MaxNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 2))

        def forward(self, x):
            self.weight.data.copy_(torch.renorm(self.weight.data, 2, 0, 1.0))
            return F.linear(x, self.weight)


    MaxNorm()(torch.ones(1, 2)).sum().backward()
    """,
    # A moving average of the weights, and a loss that is only logged after its backward.
    """
    import copy

    import torch
    from torch import nn

    net = nn.Linear(2, 2)
    average = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def step(x):
        loss = torch.exp(net(x)).mean()
        loss.backward()
        optimizer.step()
        for p, q in zip(net.parameters(), average.parameters()):
            q.data.mul_(0.9).add_(p.data, alpha=0.1)
        loss.data.mul_(100)
        return loss.item()


    step(torch.ones(1, 2))
    """,
    # A straight-through estimator: backward keeps nothing of a clone.
    """
    import torch

    w = torch.randn(3, requires_grad=True)
    sign = w.clone()
    sign.data = torch.sign(w.data)
    (sign * 2).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Writes through `.data` to what an unfinished graph holds."""
    seen: set[ast.AST] = set()
    for function in (model.tree, *(info.node for info in model.functions)):
        for event in model.flow(function).of("data_write"):
            if event.node not in seen and held(model, function, event):
                seen.add(event.node)
                yield Hit(
                    event.node, "`.data` overwrites what backward still needs, unseen; change a copy or wait",
                    out_of_place(model, event),
                    confidence=owner_of(event).sure)


def owner_of(event: Event) -> Value:
    """The tensor whose `.data` is written."""
    through = "through_data" in event.target.facts and event.target.bound is not None
    return event.target.bound if through and event.target.bound is not None else event.target


def held(model: FileModel, function: ast.AST, event: Event) -> bool:
    """Whether an operation before the write keeps the tensor for a backward that is still to come."""
    owner = owner_of(event)
    if not owner.attached:
        return False
    leaf = owner.role in ("parameter", "leaf")
    if event.name == "=" and not leaf:
        return False  # what was saved keeps the old storage
    if any(graphs.used_after(model, function, node, event.node)
           for node in graphs.kept_by(model, function, owner, event.node)):
        return True
    # Two modules of one class cannot be told apart inside their own forward.
    inside = event.depth and any(call.node is event.node for call in model.flow(function).of("call"))
    return leaf and not inside and any(graphs.used_after(model, function, call.node, event.node)
                        for call in graphs.calls_before(model, function, owners(owner), event.node)
                        if keeps_weights(call))


def owners(parameter: Value) -> set[Hashable]:
    """The modules that a parameter may belong to, as identities."""
    found: set[Hashable] = set()
    if parameter.bound is not None and parameter.bound.kind is Kind.MODULE:
        found.add(parameter.bound.ident)
    if isinstance(parameter.ident, tuple):
        found.add(parameter.ident[0])
    return found - {None}


def keeps_weights(call: Event) -> bool:
    """A lone linear layer keeps its weight only if its input needs a gradient."""
    return call.target.cls is not None or not call.args or any(
        value.attached or not value.known for value in call.args) or call.target.name.endswith("Sequential")


def out_of_place(model: FileModel, event: Event) -> Repair | None:
    """Change a clone of a tensor that has a name here; a parameter must be changed elsewhere."""
    statement = model.statement(event.node)
    match event.node, statement:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="data") as data), ast.Assign():
            if owner_of(event).role:
                return None
            return edits.repair(
                "Write to a clone", edits.insert_before(model, statement, f"{name} = {name}.clone()"),
                edits.replace(model, data, name))
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="data"), attr=method)
                      ) as call, ast.Expr(value=value) if value is call and knowledge.method(method.removesuffix("_")):
            # What the call reads through `.data` would be left out of the gradient of what it gives now.
            reads = [node for node in ast.walk(call) if isinstance(node, ast.Attribute) and node.attr == "data"]
            if owner_of(event).role or len(reads) > 1:
                return None
            given = source_of(model, call)[len(source_of(model, call.func)):]
            text = f"{name} = {name}.{method.removesuffix('_')}{given}"
            return edits.repair("Use the out-of-place operation", edits.replace(model, call, text))
    return None
