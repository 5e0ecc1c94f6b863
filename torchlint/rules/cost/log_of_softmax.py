"""The logarithm of a softmax or sigmoid.

A probability below 1e-45 is 0 in float32, so its logarithm is minus infinity, and the gradient of the two steps
together is 0 times infinity: NaN. One confident wrong answer is enough to ruin all parameters.

Call `log_softmax` or `logsigmoid`, which never form the probability and cost less.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Anomaly
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, Kind
from torchlint.model.forms import operand
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL613", "log-of-softmax", Severity.WARNING, fix=Safety.SAFE, triggers=("softmax", "sigmoid", "Softmax", "Sigmoid"))
CLAIM = Anomaly()
DIRECT = {"softmax": "torch.nn.functional.log_softmax", "sigmoid": "torch.nn.functional.logsigmoid"}
BOUNDING = {"clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_min_", "nan_to_num", "maximum"}
DEPTH = 8
FUNCTIONS = {
    "torch.softmax": "softmax", "torch.nn.functional.softmax": "softmax", "torch.special.softmax": "softmax",
    "torch.sigmoid": "sigmoid", "torch.nn.functional.sigmoid": "sigmoid", "torch.special.expit": "sigmoid",
}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        x = torch.tensor([[0.0, 200.0]], requires_grad=True)
        loss = -torch.log(F.softmax(x, dim=1))[0, 0]  #!
        loss.backward()
        """,
        good="""
        import torch
        import torch.nn.functional as F

        x = torch.tensor([[0.0, 200.0]], requires_grad=True)
        loss = -F.log_softmax(x, dim=1)[0, 0]
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn import functional as F

        x = torch.tensor([-200.0, 1.0], requires_grad=True)
        loss = -x.sigmoid().log().mean()  #!
        loss.backward()
        """,
        good="""
        import torch
        from torch.nn import functional as F

        x = torch.tensor([-200.0, 1.0], requires_grad=True)
        loss = -F.logsigmoid(x).mean()
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.softmax = nn.Softmax(dim=1)

            def forward(self, x):
                probs = self.softmax(x)
                return torch.log(probs)  #!


        x = torch.tensor([[0.0, 200.0]], requires_grad=True)
        Head()(x)[0, 0].backward()
        """,
        good="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.softmax = nn.LogSoftmax(dim=1)

            def forward(self, x):
                return self.softmax(x)


        x = torch.tensor([[0.0, 200.0]], requires_grad=True)
        Head()(x)[0, 0].backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch
    import torch.nn.functional as F

    x = torch.ones(2, 3)
    torch.log(F.softmax(x, dim=1) + 1e-9)
    torch.log(F.softmax(x, dim=1).clamp(min=1e-9))
    torch.log(1 - torch.sigmoid(x))
    torch.log(F.softmax(x, dim=1).clamp(min=1e-9).view(-1))
    safe = torch.clamp(torch.sigmoid(x), 1e-6, 1 - 1e-6)
    safe.log()
    torch.log(F.softmax(x, dim=1).mean(0))
    torch.log(F.softmax(x, dim=1).max(1).values)
    F.log_softmax(x, dim=1)
    torch.log(torch.relu(x))
    probs = F.softmax(x, dim=1)
    probs = probs / probs.sum()
    torch.log(probs)
    np.log(np.ones(3))
    """,
    """
    import torch
    import torch.nn.functional as F

    F.gumbel_softmax(torch.ones(2, 3), dim=1).log()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Logarithms of what a softmax or sigmoid returned."""
    for call in model.nodes(ast.Call):
        found = operand(model, call, "log")
        if found is None or found[1]:
            continue
        inner = found[0]
        value = model.value(inner)
        if value.name.endswith("gumbel_softmax"):
            continue  # its noise has no logarithm of its own
        if value.kind is Kind.TENSOR and value.squash in DIRECT and not is_bounded(model, inner):
            better = DIRECT[value.squash].rpartition(".")[2]
            yield Hit(
                call, f"log of {value.squash} is -inf for small values; use `{better}`",
                direct(model, call, inner), confidence=value.sure)


def is_bounded(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether a tensor was kept away from zero after it became a probability."""
    match expr:
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)):
            if attr in BOUNDING:
                return True
            inner = expr.args[0] if model.name_of(expr.func).startswith("torch.") and expr.args else receiver
            return depth < DEPTH and is_bounded(model, inner, depth + 1)
        case ast.Call(func=func) if model.name_of(func).rpartition(".")[2] in BOUNDING:
            return True
        case ast.Subscript(value=inner):
            return is_bounded(model, inner, depth + 1)
    site = model.value(expr).site
    return depth < DEPTH and isinstance(site, ast.expr) and site is not expr and is_bounded(model, site, depth + 1)


def direct(model: FileModel, call: ast.Call, inner: ast.expr) -> Repair | None:
    """One call in place of the two, if the probability is not used otherwise."""
    if not isinstance(inner, ast.Call):
        return None
    squash = FUNCTIONS.get(model.name_of(inner.func), "")
    parts = [*inner.args, *inner.keywords]
    match inner.func:
        case ast.Attribute(value=receiver, attr="softmax" | "sigmoid" as attr) if not squash:
            squash, parts = attr, [receiver, *parts]
            if model.value(receiver).kind is not Kind.TENSOR:
                return None
    plain = not any(k.arg not in ("input", "dim") for k in inner.keywords)
    spelled = spell(model, DIRECT[squash], at=call) if squash and plain else None
    if spelled is None:
        return None
    text = ", ".join(edits.source_of(model, part) for part in parts)
    return edits.repair(
        f"Use {DIRECT[squash].rpartition('.')[2]}", edits.replace(model, call, f"{spelled.text}({text})"),
        imports=spelled.imports)
