"""A constant tensor of a Module that is not registered as a buffer.

`model.to(device)`, `.cuda()` and `.half()` go through `_apply`, which replaces registered parameters and buffers and
nothing else. A tensor in a plain attribute stays on the CPU in its first dtype, and combining it with the input in
forward raises a RuntimeError about devices, or silently promotes the dtype; it is not in the `state_dict` either.

Use `self.register_buffer(name, tensor)`, with `persistent=False` where old checkpoints must still load. A tensor that
is moved where it is used, made with an explicit device, or has a single element on its own is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NotRegistered
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes.parameters import to_buffer
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Grad, Kind, Value
from torchlint.model.held import building_methods, comment_says, reached, registers_by_name
from torchlint.rule import Example, Hit, Meta

META = Meta("TL409", "tensor-not-registered-as-buffer", Severity.WARNING, fix=Safety.UNSAFE, triggers=("def forward",))
CLAIM = NotRegistered()
SIZED = {"zeros", "ones", "rand", "randn", "empty", "full", "randint"}  # many elements if they are given a size
ARRAYS = {"arange", "linspace", "logspace", "eye", "tril", "triu", "stack", "cat", "hann_window", "hamming_window",
          "bartlett_window", "blackman_window", "kaiser_window", "from_numpy", "meshgrid", "outer", "diag", "randperm"}
LITERAL = {"tensor", "as_tensor", "FloatTensor", "DoubleTensor", "Tensor"}
REDUCING = {"sum", "mean", "max", "min", "prod", "norm", "item", "numel", "argmax", "argmin", "std", "var", "any",
            "all", "dot", "trace", "det", "median", "logsumexp"}
MOVING = {"to", "cuda", "cpu", "type", "type_as", "new_tensor", "tolist", "item", "numpy", "half", "float", "double"}
# Methods and functions for which their tensors may be on different devices.
APART = {"copy_", "to", "type_as", "expand_as", "view_as", "reshape_as", "zeros_like", "ones_like", "empty_like",
         "full_like", "numel", "is_tensor", "equal_shape", "rand_like", "randn_like", "size", "index_copy_"}
OWN_MOVES = {"_apply", "to", "cuda", "__setattr__", "__getattr__", "_to"}
ON_PURPOSE = ("cpu", "device", "not a buffer", "on purpose", "buffer")
DEPTH = 3

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Positions(nn.Module):
            def __init__(self, size=4, length=16):
                super().__init__()
                self.fc = nn.Linear(size, size)
                table = torch.zeros(length, size)
                table[:, 0] = torch.arange(length).float() / length
                self.table = table.unsqueeze(0)  #!

            def forward(self, x):
                x = x + self.table[:, :x.size(1)]
                return self.fc(x)


        print(Positions()(torch.ones(2, 3, 4)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Positions(nn.Module):
            def __init__(self, size=4, length=16):
                super().__init__()
                self.fc = nn.Linear(size, size)
                table = torch.zeros(length, size)
                table[:, 0] = torch.arange(length).float() / length
                self.register_buffer("table", table.unsqueeze(0), persistent=False)

            def forward(self, x):
                x = x + self.table[:, :x.size(1)]
                return self.fc(x)


        print(Positions()(torch.ones(2, 3, 4)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Blur(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.ones(1))
                self.kernel = torch.tensor([1.0, 2.0, 1.0]).view(1, 1, 3) / 4  #!

            def forward(self, x):
                return self.smooth(x) * self.gain

            def smooth(self, x):
                return F.conv1d(x, self.kernel, padding=1)


        class WeightedLoss(nn.Module):
            def __init__(self, classes=3):
                super().__init__()
                self.weight = torch.ones(classes)  #!

            def forward(self, logits, target):
                return F.cross_entropy(logits, target, weight=self.weight)


        x = Blur()(torch.ones(2, 1, 3))
        print(WeightedLoss()(x[:, 0], torch.tensor([0, 1])))
        """,
        good="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Blur(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.ones(1))
                self.register_buffer("kernel", torch.tensor([1.0, 2.0, 1.0]).view(1, 1, 3) / 4, persistent=False)

            def forward(self, x):
                return self.smooth(x) * self.gain

            def smooth(self, x):
                return F.conv1d(x, self.kernel, padding=1)


        class WeightedLoss(nn.Module):
            def __init__(self, classes=3):
                super().__init__()
                self.register_buffer("weight", torch.ones(classes), persistent=False)

            def forward(self, logits, target):
                return F.cross_entropy(logits, target, weight=self.weight)


        x = Blur()(torch.ones(2, 1, 3))
        print(WeightedLoss()(x[:, 0], torch.tensor([0, 1])))
        """,
    ),
]

CLEAN = [
    """
    import math

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, size=4, device="cpu", length=8):
            super().__init__()
            self.fc = nn.Linear(size, size)
            self.register_buffer("mask", torch.ones(size))
            self.scale = torch.tensor(0.5)
            self.root = torch.ones(size).sum()
            self.where = torch.zeros(size, device=device)
            self.moved = torch.zeros(size).to(device)
            self.late = torch.arange(size)
            self.alias = torch.arange(size)
            self.cache = torch.ones(size)
            self.order = torch.arange(size)
            self.sizes = torch.arange(size)
            self.outside = torch.zeros(size)
            self.later = torch.zeros(size)
            self.empty = torch.empty(0)
            noise = torch.zeros(size, device=device)
            self.noise = noise + 1

        def forward(self, x):
            self.cache = self.cache.to(x.device)
            alias = self.alias.to(x)
            x = x * self.scale + self.root + self.where + self.moved + self.late.to(x.device) + alias + self.noise
            x = x[:, self.order] * math.sqrt(len(self.sizes)) + self.cache * self.mask
            return self.fc(x) + self.later

        def loss(self, x):
            return x + self.outside


    class Moves(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(3)

        def _apply(self, fn):
            super()._apply(fn)
            self.mean = fn(self.mean)
            return self

        def forward(self, x):
            return x - self.mean


    class Walk(nn.Module):
        def __init__(self):
            super().__init__()
            self.grid = torch.arange(4)

        def forward(self, x):
            steps = self.grid + 1
            return [x[i] for i in steps.tolist()]


    net = Net()
    net.later = net.later.to("cpu")
    print(net(torch.ones(2, 4)), Moves()(torch.ones(3)), Walk()(torch.ones(5)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Constant tensors in plain attributes that forward combines with the input or with parameters."""
    for cls in model.classes:
        family = [one for one in model.classes if cls in one.project_mro]
        if not cls.is_module or any(one.method(name) for one in family for name in OWN_MOVES):
            continue
        building = building_methods(cls)
        run: list[FunctionInfo] | None = None
        for name, stores in cls.stores.items():
            row = constant(cls, name, building)
            if row is None or len(stores) > 1 or stored_elsewhere(cls, name):
                continue
            stmt, value = row
            run = run if run is not None else run_by_forward(family)
            if any(combined(method, name) for method in run) and not comment_says(cls, stmt, ON_PURPOSE):
                yield Hit(stmt, f"`.to()` does not move `self.{name}`; use `register_buffer`",
                          to_buffer(model, stmt, persistent=False) if isinstance(stmt, ast.stmt) else None,
                          confidence=min(Confidence.LIKELY, value.sure))


def constant(cls: ClassInfo, name: str, building: set[str]) -> tuple[ast.AST, Value] | None:
    """Where the constructor stores a plain tensor of many elements that was made without a device."""
    method, stmt, expr = cls.stores[name][0]
    if method is None or expr is None or method.name not in building or isinstance(stmt, ast.Call):
        return None
    value = cls.model.value(expr)
    if not value.is_tensor or value.role in ("parameter", "buffer") or value.grad is Grad.YES or value.storage is None:
        return None
    if not many(cls.model, expr, set()) or placed(cls.model, expr, set()) or registers_by_name(method):
        return None
    return stmt, value


def many(model: FileModel, expr: ast.expr, seen: set[ast.expr]) -> bool:
    """Whether a tensor expression surely has a dimension."""
    match expr:
        case ast.BinOp(left=left, right=right):
            return many(model, left, seen) or many(model, right, seen)
        case ast.UnaryOp(operand=inner) | ast.Compare(left=inner):
            return many(model, inner, seen)
        case ast.Subscript(value=inner, slice=index):
            kept = (isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value in (None, ...))
                    for part in (index.elts if isinstance(index, ast.Tuple) else [index]))
            return all(kept) and many(model, inner, seen)
        case ast.Name(id=name):
            return any(many(model, value, seen) for value in bindings(model, expr, name, seen))
        case ast.Call(func=func, args=args):
            tail = model.value(expr).name.rpartition(".")[2]
            called = model.name_of(func).rpartition(".")[2]
            if called in SIZED:
                return bool(args) and not nothing(args[0])
            if called in ARRAYS:
                return True
            if called in LITERAL:
                return bool(args) and listed(model, args[0])
            if tail in REDUCING or called in REDUCING:
                return False
            if isinstance(func, ast.Attribute) and model.value(func.value).is_tensor:
                return many(model, func.value, seen)
            return model.name_of(func).startswith("torch.") and any(many(model, arg, seen) for arg in args)
    return False


def nothing(size: ast.expr) -> bool:
    """A size of nought, as placeholders have."""
    return isinstance(size, ast.Constant) and size.value == 0


def listed(model: FileModel, data: ast.expr) -> bool:
    """Whether the data of `torch.tensor(data)` is a list or array of several numbers."""
    match data:
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            return bool(elts)
        case ast.ListComp():
            return True
        case ast.Name(id=name) if (function := model.function(data)) is not None:
            given = [function.default_expr(arg) for arg in function.params if arg.arg == name]
            if any(isinstance(default, (ast.List, ast.Tuple)) for default in given):
                return True
    return model.value(data).kind in (Kind.LIST, Kind.TUPLE, Kind.NDARRAY)


def bindings(model: FileModel, at: ast.expr, name: str, seen: set[ast.expr] | None = None) -> Iterator[ast.expr]:
    """The expressions that a local name is bound to ahead of a place in the same function; with `seen`, new ones."""
    for node in model.scope_of(model.owner(at)).bindings.get(name, ()):
        if isinstance(node, ast.Assign) and model.position(node) < model.position(at):
            if seen is None or node.value not in seen:
                if seen is not None:
                    seen.add(node.value)
                yield node.value


def placed(model: FileModel, expr: ast.expr, seen: set[ast.expr]) -> bool:
    """Whether a device is named anywhere on the way to a tensor."""
    for node in ast.walk(expr):
        match node:
            case ast.keyword(arg="device" | "out"):
                return True
            case ast.Call(func=ast.Attribute(attr="to" | "cuda" | "type_as" | "new_tensor" | "new_zeros" | "new_ones")):
                return True
            case ast.Name(id=name, ctx=ast.Load()):
                if any(placed(model, value, seen) for value in bindings(model, node, name, seen)):
                    return True
    return False


def stored_elsewhere(cls: ClassInfo, name: str) -> bool:
    """Whether code outside of the class, or a subclass in the file, assigns the attribute or moves it."""
    inside = {id(node) for node in ast.walk(cls.node)}
    return any(isinstance(node.ctx, ast.Store) and id(node) not in inside for node in cls.model.attributes_named(name))


def run_by_forward(family: list[ClassInfo]) -> list[FunctionInfo]:
    """Forward of each class and the methods in this file that it calls, directly or not."""
    return [method for cls in family for name in reached(cls, "forward")
            if (method := cls.method(name)) is not None and method.model is cls.model]


def combined(method: FunctionInfo, name: str) -> bool:
    """Whether a method combines the constant, as it is, with a tensor that follows the module's device."""
    model = method.model
    for node in method.own_nodes:
        operands = together(model, node)
        mine = [expr for expr in operands if same(method, expr, name)]
        if mine and any(follows(model, expr, set()) for expr in operands if expr not in mine):
            return True
    return False


def together(model: FileModel, node: ast.AST) -> list[ast.expr]:
    """The expressions that one operation combines, which must be on one device."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=[right], ops=[ast.Lt() | ast.Gt() | ast.LtE() | ast.GtE() | ast.Eq()]):
            return [left, right]
        case ast.AugAssign(target=target, value=value):
            return [target, value]
        case ast.Call(func=func, args=args, keywords=keywords):
            name = model.name_of(func)
            parts = [part for arg in (*args, *(keyword.value for keyword in keywords)) for part in opened(arg)]
            if name.startswith("torch.") and name.rpartition(".")[2] not in APART:
                return parts
            called = model.value(func)
            if called.kind is Kind.MODULE and called.name.startswith("torch.nn."):
                return parts
            if isinstance(func, ast.Attribute) and func.attr not in APART | MOVING:
                return [func.value, *parts] if model.value(func.value).is_tensor else []
    return []


def opened(arg: ast.expr) -> list[ast.expr]:
    """The members of a list or tuple that is passed, as in `torch.cat([a, b])`."""
    return list(arg.elts) if isinstance(arg, (ast.List, ast.Tuple)) else [arg]


def same(method: FunctionInfo, expr: ast.expr, name: str, depth: int = 0) -> bool:
    """Whether an expression is made of the constant alone, and stays on its device."""
    model = method.model
    match expr:
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == method.self_name:
            return attr == name
        case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner) | ast.Compare(left=inner) | ast.Attribute(
                value=inner, attr="T" | "mT" | "data"):
            return same(method, inner, name, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr not in APART | MOVING | REDUCING:
            return same(method, inner, name, depth)
        case ast.BinOp(left=left, right=right):
            return same(method, left, name, depth) and model.value(right).kind is Kind.NUMBER
        case ast.Name(id=local) if depth < DEPTH:
            bound = list(bindings(model, expr, local))
            return 0 < len(bound) <= DEPTH and all(same(method, value, name, depth + 1) for value in bound)
    return False


def follows(model: FileModel, expr: ast.expr, seen: set[ast.expr]) -> bool:
    """Whether a tensor is made from the input or from parameters."""
    value = model.value(expr)
    if not value.is_tensor:
        return False
    if value.attached or value.role in ("input", "parameter", "buffer") or value.grad is Grad.UNKNOWN:
        return True
    for node in ast.walk(expr):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if model.value(node).role == "input" and node is not expr:
                return True
            if any(follows(model, one, seen) for one in bindings(model, node, node.id, seen)):
                return True
    return False
