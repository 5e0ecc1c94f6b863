"""A layer with weights that no method of its Module uses.

Assigning a layer to an attribute registers it: its weights are in `parameters()`, in the optimizer and in every
checkpoint, whether forward calls it or not. Autograd reaches only what takes part in the output, so the `.grad` of an
unused layer stays None, it keeps its random start, and DistributedDataParallel stops with an error about parameters
that were not used in producing the loss.

Call the layer in forward, or delete it. A layer that only old checkpoints need deserves a comment that says so. Other
files in the same folder are searched for uses; those elsewhere are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchlint.claims import NoGradient
from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind
from torchlint.model.held import building_methods, comment_says, has_state, registers_by_name
from torchlint.rule import Example, Hit, Meta

META = Meta("TL421", "unused-layer", Severity.WARNING, stable=False, triggers=("def forward",))
CLAIM = NoGradient()
# Ways to reach layers without their names.
SWEEPING = {"children", "named_children", "modules", "named_modules", "_modules", "__dict__", "get_submodule"}
ON_PURPOSE = ("unused", "not used", "checkpoint", "compat", "keep", "legacy", "state_dict", "placeholder", "dummy")
PLAIN = ("torch.nn.Module", "builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.norm = nn.LayerNorm(size)  #!
                self.out = nn.Linear(size, 1)

            def forward(self, x):
                return self.out(torch.relu(self.hidden(x)))


        Net()(torch.ones(2, 4)).sum().backward()
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.norm = nn.LayerNorm(size)
                self.out = nn.Linear(size, 1)

            def forward(self, x):
                return self.out(torch.relu(self.norm(self.hidden(x))))


        Net()(torch.randn(2, 4)).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Block(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.conv1 = nn.Conv1d(size, size, 1)
                self.conv2 = nn.Conv1d(size, size, 1)  #!
                self.reset()

            def reset(self):
                nn.init.kaiming_normal_(self.conv1.weight)
                nn.init.kaiming_normal_(self.conv2.weight)

            def forward(self, x):
                x = torch.tanh(self.conv1(x))
                return torch.tanh(self.conv1(x))


        Block()(torch.ones(2, 4, 3)).sum().backward()
        """,
        good="""
        import torch
        import torch.nn as nn


        class Block(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.conv1 = nn.Conv1d(size, size, 1)
                self.conv2 = nn.Conv1d(size, size, 1)
                self.reset()

            def reset(self):
                nn.init.kaiming_normal_(self.conv1.weight)
                nn.init.kaiming_normal_(self.conv2.weight)

            def forward(self, x):
                x = torch.tanh(self.conv1(x))
                return torch.tanh(self.conv2(x))


        Block()(torch.ones(2, 4, 3)).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Named(nn.Module):
        def __init__(self, kind="a"):
            super().__init__()
            self.head_a = nn.Linear(2, 2)
            self.head_b = nn.Linear(2, 2)
            self.kind = kind

        def forward(self, x):
            return getattr(self, f"head_{self.kind}")(x)


    class Swept(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)

        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x


    class Listed(nn.Sequential):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)


    class Parts(nn.Module):
        def __init__(self, pretrain=False):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)
            self.body = nn.Sequential(self.first, nn.ReLU(), self.second)
            self.decoder = nn.Linear(2, 2)
            self.act = nn.GELU()
            # only old checkpoints need it
            self.pooler = nn.Linear(2, 2)
            self.tied = nn.Linear(2, 2)
            self.decoder.weight = self.tied.weight
            self.extra = nn.Linear(2, 2)
            del self.extra
            self.mapped = nn.Linear(2, 2)
            self.by_name = {"x": "mapped"}

        def forward(self, x):
            return self.body(x)

        def decode(self, x):
            return self.decoder(x)


    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(2, 2)

        def forward(self, x):
            raise NotImplementedError


    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Swept()
            self.bias_of = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)


    outer = Outer()
    print(Named()(torch.ones(2)), Parts()(torch.ones(2)), Listed()(torch.ones(2)), outer.bias_of.bias, Base)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Layers with weights whose names occur nowhere but where they are made and initialised."""
    for cls in model.classes:
        forward = cls.methods.get("forward") if cls.is_module else None
        if forward is None or any(name not in PLAIN for name in cls.outside) or unclear(cls, forward):
            continue
        building = building_methods(cls)
        for name, stores in cls.stores.items():
            method, stmt, expr = stores[0]
            if method is None or len(stores) > 1 or method.name not in building or registers_by_name(method):
                continue
            if not isinstance(stmt, ast.Assign) or len(stmt.targets) > 1 or not isinstance(expr, ast.Call):
                continue
            if model.place(stmt).guards or mentioned(cls, name) or comment_says(cls, stmt, ON_PURPOSE):
                continue
            value = model.value(expr)
            if value.kind is not Kind.MODULE or (value.cls is not None and not value.cls.fully_known):
                continue
            if has_state(value) and not used_beside(cls, name):
                yield Hit(stmt, f"no method uses `self.{name}`, so it never learns; call it in forward or delete it",
                          confidence=min(Confidence.LIKELY, value.sure))


