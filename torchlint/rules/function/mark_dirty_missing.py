"""An input that the forward of an autograd Function changes in place without telling autograd.

The body of forward runs outside autograd. Only `ctx.mark_dirty(x)` makes torch give the changed tensor the
Function's node as its history and refuse leaves. Without it everything else that reads the same tensor goes on
with the new values and the old history, and its gradient is silently wrong.

Return the tensor and call `ctx.mark_dirty` with it, or work on a clone. Buffers for which backward returns None
may be updated, and an input may be returned unchanged: torch makes a view of it.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo
from torchlint.model.autograd import (
    changed_parameters,
    context_of,
    gradients_given,
    hands_over,
    inner_call,
    parameter_behind,
)
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL307", "mark-dirty-missing", Severity.ERROR, fix=Safety.UNSAFE, triggers=("Function",))
CLAIM = WrongGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.mul_(2)  #!

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        h = x * 1
        y = Double.apply(h)
        (y + h).sum().backward()
        """,
        good="""
        import torch


        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        h = x * 1
        y = Double.apply(h)
        (y + h).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.autograd import Function


        class Rotate(Function):
            @staticmethod
            def forward(ctx, q, cos, sin):
                ctx.save_for_backward(cos, sin)
                half = q.shape[-1] // 2
                turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
                q *= cos  #!
                q.addcmul_(turned, sin)
                return q

            @staticmethod
            def backward(ctx, grad):
                cos, sin = ctx.saved_tensors
                half = grad.shape[-1] // 2
                turned = torch.cat((grad[..., half:], -grad[..., :half]), dim=-1)
                return grad * cos + turned * sin, None, None


        layer = nn.Linear(4, 4)
        q = layer(torch.ones(2, 4))
        turned = Rotate.apply(q, torch.full((4,), 0.6), torch.full((4,), 0.8))
        (turned + q).sum().backward()
        """,
        good="""
        import torch
        from torch import nn
        from torch.autograd import Function


        class Rotate(Function):
            @staticmethod
            def forward(ctx, q, cos, sin):
                ctx.save_for_backward(cos, sin)
                half = q.shape[-1] // 2
                turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
                ctx.mark_dirty(q)
                q *= cos
                q.addcmul_(turned, sin)
                return q

            @staticmethod
            def backward(ctx, grad):
                cos, sin = ctx.saved_tensors
                half = grad.shape[-1] // 2
                turned = torch.cat((grad[..., half:], -grad[..., :half]), dim=-1)
                return grad * cos + turned * sin, None, None


        layer = nn.Linear(4, 4)
        q = layer(torch.ones(2, 4))
        turned = Rotate.apply(q, torch.full((4,), 0.6), torch.full((4,), 0.8))
        (turned + q).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch


        class Weigh(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.scale = scale
                for i, s in enumerate(scale):
                    x[:, i] *= s  #!
                return x.sum(1)

            @staticmethod
            def backward(ctx, grad):
                return grad[:, None] * torch.tensor(ctx.scale), None


        x = torch.ones(2, 3, requires_grad=True)
        h = x * 2
        total = Weigh.apply(h, [1.0, 2.0, 3.0])
        (total.sum() + h.pow(2).sum()).backward()
        """,
        good="""
        import torch


        class Weigh(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.scale = scale
                x = x.clone()
                for i, s in enumerate(scale):
                    x[:, i] *= s
                return x.sum(1)

            @staticmethod
            def backward(ctx, grad):
                return grad[:, None] * torch.tensor(ctx.scale), None


        x = torch.ones(2, 3, requires_grad=True)
        h = x * 2
        total = Weigh.apply(h, [1.0, 2.0, 3.0])
        (total.sum() + h.pow(2).sum()).backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function


    class Marked(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.clamp_(min=0)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad


    class Setup(Function):
        @staticmethod
        def forward(x):
            return x.mul_(2)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, grad):
            return grad * 2


    class Running(Function):
        @staticmethod
        def forward(ctx, x, mean, momentum, log=None):
            mean.mul_(1 - momentum).add_(momentum * x.mean(0))
            log = log or []
            log += [mean]
            momentum *= 2
            out = x - mean
            out *= 2
            out[0] = 0
            return out

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None, None, None


    class Copied(Function):
        @staticmethod
        def forward(ctx, x, labels):
            x = x.clone()
            x[labels] -= 1
            masked = x.exp().masked_fill_(labels, 0)
            return masked.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad, None


    class Same(Function):
        @staticmethod
        def forward(ctx, x, strength):
            ctx.strength = strength
            return x

        @staticmethod
        def backward(ctx, grad):
            return -ctx.strength * grad, None


    class Plain:
        def forward(self, x):
            return x.mul_(2)


    x = torch.ones(3, requires_grad=True)
    Same.apply(Marked.apply(Setup.apply(x * 1)), 0.5).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The first in-place change of each input of a forward, where no call of mark_dirty names it."""
    for cls in model.classes:
        forward = cls.methods.get("forward") if cls.is_function else None
        if forward is None or not forward.is_static or not forward.params:
            continue
        context = context_of(cls, forward)
        if marks(cls) or (context is not None and hands_over(model, forward, context)):
            continue
        found: dict[ast.arg, ast.AST] = {}
        for node, arg in changed_parameters(model, forward):
            if arg is not context and is_tensor(model, node, forward, arg):
                found.setdefault(arg, node)
        for arg, node in found.items():
            out = is_returned(model, forward, arg)
            if not out and not gets_gradient(cls, forward, arg):
                continue
            told = (f"autograd does not see this change of input `{arg.arg}`; call `ctx.mark_dirty({arg.arg})`" if out
                    else f"this changes input `{arg.arg}` of the caller unseen by autograd; work on a clone")
            repair = mend(model, forward, context, arg, node, out=out) if len(found) == 1 else None
            yield Hit(node, told, repair, confidence=Confidence.LIKELY)


