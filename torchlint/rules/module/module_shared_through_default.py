"""A layer or trainable tensor as a default argument or class attribute, shared by all instances.

Python evaluates a default once, when `def` runs: every instance made without that argument registers the same Module,
so training one changes the weights of the others, and `parameters()` of a parent counts it once. `nn.Parameter(x)`
copies nothing, so a tensor default is shared the same way. A layer in the class body is not even registered, because
only assignment to an instance goes through `Module.__setattr__`.

Use None as the default and make the layer in the body. Activations and losses without weights may be shared.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Aliased
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.model.held import has_state
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL413", "module-shared-through-default", Severity.WARNING, also=(Severity.ERROR,), fix=Safety.UNSAFE)
CLAIM = Aliased()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, size=4, act=nn.PReLU()):  #!
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.act = act

            def forward(self, x):
                return self.act(self.fc(x))


        model = nn.Sequential(Block(), Block())
        print(len(list(model.parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, size=4, act=None):
                act = nn.PReLU() if act is None else act
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.act = act

            def forward(self, x):
                return self.act(self.fc(x))


        model = nn.Sequential(Block(), Block())
        print(len(list(model.parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Affine(nn.Module):
            def __init__(self, scale=torch.ones(4)):  #!
                super().__init__()
                self.scale = nn.Parameter(scale)

            def forward(self, x):
                return x * self.scale


        class Net(nn.Module):
            def __init__(self, head=nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), *, size=4):  #!
                super().__init__()
                self.affine = Affine()
                self.layers = nn.ModuleList([nn.Linear(size, size), head])

            def forward(self, x):
                x = self.affine(x)
                for layer in self.layers:
                    x = layer(x)
                return x


        first, second = Net(), Net()
        """,
        good="""
        import torch
        from torch import nn


        class Affine(nn.Module):
            def __init__(self, scale=None):
                scale = torch.ones(4) if scale is None else scale
                super().__init__()
                self.scale = nn.Parameter(scale)

            def forward(self, x):
                return x * self.scale


        class Net(nn.Module):
            def __init__(self, head=None, *, size=4):
                head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)) if head is None else head
                super().__init__()
                self.affine = Affine()
                self.layers = nn.ModuleList([nn.Linear(size, size), head])

            def forward(self, x):
                x = self.affine(x)
                for layer in self.layers:
                    x = layer(x)
                return x


        first, second = Net(), Net()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            norm = nn.BatchNorm1d(4)  #!
            gain = nn.Parameter(torch.ones(4))  #!

            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                return self.norm(self.fc(x)) * self.gain


        first, second = Net(), Net()
        print([name for name, _ in first.named_parameters()])
        """,
        good="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(4)
                self.gain = nn.Parameter(torch.ones(4))
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                return self.norm(self.fc(x)) * self.gain


        first, second = Net(), Net()
        print([name for name, _ in first.named_parameters()])
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import copy

    import torch
    from torch import nn


    class Net(nn.Module):
        default_act = nn.SiLU()
        anchors = torch.empty(0)
        kind = nn.Linear
        layer = None
        count = 0

        def __init__(self, size=4, act=nn.ReLU(), loss=nn.CrossEntropyLoss(), make=nn.Linear, template=nn.Linear(4, 4),
                     start=torch.zeros(4), head=None, build=lambda: nn.Linear(2, 2)):
            super().__init__()
            self.act, self.loss = act, loss
            self.layer = make(size, size)
            self.block = copy.deepcopy(template)
            self.start = nn.Parameter(start.clone())
            self.limit = start
            self.head = head if head is not None else nn.Linear(size, 1)
            self.more = build()

        def forward(self, x):
            return self.head(self.act(self.layer(x)) + self.limit)


    class Settings:
        model = nn.Linear(2, 2)


    def apply(x, net=nn.Linear(4, 4)):
        return net(x)


    def norm(x, scale=torch.ones(4)):
        return x * scale


    print(Net()(torch.ones(1, 4)), apply(torch.ones(4)), norm(torch.ones(4)), Settings.model)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Defaults with weights that end up in what the function makes, and layers in class bodies."""
    for function in model.functions:
        for arg, default in defaults(function):
            if not isinstance(default, ast.Call):
                continue
            value = model.value(default)
            if weighty(value):
                if kept(function, arg.arg):
                    yield Hit(default, "all calls share this one default layer; use None and make it in the body",
                              own(model, function, arg, default), confidence=value.sure)
            elif value.is_tensor and trained(function, arg.arg):
                yield Hit(default, "all instances train this one default tensor; use None and make it in the body",
                          own(model, function, arg, default), confidence=value.sure)
    for cls in model.classes:
        if cls.is_module:
            yield from class_level(cls)


def defaults(function: FunctionInfo) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Parameters with their default expressions."""
    for arg in (*function.params, *function.args.kwonlyargs):
        default = function.default_expr(arg)
        if default is not None:
            yield arg, default


def weighty(value: Value) -> bool:
    """Whether a value is a module that surely has weights or buffers of its own."""
    return value.kind is Kind.MODULE and (value.cls is None or value.cls.fully_known) and has_state(value)


def kept(function: FunctionInfo, name: str) -> bool:
    """Whether a parameter itself becomes part of what the function makes: stored, returned, or handed on."""
    model = function.model
    for use in model.uses(name, function.node):
        parent = model.parent(use)
        while isinstance(parent, (ast.List, ast.Tuple, ast.Dict, ast.Starred, ast.keyword, ast.IfExp, ast.BoolOp)):
            use, parent = parent, model.parent(parent)  # type: ignore[assignment]
        match parent:
            case ast.Assign(value=value, targets=[ast.Attribute() | ast.Tuple(), *_]) if value is use:
                return True
            case ast.Call(func=func) if func is not use:
                target = model.value(func)
                makes = target.kind is Kind.CLASS or model.name_of(func).startswith("torch.nn.")
                if makes or (isinstance(func, ast.Attribute) and func.attr in ("append", "add_module", "__init__")):
                    return True
            case ast.Return():
                return True
    return False


def trained(function: FunctionInfo, name: str) -> bool:
    """Whether a tensor parameter becomes a Parameter without being copied."""
    model = function.model
    for use in model.uses(name, function.node):
        match model.parent(use):
            case ast.Call(func=func, args=[first, *_]) if first is use and model.name_of(func) == "torch.nn.Parameter":
                return True
    return False


def class_level(cls: ClassInfo) -> Iterator[Hit]:
    """Layers and Parameters in the body of a Module class."""
    for stores in cls.stores.values():
        if any(method is not None for method, _, _ in stores):
            continue
        for _, stmt, expr in stores:
            if not isinstance(expr, ast.Call):
                continue
            value = cls.model.value(expr)
            if weighty(value) or (value.role == "parameter" and value.name == "torch.nn.Parameter"):
                what = "layer" if value.kind is Kind.MODULE else "Parameter"
                yield Hit(stmt, f"this {what} is shared by all instances and not registered; assign it in `__init__`",
                          severity=Severity.ERROR, confidence=value.sure)


def own(model: FileModel, function: FunctionInfo, arg: ast.arg, default: ast.expr) -> Repair | None:
    """`def f(x=Make())` -> `def f(x=None)`, and `x = Make() if x is None else x` in the body."""
    if not isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    made = edits.source_of(model, default)
    if "\n" in made:
        return None
    text = f"{arg.arg} = {made} if {arg.arg} is None else {arg.arg}"
    return edits.repair("Make one for each call", edits.replace(model, default, "None"),
                        edits.insert_first_in_body(model, function.node, text))
