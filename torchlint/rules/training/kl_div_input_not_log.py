"""A probability given to `kl_div` where it takes a logarithm.

`F.kl_div(input, target)` computes `target * (log(target) - input)`: the input is taken as a log-probability as
it is. With a softmax output the result is no divergence; it can be negative, is not smallest where the two
agree, and pulls the model the wrong way.

Pass `log_softmax` of the student; with `log_target=True` the target is a logarithm too.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes.unsquash import without
from torchlint.model import FileModel
from torchlint.model.losses import loss_calls
from torchlint.rule import Example, Hit, Meta

META = Meta("TL520", "kl-div-input-not-log", Severity.ERROR, fix=Safety.UNSAFE, triggers=("kl_div", "KLDivLoss"))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        student, teacher = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
        p = F.softmax(student, dim=1)
        q = F.softmax(teacher, dim=1)
        loss = F.kl_div(p, q, reduction="batchmean")  #!
        """,
        good="""
        import torch
        import torch.nn.functional as F

        student, teacher = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
        p = F.log_softmax(student, dim=1)
        q = F.softmax(teacher, dim=1)
        loss = F.kl_div(p, q, reduction="batchmean")
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Distill(nn.Module):
            def __init__(self, temperature):
                super().__init__()
                self.temperature = temperature
                self.kl = nn.KLDivLoss(reduction="batchmean")

            def forward(self, student, teacher):
                t = self.temperature
                return self.kl((student / t).softmax(-1), (teacher / t).softmax(-1))  #!


        Distill(2.0)(torch.randn(2, 3), torch.randn(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Distill(nn.Module):
            def __init__(self, temperature):
                super().__init__()
                self.temperature = temperature
                self.kl = nn.KLDivLoss(reduction="batchmean")

            def forward(self, student, teacher):
                t = self.temperature
                return self.kl((student / t).log_softmax(-1), (teacher / t).softmax(-1))


        Distill(2.0)(torch.randn(2, 3), torch.randn(2, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    F.kl_div(F.softmax(a, 1).clamp_min(1e-8).log(), F.softmax(b, 1), reduction="batchmean")
    F.kl_div(F.log_softmax(a, 1), F.log_softmax(b, 1), log_target=True, reduction="batchmean")
    F.kl_div(torch.log(F.softmax(a, 1)), F.softmax(b, 1), reduction="batchmean")
    p = F.softmax(a, 1)
    p = p.log()
    F.kl_div(p, F.softmax(b, 1), reduction="batchmean")
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """kl_div calls whose input is a probability."""
    for loss in loss_calls(model, "kl_div"):
        given = model.value(loss.input)
        if given.is_tensor and given.squash in ("softmax", "sigmoid"):
            yield Hit(
                loss.call,
                "`kl_div` takes log-probabilities as input; use `log_softmax`",
                without(model, loss.input, ("kl_div",), log=True) if given.squash == "softmax" else None,
                confidence=given.sure,
            )
