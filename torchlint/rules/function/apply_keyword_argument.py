"""Keyword arguments given to the `.apply` of an autograd Function, for a torch that takes none.

Before torch 2.13, `Function.apply` handed its positional arguments to the C++ engine, which makes one edge for each
of them in order, and knew no names: any keyword ends in "apply() takes no keyword arguments". Code that is tried
with the newest torch alone does not show it.

Pass the arguments in the order of `forward`, or require `torch>=2.13`. What counts is the oldest torch that the
project says it is for: `torch-version` of the configuration, else the lower bound in its requirements or in the
script's own block of metadata. Where neither says anything, nothing is reported.

No claim: with the torch that runs the check it may work.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.knowledge.deprecations import release
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.model.autograd import apply_calls
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL310", "apply-keyword-argument", Severity.ERROR, fix=Safety.SAFE, triggers=("apply",))
CLAIM = None
SINCE = "2.13"  # the first torch that takes keywords
APPLY = "torch.autograd.Function.apply"

EXAMPLES = [
    Example(
        bad="""
        # /// script
        # dependencies = ["torch>=2.1"]
        # ///
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor=2.0):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, factor=0.5).sum().backward()  #!
        """,
        good="""
        # /// script
        # dependencies = ["torch>=2.1"]
        # ///
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor=2.0):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, 0.5).sum().backward()
        """,
    ),
    Example(
        bad="""
        # /// script
        # requires-python = ">=3.10"
        # dependencies = ["numpy", "torch>=2.0,<3"]
        # ///
        import torch
        from torch import nn
        from torch.autograd import Function


        class Reverse(Function):
            @staticmethod
            def forward(x, strength, shift):
                return x + shift

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.strength = inputs[1]

            @staticmethod
            def backward(ctx, grad):
                return -ctx.strength * grad, None, None


        reverse = Reverse.apply


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                return self.fc(reverse(x, shift=0.0, strength=0.1))  #!


        Head()(torch.ones(1, 2)).sum().backward()
        """,
        good="""
        # /// script
        # requires-python = ">=3.10"
        # dependencies = ["numpy", "torch>=2.0,<3"]
        # ///
        import torch
        from torch import nn
        from torch.autograd import Function


        class Reverse(Function):
            @staticmethod
            def forward(x, strength, shift):
                return x + shift

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.strength = inputs[1]

            @staticmethod
            def backward(ctx, grad):
                return -ctx.strength * grad, None, None


        reverse = Reverse.apply


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                return self.fc(reverse(x, 0.1, 0.0))


        Head()(torch.ones(1, 2)).sum().backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None


    Scale.apply(torch.ones(3, requires_grad=True), factor=0.5).sum().backward()
    """,
    """
    # /// script
    # dependencies = ["torch>=2.13"]
    # ///
    import torch


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None


    Scale.apply(torch.ones(3, requires_grad=True), factor=0.5).sum().backward()
    """,
    """
    # /// script
    # dependencies = ["torch>=2.0"]
    # ///
    import torch
    from torch import nn


    class Chain:
        def apply(self, net, scale=1.0):
            return net.apply(fn=lambda module: None), scale


    class Kept(torch.autograd.Function):
        @classmethod
        def apply(cls, x, factor=1.0):
            return super().apply(x, factor)

        @staticmethod
        def forward(ctx, x, factor):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad, None


    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad


    def same(x, **options):
        return Same.apply(x, **options)


    same(torch.ones(2))
    Chain().apply(nn.Linear(2, 2), scale=2.0)
    Kept.apply(torch.ones(2), factor=2.0)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of `.apply` with a keyword, where the project allows a torch that refuses it."""
    if not model.oldest_torch or release(model.oldest_torch) >= release(SINCE):
        return
    named = {call: cls for cls in model.classes if cls.is_function for call in apply_calls(model, cls)}
    for call in model.nodes(ast.Call):
        by_name = any(keyword.arg is not None for keyword in call.keywords)  # `**options` may be empty
        cls = (named.get(call) or applied(model, call)) if by_name else None
        if cls is not None and cls.method("apply") is None:
            yield Hit(call, f"torch before {SINCE} refuses keywords in `.apply`; pass them in order",
                      in_order(model, call, cls))


def applied(model: FileModel, call: ast.Call) -> ClassInfo | None:
    """The Function whose `.apply` a call is of, here or in another file."""
    called = model.value(call.func)
    is_apply = called.kind is Kind.FUNCTION and called.name == APPLY and called.bound is not None
    return called.bound.cls if is_apply and called.bound is not None else None


def in_order(model: FileModel, call: ast.Call, cls: ClassInfo) -> Repair | None:
    """The values without their names, where they stand in the order of forward's parameters already."""
    forward = cls.method("forward")
    if forward is None or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    params = [arg.arg for arg in forward.params][0 if cls.method("setup_context") is not None else 1 :]
    given = [keyword.arg for keyword in call.keywords]
    if params[len(call.args) : len(call.args) + len(given)] != given:
        return None
    changes = [edits.replace(model, keyword, edits.source_of(model, keyword.value)) for keyword in call.keywords]
    return edits.repair("Pass the arguments in order", *changes)