def marks(cls: ClassInfo) -> bool:
    """Whether any method of the class or its bases calls mark_dirty; only its last call counts for torch."""
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "mark_dirty"
               for method in cls.all_methods() for call in method.calls)


def is_tensor(model: FileModel, node: ast.AST, forward: FunctionInfo, arg: ast.arg) -> bool:
    """Whether what is changed is surely not a number, list or dict that the caller passed."""
    match node:
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as target, value=value):
            return model.value(target).is_tensor and not isinstance(value, (ast.List, ast.Tuple, ast.ListComp))
        case ast.AugAssign(target=ast.Subscript(slice=index)) | ast.Assign(targets=[ast.Subscript(slice=index), *_]):
            return not (isinstance(index, ast.Constant) and isinstance(index.value, str))
    return arg is not forward.args.vararg


def is_returned(model: FileModel, forward: FunctionInfo, arg: ast.arg) -> bool:
    """Whether forward returns the input itself."""
    for node, _ in model.flow(forward.node).return_values:
        parts = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
        for part in parts:
            while (inner := inner_call(part)) is not None:
                part = inner
            if isinstance(part, ast.Name) and parameter_behind(model, part, {arg}) is arg:
                return True
    return False


def gets_gradient(cls: ClassInfo, forward: FunctionInfo, arg: ast.arg) -> bool:
    """Whether backward returns something else than None for an input."""
    given = gradients_given(cls, forward, arg)
    return any(not (isinstance(expr, ast.Constant) and expr.value is None) for expr in given)


def mend(model: FileModel, forward: FunctionInfo, context: ast.arg | None, arg: ast.arg, node: ast.AST, *,
         out: bool) -> Repair | None:
    """Mark the input where it is returned, else change a clone; for changes by the parameter's own name."""
    stmt = model.statement(node)
    while stmt not in forward.node.body:  # type: ignore[attr-defined]
        parent = model.parent(stmt)
        if not isinstance(parent, ast.stmt):
            return None
        stmt = parent
    names = [n for n in forward.own_nodes if isinstance(n, ast.Name) and n.id == arg.arg]
    if any(isinstance(n.ctx, ast.Store) and not isinstance(model.parent(n), ast.AugAssign) for n in names):
        return None
    if not any(n in ast.walk(stmt) for n in names):
        return None
    if not out:
        return edits.repair("Change a clone", edits.insert_before(model, stmt, f"{arg.arg} = {arg.arg}.clone()"))
    if context is None:
        return None
    return edits.repair("Mark the input as changed",
                        edits.insert_before(model, stmt, f"{context.arg}.mark_dirty({arg.arg})"))


