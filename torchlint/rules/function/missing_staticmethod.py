"""A method of an autograd Function that is not static.

torch creates `ctx` itself and calls `forward(ctx, ...)` and `backward(ctx, ...)` through the class; no
instance of the class ever takes part. Methods written for an instance are the interface of torch 0.2:
calling an instance raises "Legacy autograd function with non-static forward method is deprecated".

Put `@staticmethod` on each of them, name the first parameter `ctx`, and call `MyFunction.apply(x)`. What
`__init__` took becomes arguments of `forward`, for which `backward` returns None; the fix does that where
all uses of the class are calls such as `MyFunction(2)(x)` in the same file. A
class that is only used through `.apply` works today even without the decorator: that is advice. A
`@classmethod` is another matter and left alone.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Edit, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.function_arguments import moved_to_forward
from torchlint.model import ClassInfo, FileModel, FunctionInfo
from torchlint.model.autograd import instance_calls, maker_of
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL301", "missing-staticmethod", Severity.ERROR, also=(Severity.ADVICE,),
            fix=Safety.SAFE, triggers=("Function",))
CLAIM = Raises("RuntimeError", "Legacy autograd function|non-static")
STATIC = ("forward", "backward", "setup_context", "jvp", "vmap", "vjp")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.autograd import Function


        class RoundSTE(Function):
            def forward(self, x):  #!
                return x.round()

            def backward(self, grad):  #!
                return grad


        class Quantiser(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return RoundSTE()(x * self.scale)


        Quantiser()(torch.rand(3)).sum().backward()
        """,
        good="""
        import torch
        from torch import nn
        from torch.autograd import Function


        class RoundSTE(Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, grad):
                return grad


        class Quantiser(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return RoundSTE.apply(x * self.scale)


        Quantiser()(torch.rand(3)).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd.function import Function, once_differentiable


        class Reverse(Function):
            def forward(self, x, strength):  #!
                self.strength = strength
                return x.view_as(x)

            @once_differentiable
            def backward(self, grad):  #!
                return -grad * self.strength, None


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            def backward(ctx, grad):  #!
                (x,) = ctx.saved_tensors
                return 2 * x * grad


        x = torch.ones(3, requires_grad=True)
        Square.apply(x).sum().backward()
        reverse = Reverse()
        reverse(x, 0.5).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd.function import Function, once_differentiable


        class Reverse(Function):
            @staticmethod
            def forward(ctx, x, strength):
                ctx.strength = strength
                return x.view_as(x)

            @staticmethod
            @once_differentiable
            def backward(ctx, grad):
                return -grad * ctx.strength, None


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
        reverse = Reverse.apply
        reverse(x, 0.5).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    def shared_backward(ctx, grad):
        return grad


    class Floor(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.floor()

        backward = staticmethod(shared_backward)


    class Ceil(torch.autograd.Function):
        def forward(ctx, x):
            return x.ceil()

        def backward(ctx, grad):
            return grad

        forward = staticmethod(forward)
        backward = staticmethod(backward)


    class Named(torch.autograd.Function):
        @classmethod
        def forward(cls, ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, grad):
            return grad

        def helper(self):
            return 1


    class Layer(nn.Module):
        def forward(self, x):
            return Floor.apply(x) + Ceil.apply(x)


    Layer()(torch.ones(2, requires_grad=True)).sum().backward()
    """,
    """
    class Function:
        pass


    class Mine(Function):
        def forward(self, x):
            return x

        def backward(self, grad):
            return grad


    Mine().forward(1)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Methods of Function subclasses that torch calls through the class, without `@staticmethod`."""
    for cls in model.classes:
        if not cls.is_function:
            continue
        methods = [m for m in cls.methods.values() if m.name in STATIC and is_instance_method(cls, m)]
        if not methods:
            continue
        calls = [call for call, called in instance_calls(model) if cls in called.mro]
        fix = made_static(model, cls, methods, calls)
        name = cls.node.name
        for method in methods:
            told = "only `.apply` works; add @staticmethod"
            if calls:
                told = f"calling `{name}()` raises; add @staticmethod, use `.apply`"
            yield Hit(method.node, f"`{method.name}` is not static, so {told}", fix,
                      severity=Severity.ERROR if calls else Severity.ADVICE)


def is_instance_method(cls: ClassInfo, method: FunctionInfo) -> bool:
    """Neither static nor a classmethod, and no decorator or later statement that could make it so."""
    if any(not name.startswith(("torch.", "functools.", "typing.")) for name in method.decorators):
        return False
    return method.name not in cls.stores


def made_static(
    model: FileModel, cls: ClassInfo, methods: list[FunctionInfo], calls: list[ast.Call]
) -> Repair | None:
    """`@staticmethod`, `ctx` for `self`, `.apply` for instances, whose arguments move to `forward`."""
    keeps = "__init__" in cls.methods
    if any(uses_class(cls, method) for method in methods):
        return None
    groups = moved_to_forward(model, cls, calls) if keeps else called_by_apply(model, calls)
    if groups is None or (keeps and (not groups or len(methods) < 2)):
        return None
    for method in methods:
        node = method.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        groups.append(edits.add_decorator(model, node, "staticmethod"))
        renamed = edits.rename_parameter(model, node, "self", "ctx") if takes_ctx(cls, method) else ()
        renamed = tuple(edit for edit in renamed if not any(covers(other, edit) for group in groups for other in group))
        if renamed:
            groups.append(renamed)
    return edits.repair("Make the methods static", *groups)


def called_by_apply(model: FileModel, calls: list[ast.Call]) -> list[tuple[Edit, ...]] | None:
    """`Fn()` -> `Fn.apply` wherever an instance that is called was made; None where that is not in sight."""
    makers = {maker_of(model, call) for call in calls}
    if None in makers:
        return None
    return [edits.replace(model, maker, f"{edits.source_of(model, maker.func)}.apply")
            for maker in makers if maker is not None]


def covers(edit: Edit, other: Edit) -> bool:
    """Whether an edit replaces the text that another one would change."""
    start, end = (edit.span.line, edit.span.column), (edit.span.end_line, edit.span.end_column)
    return start <= (other.span.line, other.span.column) < end


def takes_ctx(cls: ClassInfo, method: FunctionInfo) -> bool:
    """Whether torch passes `ctx` as the first argument, and the method calls it `self`."""
    if not method.params or method.params[0].arg != "self":
        return False
    return method.name not in ("vmap", "forward") or (
        method.name == "forward" and cls.method("setup_context") is None)


def uses_class(cls: ClassInfo, method: FunctionInfo) -> bool:
    """Whether a method reads something of the class through its first parameter."""
    me = method.params[0].arg if method.params else ""
    own = {name for base in cls.project_mro for name in (*base.methods, *base.stores)
           if name in base.methods or any(where is None for where, _, _ in base.stores[name])}
    return bool({name.removesuffix("()") for name in method.used_methods.get(me, ())} & own)
