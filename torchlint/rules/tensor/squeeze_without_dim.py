"""A `squeeze()` that takes away the batch dimension as well when it is one.

`squeeze()` without a dimension removes every dimension of size one. It works until a batch holds one sample, as
the last batch of an epoch may: then the batch dimension goes too, shapes no longer line up, and a loss may
broadcast instead of failing.

Name the dimension: `x.squeeze(-1)`.

No claim: the fault shows only for the right input, a batch of one.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL112", "squeeze-without-dim", Severity.WARNING, stable=False, triggers=("squeeze",))
CLAIM = None

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Score(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(3, 1)

            def forward(self, x):
                return self.out(x).squeeze()  #!


        print(Score()(torch.ones(1, 3)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Score(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(3, 1)

            def forward(self, x):
                return self.out(x).squeeze(-1)


        print(Score()(torch.ones(1, 3)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def train(net, batches):
            for x, y in batches:
                out = net(x)
                loss = (torch.squeeze(out) - y).pow(2).mean()  #!
                loss.backward()


        train(nn.Linear(3, 1), [(torch.ones(1, 3), torch.ones(1))])
        """,
        good="""
        import torch
        from torch import nn


        def train(net, batches):
            for x, y in batches:
                out = net(x)
                loss = (torch.squeeze(out, -1) - y).pow(2).mean()
                loss.backward()


        train(nn.Linear(3, 1), [(torch.ones(1, 3), torch.ones(1))])
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 1)

        def forward(self, x):
            total = self.out(x).sum().reshape(1, 1).squeeze()
            return self.out(x).squeeze(-1), self.out(x)[0].squeeze(), total


    def scalar(t):
        return t.sum().reshape(1, 1).squeeze()


    Net()(torch.ones(2, 3))
    scalar(torch.ones(2))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`squeeze()` of what came out of a Module, in forward or where a loss is made."""
    for call in model.nodes(ast.Call):
        subject = squeezed(model, call)
        if subject is not None and batched(model, call, subject):
            yield Hit(call, "`squeeze()` drops the batch dimension too when it is 1; name the dimension",
                      confidence=Confidence.LIKELY)


def squeezed(model: FileModel, call: ast.Call) -> ast.expr | None:
    """The tensor that is squeezed without a dimension."""
    match call:
        case ast.Call(func=ast.Attribute(value=receiver, attr="squeeze"), args=[], keywords=[]) if (
                model.name_of(call.func) != "torch.squeeze"):
            return receiver
        case ast.Call(args=[subject], keywords=[]) if model.name_of(call.func) == "torch.squeeze":
            return subject
    return None


def batched(model: FileModel, call: ast.Call, subject: ast.expr) -> bool:
    """Whether the tensor is an output of a Module with its batch, not an element, a sum or a reshaped one."""
    value: Value = model.value(subject)
    if isinstance(subject, ast.Subscript) or not (value.is_tensor or "output" in value.facts):
        return False
    if value.name.rpartition(".")[2] in ("sum", "mean", "reshape", "view", "__getitem__", "norm", "unsqueeze", "max",
                                         "min", "prod", "dot"):
        return False
    info = model.function(call)
    forward = info is not None and info.cls is not None and info.cls.is_module and info.name == "forward"
    learns = bool(model.flow(model.owner(call)).of("backward"))
    return value.source is not None and (forward or learns)
