"""A `torch.where` that hides an infinite derivative from the forward only.

`torch.where(p > 0, p.log(), 0)` picks the right value, but backward computes the gradient of both branches and
multiplies the hidden one by zero. Where the derivative of log, sqrt or a quotient is infinite, zero times
infinity is NaN, and one NaN spreads to all parameters.

Make the argument safe first: `safe = torch.where(p > 0, p, 1)`, then `torch.where(p > 0, safe.log(), 0)`.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Anomaly
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Grad
from torchlint.rule import Example, Hit, Meta

META = Meta("TL220", "nan-gradient-through-where", Severity.WARNING, stable=False, triggers=("where",))
CLAIM = Anomaly()
SINGULAR = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acos", "asin", "arccos", "arcsin", "xlogy"}
MAKES_SAFE = {"where", "clamp", "clamp_min", "clip", "masked_fill", "maximum", "relu", "softplus", "exp", "max",
              "nan_to_num", "sigmoid", "add"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        p = torch.tensor([0.0, 0.5], requires_grad=True)
        terms = torch.where(p > 0, p * p.log(), torch.zeros_like(p))  #!
        terms.sum().backward()
        """,
        good="""
        import torch

        p = torch.tensor([0.0, 0.5], requires_grad=True)
        safe = torch.where(p > 0, p, torch.ones_like(p))
        terms = torch.where(p > 0, safe * safe.log(), torch.zeros_like(p))
        terms.sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch


        def length(x):
            squared = x.pow(2)
            mask = squared == 0
            return torch.where(mask, torch.zeros_like(x), torch.sqrt(squared))  #!


        length(torch.zeros(2, requires_grad=True)).sum().backward()
        """,
        good="""
        import torch


        def length(x):
            squared = x.pow(2)
            mask = squared == 0
            safe = squared.masked_fill(mask, 1.0)
            return torch.where(mask, torch.zeros_like(x), torch.sqrt(safe))


        length(torch.zeros(2, requires_grad=True)).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch

    x = torch.tensor([0.0, 2.0], requires_grad=True)
    low = x < 1
    torch.where(low, x - 1e4, x).softmax(0)
    torch.where(x > 0, torch.log(x.clamp(min=1e-6)), x)
    torch.where(x > 0, torch.log(x + 1e-6), x)
    with torch.no_grad():
        torch.where(x > 0, x.log(), x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`where` whose branch takes a singular function of what the condition tests."""
    for call in model.nodes(ast.Call):
        match call:
            case ast.Call(args=[condition, yes, no]) if model.name_of(call.func) == "torch.where":
                tested = condition_names(model, call, condition)
                bad = any(singular(model, node, tested) for branch in (yes, no) for node in ast.walk(branch))
                if bad and model.grad_at(call) is not False:
                    yield Hit(call, "where hides an infinite derivative from forward only; make its argument safe",
                              confidence=Confidence.LIKELY)


def condition_names(model: FileModel, call: ast.Call, condition: ast.expr) -> set[str]:
    """The names that a condition compares, also where the comparison was given a name before."""
    names = {node.id for node in ast.walk(condition) if isinstance(node, ast.Name)}
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names and (
                    model.owner(assign) is model.owner(call) and model.position(assign) < model.position(call)):
                names |= {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return names


def singular(model: FileModel, node: ast.AST, tested: set[str]) -> bool:
    """Whether a node is log, sqrt, a root or a quotient of a tested, unguarded tensor that may need a gradient."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=[]) if name in SINGULAR:
            return exposed(model, receiver, tested)
        case ast.Call(func=func, args=[arg, *_]) if model.name_of(func).rpartition(".")[2] in SINGULAR and (
                model.name_of(func).startswith("torch.")):
            return exposed(model, arg, tested)
        case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=float(power))) if power < 1:
            return exposed(model, left, tested)
        case ast.BinOp(op=ast.Div(), right=right):
            return exposed(model, right, tested)
    return False


def exposed(model: FileModel, expr: ast.expr, tested: set[str]) -> bool:
    """A tested name whose value was not made safe by an operation just before."""
    if not isinstance(expr, ast.Name) or expr.id not in tested:
        return False
    value = model.value(expr)
    tail = value.name.rpartition(".")[2]
    return value.grad is not Grad.NO and (value.is_tensor or not value.known) and tail not in MAKES_SAFE
