"""The logarithm of a sum of exponentials, step by step.

`exp` overflows to infinity above 88 in float32, and of very negative numbers nothing is left, so the sum is
infinite or zero and its logarithm infinite, though the result would be an ordinary number. The gradient is NaN.

Call `torch.logsumexp(x, dim)`, which subtracts the maximum first. Without a dimension there is no such shortcut
and the rule is silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, Kind
from torchlint.model.forms import operand
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL612", "logsumexp", Severity.ADVICE, fix=Safety.SAFE, aliases=("TOR108",), triggers=("exp",))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.full((2, 3), 100.0)
        share = torch.exp(100 - torch.log(torch.sum(torch.exp(x), dim=1)))  #!
        """,
        good="""
        import torch

        x = torch.full((2, 3), 100.0)
        share = torch.exp(100 - torch.logsumexp(x, dim=1))
        """,
    ),
    Example(
        bad="""
        import torch

        x = torch.full((2, 3), 100.0)
        share = torch.exp(x - x.exp().sum(-1, keepdim=True).log())  #!
        """,
        good="""
        import torch

        x = torch.full((2, 3), 100.0)
        share = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
        """,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch

    x = torch.ones(2, 3)
    torch.log(torch.sum(torch.exp(x)))
    torch.log(torch.sum(x, dim=1))
    torch.log(torch.exp(x).sum(1) + 1e-6)
    torch.log(torch.exp(x).mean(1))
    np.log(np.sum(np.exp(np.ones((2, 3))), axis=1))
    torch.logsumexp(x, 1)
    top = x.max(1, keepdim=True)[0]
    torch.log(torch.exp(x - top).sum(1))
    shifted = x - x.amax(1, keepdim=True)
    torch.log(shifted.exp().sum(1))
    torch.log(torch.exp(x).sum(dim=1, dtype=torch.float64))


    def by_hand(scores, dim, keepdim):
        top, _ = scores.max(dim, keepdim=keepdim)
        if keepdim:
            rest = scores - top
        else:
            rest = scores - top.unsqueeze(dim)
        return top + (rest.exp().sum(dim, keepdim=keepdim)).log()


    def spread(scores, dim):
        top, _ = torch.max(scores, dim)
        return top + torch.log(torch.sum(torch.exp(scores - top.unsqueeze(dim).expand_as(scores)), dim))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """log(sum(exp(x), dim)), each step as a function or a method."""
    for call in model.nodes(ast.Call):
        summed = operand(model, call, "log")
        if summed is None or not isinstance(summed[0], ast.Call) or summed[1]:
            continue
        powers = operand(model, summed[0], "sum")
        if powers is None or not isinstance(powers[0], ast.Call) or not has_dim(powers[1]):
            continue
        inner = operand(model, powers[0], "exp")
        if inner is not None and not inner[1] and not is_shifted(model, inner[0]):
            yield Hit(call, "this overflows in `exp`; use `torch.logsumexp`", direct(model, call, inner[0], powers[1]))


def is_shifted(model: FileModel, expr: ast.expr) -> bool:
    """Whether something that may be the maximum was subtracted by hand."""
    match expr:
        case ast.Name(id=name):
            bound = model.scope_of(model.owner(expr)).bindings.get(name, ())
            return any(isinstance(each, ast.Assign) and isinstance(each.value, ast.BinOp)
                       and is_shifted(model, each.value) for each in bound)
        case ast.BinOp(op=ast.Sub(), right=right):
            return model.value(right).kind is not Kind.NUMBER
    return False


def has_dim(rest: list[ast.expr | ast.keyword]) -> bool:
    """Whether the arguments of a sum name a dimension, and nothing that logsumexp does not know."""
    names = [arg.arg if isinstance(arg, ast.keyword) else "" for arg in rest]
    return bool(rest) and ("" in names or "dim" in names) and set(names) <= {"", "dim", "keepdim"} and len(rest) <= 2


def direct(model: FileModel, call: ast.Call, inner: ast.expr, rest: list[ast.expr | ast.keyword]) -> Repair | None:
    """One call with the arguments of the sum."""
    spelled = spell(model, "torch.logsumexp", at=call)
    if spelled is None:
        return None
    text = f"{spelled.text}({', '.join(edits.source_of(model, part) for part in (inner, *rest))})"
    return edits.repair("Use logsumexp", edits.replace(model, call, text), imports=spelled.imports)
