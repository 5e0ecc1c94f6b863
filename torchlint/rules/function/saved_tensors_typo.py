"""A misspelled or removed name on the `ctx` of an autograd Function.

`ctx` is an ordinary Python object: assigning or calling a wrong name on it is not checked until that line
runs. `saved_variables` was removed, and `ctx.saved_tensor` raises AttributeError in backward, often hours
after the forward that was tested.

Write `ctx.save_for_backward(...)` and `ctx.saved_tensors`. A name that the class itself stores on `ctx` is
left alone.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL311", "saved-tensors-typo", Severity.ERROR, fix=Safety.SAFE, triggers=("save",))
CLAIM = Raises("AttributeError", "saved?_")
NAMES = {
    "saved_tensors": ("saved_tensor", "save_tensors", "save_tensor", "saved_variables", "saved_variable",
                      "saved_for_backward", "savedtensors", "saved_tensores", "saved_tesnors"),
    "save_for_backward": ("save_for_backwards", "saved_for_backwards", "save_for_backwad", "save_for_backard",
                          "save_backward", "save_to_backward", "save_forbackward"),
}
MEANT = {wrong: right for right, wrongs in NAMES.items() for wrong in wrongs}

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensor  #!
                return 2 * x * grad


        x = torch.ones(3, requires_grad=True)
        Square.apply(x).sum().backward()
        """,
        good="""
        import torch


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 2 * x * grad


        x = torch.ones(3, requires_grad=True)
        Square.apply(x).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Cube(Function):
            @staticmethod
            def forward(context, x):
                context.save_for_backwards(x)  #!
                return x ** 3

            @staticmethod
            def backward(context, grad):
                (x,) = context.saved_tensors
                return 3 * x ** 2 * grad


        x = torch.ones(3, requires_grad=True)
        Cube.apply(x).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Cube(Function):
            @staticmethod
            def forward(context, x):
                context.save_for_backward(x)
                return x ** 3

            @staticmethod
            def backward(context, grad):
                (x,) = context.saved_tensors
                return 3 * x ** 2 * grad


        x = torch.ones(3, requires_grad=True)
        Cube.apply(x).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch


    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.saved_tensor = 2
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return ctx.saved_tensor * x * grad


    class Store:
        saved_tensor = 1


    Square.apply(torch.ones(1, requires_grad=True)).backward()
    print(Store().saved_tensor)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Attributes of ctx that are close to the two that torch has."""
    for wrong, right in MEANT.items():
        for node in model.attributes_named(wrong):
            cls = model.class_of(node)
            if cls is None or not cls.is_function or model.value(node.value).kind is not Kind.CTX:
                continue
            if stored(cls, wrong):
                continue
            called = isinstance(parent := model.parent(node), ast.Call) and parent.func is node
            name = "save_for_backward" if called else right
            yield Hit(node, f"`ctx` has no `{wrong}`; it is `{name}`",
                      edits.repair(f"Use {name}", edits.rename_attribute(model, node, name)))


def stored(cls: ClassInfo, name: str) -> bool:
    """Whether the class puts something of that name on ctx itself."""
    return any(target.attr == name for method in cls.methods.values() for _, target, _ in method.attribute_stores)
