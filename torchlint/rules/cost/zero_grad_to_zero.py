"""Gradients cleared by writing zeros.

`set_to_none=False` makes `zero_grad` write a zero into every gradient, and the next backward read and add to it,
instead of dropping the tensors: two passes over all gradients, and their memory kept through the forward pass.

Leave the argument out. The change is not always neutral: an optimizer skips parameters whose gradient is None, but
applies weight decay and momentum to those whose gradient is zero.

No claim: the saving is a small part of a step, below what timing on a CPU can show.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL620", "zero-grad-to-zero", Severity.ADVICE, default=False, fix=Safety.UNSAFE, aliases=("TOR402",),
    triggers=("zero_grad",))
CLAIM = None

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.ones(2, 3, 2):
            optimizer.zero_grad(set_to_none=False)  #!
            model(x).sum().backward()
            optimizer.step()
        model.zero_grad(False)  #!
        """,
        good="""
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.ones(2, 3, 2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        model.zero_grad()
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(2, 1)
    model.zero_grad()
    model.zero_grad(set_to_none=True)


    class Meter:
        def zero_grad(self, set_to_none=True):
            self.total = 0


    Meter().zero_grad(set_to_none=False)


    def clear(optimizer, flag):
        optimizer.zero_grad(set_to_none=flag)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """zero_grad(set_to_none=False) of optimizers and Modules, or of what may be one."""
    for call in model.calls_named("zero_grad"):
        argument = next((k for k in call.keywords if k.arg == "set_to_none"), None) or next(iter(call.args), None)
        if argument is None or not isinstance(call.func, ast.Attribute):
            continue
        flag = argument.value if isinstance(argument, ast.keyword) else argument
        kind = model.value(call.func.value).kind
        if not isinstance(flag, ast.expr) or model.value(flag).const is not False:
            continue
        if kind in (Kind.OPTIMIZER, Kind.MODULE) or (kind is Kind.UNKNOWN and isinstance(argument, ast.keyword)):
            yield Hit(
                call, "this writes zeros into every gradient; leave `set_to_none=False` out",
                edits.repair("Drop the gradients", edits.remove_argument(model, call, argument)))
