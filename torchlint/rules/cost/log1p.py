"""The logarithm of one plus a small number.

`1 + x` is rounded before the logarithm is taken. In float32 everything of `x` below 6e-8 is lost, and of a small
`x` the leading digits only are kept, so `torch.log(1 + x)` gives 0 where the result is `x`.

Call `torch.log1p(x)`, which is exact near zero and costs the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, Kind
from torchlint.model.forms import operand
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL610", "log1p", Severity.ADVICE, fix=Safety.SAFE, aliases=("TOR106",), triggers=("log",))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.full((3,), 1e-9)
        ratio = torch.log(1 + x) / x  #!
        """,
        good="""
        import torch

        x = torch.full((3,), 1e-9)
        ratio = torch.log1p(x) / x
        """,
    ),
    Example(
        bad="""
        import torch


        def loss(x):
            return (torch.exp(x) + 1.0).log().mean() * 1e9  #!


        out = loss(torch.full((3,), -20.0))
        """,
        good="""
        import torch


        def loss(x):
            return torch.exp(x).log1p().mean() * 1e9


        out = loss(torch.full((3,), -20.0))
        """,
    ),
]

CLEAN = [
    """
    import math
    import numpy as np
    import torch

    x = torch.ones(3)
    torch.log(2 + x)
    torch.log(x - 1)
    torch.log1p(x)
    math.log(1 + 2.0)
    np.log(1 + np.ones(3))
    torch.log(torch.arange(3) + 1)
    torch.log(1 + torch.ones(3, dtype=torch.long))


    def of(logger, step):
        (step + 1).log()
        logger.log(1 + step)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Logarithms of a sum with the literal one."""
    for call in model.nodes(ast.Call):
        found = operand(model, call, "log")
        if found is None or found[1]:
            continue
        inner = found[0]
        other = without_one(inner)
        if other is None or not is_float(model, other, call):
            continue
        yield Hit(
            call, "small values are lost in `1 + x`; use `log1p`", direct(model, call, other),
            confidence=max(model.value(other).sure, Confidence.LIKELY))


def without_one(expr: ast.expr) -> ast.expr | None:
    """x of `1 + x` or `x + 1`."""
    match expr:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Add(), right=other):
            return other
        case ast.BinOp(left=other, op=ast.Add(), right=ast.Constant(value=1)):
            return other
    return None


def is_float(model: FileModel, expr: ast.expr, call: ast.Call) -> bool:
    """Whether an operand can be a floating point tensor, as far as can be seen."""
    value = model.value(expr)
    if value.kind is Kind.NUMBER or "integer" in value.facts or isinstance(expr, ast.Constant):
        return False
    made = value.site
    if isinstance(made, ast.Call):
        words = {node.attr for node in ast.walk(made) if isinstance(node, ast.Attribute)}
        return not words & {"long", "int", "int32", "int64", "bool", "arange", "uint8", "int8", "int16", "argmax"}
    return isinstance(call.func, ast.Attribute)


def direct(model: FileModel, call: ast.Call, other: ast.expr) -> Repair | None:
    """log1p of the other operand."""
    text = edits.source_of(model, other)
    if isinstance(call.func, ast.Attribute) and model.name_of(call.func) != "torch.log":
        tight = isinstance(other, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        new = f"{text}.log1p()" if tight else f"({text}).log1p()"
        return edits.repair("Use log1p", edits.replace(model, call, new))
    spelled = spell(model, "torch.log1p", at=call)
    if spelled is None:
        return None
    return edits.repair("Use log1p", edits.replace(model, call, f"{spelled.text}({text})"), imports=spelled.imports)
