"""Raw scores given to binary cross entropy, which takes probabilities.

`binary_cross_entropy` takes logarithms of its input and of one minus its input. The output of a linear or
convolution layer leaves the interval from 0 to 1 as soon as training moves it, and torch raises "all elements
of input should be between 0 and 1" (on a GPU a device-side assertion that ends the process) maybe after hours.

Use `binary_cross_entropy_with_logits`, or a sigmoid before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.model.losses import is_raw, loss_calls
from torchlint.rule import Example, Hit, Meta

META = Meta("TL519", "bce-without-sigmoid", Severity.ERROR, triggers=("binary_cross_entropy", "BCELoss"))
CLAIM = Raises("RuntimeError", "between 0 and 1")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        loss = F.binary_cross_entropy(model(torch.randn(64, 4) * 10), torch.ones(64, 1))  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        loss = F.binary_cross_entropy(model(torch.randn(64, 4) * 10).sigmoid(), torch.ones(64, 1))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

            def forward(self, x):
                return self.body(x)


        torch.manual_seed(0)
        criterion = nn.BCELoss()
        loss = criterion(Net()(torch.randn(64, 4) * 10), torch.ones(64, 1))  #!
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

            def forward(self, x):
                return self.body(x)


        torch.manual_seed(0)
        criterion = nn.BCEWithLogitsLoss()
        loss = criterion(Net()(torch.randn(64, 4) * 10), torch.ones(64, 1))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Scorer(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

            def forward(self, x):
                return self.net(x).squeeze(-1)


        criterion = nn.BCELoss()
        print(criterion(Scorer()(torch.randn(8, 3) * 10), torch.ones(8)))  #!
        """,
        good="""
        import torch
        from torch import nn


        class Scorer(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

            def forward(self, x):
                return self.net(x).squeeze(-1)


        criterion = nn.BCEWithLogitsLoss()
        print(criterion(Scorer()(torch.randn(8, 3) * 10), torch.ones(8)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    nn.BCELoss()(model(torch.randn(2, 4)), torch.ones(2, 1))
    nn.BCELoss()(nn.Linear(4, 1)(torch.randn(2, 4)).clamp(0, 1), torch.ones(2, 1))


    def loss(probabilities, target):
        return nn.functional.binary_cross_entropy(probabilities, target)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """BCE calls whose input comes straight from a linear or convolution layer."""
    for loss in loss_calls(model, "binary_cross_entropy"):
        given = model.value(loss.input)
        if is_raw(model, loss.input):
            yield Hit(
                loss.call,
                "`binary_cross_entropy` takes probabilities; use the version with logits",
                confidence=given.sure,
            )
