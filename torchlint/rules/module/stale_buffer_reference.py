"""A second reference to a buffer, kept where conversion does not reach it.

`module.to(...)`, `.double()` and `.cuda()` do not change a buffer in place: they put a new tensor under its
name. A list, dict or attribute that was filled with the buffer in the constructor goes on holding the old one,
on the old device and with the old numbers. `load_state_dict(assign=True)` and plain assignment do the same.

Look the buffer up when it is used: keep its name, or make the list in a property. Parameters keep their
identity on conversion, so a list of them stays valid.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Aliased
from torchlint.findings import Severity
from torchlint.model import ClassInfo, FileModel, FunctionInfo
from torchlint.model.held import building_methods
from torchlint.rule import Example, Hit, Meta

META = Meta("TL410", "stale-buffer-reference", Severity.ERROR, triggers=("register_buffer", "Buffer"))
CLAIM = Aliased()
GROWING = ("append", "extend", "insert", "add", "update", "setdefault", "appendleft")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Anchors(nn.Module):
            def __init__(self, sizes=(8, 16)):
                super().__init__()
                self.anchors = []
                for i, size in enumerate(sizes):
                    self.register_buffer(f"anchor_{i}", torch.tensor([0.0, size]))
                    self.anchors.append(getattr(self, f"anchor_{i}"))  #!

            def forward(self, x):
                return [x * anchor for anchor in self.anchors]


        bank = Anchors().double()
        print({anchor.dtype for anchor in bank.anchors})
        """,
        good="""
        import torch
        from torch import nn


        class Anchors(nn.Module):
            def __init__(self, sizes=(8, 16)):
                super().__init__()
                self.names = []
                for i, size in enumerate(sizes):
                    self.register_buffer(f"anchor_{i}", torch.tensor([0.0, size]))
                    self.names.append(f"anchor_{i}")

            @property
            def anchors(self):
                return [getattr(self, name) for name in self.names]

            def forward(self, x):
                return [x * anchor for anchor in self.anchors]


        bank = Anchors().double()
        print({anchor.dtype for anchor in bank.anchors})
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Norm(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                mean = torch.zeros(size)
                self.register_buffer("mean", mean)
                self.register_buffer("std", torch.ones(size))
                self.stats = {"mean": mean, "std": self.std}  #!
                self.center = self.mean  #!

            def forward(self, x):
                return (x - self.center) / self.stats["std"]


        norm = Norm().double()
        print(norm.center.dtype, norm.stats["std"].dtype)
        """,
        good="""
        import torch
        from torch import nn


        class Norm(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                mean = torch.zeros(size)
                self.register_buffer("mean", mean)
                self.register_buffer("std", torch.ones(size))
                self.stats = ("mean", "std")
                self.center = "mean"

            def forward(self, x):
                return (x - getattr(self, self.center)) / getattr(self, self.stats[1])


        norm = Norm().double()
        print(norm.mean.dtype, norm.std.dtype)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Bank(nn.Module):
        def __init__(self, n=2):
            super().__init__()
            self.weights, self.names, self.sizes = [], [], []
            for i in range(n):
                weight = nn.Parameter(torch.ones(1))
                self.register_parameter(f"weight_{i}", weight)
                self.weights.append(weight)
                self.register_buffer(f"mask_{i}", torch.ones(2))
                self.names.append(f"mask_{i}")
                self.sizes.append(getattr(self, f"mask_{i}").shape)
            self.register_buffer("mean", torch.zeros(2))
            self.start = self.mean.clone()
            self.mean = self.mean + 1
            self.total = float(self.mean.sum())

        @property
        def masks(self):
            return [getattr(self, name) for name in self.names]

        def forward(self, x):
            masks = [getattr(self, name) for name in self.names]
            masks.append(self.mean)
            self.last = self.mean
            return sum(x * w * m for w, m in zip(self.weights, masks))


    print(Bank().double()(torch.ones(2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Statements of constructors that keep a buffer under another name, or in a container."""
    for cls in model.classes:
        if not cls.is_module or {"_apply", "__setattr__"} & cls.methods.keys():
            continue
        names, written, idents = registrations(cls)
        if not names and not written:
            continue
        building = building_methods(cls)
        for method in cls.methods.values():
            if method.name not in building or not method.self_name:
                continue
            seen: set[ast.stmt] = set()
            for node in method.own_nodes:
                if isinstance(node, ast.expr) and is_buffer(model, method, node, names, written, idents):
                    place = model.statement(node)
                    where = kept(model, method, node, names)
                    if where and place not in seen:
                        seen.add(place)
                        yield Hit(place, f"`{where}` keeps a buffer that `.to()` replaces; look it up when it is used")


