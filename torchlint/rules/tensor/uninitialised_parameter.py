"""A parameter that keeps the memory it was allocated in.

`torch.empty(n, m)` and `torch.Tensor(n, m)` do not set their elements: a Parameter made of one holds whatever the
memory held before, mostly zeros or tiny numbers and sometimes huge ones or NaN, so that runs differ by chance.

Fill it: `nn.init.xavier_uniform_(self.weight)`, `nn.Parameter(torch.randn(n, m) * 0.02)`, or in a
`reset_parameters` that the constructor calls. Models that always load a checkpoint over it are fine.

No claim: what fresh memory holds is up to the allocator, and a first run mostly finds zeros.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel
from torchlint.model.evaluate import path_of
from torchlint.rule import Example, Hit, Meta

META = Meta("TL111", "uninitialised-parameter", Severity.ERROR, stable=False, triggers=("Parameter",))
CLAIM = None
EMPTY = {"torch.empty", "torch.Tensor", "torch.FloatTensor"}
# Words of a file that loads weights, or fills parameters by walking over them.
FILLED_ELSEWHERE = ("init_weights", "from_pretrained", "load_state_dict", "named_parameters", "isinstance", "apply",
                    "getattr", "setattr", "parameters_to_vector", "children", "modules", "load_checkpoint")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(n))  #!
                self.bias = nn.Parameter(torch.Tensor(n, 1))  #!

            def forward(self, x):
                return x * self.weight + self.bias.sum()


        Scale(3)(torch.ones(3))
        """,
        good="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(n))
                self.bias = nn.Parameter(torch.zeros(n, 1))

            def forward(self, x):
                return x * self.weight + self.bias.sum()


        Scale(3)(torch.ones(3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    def glorot(w):
        nn.init.xavier_uniform_(w)


    class Filled(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a = nn.Parameter(torch.empty(n))
            self.b = nn.Parameter(torch.Tensor(n, 2))
            self.c = nn.Parameter(torch.empty(n).normal_())
            self.d = nn.Parameter(torch.Tensor([1.0]))
            self.e = nn.Parameter(torch.empty(n))
            self.f = nn.Parameter(torch.empty(n))
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.zeros_(self.a)
            glorot(self.b)
            self.e.data.fill_(1)
            for p in [self.f]:
                nn.init.zeros_(p)

        def forward(self, x):
            return x * self.a * self.b.sum() * self.c * self.d * self.e * self.f


    class Base(nn.Module):
        def fill(self):
            for p in self.parameters():
                nn.init.zeros_(p)


    class Derived(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.empty(2))
            self.fill()

        def forward(self, x):
            return x * self.w
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Empty Parameters of a class straight below Module, in a file that nothing but arithmetic touches them in."""
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name)], value=ast.Call(
                    func=func, args=[ast.Call(func=maker, args=sizes) as made, *_])):
                cls, method = model.class_of(assign), model.function(assign)
                if cls is None or method is None or owner != method.self_name:
                    continue
                if model.name_of(func) != "torch.nn.Parameter" or model.name_of(maker) not in EMPTY:
                    continue
                if sizes and all(is_size(model, size) for size in sizes) and alone(model, cls) and not touched(
                        model, name) and used_in_forward(cls, name):
                    yield Hit(made, "this parameter is never filled and holds leftover memory; initialise it",
                              confidence=Confidence.LIKELY)


def is_size(model: FileModel, expr: ast.expr) -> bool:
    """Whether an argument of the constructor is a size, and not the data of a literal."""
    return not isinstance(expr, (ast.List, ast.ListComp, ast.Starred)) and not model.value(expr).is_tensor


def alone(model: FileModel, cls: ClassInfo) -> bool:
    """Whether the class has no base but Module, no class below it, and nothing that fills parameters by walking."""
    bases = [model.name_of(base) for base in cls.node.bases]
    if bases != ["torch.nn.Module"] or cls.node.decorator_list:
        return False
    if any(model.name_of(base) == cls.dotted for other in model.classes for base in other.node.bases):
        return False
    if any(model.calls_named(word) for word in FILLED_ELSEWHERE):
        return False
    return not any(isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "self"
                   for call in model.calls_named("parameters"))


def touched(model: FileModel, name: str) -> bool:
    """Whether an attribute of that name is assigned twice, changed, listed, or handed to a call that may fill it."""
    stores = 0
    for node in model.attributes_named(name):
        if isinstance(node.ctx, ast.Store):
            stores += 1
            continue
        match model.parent(node):
            case ast.Attribute(attr=attr) if attr == "data" or attr.endswith("_"):
                return True
            case ast.Call(func=func, args=args) if node in args:
                if not model.name_of(func).startswith("torch.") or ".init." in model.name_of(func):
                    return True
            case ast.Subscript(ctx=ast.Store()) | ast.List() | ast.Tuple() | ast.Dict() | ast.keyword() | ast.Assign(
                    ) | ast.For() | ast.Return() | ast.NamedExpr() | ast.withitem() | ast.AugAssign():
                return True
    return stores != 1


def used_in_forward(cls: ClassInfo, name: str) -> bool:
    """Whether forward reads the parameter."""
    method = cls.method("forward")
    return method is not None and any(
        isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(method.node))
