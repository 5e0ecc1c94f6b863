"""Modules kept in a plain list, tuple, dict or set on a Module.

`Module.__setattr__` registers Modules and Parameters only; it does not look into Python containers. What is
in a plain list is missing from `parameters()`, `state_dict()`, `.to(...)`, `train()` and `eval()`: the layers
are never trained, never saved, and stay on the CPU.

Use `nn.ModuleList`, `nn.ModuleDict` or `nn.Sequential`. The rule is silent when the members are registered
elsewhere too, have neither parameters nor buffers, or a comment says that they are hidden on purpose.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NotRegistered
from torchlint.findings import Safety, Severity
from torchlint.fixes.containers import to_registered
from torchlint.model import ClassInfo, FileModel, Kind, Value
from torchlint.model.held import (
    Held,
    comment_says,
    handed_to_container,
    has_state,
    members_put,
    plain_containers,
    reads_of,
    registered_idents,
    registers_by_name,
)
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL405", "modules-in-plain-container", Severity.ERROR, fix=Safety.SAFE)
CLAIM = NotRegistered()
ON_PURPOSE = ("hid", "regist", "on purpose", "not train", "avoid", "frozen", "state_dict", "state dict")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]  #!
                head = nn.Linear(2, 1)
                self.add_module("head", head)

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)


        net = Net()
        net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
                head = nn.Linear(2, 1)
                self.add_module("head", head)

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)


        net = Net()
        net(torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Residual(nn.Module):
            def __init__(self, width=4):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())

            def forward(self, x):
                return x + self.body(x)


        class Net(nn.Module):
            def __init__(self, width=4, depth=3):
                super().__init__()
                self.inp = nn.Linear(2, width)
                self.blocks = [Residual(width) for _ in range(depth)]  #!

            def forward(self, x):
                x = self.inp(x)
                for block in self.blocks:
                    x = block(x)
                return x


        print(len(list(Net().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Residual(nn.Module):
            def __init__(self, width=4):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())

            def forward(self, x):
                return x + self.body(x)


        class Net(nn.Module):
            def __init__(self, width=4, depth=3):
                super().__init__()
                self.inp = nn.Linear(2, width)
                self.blocks = nn.ModuleList([Residual(width) for _ in range(depth)])

            def forward(self, x):
                x = self.inp(x)
                for block in self.blocks:
                    x = block(x)
                return x


        print(len(list(Net().parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn import BatchNorm1d, Linear, Module


        class Base(Module):
            def __init__(self, sizes=(4, 4, 2)):
                super().__init__()
                self.layers = []  #!
                for before, after in zip(sizes, sizes[1:]):
                    self.layers.append(Linear(before, after))
                    self.layers += [BatchNorm1d(after)]


        class Stack(Base):
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x


        print(len(list(Stack().parameters())))
        """,
        good="""
        import torch
        from torch.nn import BatchNorm1d, Linear, Module, ModuleList


        class Base(Module):
            def __init__(self, sizes=(4, 4, 2)):
                super().__init__()
                self.layers = ModuleList()
                for before, after in zip(sizes, sizes[1:]):
                    self.layers.append(Linear(before, after))
                    self.layers += [BatchNorm1d(after)]


        class Stack(Base):
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x


        print(len(list(Stack().parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        def make_heads(names, size):
            heads = {}
            for name in names:
                heads[name] = nn.Linear(size, 1)
            return heads


        class Heads(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.heads = make_heads(("left", "right"), size)  #!
                self.pair = (nn.Linear(size, size), nn.GELU())  #!
                self.gates = {"left": nn.Linear(size, size), "right": nn.Linear(size, size)}  #!

            def forward(self, x):
                for layer in self.pair:
                    x = layer(x)
                return {name: head(self.gates[name](x)) for name, head in self.heads.items()}


        print(len(list(Heads().parameters())))
        """,
        good="""
        import torch
        import torch.nn as nn


        def make_heads(names, size):
            heads = {}
            for name in names:
                heads[name] = nn.Linear(size, 1)
            return heads


        class Heads(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.heads = nn.ModuleDict(make_heads(("left", "right"), size))
                self.pair = nn.ModuleList([nn.Linear(size, size), nn.GELU()])
                self.gates = nn.ModuleDict({"left": nn.Linear(size, size), "right": nn.Linear(size, size)})

            def forward(self, x):
                for layer in self.pair:
                    x = layer(x)
                return {name: head(self.gates[name](x)) for name, head in self.heads.items()}


        print(len(list(Heads().parameters())))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, width=4, depth=2):
            super().__init__()
            stack = [nn.Linear(width, width) for _ in range(depth)]
            stack.append(nn.LayerNorm(width))
            self.widths = [width] * depth
            self.kinds = [nn.ReLU, nn.GELU]
            self.blocks = nn.Sequential(*stack)
            self.again = [nn.Linear(2, 2)]
            self.again = nn.ModuleList(self.again)
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)
            self.order = [self.first, self.second]
            self.acts = [nn.ReLU(), nn.Tanh(), nn.Dropout(0.1)]
            self.losses = {"mse": nn.MSELoss(), "ce": nn.CrossEntropyLoss()}

        def forward(self, x):
            return self.blocks(x)


    class Named(nn.Module):
        def __init__(self, depth=2):
            super().__init__()
            self.layers = []
            for i in range(depth):
                layer = nn.Linear(2, 2)
                self.add_module(f"layer_{i}", layer)
                self.layers.append(layer)


    class Limits(nn.Module):
        def __init__(self, depth=2):
            super().__init__()
            self.limits = {}
            for i in range(depth):
                self.limit(f"limit_{i}", nn.Linear(2, 2))

        def limit(self, name, layer, replace=True):
            new = layer if replace else nn.Linear(2, 2)
            self.add_module(name, new)
            self.limits[name] = new


    class Set(nn.Module):
        def __init__(self, depth=2):
            super().__init__()
            self.layers = []
            for i in range(depth):
                setattr(self, f"layer_{i}", nn.Linear(2, 2))
                self.layers.append(getattr(self, f"layer_{i}"))


    print(Net(), Named(), Set())
    """,
    """
    import torch
    from torch import nn


    class Student(nn.Module):
        def __init__(self, teacher: nn.Module):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self._teacher = [teacher]
            # kept out of state_dict on purpose
            self.old = [nn.Linear(2, 2)]
            self.parts = [nn.Linear(2, 2), nn.ReLU()]
            self.net = nn.Sequential(*self.parts)

        def forward(self, x):
            return self.layer(x) + self._teacher[0](x)


    class Trainer:
        def __init__(self):
            self.models = [nn.Linear(2, 2) for _ in range(3)]


    class Hiding(nn.Module):
        def __init__(self, size=2, encoder=None):
            super().__init__()
            backbone = nn.Linear(size, size).eval()
            self.backbone = [backbone]
            self.encoder = encoder or nn.Linear(size, size)
            self.decoder = nn.Linear(size, size)
            self.source = {"a": (self.encoder, 1), "b": (self.decoder, 2)}

        def forward(self, x):
            self.backbone[0] = self.backbone[0].to(x.dtype)
            return self.encoder(self.backbone[0](x))


    print(Student(nn.Linear(2, 2)), Trainer(), Hiding()(torch.ones(2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Containers on Modules whose members have parameters or buffers and are registered nowhere."""
    for cls in model.classes:
        if not cls.is_module or {"parameters", "named_parameters", "_apply", "__setattr__"} & cls.methods.keys():
            continue
        for held in plain_containers(cls):
            modules = unregistered(cls, held)
            if modules and not on_purpose(cls, held):
                what = "ModuleDict" if dict_like(model, held) else "ModuleList"
                yield Hit(
                    held.stmt, f"modules in plain `self.{held.name}` are not registered; use `nn.{what}`",
                    registered(model, cls, held), confidence=min(module.sure for module in modules))


