"""A sigmoid output given to binary cross entropy with logits.

`binary_cross_entropy_with_logits` applies the sigmoid itself, in the numerically stable form. Given
probabilities it applies it twice: predictions can only lie between 0.5 and 0.73, and the loss never gets
near zero.

Pass the raw output, or use `BCELoss` with the sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes.unsquash import without
from torchlint.model import FileModel
from torchlint.model.losses import loss_calls
from torchlint.rule import Example, Hit, Meta

LOSS_OR_SIGMOID = ("with_logits", "WithLogits", "igmoid")  # either may be in another file
META = Meta("TL518", "sigmoid-before-bce-with-logits", Severity.ERROR, fix=Safety.UNSAFE, triggers=LOSS_OR_SIGMOID)
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Linear(4, 1)
        criterion = nn.BCEWithLogitsLoss()
        loss = criterion(torch.sigmoid(model(torch.ones(2, 4))), torch.ones(2, 1))  #!
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Linear(4, 1)
        criterion = nn.BCEWithLogitsLoss()
        loss = criterion(model(torch.ones(2, 4)), torch.ones(2, 1))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())

            def forward(self, x):
                return self.layers(x).squeeze(1)


        net = Net()
        loss = F.binary_cross_entropy_with_logits(net(torch.ones(2, 4)), torch.ones(2))  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 1))

            def forward(self, x):
                return self.layers(x).squeeze(1)


        net = Net()
        loss = F.binary_cross_entropy_with_logits(net(torch.ones(2, 4)), torch.ones(2))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    x = torch.randn(2, 1, requires_grad=True)
    nn.BCELoss()(x.sigmoid(), torch.ones(2, 1))
    nn.BCEWithLogitsLoss()(x, torch.sigmoid(torch.randn(2, 1)))
    nn.BCEWithLogitsLoss()(torch.logit(x.sigmoid()), torch.ones(2, 1))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Losses with logits whose input went through a sigmoid."""
    for loss in loss_calls(model, "binary_cross_entropy_with_logits"):
        given = model.value(loss.input)
        if given.is_tensor and given.squash in ("sigmoid", "softmax"):
            yield Hit(
                loss.call,
                "this loss applies the sigmoid itself; pass the logits",
                without(model, loss.input, ("binary_cross_entropy_with_logits",)),
                confidence=given.sure,
            )
