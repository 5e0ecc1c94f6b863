"""Losses told how to reduce by size_average and reduce.

Two booleans once said how a loss is reduced. torch turns them into the one `reduction` string that replaced them,
warns, and lets them override a `reduction` that is given too. They will be removed.

Pass `reduction="mean"`, `"sum"` or `"none"`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.layout import layout
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL906", "legacy-loss-arguments", Severity.ADVICE, fix=Safety.SAFE, triggers=("size_average", "reduce", "Loss"))
CLAIM = Warns("size_average and reduce")
OLD = ("size_average", "reduce")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        total = F.mse_loss(torch.ones(2), torch.zeros(2), size_average=False)  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F

        total = F.mse_loss(torch.ones(2), torch.zeros(2), reduction="sum")
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        each = nn.CrossEntropyLoss(ignore_index=1, size_average=False, reduce=False)  #!
        print(each(torch.ones(2, 3), torch.tensor([0, 1])))
        """,
        good="""
        import torch
        from torch import nn

        each = nn.CrossEntropyLoss(ignore_index=1, reduction="none")
        print(each(torch.ones(2, 3), torch.tensor([0, 1])))
        """,
    ),
    Example(
        bad="""
        import torch

        mean = torch.nn.L1Loss(True)  #!
        print(mean(torch.ones(2), torch.zeros(2)))
        """,
        good="""
        import torch

        mean = torch.nn.L1Loss(reduction="mean")
        print(mean(torch.ones(2), torch.zeros(2)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class MyLoss(nn.Module):
        def __init__(self, size_average=True):
            super().__init__()
            self.size_average = size_average


    MyLoss(size_average=False)
    nn.MSELoss(size_average=None, reduce=None)
    nn.MSELoss(reduction="sum")
    nn.NLLLoss(torch.ones(3))
    torch.ones(2).scatter_reduce(0, torch.tensor([0, 1]), torch.ones(2), reduce="sum")
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of torch's losses that pass one of the old arguments."""
    for call in model.nodes(ast.Call):
        if not call.args and not call.keywords:
            continue
        name = model.name_of(call.func)
        if name.startswith("torch.nn."):
            old = old_arguments(model, call, name)
            if old:
                yield Hit(call, "this argument is replaced by `reduction=`", one_string(model, call, old))


def old_arguments(model: FileModel, call: ast.Call, name: str) -> dict[str, ast.expr | ast.keyword]:
    """The old arguments that a call of a loss passes, None aside: by name, the argument."""
    made = knowledge.function(name) or knowledge.module_class(name)
    params = [p.name for p in made.params] if made is not None else []
    if "size_average" not in params:
        return {}
    if params[0] == "self":
        del params[0]
    found: dict[str, ast.expr | ast.keyword] = {
        k.arg: k for k in call.keywords if k.arg in OLD and model.value(k.value).kind.value != "none"}
    for param, arg in zip(params, call.args, strict=False):
        if isinstance(arg, ast.Starred):
            break
        if param in OLD and isinstance(model.value(arg).const, bool):
            found[param] = arg
    return found


def one_string(model: FileModel, call: ast.Call, old: dict[str, ast.expr | ast.keyword]) -> Repair | None:
    """The first old argument replaced by `reduction=`, the other one removed."""
    flags = {name: model.value(arg.value if isinstance(arg, ast.keyword) else arg).const for name, arg in old.items()}
    given = {k.arg for k in call.keywords}
    positional = [arg for arg in old.values() if not isinstance(arg, ast.keyword)]
    if not all(isinstance(flag, bool) for flag in flags.values()) or given & {"reduction", None}:
        return None
    if positional and (len(old) > 1 or call.args[-1] is not positional[0]):
        return None
    word = "none" if not flags.get("reduce", True) else "mean" if flags.get("size_average", True) else "sum"
    mark = layout(model.source).quote
    first, *rest = old.values()
    groups = [edits.replace(model, first, f"reduction={mark}{word}{mark}")]
    groups += [edits.remove_argument(model, call, argument) for argument in rest]
    return edits.repair("Pass `reduction`", *groups)
