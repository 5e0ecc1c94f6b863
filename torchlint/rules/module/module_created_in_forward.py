"""A layer with weights that is made anew in every forward.

A module made in `forward` gets fresh random weights at each call and is dropped afterwards. It is in no
`parameters()`, so it is never trained or saved, and the same input gives another output each time. A Dropout
made there is in training mode for ever, whatever `eval()` says.

Make it in `__init__`. Losses and activations without weights may be made anywhere, and a layer that is kept
on `self` once, under a test whether it is there already, is fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Either, NotRegistered, OutputsDiffer
from torchlint.findings import Severity
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.model.held import makes_weights, reached
from torchlint.rule import Example, Hit, Meta

META = Meta("TL408", "module-created-in-forward", Severity.ERROR, also=(Severity.WARNING,))
CLAIM = Either((NotRegistered(), OutputsDiffer()))

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Attention(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.qkv = nn.Linear(size, 3 * size)

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, dim=-1)
                out = torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
                return x + nn.Linear(x.shape[-1], x.shape[-1])(out)  #!


        model = Attention().eval()
        x = torch.ones(1, 2, 4)
        print((model(x) - model(x)).abs().max())
        """,
        good="""
        import torch
        import torch.nn as nn


        class Attention(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.qkv = nn.Linear(size, 3 * size)
                self.out = nn.Linear(size, size)

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, dim=-1)
                out = torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
                return x + self.out(out)


        model = Attention().eval()
        x = torch.ones(1, 2, 4)
        print((model(x) - model(x)).abs().max())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return x + self.layer(x)


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.first = nn.Linear(size, size)

            def forward(self, x):
                return self.refine(self.first(x))

            def refine(self, x):
                block = Block(x.shape[-1]).to(x.device)  #!
                layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())  #!
                return layers(block(x))


        model = Net().eval()
        x = torch.ones(1, 4)
        print((model(x) - model(x)).abs().max())
        """,
        good="""
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return x + self.layer(x)


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.first = nn.Linear(size, size)
                self.block = Block(size)
                self.layers = nn.Sequential(nn.Linear(size, size), nn.ReLU())

            def forward(self, x):
                return self.refine(self.first(x))

            def refine(self, x):
                return self.layers(self.block(x))


        model = Net().eval()
        x = torch.ones(1, 4)
        print((model(x) - model(x)).abs().max())
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, size=2):
            super().__init__()
            self.build(size)
            self.proj = None

        def build(self, size):
            self.layer = nn.Linear(size, size)

        def reset(self):
            self.layer = nn.Linear(2, 2)

        def forward(self, x, y=None):
            pooled = nn.AdaptiveAvgPool1d(1)(x[None])
            x = nn.Softmax(dim=-1)(nn.ReLU()(self.layer(x)))
            if self.proj is None:
                self.proj = nn.Linear(x.shape[-1], 2)
            if not hasattr(self, "late"):
                late = nn.Linear(2, 2)
                self.late = late
            loss = nn.CrossEntropyLoss(weight=torch.ones(2))(x, torch.zeros(x.shape[0], dtype=torch.long))
            return nn.Sequential(self.late, nn.ReLU())(self.proj(x)) + loss + nn.Flatten()(x) + pooled[0]


    class Trainer:
        def forward(self, x):
            return nn.Linear(2, 2)(x)


    class Doubled(nn.Module):
        def __init__(self, layer: nn.Linear):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(self.layer(x))


    class Borrowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return Doubled(self.layer)(x)


    print(Borrowing()(torch.ones(1, 2)))
    print(Net()(torch.ones(1, 2)), Trainer().forward(torch.ones(1, 2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Layers made in forward and in the methods that only forward calls."""
    for cls in model.classes:
        forward = cls.methods.get("forward")
        if forward is None or not cls.is_module or not forward.self_name:
            continue
        for name in reached(cls, "forward") - reached(cls, "__init__", "__post_init__"):
            method = cls.methods.get(name)
            if method is not None and not method.is_static:
                for call in method.calls:
                    yield from made(model, cls, method, call)


def made(model: FileModel, cls: ClassInfo, method: FunctionInfo, call: ast.Call) -> Iterator[Hit]:
    """The finding for one constructor call."""
    value = model.value(call)
    if value.kind is not Kind.MODULE or value.site is not call or "deepcopy" in value.facts:
        return
    if isinstance(model.value(call.func).func, FunctionInfo) or kept(model, method, call) or inner(model, call):
        return
    name = value.name.rpartition(".")[2]
    if fresh_state(value):
        yield Hit(call, f"a new `{name}` at every call has new weights, never trained; make it in `__init__`",
                  confidence=value.sure)
    elif "Dropout" in name and value.name.startswith("torch.nn."):
        yield Hit(call, f"a `{name}` made here drops in eval mode too; make it in `__init__`",
                  severity=Severity.WARNING, confidence=value.sure)


def fresh_state(value: Value) -> bool:
    """Whether the module comes with weights of its own; one whose bases cannot be seen may take them from elsewhere."""
    return makes_weights(value) and (value.cls is None or value.cls.fully_known)


def inner(model: FileModel, call: ast.Call) -> bool:
    """Whether the module is an argument of another one's constructor, which is reported instead."""
    for outer in model.ancestors(call):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and outer is not call and model.value(outer).kind is Kind.MODULE and (
                model.value(outer).site is outer):
            return True
    return False


def kept(model: FileModel, method: FunctionInfo, call: ast.Call) -> bool:
    """Whether the module ends on `self`, is returned or handed on, so that it may live longer than the call."""
    if any(isinstance(outer, ast.Lambda) for outer in model.ancestors(call)):
        return True
    match model.statement(call):
        case ast.Assign(targets=targets, value=value) if model.value(value).kind is Kind.MODULE:
            if any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets):
                return True
            names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            return any(leaves(model, use) for name in names for use in model.uses(name, method.node))
        case ast.Return(value=value):
            return value is call
    return leaves(model, call)


def leaves(model: FileModel, use: ast.expr) -> bool:
    """Whether a module is stored, returned, or passed to other code instead of being called."""
    match model.parent(use):
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.Return():
            return True
        case ast.Call(func=func) if func is not use:
            return True
        case ast.keyword() | ast.Tuple() | ast.List() | ast.Dict():
            return True
    return False
