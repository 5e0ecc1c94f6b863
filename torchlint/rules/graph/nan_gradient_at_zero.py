"""A hand-written norm whose gradient is NaN where the vector is zero.

The derivative of a square root at 0 is infinite, and that of the squares inside is 0: backward multiplies the two
and gets NaN for `sqrt(sum(x ** 2))`. One zero vector, such as padding or the distance of a point to itself, is
enough to turn all parameters into NaN.

Put a small number inside the root (`(x.pow(2).sum(-1) + 1e-12).sqrt()`), or use `torch.linalg.vector_norm`, whose
gradient at zero is zero. A number added outside the root does not help.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Anomaly
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL221", "nan-gradient-at-zero", Severity.WARNING, stable=False, triggers=("sqrt", "0.5"))
CLAIM = Anomaly()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        nn.init.zeros_(net.bias)
        out = net(torch.zeros(4, 2))
        length = torch.sqrt(torch.sum(out ** 2, dim=-1))  #!
        length.mean().backward()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        nn.init.zeros_(net.bias)
        out = net(torch.zeros(4, 2))
        length = torch.sqrt(torch.sum(out ** 2, dim=-1) + 1e-12)
        length.mean().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Distance(nn.Module):
            def __init__(self):
                super().__init__()
                self.points = nn.Parameter(torch.ones(2, 3))

            def forward(self, x):
                squared = (x - self.points).pow(2).sum(-1)
                return squared.sqrt()  #!


        Distance()(torch.ones(2, 3)).sum().backward()
        """,
        good="""
        import torch
        from torch import nn


        class Distance(nn.Module):
            def __init__(self):
                super().__init__()
                self.points = nn.Parameter(torch.ones(2, 3))

            def forward(self, x):
                squared = (x - self.points).pow(2).sum(-1)
                return squared.clamp(min=1e-12).sqrt()


        Distance()(torch.ones(2, 3)).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 3)
    out = net(torch.ones(4, 2))
    torch.sqrt((out ** 2).sum(-1) + 1e-8)
    torch.sqrt(torch.sum(out ** 2).clamp(min=1e-8))
    torch.sqrt(out.exp().sum())
    torch.linalg.vector_norm(out, dim=-1)
    out.detach().pow(2).sum().sqrt()
    with torch.no_grad():
        out.pow(2).sum().sqrt()
    torch.sqrt(torch.ones(3).pow(2).sum())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Roots of sums of squares of attached values, with nothing added inside."""
    for node in model.nodes(ast.Call, ast.BinOp):
        match node:
            case ast.Call(func=func, args=[inner]) if model.name_of(func) == "torch.sqrt":
                pass
            case ast.Call(func=ast.Attribute(value=inner, attr="sqrt"), args=[]):
                pass
            case ast.BinOp(op=ast.Pow(), left=inner, right=ast.Constant(value=0.5)):
                pass
            case _:
                continue
        if model.value(node).attached and sum_of_squares(model, inner):
            yield Hit(node, "its gradient is NaN where the vector is zero; add a small number inside the root",
                      confidence=Confidence.LIKELY)


def made(model: FileModel, expr: ast.expr) -> ast.expr:
    """The expression that made the value of a name."""
    site = model.value(expr).site
    if isinstance(expr, ast.Name) and isinstance(site, ast.expr) and model.has(site):
        return site
    return expr


def sum_of_squares(model: FileModel, expr: ast.expr) -> bool:
    """Whether an attached expression is a sum (or mean) of squares."""
    node = made(model, expr)
    if not model.value(node).attached:
        return False
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="sum" | "mean")) if model.value(inner).is_tensor:
            return square(model, inner)
        case ast.Call(func=func, args=[inner, *_]) if model.name_of(func) in ("torch.sum", "torch.mean"):
            return square(model, inner)
    return False


def square(model: FileModel, expr: ast.expr) -> bool:
    """`x ** 2`, `x.pow(2)`, `x.square()`, `x * x`."""
    match made(model, expr):
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2 | 2.0)):
            return True
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return ast.dump(left) == ast.dump(right)
        case ast.Call(func=ast.Attribute(attr="pow"), args=[*_, ast.Constant(value=2 | 2.0)]):
            return True
        case ast.Call(func=ast.Attribute(attr="square")):
            return True
    return False