def registrations(cls: ClassInfo) -> tuple[set[str], set[str], set[object]]:
    """(literal names of buffers, computed names as code, identities of the tensors)."""
    names: set[str] = set()
    written: set[str] = set()
    idents: set[object] = set()
    for base in cls.project_mro:
        for method in base.methods.values():
            for call in method.calls:
                match call.func:
                    case ast.Attribute(value=ast.Name(id=owner), attr="register_buffer"):
                        if owner == method.self_name and call.args:
                            note(base.model, call, names, written, idents)
        names.update(name for name, stores in base.stores.items() for _, _, expr in stores
                     if expr is not None and base.model.value(expr).name == "torch.nn.Buffer")
    idents.discard(None)
    return names, written, idents


def note(model: FileModel, call: ast.Call, names: set[str], written: set[str], idents: set[object]) -> None:
    """Add what one `register_buffer` call registers."""
    first = call.args[0]
    if isinstance(first, ast.Constant):
        names.add(str(first.value))
    else:
        written.add(ast.dump(first))
    tensor = call.args[1] if len(call.args) > 1 else None
    if tensor is not None and (value := model.value(tensor)).is_tensor:
        idents.add(value.ident)


def is_buffer(model: FileModel, method: FunctionInfo, node: ast.expr, names: set[str], written: set[str],
              idents: set[object]) -> bool:
    """Whether an expression is one of the buffers: `self.mean`, `getattr(self, f"mask_{i}")`, a registered local."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ast.Load()) if owner == method.self_name:
            return name in names
        case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=owner), name, *_]) if owner == method.self_name:
            return ast.dump(name) in written or (isinstance(name, ast.Constant) and name.value in names)
        case ast.Name(ctx=ast.Load()):
            value = model.value(node)
            return value.is_tensor and value.ident in idents
    return False


def kept(model: FileModel, method: FunctionInfo, node: ast.expr, names: set[str]) -> str:
    """The attribute that goes on holding the expression's value, as code; "" if none does."""
    child: ast.AST = node
    parent = model.parent(node)
    while isinstance(parent, (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.Starred)):
        child, parent = parent, model.parent(parent)
    match parent:
        case ast.Assign(targets=[target, *_], value=value) if value is child:
            return attribute(model, method, target, names)
        case ast.AnnAssign(target=target, value=value) if value is child:
            return attribute(model, method, target, names)
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if value is child and child is not node:
            return attribute(model, method, target, names)
        case ast.Call(func=ast.Attribute(value=receiver, attr=how)) if how in GROWING and child is not parent.func:
            return attribute(model, method, receiver, names)
    return ""


def attribute(model: FileModel, method: FunctionInfo, target: ast.expr, names: set[str]) -> str:
    """`self.x` that a target is, is an item of, or is later assigned to."""
    while isinstance(target, ast.Subscript):
        target = target.value
    match target:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == method.self_name:
            return "" if name in names else f"{owner}.{name}"
        case ast.Name(id=local):
            for stmt, stored, value in method.attribute_stores:
                if isinstance(value, ast.Name) and value.id == local and isinstance(stmt, ast.Assign):
                    return "" if stored.attr in names else ast.unparse(stored)
    return ""
