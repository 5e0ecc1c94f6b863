"""The result of a tensor method that is thrown away.

Tensor methods without a trailing underscore return a new tensor and leave the receiver as it is. Called as a
statement they do nothing: the tensor stays on its device, in its dtype, attached to its graph.

Assign the result. `Module.to`, `Module.cuda` and methods with a trailing underscore work in place and need no
assignment.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL113", "result-not-assigned", Severity.ERROR, fix=Safety.UNSAFE)
CLAIM = NoEffect()
# Methods that return a tensor and are called for something else as well.
EFFECTS = {"requires_grad_", "share_memory_", "pin_memory", "register_hook", "retain_grad", "item", "tolist", "set_",
           "grad", "wait", "cpu_", "numpy", "result", "backward"}

EXAMPLES = [
    Example(
        bad="""
        import torch


        def prepare(n):
            x = torch.arange(n)
            x.float()  #!
            x.unsqueeze(0)  #!
            return x


        prepare(3)
        """,
        good="""
        import torch


        def prepare(n):
            x = torch.arange(n)
            x = x.float()
            x = x.unsqueeze(0)
            return x


        prepare(3)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.zeros(4, 2))

            def forward(self, x):
                table = self.table[: x.size(0)]
                table.to(dtype=x.dtype, device=x.device)  #!
                return x + table


        Net()(torch.ones(2, 2, dtype=torch.float64))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.zeros(4, 2))

            def forward(self, x):
                table = self.table[: x.size(0)]
                table = table.to(dtype=x.dtype, device=x.device)
                return x + table


        Net()(torch.ones(2, 2, dtype=torch.float64))
        """,
    ),
]

CLEAN = [
    """
    import torch


    def measured(x):
        seen.append(x.mean())
        return x * 2


    def main(device):
        torch.zeros(1).to(device)  # the first use of a device takes long
        measured(torch.ones(2)).detach()


    seen = []
    main("cpu")
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def forward(self, x):
            self.to(x.device)
            x.requires_grad_()
            x.add_(1)
            torch.add(x, 1, out=x)
            try:
                x.view(-1)
            except RuntimeError:
                x = x.contiguous()
            return x.squeeze_()


    Net().cuda
    Net().float()
    {1}.add(2)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Expression statements that are calls of out-of-place tensor methods."""
    for statement in model.nodes(ast.Expr):
        match statement.value:
            case ast.Call(func=ast.Attribute(value=receiver, attr=name)) as call if wasted(model, call, name):
                if statement in model.tree.body and model.source.shows(statement.end_lineno or statement.lineno):
                    continue  # the output of a cell
                value = model.value(receiver)
                if value.is_tensor and not value.optional and not called_for_effect(model, receiver, name):
                    yield Hit(call, f"`.{name}(...)` returns a new tensor that is thrown away; assign it",
                              assigned(model, call, receiver, value.role), confidence=value.sure)


def wasted(model: FileModel, call: ast.Call, name: str) -> bool:
    """Whether the method returns a fresh tensor and changes nothing."""
    entry = knowledge.method(name)
    if entry is None or entry.inplace or name.endswith("_") or name in EFFECTS or model.place(call).tries:
        return False
    if any(keyword.arg in ("out", "inplace", "non_blocking") for keyword in call.keywords if name != "to"):
        return False
    return entry.returns in ("tensor", "tensors")


def called_for_effect(model: FileModel, receiver: ast.expr, name: str) -> bool:
    """Whether a statement touches a device, or calls a function for what it does: nothing that lives on is meant."""
    if not isinstance(receiver, ast.Call):
        return False
    known = knowledge.function(model.name_of(receiver.func)) is not None
    return (name in ("to", "cuda") and known) or (model.function_named(receiver.func) is not None)


def assigned(model: FileModel, call: ast.Call, receiver: ast.expr, role: str) -> Repair | None:
    """`x.to(d)` -> `x = x.to(d)`, for a local name."""
    if not isinstance(receiver, ast.Name) or role in ("parameter", "buffer"):
        return None
    return edits.repair(
        "Assign the result", edits.replace(model, call, f"{receiver.id} = {source_of(model, call)}"))
