"""Clips move to between `unscale_` and `step` of a scaler, or stay where that is not sure to be right."""
from __future__ import annotations

from textwrap import dedent, indent

import pytest

import torchlint
from torchlint.config import Options

HEAD = dedent("""
    import torch
    from torch.nn.utils import clip_grad_norm_

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")


    def train(batches, limit):
        for i, x in enumerate(batches):
            loss = model(x).mul(100).pow(2).mean()
    """).lstrip("\n")
CLIP = "clip_grad_norm_(model.parameters(), 1.0)\n"
BACKWARD, UNSCALE = "scaler.scale(loss).backward()\n", "scaler.unscale_(optimizer)\n"
STEP, UPDATE, CLEAR = "scaler.step(optimizer)\n", "scaler.update()\n", "optimizer.zero_grad()\n"
RIGHT = BACKWARD + UNSCALE + CLIP + STEP + UPDATE + CLEAR
LOOK = "print(model.weight.grad.norm())\n"


def fixed(body: str) -> str:
    """The body of the loop after the fixes of the two rules."""
    text = HEAD + indent(body, " " * 8)
    made = torchlint.fix_source(text, options=Options(select=("TL507", "TL508")), unsafe=True)
    assert made.startswith(HEAD)
    return dedent(made.removeprefix(HEAD))


@pytest.mark.parametrize(("body", "expected"), [
    (BACKWARD + STEP + CLIP + UPDATE + CLEAR, RIGHT),
    (BACKWARD + STEP + UPDATE + CLIP + CLEAR, RIGHT),
    (BACKWARD + STEP + UPDATE + CLEAR + CLIP, RIGHT),
    (BACKWARD + UNSCALE + STEP + UPDATE + CLIP + CLEAR, RIGHT),
    (CLIP + RIGHT.replace(CLIP, ""), RIGHT),
    (CLIP + BACKWARD + STEP + UPDATE + CLEAR, RIGHT),
    (CLIP + BACKWARD + UNSCALE + LOOK + STEP + UPDATE + CLEAR,
     BACKWARD + UNSCALE + CLIP + LOOK + STEP + UPDATE + CLEAR),
    (BACKWARD + STEP + UPDATE + "if limit:\n    " + CLIP + CLEAR,
     BACKWARD + UNSCALE + "if limit:\n    " + CLIP + STEP + UPDATE + CLEAR),
    (BACKWARD + "if i % 2:\n" + indent(STEP + UPDATE + CLIP + CLEAR, "    "),
     BACKWARD + "if i % 2:\n" + indent(UNSCALE + CLIP + STEP + UPDATE + CLEAR, "    ")),
])
def test_a_clip_moves_to_where_it_limits_what_the_optimizer_uses(body, expected):
    assert fixed(body) == expected
    assert fixed(expected) == expected


@pytest.mark.parametrize("body", [
    BACKWARD + "if i % 2:\n" + indent(STEP + UPDATE + CLEAR, "    ") + CLIP,  # would unscale twice before a step
    CLIP + BACKWARD + "if i % 2:\n" + indent(STEP + UPDATE + CLEAR, "    "),
    CLIP + BACKWARD + "if limit:\n    " + UNSCALE + STEP + UPDATE + CLEAR,
    CLIP + BACKWARD + "scaler.unscale_(other)\n" + STEP + UPDATE + CLEAR,
    BACKWARD + STEP + UPDATE + "print(model.weight.norm())\n" + CLIP + CLEAR,
])
def test_where_that_is_not_sure_it_stays(body):
    assert fixed(body) == body
