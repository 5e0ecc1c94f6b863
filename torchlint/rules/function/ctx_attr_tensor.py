"""A tensor kept as an attribute of `ctx` instead of going through `save_for_backward`.

An output on `ctx` closes a cycle, output -> grad_fn -> ctx -> output, which only Python's cycle collector
frees: graph and activations pile up until it runs. An input on `ctx` does not leak, but nothing notices when
it is changed in place before backward, and the gradient is silently wrong.

Use `ctx.save_for_backward(x)` in forward and `x, = ctx.saved_tensors` in backward. Sizes, flags, numbers and
intermediate results that are neither input nor output may stay on `ctx`.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import CycleLeaks, Either, WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes.saved import ctx_to_save_for_backward
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL305", "ctx-attr-tensor", Severity.ERROR, also=(Severity.WARNING,),
            fix=Safety.UNSAFE, triggers=("Function",))
CLAIM = Either((CycleLeaks(), WrongGradient()))
# What code reads from an argument only if that is a tensor.
PROOF = frozenset({
    "exp", "log", "sigmoid", "tanh", "mul", "matmul", "mm", "mean", "clamp", "pow", "transpose", "view",
    "reshape", "abs", "sqrt", "sign", "detach", "requires_grad", "new_zeros", "expand_as", "permute",
    "contiguous", "masked_fill", "round", "relu", "numel", "view_as", "ge", "gt", "lt", "le",
})
OPERANDS = ("input", "self", "other", "mat2", "weight")  # what torch calls an operand; an index is none

EXAMPLES = [
    Example(
        bad="""
        import torch


        class FastExp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.exp(x)
                ctx.result = y  #!
                return y

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.result


        x = torch.ones(4, requires_grad=True)
        FastExp.apply(x).sum().backward()
        """,
        good="""
        import torch


        class FastExp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.exp(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, grad):
                (result,) = ctx.saved_tensors
                return grad * result


        x = torch.ones(4, requires_grad=True)
        FastExp.apply(x).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Norm(Function):
            @staticmethod
            def forward(ctx, x, eps):
                ctx.eps = eps
                ctx.out = x / (x.norm() + eps)  #!
                return ctx.out

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.out.sign(), None


        x = torch.ones(4, requires_grad=True)
        Norm.apply(x, 1e-6).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Norm(Function):
            @staticmethod
            def forward(ctx, x, eps):
                ctx.eps = eps
                out = x / (x.norm() + eps)
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx, grad):
                out, = ctx.saved_tensors
                return grad * out.sign(), None


        x = torch.ones(4, requires_grad=True)
        Norm.apply(x, 1e-6).sum().backward()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Swish(Function):
            @staticmethod
            def forward(ctx, i):
                ctx.i = i  #!
                return i * torch.sigmoid(i)

            @staticmethod
            def backward(ctx, grad):
                s = torch.sigmoid(ctx.i)
                return grad * s * (1 + ctx.i * (1 - s))


        w = torch.ones(3, requires_grad=True)
        h = w * 2
        out = Swish.apply(h)
        h.zero_()
        out.sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Swish(Function):
            @staticmethod
            def forward(ctx, i):
                ctx.save_for_backward(i)
                return i * torch.sigmoid(i)

            @staticmethod
            def backward(ctx, grad):
                i, = ctx.saved_tensors
                s = torch.sigmoid(i)
                return grad * s * (1 + i * (1 - s))


        w = torch.ones(3, requires_grad=True)
        h = w * 2
        out = Swish.apply(h)
        out.sum().backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k, group=None):
            ctx.k = k
            ctx.shape = x.shape
            ctx.group = group
            ctx.device, ctx.dtype = x.device, x.dtype
            ctx.mask = x > 0
            y = x * k
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            ctx.seen = y
            return (grad * ctx.k * ctx.mask).reshape(ctx.shape), None, None


    class Holder:
        def forward(self, ctx, x):
            ctx.x = x.exp()
            return ctx.x


    Scale.apply(torch.ones(2, requires_grad=True), 2).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Stores of inputs and outputs on ctx in forward and setup_context."""
    for cls in model.classes:
        if not cls.is_function:
            continue
        for name in ("forward", "setup_context"):
            method = cls.methods.get(name)
            if method is not None and method.params:
                yield from stores(model, cls, method)


def stores(model: FileModel, cls: ClassInfo, method: FunctionInfo) -> Iterator[Hit]:
    """The findings of one method."""
    context = method.params[0].arg
    outputs = returned(model, method)
    for stmt, target, expr in method.attribute_stores:
        if not (isinstance(target.value, ast.Name) and target.value.id == context) or expr is None:
            continue
        value = model.value(expr)
        out = is_output(method, value, expr, context, target.attr, outputs)
        if out and value.kind in (Kind.TENSOR, Kind.UNKNOWN):
            told = f"output `ctx.{target.attr}` makes a cycle that keeps the graph; use save_for_backward"
            yield Hit(stmt, told, saved(model, cls, method, target.attr),
                      confidence=value.sure if value.is_tensor else Confidence.LIKELY)
        elif is_input(model, method, expr):
            told = f"input `ctx.{target.attr}` escapes the in-place check; use save_for_backward"
            yield Hit(stmt, told, saved(model, cls, method, target.attr), severity=Severity.WARNING,
                      confidence=Confidence.LIKELY)


def returned(model: FileModel, method: FunctionInfo) -> list[tuple[ast.expr, Value]]:
    """What forward returns, tuples opened: expressions with their values."""
    found: list[tuple[ast.expr, Value]] = []
    for node, _ in model.flow(method.node).return_values:
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        found += [(part, model.value(part)) for part in parts if part is not None]
    return found


def is_output(method: FunctionInfo, value: Value, expr: ast.expr, context: str, attr: str,
              outputs: list[tuple[ast.expr, Value]]) -> bool:
    """Whether the stored object is the one that is returned."""
    if method.name == "setup_context":
        return len(method.params) > 2 and isinstance(expr, ast.Name) and expr.id == method.params[2].arg
    for node, result in outputs:
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == context and name == attr:
                return True
        if value.ident is not None and value.ident == result.ident and not isinstance(value.ident, ast.arg):
            return True
    return False


def is_input(model: FileModel, method: FunctionInfo, expr: ast.expr) -> bool:
    """Whether a parameter of forward is stored as it is, and used as a tensor."""
    if method.name != "forward" or not isinstance(expr, ast.Name):
        return False
    names = {arg.arg for arg in method.params[1:]}
    used = {name.removesuffix("()") for name in method.used_methods.get(expr.id, set())}
    proven = bool(used & PROOF) or given_to_torch(model, method, expr.id)
    return expr.id in names and proven and not rebound(method, expr.id)


def given_to_torch(model: FileModel, method: FunctionInfo, name: str) -> bool:
    """Whether forward hands a name to a function of torch that takes nothing but a tensor there."""
    for call in method.calls:
        entry = knowledge.function(model.name_of(call.func))
        for index, arg in enumerate(call.args if entry is not None else ()):
            params = [each.params[index : index + 1] for each in entry.overloads] if entry is not None else []
            if isinstance(arg, ast.Name) and arg.id == name and all(
                    param and param[0].kind == "tensor" and param[0].name in OPERANDS for param in params):
                return True
    return False


def rebound(method: FunctionInfo, name: str) -> bool:
    """Whether the name is assigned in the body."""
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in method.own_nodes)


def saved(model: FileModel, cls: ClassInfo, method: FunctionInfo, name: str) -> Repair | None:
    """Move the attribute to save_for_backward."""
    backward = cls.methods.get("backward")
    nodes = (method.node, backward.node if backward is not None else None)
    match nodes:
        case (ast.FunctionDef() as forward, ast.FunctionDef() as other):
            return ctx_to_save_for_backward(model, forward, other, [name])
    return None
