"""One subtracted from an exponential near one.

`exp(x)` of a small `x` is rounded to a number close to 1, and what is left after subtracting 1 is mostly rounding
error: in float32 `torch.exp(x) - 1` is 0 for every `x` below 6e-8.

Call `torch.expm1(x)`, which is exact near zero and costs the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.model.forms import operand
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL611", "expm1", Severity.ADVICE, fix=Safety.SAFE, aliases=("TOR107",), triggers=("exp",))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.full((3,), 1e-9)
        ratio = (torch.exp(x) - 1) / x  #!
        """,
        good="""
        import torch

        x = torch.full((3,), 1e-9)
        ratio = torch.expm1(x) / x
        """,
    ),
    Example(
        bad="""
        import torch

        log_var = torch.full((3,), 1e-9)
        kl = 1e9 * (-1 + log_var.exp())  #!
        """,
        good="""
        import torch

        log_var = torch.full((3,), 1e-9)
        kl = 1e9 * log_var.expm1()
        """,
    ),
]

CLEAN = [
    """
    import math
    import numpy as np
    import torch

    x = torch.ones(3)
    1 - torch.exp(x)
    torch.exp(x) - 2
    torch.exp(x - 1)
    torch.expm1(x)
    math.exp(1.0) - 1
    np.exp(x) - 1
    torch.exp(x) + 1


    def of(thing):
        return thing.exp() - 1
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Differences of an exponential and the literal one."""
    for node in model.nodes(ast.BinOp):
        match node:
            case ast.BinOp(left=ast.Call() as call, op=ast.Sub(), right=ast.Constant(value=1)):
                pass
            case ast.BinOp(left=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)), op=ast.Add(),
                           right=ast.Call() as call):
                pass
            case _:
                continue
        found = operand(model, call, "exp")
        if found is not None and not found[1]:
            yield Hit(
                node, "small values are lost in `exp(x) - 1`; use `expm1`", direct(model, node, call))


def direct(model: FileModel, node: ast.BinOp, call: ast.Call) -> Repair | None:
    """The call of expm1 that takes the place of the difference."""
    if isinstance(call.func, ast.Attribute) and not call.args:
        receiver = edits.source_of(model, call.func.value)
        held = f"({receiver})" if edits.parens(model, call.func.value) else receiver
        return edits.repair("Use expm1", edits.replace(model, node, f"{held}.expm1()"))
    spelled = spell(model, "torch.expm1", at=call)
    if spelled is None:
        return None
    text = edits.source_of(model, call.args[0])
    return edits.repair("Use expm1", edits.replace(model, node, f"{spelled.text}({text})"), imports=spelled.imports)