def unclear(cls: ClassInfo, forward: FunctionInfo) -> bool:
    """Whether layers may be used without their names, or forward is left to subclasses."""
    if all(isinstance(node, (ast.Raise, ast.Pass, ast.Expr)) for node in getattr(forward.node, "body", ())):
        return True
    for base in cls.project_mro:
        if {"__getattr__", "__getattribute__"} & base.methods.keys():
            return True
        building = building_methods(base)
        for method in base.methods.values():
            if method.name in building:
                continue
            for node in method.own_nodes:
                match node:
                    case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == method.self_name:
                        if attr in SWEEPING:
                            return True
                    case ast.Call(func=ast.Name(id="getattr" | "setattr" | "vars" | "locals")):
                        return True
    return False


def mentioned(cls: ClassInfo, name: str) -> bool:
    """Whether the name occurs elsewhere in the files of the class and its bases, other than to initialise the layer."""
    for model in {base.model for base in cls.project_mro}:
        for node in model.attributes_named(name):
            if not isinstance(node.ctx, ast.Store) and not initialises(model, node):
                return True
        if any(name in parts(node.value) for node in model.nodes(ast.Constant) if isinstance(node.value, str)):
            return True
        if f"`{name}`" in model.source.text:
            return True  # the documentation speaks of it
        if any(keyword.arg == name for call in model.nodes(ast.Call) for keyword in call.keywords
               if isinstance(call.func, ast.Attribute)):
            return True
    return False


def used_beside(cls: ClassInfo, name: str) -> bool:
    """Whether another file in the same folder reaches for the layer: from outside, or in a subclass."""
    model = cls.model
    package, found = model.index.package, re.compile(rf"\.{re.escape(name)}\b")
    outside = re.compile(rf"(?<!\bself)\.{re.escape(name)}\b")
    for path, text in model.project.beside(model.index):
        if outside.search(text) or (re.search(rf"\b{cls.node.name}\b", text) and found.search(text)):
            # Only now is it read as code.
            other = model.project.module(f"{package}.{path.stem}" if package else path.stem, model.index)
            if other is not None and other is not model.index:
                return True
    return False


def parts(text: str) -> list[str]:
    """The names in a short string such as "encoder.head"; prose has none."""
    return text.split(".") if " " not in text and len(text) < 100 else []


def initialises(model: FileModel, node: ast.Attribute) -> bool:
    """Whether a layer is read only to fill its weights: `nn.init.zeros_(self.fc.weight)`, `self.fc.bias.zero_()`."""
    stmt = model.statement(node)
    if not isinstance(stmt, ast.Expr) or not isinstance(stmt.value, ast.Call):
        return False
    func = stmt.value.func
    if model.name_of(func).startswith("torch.nn.init."):
        return True
    inside = any(part is node for part in ast.walk(func))
    return inside and isinstance(func, ast.Attribute) and func.attr.endswith("_") and not func.attr.endswith("__")
