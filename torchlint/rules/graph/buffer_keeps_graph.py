"""A buffer or attribute of a Module that takes over its own history in forward.

`self.memory = self.memory + k @ v` stores a value with a graph, and the next forward builds on it. Every call
adds its graph to the last one's: memory grows, and the second `backward()` walks into freed nodes and raises.

Detach what is written (`update.detach()`), or update under `torch.no_grad()`. Values that are replaced by each
forward without reading the old one keep one graph only and are fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphGrows
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Value
from torchlint.model.evaluate import path_of
from torchlint.rule import Example, Hit, Meta

META = Meta("TL203", "buffer-keeps-graph", Severity.ERROR, fix=Safety.UNSAFE, triggers=("Module",))
CLAIM = GraphGrows()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Memory(nn.Module):
            def __init__(self):
                super().__init__()
                self.key = nn.Linear(2, 2)
                self.register_buffer("memory", torch.zeros(2, 2))

            def forward(self, x):
                k = self.key(x)
                out = k @ self.memory
                self.memory = self.memory + k.t() @ k  #!
                return out


        net = Memory()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Memory(nn.Module):
            def __init__(self):
                super().__init__()
                self.key = nn.Linear(2, 2)
                self.register_buffer("memory", torch.zeros(2, 2))

            def forward(self, x):
                k = self.key(x)
                out = k @ self.memory
                self.memory = (self.memory + k.t() @ k).detach()
                return out


        net = Memory()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))
                self.register_buffer("mean", torch.zeros(2))

            def forward(self, x):
                x = x * self.scale
                self.mean = self.mean.lerp(x.mean(0), 0.1)  #!
                return x - self.mean


        net = Norm()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))
                self.register_buffer("mean", torch.zeros(2))

            def forward(self, x):
                x = x * self.scale
                self.mean = self.mean.lerp(x.mean(0), 0.1).detach()
                return x - self.mean


        net = Norm()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
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
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("count", torch.zeros(()))
            self.features = None

        def forward(self, x):
            out = self.layer(x)
            self.features = out
            self.mean = self.mean.to(x)
            self.count = self.count + 1
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * out.mean(0)
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            return out - self.mean


    Net()(torch.ones(1, 2)).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Assignments to attributes of Modules whose new value holds the old one in its graph."""
    assigns: list[ast.Assign | ast.AugAssign] = [*model.nodes(ast.Assign), *model.nodes(ast.AugAssign)]
    for assign in assigns:
        info = model.function(assign)
        target = assign.targets[0] if isinstance(assign, ast.Assign) else assign.target
        if info is None or not isinstance(target, ast.Attribute) or not updates(info, target):
            continue
        value = model.value(assign.value)
        cls = info.cls
        if cls is None or not value.attached or not model.grad_at(assign) or not stays(cls, target.attr):
            continue
        if builds_on(model, assign, target, info) and not cut(model, path_of(target)):
            fix = edits.repair("Detach what is kept", edits.append_method_call(model, assign.value, ".detach()"))
            yield Hit(assign, f"`{path_of(target)}` takes every earlier call's graph along; detach what it keeps",
                      fix, confidence=value.sure)


def updates(info: FunctionInfo, target: ast.Attribute) -> bool:
    """Whether a method of a Module, other than `__init__`, assigns to an attribute of the instance."""
    return (info.cls is not None and info.cls.is_module and info.name not in ("__init__", "setup")
            and path_of(target) == f"{info.self_name}.{target.attr}")


def builds_on(model: FileModel, assign: ast.Assign | ast.AugAssign, target: ast.Attribute, info: FunctionInfo) -> bool:
    """Whether the new value is computed from the old one, directly or by way of a local name."""
    if isinstance(assign, ast.AugAssign):
        return True
    path = path_of(target)
    names = {n.id for n in ast.walk(assign.value) if isinstance(n, ast.Name)}
    sources: list[ast.expr] = [assign.value]
    for other in info.own_nodes:
        match other:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                if model.position(other) < model.position(assign):
                    sources.append(value)
    return any(path_of(node) == path and holds_graph(model.value(source))
               for source in sources for node in ast.walk(source) if isinstance(node, ast.Attribute))


def holds_graph(value: Value) -> bool:
    """Whether what reads the old value may go on with its graph."""
    return value.is_tensor and value.grad.name != "NO"


def stays(cls: ClassInfo, name: str) -> bool:
    """A buffer, or an attribute that no method but the constructor ever starts anew."""
    value = cls.attr(name)
    makers = {method.name for method, _, _ in cls.stores.get(name, ()) if method is not None}
    return value.role == "buffer" or makers - {"__init__"} == {"forward"}


def cut(model: FileModel, path: str) -> bool:
    """Whether the file detaches the attribute somewhere."""
    words = ("detach", "detach_", "data")
    return any(path_of(node.value) == path for word in words for node in model.attributes_named(word))
