"""A backward that does not take one gradient for each output of forward.

The engine calls `backward(ctx, *grads)` with one value for each output, None where an output is no tensor or was
not used. A backward with fewer or more parameters is a TypeError at the first backward pass: "takes 2 positional
arguments but 3 were given".

Give backward one parameter for each output, or take `*grads`. The rule is silent where one of forward's return
statements fits, and where an output cannot be counted.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.model.autograd import context_of
from torchlint.rule import Example, Hit, Meta

META = Meta("TL304", "wrong-number-of-grad-outputs", Severity.ERROR, triggers=("backward",))
CLAIM = Raises("TypeError", r"backward\(\)")

EXAMPLES = [
    Example(
        bad="""
        import torch


        class SinCos(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.sin(), x.cos()

            @staticmethod
            def backward(ctx, grad):  #!
                (x,) = ctx.saved_tensors
                return grad * x.cos()


        x = torch.ones(3, requires_grad=True)
        sin, cos = SinCos.apply(x)
        sin.sum().backward()
        """,
        good="""
        import torch


        class SinCos(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.sin(), x.cos()

            @staticmethod
            def backward(ctx, grad_sin, grad_cos):
                (x,) = ctx.saved_tensors
                return grad_sin * x.cos() - grad_cos * x.sin()


        x = torch.ones(3, requires_grad=True)
        sin, cos = SinCos.apply(x)
        sin.sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Mul(Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a * b

            @staticmethod
            def backward(ctx, grad_a, grad_b):  #!
                a, b = ctx.saved_tensors
                return grad_a * b, grad_b * a


        a = torch.ones(2, requires_grad=True)
        b = torch.ones(2, requires_grad=True)
        Mul.apply(a, b).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Mul(Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a * b

            @staticmethod
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad * b, grad * a


        a = torch.ones(2, requires_grad=True)
        b = torch.ones(2, requires_grad=True)
        Mul.apply(a, b).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function


    def both(x):
        return x * 2, x * 3


    class Defaults(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad, unused=None):
            return grad * 2


    class Star(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3, x.shape[0]

        @staticmethod
        def backward(ctx, first, *others):
            return first * 2


    class One(Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 2,)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2


    class Optional(Function):
        @staticmethod
        def forward(ctx, x, more=False):
            if more:
                return x * 2, x * 3
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None


    class Helped(Function):
        @staticmethod
        def forward(ctx, x):
            out = both(x)
            return out

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 3


    class Never(Function):
        @staticmethod
        def forward(ctx, x):
            return x.argmax(), x.max()

        @staticmethod
        def backward(ctx, grad):
            raise NotImplementedError


    x = torch.ones(3, requires_grad=True)
    for out in (Defaults.apply(x), Star.apply(x)[0], One.apply(x)[0], Optional.apply(x), Helped.apply(x)[0]):
        out.sum().backward()
    Never.apply(x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Signatures of backward that fit none of forward's return statements."""
    for cls in model.classes:
        backward = cls.methods.get("backward") if cls.is_function else None
        forward = cls.method("forward") if backward is not None else None
        if backward is None or forward is None or only_raises(backward) or wrapped(forward) or wrapped(backward):
            continue
        counts, sure = outputs(forward)
        least, most = accepted(cls, backward)
        if not counts or any(least <= count <= most for count in counts):
            continue
        given = min(counts)
        wanted = f"{most} gradient{'' if most == 1 else 's'}" if given > most else f"{least} gradients"
        told = f"backward takes {wanted}, but forward has {given} output{'' if given == 1 else 's'}; take one for each"
        yield Hit(backward.node, told, confidence=sure)


def accepted(cls: ClassInfo, backward: FunctionInfo) -> tuple[int, float]:
    """(least, most) number of gradients that backward can be called with."""
    context = context_of(cls, backward)
    count = len(backward.params) - (backward.params.index(context) + 1 if context is not None else 1)
    most = float("inf") if backward.args.vararg is not None else count
    return count - len(backward.args.defaults), most


def outputs(forward: FunctionInfo) -> tuple[set[int], Confidence]:
    """How many values forward returns, for each return statement, and how sure that is; none if one is unclear."""
    found: set[int] = set()
    sure = Confidence.SURE
    for node, value in forward.model.flow(forward.node).return_values:
        count = counted(node.value, value)
        if count is None:
            return set(), sure
        found.add(count)
        sure = sure if isinstance(node.value, ast.Tuple) else min(sure, value.sure)
    return found, sure


def counted(expr: ast.expr | None, value: Value) -> int | None:
    """How many outputs a returned expression is; lists and dicts are one value that gets no gradient."""
    match expr:
        case ast.Tuple(elts=elts):
            return None if any(isinstance(elt, ast.Starred) for elt in elts) else len(elts)
        case ast.BinOp(left=left) if value.kind is Kind.TENSOR and not isinstance(left, ast.Tuple):
            return 1
    if value.kind is Kind.TUPLE and value.elements is not None:
        return len(value.elements)
    return 1 if value.kind is Kind.TENSOR and not value.optional else None


def only_raises(method: FunctionInfo) -> bool:
    """Whether the body does nothing but refuse."""
    return not any(isinstance(node, ast.Return) for node in method.own_nodes)


def wrapped(method: FunctionInfo) -> bool:
    """Whether a decorator of the project may change what the method takes or returns."""
    return any(not name.startswith(("builtins.", "torch.")) for name in method.decorators)
