"""An autograd Function used through an instance or through its own forward.

`torch.autograd.Function` is a description, not a layer: the C++ engine creates the node and its
`ctx` when `.apply` is called. An instance call raises "Legacy autograd function with non-static
forward method is deprecated", and calling `forward` directly runs the arithmetic without recording
a node, so `backward` of the class is never used.

Call `MyFunction.apply(x)`. Delegating to another Function's static `forward(ctx, ...)` with one's
own `ctx`, inside a Function, is fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.model.autograd import instance_calls, maker_of
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL302", "function-instance-call", Severity.ERROR, fix=Safety.SAFE)
CLAIM = Raises("RuntimeError", "Legacy autograd function|non-static")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Double(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        Double()(x).sum().backward()  #!
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Double(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        Double.apply(x).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Clamp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clamp(0, 1)

            @staticmethod
            def backward(ctx, grad):
                return grad


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.clamp = Clamp()
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return self.clamp(x * self.scale)  #!


        Net()(torch.ones(3)).sum().backward()
        """,
        good="""
        import torch
        from torch import nn


        class Clamp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clamp(0, 1)

            @staticmethod
            def backward(ctx, grad):
                return grad


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.clamp = Clamp.apply
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return self.clamp(x * self.scale)


        Net()(torch.ones(3)).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor=2.0):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        class Triple(Scale):
            pass


        def scaled(x):
            op = Triple()
            if x.ndim > 1:
                x = x.flatten()
            return op(x, 3.0)  #!


        scaled(torch.ones(2, 2, requires_grad=True)).sum().backward()
        """,
        good="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor=2.0):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        class Triple(Scale):
            pass


        def scaled(x):
            op = Triple.apply
            if x.ndim > 1:
                x = x.flatten()
            return op(x, 3.0)


        scaled(torch.ones(2, 2, requires_grad=True)).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch


    class Base(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2


    class Child(Base):
        @staticmethod
        def forward(ctx, x):
            return Base.forward(ctx, x) + 1


    Child.apply(torch.ones(1, requires_grad=True)).backward()
    double = Child.apply
    double(torch.ones(1))


    def shared_forward(ctx, x):
        return Base.forward(ctx, x) * 2


    class Other(torch.autograd.Function):
        forward = staticmethod(shared_forward)

        @staticmethod
        def backward(ctx, grad):
            return grad * 4


    Other.apply(torch.ones(1, requires_grad=True)).backward()
    """,
    """
    class Function:
        def __call__(self, x):
            return x

        def forward(self, x):
            return x


    class Mine(Function):
        pass


    Mine()(1)
    Mine().forward(1)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of instances of Function subclasses, and of `forward` outside a Function."""
    for call, cls in instance_calls(model):
        told = "use `.apply(...)`" if "__init__" not in cls.methods else "give `.apply(...)` what it keeps"
        yield Hit(call, f"an instance of `{cls.node.name}` cannot be called; {told}",
                  apply_instead(model, call), confidence=model.value(call.func).sure)
    for call in model.calls_named("forward"):
        owner = function_class(model, call.func.value) if isinstance(call.func, ast.Attribute) else None
        if owner is not None and not inside_function(model, call):
            name = owner.node.name
            yield Hit(call, f"`{name}.forward` records no graph node; use `{name}.apply(...)`")


def function_class(model: FileModel, receiver: ast.expr) -> ClassInfo | None:
    """The Function class that a receiver is, or is an instance of."""
    value = model.value(receiver)
    if value.cls is None or not value.cls.is_function or "super" in value.facts:
        return None
    return value.cls if value.kind in (Kind.CLASS, Kind.INSTANCE) else None


def inside_function(model: FileModel, node: ast.AST) -> bool:
    """Whether the code belongs to an autograd Function itself, or is written for one: it has a `ctx`."""
    owner = model.class_of(node)
    if owner is not None and owner.is_function:
        return True
    function = model.function(node)
    return function is not None and any(arg.arg == "ctx" for arg in function.params)


def apply_instead(model: FileModel, call: ast.Call) -> Repair | None:
    """`Fn()` -> `Fn.apply` where the called instance was made without arguments and holds nothing."""
    maker, cls = maker_of(model, call), model.value(call.func).cls
    if maker is None or cls is None or any("__init__" in base.methods for base in cls.project_mro):
        return None
    name = edits.source_of(model, maker.func)
    sure = model.value(call.func).sure is Confidence.SURE  # then what it says now is a certain crash
    return edits.repair("Use .apply", edits.replace(model, maker, f"{name}.apply"),
                        safety=None if sure else Safety.UNSAFE)
