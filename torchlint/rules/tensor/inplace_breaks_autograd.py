"""An in-place change of a value that an operation keeps for backward.

Many operations keep an operand or their result: sigmoid, exp, softmax and relu keep what they return, mul and
matmul keep what they are given. Autograd counts the changes of every tensor. If one was made after the value was
kept, backward raises "one of the variables needed for gradient computation has been modified by an inplace
operation".

Use the out-of-place form (`p = p / p.sum()`), or change a clone. Values that no operation keeps, such as the
result of add or linear, may be changed in place.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Value, graphs, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL105", "inplace-breaks-autograd", Severity.ERROR, fix=Safety.UNSAFE, triggers=("torch",))
CLAIM = Raises("RuntimeError", "modified by an inplace operation")
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Router(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(2, 4)

            def forward(self, x):
                weights = self.gate(x).softmax(-1)
                weights /= weights.sum(-1, keepdim=True)  #!
                return weights


        Router()(torch.ones(3, 2)).pow(2).sum().backward()
        """,
        good="""
        import torch
        from torch import nn


        class Router(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(2, 4)

            def forward(self, x):
                weights = self.gate(x).softmax(-1)
                weights = weights / weights.sum(-1, keepdim=True)
                return weights


        Router()(torch.ones(3, 2)).pow(2).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def masked(layer, x):
            p = torch.sigmoid(layer(x))
            p[:, 0] = 0.0  #!
            return p


        net = nn.Linear(2, 3)
        masked(net, torch.ones(1, 2)).sum().backward()
        """,
        good="""
        import torch
        from torch import nn


        def masked(layer, x):
            p = torch.sigmoid(layer(x)).clone()
            p[:, 0] = 0.0
            return p


        net = nn.Linear(2, 3)
        masked(net, torch.ones(1, 2)).sum().backward()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch

        x = torch.ones(3, requires_grad=True)
        h = x * 2
        y = h * h
        h.add_(1)  #!
        y.sum().backward()
        """,
        good="""
        import torch

        x = torch.ones(3, requires_grad=True)
        h = x * 2
        y = h * h
        h = h.add(1)
        y.sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        score = nn.Linear(3, 2)
        weights = score(torch.ones(1, 3)).softmax(-1).clamp_(min=0.1)  #!
        weights.sum().backward()
        """,
        good="""
        import torch
        from torch import nn

        score = nn.Linear(3, 2)
        weights = score(torch.ones(1, 3)).softmax(-1).clamp(min=0.1)
        weights.sum().backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            h = self.layer(x)
            h += 1
            h[:, 0] = 0
            p = torch.sigmoid(h)
            top, _ = p.topk(1)
            top /= top.sum()
            q = torch.exp(h).clone()
            q[0] = 0
            scale = 127.0 / h.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
            h = (h * scale).round().clamp_(-128, 127) / scale
            r = torch.tanh(h)
            r = r + 1
            r *= 2
            d = torch.sigmoid(h).detach()
            d *= 2
            window = torch.exp(torch.arange(4.0))
            window /= window.sum()
            with torch.no_grad():
                s = torch.exp(h)
                s /= s.sum()
            return p, top, q, r, d, window, s


    def branches(layer, x, flag):
        if flag:
            p = torch.sigmoid(layer(x))
        else:
            p = layer(x) + 1
            p *= 2
        return p
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """In-place changes after an operation that keeps the storage and whose graph is used afterwards."""
    for function, flow in training.bodies(model):
        for event in flow.of("inplace"):
            if event.depth or event.grad is False or not event.target.attached or event.target.role:
                continue
            if event.target.optional or model.grad_at(event.node) is False:
                continue
            for operation in graphs.kept_by(model, function, event.target, event.node):
                if surely(model, operation, event.target) and meets(model, operation, event) and graphs.used_after(
                        model, function, operation, event.node):
                    yield Hit(model.statement(event.node), "backward needs the value that this changes in place; "
                              "use the out-of-place form", out_of_place(model, event),
                              confidence=min(event.target.sure, Confidence.LIKELY))
                    break


def surely(model: FileModel, operation: ast.expr, target: Value) -> bool:
    """Whether the operation keeps the value because of an operand that surely requires grad."""
    result = model.value(operation)
    overload = graphs.overload_at(operation, result)
    if overload is None:
        return False
    values = graphs.operands(model, operation, overload)
    for name, because in overload.saved_for.items():
        held = result if name == "result" else values.get(name)
        if held is not None and held.storage == target.storage and any(
                each in values and values[each].attached for each in because):
            return True
    return False


def meets(model: FileModel, operation: ast.expr, event: Event) -> bool:
    """Whether the operation and the change are in one pass: same loops, and no arm but the change's own."""
    place, here = model.place(operation), model.place(event.node)
    guards = {id(test): arm for test, arm in here.guards}
    return place.loops == here.loops and all(
        id(test) in guards and guards[id(test)] == arm for test, arm in place.guards) and not here.tries


def out_of_place(model: FileModel, event: Event) -> Repair | None:
    """`x /= y` as `x = x / y`; `x.add_(1)` as `x = x.add(1)`; not for views, whose base is meant to change too."""
    if event.target.ident != event.target.storage:
        return None
    statement = model.statement(event.node)
    match statement:
        case ast.AugAssign(target=ast.Name() as target, op=op, value=value) if type(op) in OPERATORS:
            right = source_of(model, value)
            if not isinstance(value, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)):
                right = f"({right})"
            text = f"{target.id} = {target.id} {OPERATORS[type(op)]} {right}"
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) as call) if (
                attr.endswith("_") and knowledge.method(attr[:-1]) is not None):
            text = f"{name} = {name}.{attr[:-1]}{source_of(model, call)[len(source_of(model, call.func)):]}"
        case _:
            return None
    return edits.repair("Write it out of place", edits.replace(model, statement, text))
