"""Probabilities or raw scores given to the negative log likelihood loss.

`nll_loss` only picks the entry of the target class and negates it: it takes logarithms of probabilities and
computes none. With a softmax output the loss is between -1 and 0, with a raw linear output it has no lower
bound, and in both cases minimising it is not maximum likelihood.

Use `log_softmax` before it, or `cross_entropy` on the logits.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes.unsquash import without
from torchlint.model import FileModel
from torchlint.model.losses import is_raw, loss_calls
from torchlint.rule import Example, Hit, Meta

META = Meta("TL517", "nll-without-log-softmax", Severity.ERROR, fix=Safety.UNSAFE, triggers=("nll_loss", "NLLLoss"))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        model = nn.Linear(4, 3)
        loss = F.nll_loss(F.softmax(model(torch.ones(2, 4)), dim=1), torch.tensor([0, 1]))  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        model = nn.Linear(4, 3)
        loss = F.nll_loss(F.log_softmax(model(torch.ones(2, 4)), dim=1), torch.tensor([0, 1]))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(x)


        criterion = nn.NLLLoss()
        out = Net()(torch.ones(2, 4))
        loss = criterion(out.view(-1, 3), torch.tensor([0, 1]))  #!
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(x).log_softmax(dim=1)


        criterion = nn.NLLLoss()
        out = Net()(torch.ones(2, 4))
        loss = criterion(out.view(-1, 3), torch.tensor([0, 1]))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    x = torch.randn(2, 3)
    F.nll_loss(torch.log(F.softmax(x, 1) + 1e-9), torch.tensor([0, 1]))
    nn.NLLLoss()(nn.LogSoftmax(dim=1)(x), torch.tensor([0, 1]))
    out = nn.Linear(3, 3)(x).view(-1, 3)
    out = torch.log_softmax(out, dim=1)
    nn.NLLLoss()(out.view(-1, 3)[:2], torch.tensor([0, 1]))


    def loss(log_probs, target):
        return F.nll_loss(log_probs, target)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """NLL calls whose input is a probability, or comes straight from a linear or convolution layer."""
    for loss in loss_calls(model, "nll_loss"):
        given = model.value(loss.input)
        if given.is_tensor and (given.squash == "softmax" or is_raw(model, loss.input)):
            yield Hit(
                loss.call,
                "`nll_loss` takes log-probabilities; use `log_softmax` or `cross_entropy`",
                without(model, loss.input, ("nll_loss",), log=True) if given.squash == "softmax" else None,
                confidence=given.sure,
            )