def unregistered(cls: ClassInfo, held: Held) -> list[Value]:
    """The members that have state and were made for this container."""
    modules = [part for part in held.members if part.kind is Kind.MODULE]
    if not modules:
        return []
    known = registered_idents(cls)
    if any(part.ident is None for part in modules) and names_own(cls, held):
        return []
    made = [part for part in modules if (part.site is not None or part.ident is None) and part.ident not in known]
    return [part for part in made if joined(part) or has_state(part)]


def names_own(cls: ClassInfo, held: Held) -> bool:
    """Whether the stored expression names modules that other attributes hold."""
    me = held.method.self_name if held.method is not None else ""
    for node in ast.walk(held.value) if held.value is not None else ():
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == me and name != held.name:
                if cls.attr(name).kind is Kind.MODULE:
                    return True
    return False


def joined(value: Value) -> bool:
    """One of several modules of different classes: whether they have state cannot be told apart."""
    return value.ident is None and not value.name and value.cls is None and value.site is None


def on_purpose(cls: ClassInfo, held: Held) -> bool:
    """Whether the members are registered by other means, or hidden because the author wants it."""
    if held.method is not None and registers_by_name(held.method):
        return True
    putting = [cls.model.function(node) for node, _ in members_put(cls).get(held.name, ())]
    if any(method is not None and registers_by_name(method) for method in putting):
        return True
    if handed_to_container(cls, held.name) or comment_says(cls, held.stmt, ON_PURPOSE):
        return True
    match held.value:
        case ast.List(elts=[one]) | ast.Tuple(elts=[one]) if held.literal or isinstance(one, ast.Name):
            # the usual way to hide one module
            reads = [cls.model.parent(read) for read in reads_of(cls, held.name)]
            return bool(reads) and all(isinstance(read, ast.Subscript) for read in reads)
    return False


def dict_like(model: FileModel, held: Held) -> bool:
    """Whether the container is a dict."""
    return held.value is not None and model.value(held.value).kind is Kind.DICT


def registered(model: FileModel, cls: ClassInfo, held: Held) -> Repair | None:
    """Wrap the stored expression, where all that is in it can be registered."""
    if held.value is None or held.method is None:
        return None
    others = [stmt for _, stmt, expr in cls.stores[held.name] if expr is not held.value]
    if not all(isinstance(stmt, ast.AugAssign) and isinstance(stmt.op, ast.Add) for stmt in others):
        return None
    stored = model.value(held.value)
    parts = (*(stored.elements or ()), *(part for _, part in stored.fields), *([stored.item] if stored.item else []))
    if any(part.kind is not Kind.MODULE for part in (*parts, *held.members)):
        return None
    return to_registered(model, held.value, reads_of(cls, held.name))
