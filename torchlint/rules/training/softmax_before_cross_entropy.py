"""Probabilities given to cross entropy, which takes logits.

`cross_entropy` is `nll_loss(log_softmax(x))`: it applies the softmax itself. Given probabilities it squashes
values between 0 and 1 a second time, so the loss cannot fall below log(1 + (C - 1) / e) and the gradients
almost vanish; training is slow and stops early, without any error.

Pass the raw output of the last layer, and use softmax only where probabilities are shown. `log_softmax`
before `cross_entropy` changes nothing, and probabilities are fine as the *target*.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes.unsquash import without
from torchlint.model import FileModel
from torchlint.model.losses import loss_calls
from torchlint.rule import Example, Hit, Meta

LOSS_OR_SOFTMAX = ("cross_entropy", "CrossEntropy", "softmax", "Softmax")  # either may be in another file
META = Meta("TL516", "softmax-before-cross-entropy", Severity.ERROR, fix=Safety.UNSAFE, triggers=LOSS_OR_SOFTMAX)
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        model = nn.Linear(4, 3)
        x, y = torch.ones(2, 4), torch.tensor([0, 1])
        scores = F.softmax(model(x), dim=1)
        loss = F.cross_entropy(scores, y)  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        model = nn.Linear(4, 3)
        x, y = torch.ones(2, 4), torch.tensor([0, 1])
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Discriminator(nn.Module):
            def __init__(self):
                super().__init__()
                self.validity = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
                self.label = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))

            def forward(self, x):
                return self.validity(x), self.label(x)


        net = Discriminator()
        auxiliary = nn.CrossEntropyLoss()
        validity, label = net(torch.ones(2, 4))
        loss = auxiliary(label, torch.tensor([0, 1]))  #!
        """,
        good="""
        import torch
        from torch import nn


        class Discriminator(nn.Module):
            def __init__(self):
                super().__init__()
                self.validity = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
                self.label = nn.Sequential(nn.Linear(4, 3))

            def forward(self, x):
                return self.validity(x), self.label(x)


        net = Discriminator()
        auxiliary = nn.CrossEntropyLoss()
        validity, label = net(torch.ones(2, 4))
        loss = auxiliary(label, torch.tensor([0, 1]))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F

    logits = torch.randn(2, 3, requires_grad=True)
    F.cross_entropy(logits, torch.softmax(torch.randn(2, 3), 1))
    F.cross_entropy(F.log_softmax(logits, 1), torch.tensor([0, 1]))
    F.nll_loss(torch.log(F.softmax(logits, 1)), torch.tensor([0, 1]))
    print(logits.softmax(1).argmax(1))
    F.cross_entropy(logits, torch.tensor([0, 1]))
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, probabilities=False):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.probabilities = probabilities

        def forward(self, x):
            x = self.fc(x)
            if self.probabilities:
                return x.softmax(1)
            return x


    nn.CrossEntropyLoss()(Net()(torch.ones(2, 4)), torch.tensor([0, 1]))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Cross entropy calls whose input went through a softmax."""
    for loss in loss_calls(model, "cross_entropy"):
        given = model.value(loss.input)
        if given.is_tensor and given.squash == "softmax":
            yield Hit(
                loss.call,
                "`cross_entropy` applies softmax itself; pass the logits",
                without(model, loss.input, ("cross_entropy",)),
                confidence=given.sure,
            )
