"""A gradient that backward receives and changes in place.

The engine hands the same tensor to every consumer of a gradient: to the other operands of an addition, to hooks,
to `retain_grad` and to the caller of `backward(gradient)`. Changing it makes their gradients silently wrong; if it
came from a `sum` it is expanded memory, and torch raises.

Compute out of place, or work on `grad_output.clone()`. Tensors that backward has made itself may be changed.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, FunctionInfo
from torchlint.model.autograd import changed_parameters
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL308", "grad-output-mutated", Severity.ERROR, fix=Safety.UNSAFE, triggers=("backward",))
CLAIM = WrongGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad_output):
                return grad_output.mul_(2)  #!


        x = torch.ones(3, requires_grad=True)
        h = x * 1
        y = h + Scale.apply(h)
        (y * y).sum().backward()
        """,
        good="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad_output):
                grad_output = grad_output.clone()
                return grad_output.mul_(2)


        x = torch.ones(3, requires_grad=True)
        h = x * 1
        y = h + Scale.apply(h)
        (y * y).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class ReLU(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(min=0)

            @staticmethod
            def backward(ctx, grad_output):
                (x,) = ctx.saved_tensors
                grad_input = grad_output
                grad_input[x < 0] = 0  #!
                return grad_input


        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        h = x * 3
        y = ReLU.apply(h) + h
        (y * y).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class ReLU(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(min=0)

            @staticmethod
            def backward(ctx, grad_output):
                (x,) = ctx.saved_tensors
                grad_output = grad_output.clone()
                grad_input = grad_output
                grad_input[x < 0] = 0
                return grad_input


        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        h = x * 3
        y = ReLU.apply(h) + h
        (y * y).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch


        class Split(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, bound):
                ctx.bound = bound
                return x * 2, x * 3

            @staticmethod
            def backward(ctx, left, right):
                if ctx.bound is not None:
                    left.clamp_(-ctx.bound, ctx.bound)  #!
                right *= 3  #!
                return left * 2 + right, None


        x = torch.ones(2, requires_grad=True)
        y, z = Split.apply(x * 2, 0.5)
        total = y + z + x
        (total * total).sum().backward()
        """,
        good="""
        import torch


        class Split(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, bound):
                ctx.bound = bound
                return x * 2, x * 3

            @staticmethod
            def backward(ctx, left, right):
                left = left.clone()
                if ctx.bound is not None:
                    left.clamp_(-ctx.bound, ctx.bound)
                right = right.clone()
                right *= 3
                return left * 2 + right, None


        x = torch.ones(2, requires_grad=True)
        y, z = Split.apply(x * 2, 0.5)
        total = y + z + x
        (total * total).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function


    class Cloned(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.state = {}
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            grad = grad_output.clone()
            grad[x < 0] = 0
            grad.mul_(2)
            other = grad_output * 2
            other += grad_output
            other.add_(grad_output)
            fresh = torch.zeros_like(grad_output)
            fresh.copy_(grad_output)
            ctx.state["seen"] = grad_output
            grad_output = grad_output * 1
            grad_output.mul_(2)
            picked = grad_output[x > 0]
            picked += 1
            return other


    class Plain:
        def backward(self, grad_output):
            grad_output.mul_(2)
            return grad_output


    Cloned.apply(torch.ones(3, requires_grad=True)).sum().backward()
    Plain().backward(torch.ones(2))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The first in-place change of each gradient that a backward is given."""
    for cls in model.classes:
        backward = cls.methods.get("backward") if cls.is_function else None
        if backward is None or not backward.is_static or not backward.params:
            continue
        seen = {backward.params[0]}
        for node, arg in changed_parameters(model, backward):
            if arg not in seen and not grows_list(node, arg, backward):
                seen.add(arg)
                told = f"other branches are given the same `{arg.arg}`, and now see this change; clone it first"
                yield Hit(node, told, mend(model, backward, arg), confidence=Confidence.LIKELY)


def grows_list(node: ast.AST, arg: ast.arg, backward: FunctionInfo) -> bool:
    """`grads += (None,)`: a tuple made longer."""
    return arg is backward.args.vararg and isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)


def mend(model: FileModel, backward: FunctionInfo, arg: ast.arg) -> Repair | None:
    """Clone the gradient before the first statement that reads it."""
    if arg not in backward.params:
        return None
    for stmt in backward.node.body:  # type: ignore[attr-defined]
        uses = [n for n in ast.walk(stmt) if isinstance(n, ast.Name) and n.id == arg.arg]
        if any(isinstance(n.ctx, ast.Store) and isinstance(stmt, ast.Assign) for n in uses):
            return None
        if uses:
            return edits.repair("Clone the gradient",
                                edits.insert_before(model, stmt, f"{arg.arg} = {arg.arg}.clone()"))
    return None
