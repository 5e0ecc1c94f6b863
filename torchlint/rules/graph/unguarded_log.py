"""The logarithm of a probability that may round to zero.

softmax and sigmoid give exact zeros for scores that are far enough apart (about 17 for a half, 104 for a float).
The logarithm of zero is -inf and its derivative is infinite, so that loss and gradients become inf or NaN.

Use `log_softmax` and `logsigmoid`, which compute both at once and stay finite, or clamp the probability.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Anomaly
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel
from torchlint.model.forms import operand
from torchlint.rule import Example, Hit, Meta

META = Meta("TL224", "unguarded-log", Severity.ADVICE, default=False, triggers=("log",))
CLAIM = Anomaly()
LOGARITHMS = ("log", "log2", "log10")
INSTEAD = {"softmax": "`log_softmax`", "sigmoid": "`logsigmoid`"}
GUARDING = {"clamp", "clamp_", "clip", "nan_to_num", "clamp_min"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        scores = torch.tensor([0.0, 200.0], requires_grad=True)
        p = scores.softmax(0)
        entropy = -(p * torch.log(p)).sum()  #!
        entropy.backward()
        """,
        good="""
        import torch

        scores = torch.tensor([0.0, 200.0], requires_grad=True)
        p = scores.softmax(0)
        entropy = -(p * torch.log_softmax(scores, 0)).sum()
        entropy.backward()
        """,
    ),
    Example(
        bad="""
        import torch

        score = torch.tensor([-200.0], requires_grad=True)
        loss = -torch.sigmoid(score).log().mean()  #!
        loss.backward()
        """,
        good="""
        import torch

        score = torch.tensor([-200.0], requires_grad=True)
        loss = -torch.nn.functional.logsigmoid(score).mean()
        loss.backward()
        """,
    ),
]

CLEAN = [
    """
    import torch

    scores = torch.tensor([0.0, 200.0], requires_grad=True)
    p = scores.softmax(0)
    torch.log(p + 1e-8)
    torch.log(p.clamp(min=1e-8))
    p.clamp_min(1e-8).log()
    torch.log(scores.abs() + 1)
    torch.log_softmax(scores, 0)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Logarithms of what softmax or sigmoid gave."""
    for call in model.nodes(ast.Call):
        found = next((found for name in LOGARITHMS if (found := operand(model, call, name)) is not None), None)
        if found is None or found[1]:
            continue
        value = model.value(found[0])
        if value.is_tensor and value.squash in INSTEAD and value.name.rpartition(".")[2] not in GUARDING:
            yield Hit(call, f"a probability may be exactly 0, whose log is -inf; use {INSTEAD[value.squash]}",
                      confidence=min(value.sure, Confidence.LIKELY))
