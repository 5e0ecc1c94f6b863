"""What flagged code will do when it is run. Plain data; `runtime_check.probes` tests each claim.

A claim is never proved by one number: growth over two sizes, or contrast with the corrected
program, is what counts.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """Base of all claims."""

    @property
    def name(self) -> str:
        """The name that reports and probes use, for example `GraphGrows`."""
        return type(self).__name__

    @property
    def each(self) -> tuple[Claim, ...]:
        """The claims that are tested one by one: itself, unless it is one of several."""
        return (self,)


@dataclass(frozen=True)
class Either(Claim):
    """One of several: which of them holds depends on the form of the flagged code."""

    claims: tuple[Claim, ...] = ()

    @property
    def name(self) -> str:
        """The names of the claims, as in `Raises or ModeLeaks`."""
        return " or ".join(claim.name for claim in self.claims)

    @property
    def each(self) -> tuple[Claim, ...]:
        """The claims that are tested one by one."""
        return self.claims


@dataclass(frozen=True)
class GraphGrows(Claim):
    """Autograd nodes reachable from what outlives an iteration grow with the number of steps."""


@dataclass(frozen=True)
class MemoryGrows(Claim):
    """Live tensor bytes grow with the number of steps."""


@dataclass(frozen=True)
class MemoryHeld(Claim):
    """What was saved for backward is still there after the backward that was to use it up."""


@dataclass(frozen=True)
class CycleLeaks(Claim):
    """With the garbage collector off, a tensor outlives its last strong reference."""


@dataclass(frozen=True)
class WrongGradient(Claim):
    """The gradient differs from the corrected program's or from finite differences in float64."""


@dataclass(frozen=True)
class NoGradient(Claim):
    """Parameters that should learn get no gradient, or backward cannot run."""


@dataclass(frozen=True)
class GradientsAccumulate(Claim):
    """Gradients after a step hold the sum over earlier steps, or lack the sum that was meant."""


@dataclass(frozen=True)
class NotOptimized(Claim):
    """Trainable parameters are in no param group, or do not move after a step."""


@dataclass(frozen=True)
class NotRegistered(Claim):
    """Tensors reachable from a module are missing in its parameters, buffers and state_dict."""


@dataclass(frozen=True)
class HooksSkipped(Claim):
    """A registered forward hook does not run."""


@dataclass(frozen=True)
class OutputsDiffer(Claim):
    """Two runs that should agree differ."""


@dataclass(frozen=True)
class Equivalent(Claim):
    """Flagged and corrected code give identical results: harmless today, and the fix is safe."""


@dataclass(frozen=True)
class Aliased(Claim):
    """Two objects that should be independent share storage or identity."""


@dataclass(frozen=True)
class NoEffect(Claim):
    """The statement changes nothing that it was written to change."""


@dataclass(frozen=True)
class ModeLeaks(Claim):
    """Grad, autocast, training or RNG mode differs after the call from before."""


@dataclass(frozen=True)
class Raises(Claim):
    """The named exception comes from the flagged line. `match` is a regular expression."""

    exception: str = "RuntimeError"
    match: str = ""


@dataclass(frozen=True)
class Warns(Claim):
    """torch itself warns at the flagged line. `match` is a regular expression."""

    match: str = ""


@dataclass(frozen=True)
class Anomaly(Claim):
    """A NaN or Inf appears in forward or backward."""


@dataclass(frozen=True)
class WaitsEveryStep(Claim):
    """Host reads of device values grow with the number of steps."""


@dataclass(frozen=True)
class Slower(Claim):
    """Repeated A B A B timing shows a margin above the spread."""


@dataclass(frozen=True)
class Deadlocks(Claim):
    """Two local ranks do not finish within the limit while the corrected program does."""


@dataclass(frozen=True)
class ExecutesCode(Claim):
    """A harmless marker in a crafted file is run by the load."""


@dataclass(frozen=True)
class BreaksContract(Claim):
    """Gradients, conversion, eval mode, the state_dict or the inputs of a module are not as its users rely on."""


@dataclass(frozen=True)
class GraphBreaks(Claim):
    """torch.compile reports more graphs than for the corrected program."""
