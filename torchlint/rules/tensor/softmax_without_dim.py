"""A softmax that does not say over which dimension it sums to one.

Without `dim` torch guesses: 0 for tensors of no, one or three dimensions, 1 for all others. A batch of sequences
is then normalised across the batch, and adding a dimension changes what the model computes. torch warns.

Pass `dim`, mostly `dim=-1` (`dim=1` keeps what is computed for one, two and four dimensions of class scores).
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL114", "softmax-without-dim", Severity.WARNING, fix=Safety.SHOW,
            triggers=("softmax", "softmin", "Softmax", "Softmin"))
CLAIM = Warns("Implicit dimension choice")
FUNCTIONS = {f"torch.nn.functional.{name}" for name in ("softmax", "log_softmax", "softmin")}
CLASSES = {f"torch.nn.{name}" for name in ("Softmax", "LogSoftmax", "Softmin")}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        scores = torch.ones(2, 3)
        p = F.softmax(scores)  #!
        q = F.log_softmax(scores)  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F

        scores = torch.ones(2, 3)
        p = F.softmax(scores, dim=-1)
        q = F.log_softmax(scores, dim=-1)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 3), nn.Softmax())  #!
        net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 3), nn.Softmax(dim=-1))
        net(torch.ones(1, 2))
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F
    from torch import nn


    def run(x, *args, **options):
        x = F.softmax(x, 1) + F.log_softmax(x, dim=0) + F.softmax(x, **options) + F.softmax(*args)
        return nn.Softmax(1)(x) + nn.LogSoftmax(dim=1)(x) + nn.Softmax2d()(x) + x.softmax(-1)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of softmax functions and classes without a dim."""
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name not in FUNCTIONS and name not in CLASSES:
            continue
        if any(k.arg in ("dim", None) for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
            continue
        if len(call.args) < (2 if name in FUNCTIONS else 1):
            yield Hit(call, "torch guesses the dimension from the input's rank; pass `dim=`",
                      edits.repair("Pass the last dimension", edits.add_keyword_argument(model, call, "dim=-1")))
