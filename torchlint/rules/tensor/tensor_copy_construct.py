"""A tensor that is copied by `torch.tensor(t)`.

`torch.tensor` is made for Python data. Given a tensor it copies the numbers, drops the graph and warns: "To
copy construct from a tensor, it is recommended to use sourceTensor.detach().clone()". If a gradient was meant
to flow through the copy, training goes on without it.

Write `t.detach().clone()` for a copy, `t` or `t.to(...)` where the gradient is needed.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Value
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL110", "tensor-copy-construct", Severity.WARNING, fix=Safety.SAFE, triggers=("tensor",))
CLAIM = Warns("copy construct from a tensor")

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.ones(3)
        y = torch.tensor(x)  #!
        z = x.new_tensor(x * 2)  #!
        """,
        good="""
        import torch

        x = torch.ones(3)
        y = x.detach().clone()
        z = (x * 2).detach().clone()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Lens(nn.Module):
            def __init__(self):
                super().__init__()
                self.phase = nn.Parameter(torch.zeros(4))

            def forward(self, x):
                return x * torch.tensor(self.phase, dtype=torch.float64)  #!


        Lens()(torch.ones(4))
        """,
        good="""
        import torch
        from torch import nn


        class Lens(nn.Module):
            def __init__(self):
                super().__init__()
                self.phase = nn.Parameter(torch.zeros(4))

            def forward(self, x):
                return x * self.phase.to(torch.float64)


        Lens()(torch.ones(4))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch


    def as_tensor(x):
        if not isinstance(x, torch.Tensor):
            x = torch.tensor(x)
        return x


    def limit(dtype):
        return torch.tensor(torch.finfo(dtype).max)


    as_tensor([1.0])
    limit(torch.float32)
    torch.tensor(torch.ones(3).numel())
    torch.tensor([1.0, 2.0])
    torch.as_tensor(torch.ones(2), dtype=torch.float64)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`torch.tensor(t)` and `x.new_tensor(t)` of what is surely a tensor."""
    for call in model.nodes(ast.Call):
        if not call.args or isinstance(call.args[0], ast.Starred) or not constructs(model, call):
            continue
        value = model.value(call.args[0])
        if surely_tensor(value):
            lost = " and drops its graph" if value.attached else ""
            yield Hit(call, f"copies a tensor{lost}; use `.detach().clone()`, or the tensor itself",
                      copied(model, call, value), confidence=value.sure)


def constructs(model: FileModel, call: ast.Call) -> bool:
    """Whether the call makes a tensor from data."""
    if model.name_of(call.func) == "torch.tensor":
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr == "new_tensor" and model.value(
        call.func.value).is_tensor


def surely_tensor(value: Value) -> bool:
    """A tensor on every path; annotations alone are not trusted, they are often wrong here."""
    if not value.is_tensor or value.optional or "maybe_number" in value.facts:
        return False
    return value.sure is Confidence.SURE or value.attached or value.role in ("parameter", "buffer")


def copied(model: FileModel, call: ast.Call, value: Value) -> Repair | None:
    """The copy that torch itself recommends, where no dtype, device or flag is asked for."""
    if len(call.args) != 1 or call.keywords or value.attached:
        return None
    inner = edits.fit(model, call, edits.source_of(model, call.args[0]))
    if not isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        inner = f"({edits.source_of(model, call.args[0])})"
    return edits.repair("Copy the tensor", edits.replace(model, call, f"{inner}.detach().clone()"))
