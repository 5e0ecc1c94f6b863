"""Rules about what only running the code can show: `torchlint confirm` reports them, the check never does.

They have no `check`. What they look at, and how it is measured, is in `runtime_check`.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.claims import BreaksContract, WrongGradient
from torchlint.findings import Severity
from torchlint.rule import Example, Hit, Meta, Rule

if TYPE_CHECKING:
    from torchlint.model import FileModel

_GRADCHECK = """A backward that is not the derivative of its forward.

What `backward` of an autograd Function returns is taken for the gradient as it is: a missing factor, a
wrong sign, or a gradient for the wrong argument raises nothing and makes training go wrong.

`torchlint confirm` calls every Function of the checked files that it can find arguments for, and
compares backward with finite differences in float64, and going back twice with finite differences of
the gradient. Derive the backward anew; `torch.autograd.gradcheck` in a test keeps it right.

It is silent about a backward that differs on purpose: a forward that is constant around every point
(rounding, quantisation, spikes), one that changes nothing (reversal, scaling), a name or docstring
that speaks of straight-through or surrogate gradients; about random and integer functions; and about
arguments for which backward returns None.
"""

_CONTRACT = """A Module that breaks what torch and its users rely on.

Optimizers, `.to`, `eval()`, checkpoints and the caller's own tensors each rest on a promise that
nothing enforces: a parameter that is used gets a gradient, tensors follow the module, eval mode drops
nothing, the state_dict holds the state, inputs stay as they are.

`torchlint confirm --check-modules` builds every Module of the checked files that it can, calls it, and
measures the five promises, each against a control. Register the tensor or parameter, give dropout
`training=self.training`, change a clone.

It is silent about parameters that take no part in the call, about sampling that is no dropout, and
about layers that were asked to work in place with `inplace=True`.
"""


def _none(model: FileModel) -> Iterator[Hit]:
    """Nothing is seen without running the code."""
    return iter(())


GRADCHECK = Rule(
    Meta("TL313", "gradcheck-failure", Severity.ERROR, runtime=True), _none, _GRADCHECK, "function", __name__,
    WrongGradient(),
    examples=(
        Example(
            bad="""
            import torch


            class Cube(torch.autograd.Function):  #!
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x**3

                @staticmethod
                def backward(ctx, grad):
                    (x,) = ctx.saved_tensors
                    return grad * 2 * x**2
            """,
            good="""
            import torch


            class Cube(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x**3

                @staticmethod
                def backward(ctx, grad):
                    (x,) = ctx.saved_tensors
                    return grad * 3 * x**2
            """,
        ),
    ),
)

CONTRACT = Rule(
    Meta("TL428", "module-contract", Severity.WARNING, default=False, runtime=True), _none, _CONTRACT, "module",
    __name__, BreaksContract(),
    examples=(
        Example(
            bad="""
            import torch
            from torch import nn


            class Scaled(nn.Module):  #!
                def __init__(self, width=8):
                    super().__init__()
                    self.scale = torch.rand(width)
                    self.fc = nn.Linear(width, width)

                def forward(self, x):
                    return self.fc(x * self.scale)
            """,
            good="""
            import torch
            from torch import nn


            class Scaled(nn.Module):
                def __init__(self, width=8):
                    super().__init__()
                    self.register_buffer("scale", torch.rand(width))
                    self.fc = nn.Linear(width, width)

                def forward(self, x):
                    return self.fc(x * self.scale)
            """,
        ),
    ),
)

RUNTIME = (GRADCHECK, CONTRACT)
