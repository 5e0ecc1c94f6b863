"""OutputsDiffer for formulas that are exact for most values: what the line makes of those that they fail for.

`log(1 + x)` and `exp(x) - 1` lose small values, `log(sum(exp(x)))` large ones, and made-up inputs are neither. So the
flagged line, and the corrected one, are run once more. For small values what they take is scaled: any formula may get
some. For large ones the inputs are, since what lies in between may be bounded, and then the formula is right. Only what
depends on the input can have other values: of what is the same whatever the input, a table of positions for example,
nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import outputs_differ, scaled, values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful

TOLERANCE = 1e-3  # relative: rounding stays below, what is lost of a small value does not
NEAR = 88.0  # from here on `exp` overflows in float32


@dataclass(frozen=True)
class Formula:
    """A formula: where its values enter and leave, as written and corrected, and the size at which it fails."""

    enters: str
    leaves: str
    exact: str  # the function that does both
    size: float

    @property
    def large(self) -> bool:
        """Whether it fails for large values."""
        return self.size > 1


FORMULAS = {
    "TL610": Formula("add", "log", "log1p", 1e-6),
    "TL611": Formula("exp", "sub", "expm1", 1e-6),
    "TL612": Formula("exp", "log", "logsumexp", 1e3),
}


def word(func: Any) -> str:
    """The name of a torch function: `add` for `__radd__` and `add_` as well."""
    name = getattr(func, "__name__", "").strip("_")
    return {"radd": "add", "iadd": "add", "rsub": "sub", "isub": "sub"}.get(name, name)


class Scaled(TorchFunctionMode):  # type: ignore[misc]
    """Scales what enters the formula of the flagged line while it runs, if that is to be small, and keeps what leaves.
    """

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.formula = formula
        self.inside = self.entered = False
        self.results: list[torch.Tensor] = []
        self.taken: list[torch.Tensor] = []  # what entered, before it was scaled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = word(func), kwargs or {}
        if not self.inside or name not in (self.formula.enters, self.formula.leaves, self.formula.exact):
            return func(*args, **kwargs)
        with torch.DisableTorchFunction():
            if name in (self.formula.enters, self.formula.exact) and (name != "add" or 1 in numbers(args)):
                args = tuple(self.scaled(value) for value in args)
                self.entered = True
            result = func(*args, **kwargs)
        if self.entered and name in (self.formula.leaves, self.formula.exact) and isinstance(result, torch.Tensor):
            self.results.append(result.detach().clone())
            self.entered = False
        return result

    def scaled(self, value: Any) -> Any:
        """A tensor with its largest element at the size at which the formula fails."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        self.taken.append(value.detach().clone())
        if self.formula.large:
            return value
        largest = float(value.detach().abs().max()) if value.numel() else 0.0
        return value * (self.formula.size / largest) if largest > 0 else value + self.formula.size

    def begin(self, frame: FrameType, index: int) -> None:
        """The flagged line begins."""
        self.inside = True

    def end(self, frame: FrameType, index: int) -> None:
        """It has ended."""
        self.inside = False


def numbers(values: tuple[Any, ...]) -> list[float]:
    """The plain numbers among some values."""
    return [value for value in values if isinstance(value, (int, float))]


@dataclass
class Lines:
    """What the flagged line made of scaled values."""

    run: Run
    results: list[torch.Tensor] = field(default_factory=list)
    taken: list[torch.Tensor] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest number that the formula was given."""
        return max(map(scaled.size, self.taken), default=0.0)


def probe(bench: Bench) -> Outcome:
    """Confirmed when results differ as they are; else when they do for values that the formula fails for."""
    formula = FORMULAS[bench.case.code]

    def judge(bad: values.Result, good: values.Result | None) -> Outcome:
        outcome = outputs_differ.judge(bench, bad, good)
        if outcome.verdict is not Verdict.REFUTED or bench.way is None or bench.corrected is None:
            return outcome
        if bench.flagged.text == bench.corrected.text:
            return outcome
        other = bench.same(bench.way)
        if other is None:
            return outcome
        if formula.large:
            return enlarged(bench, bench.way, other, formula)
        mine = measure(bench, bench.flagged, bench.way, formula)
        found = compared(formula, mine, measure(bench, bench.corrected, other, formula), formula.size)
        if found.verdict is Verdict.CONFIRMED and not varies(bench, bench.way, mine, formula):
            why = "the line takes the same values whatever the input, and fails for none of them"
            return cannot_tell(why, outcome.evidence)
        return found

    return contrast(bench, lambda program, way: values.measure(bench, program, way), judge)


def enlarged(bench: Bench, way: Way, other: Way, formula: Formula) -> Outcome:
    """The outcome with larger and larger inputs of both programs, until one is confirmed.

    Where no input makes the operand large, the formula is right for all that were tried.
    """
    assert bench.corrected is not None
    plain = measure(bench, bench.flagged, way, formula)
    largest, open_ = plain.largest, None
    factors = [formula.size / largest] if 0 < largest < formula.size else []
    for factor in (*factors, *scaled.FACTORS):
        mine = measure(bench, bench.flagged, way, formula, scaled.Inputs(factor))
        largest = max(largest, mine.largest)
        if mine.largest < NEAR:
            continue
        good = measure(bench, bench.corrected, other, formula, scaled.Inputs(factor))
        found = compared(formula, mine, good, mine.largest)
        if found.verdict is Verdict.CONFIRMED:
            return found
        open_ = open_ or found
    if open_ is not None:
        return open_
    row = Evidence("largest number that the line takes", f"{largest:.3g}", "needed", f"{NEAR:g}")
    verdict = Verdict.CANNOT_TELL if way.made_up else Verdict.REFUTED
    return Outcome(verdict, scaled.too_small(largest), (row,))


def measure(bench: Bench, program: Program, way: Way, formula: Formula, *more: Any) -> Lines:
    """Runs a program and keeps what the flagged line takes and makes, of scaled values if they are to be small."""
    mode = Scaled(formula)
    return Lines(bench.run(program, way, *more, mode, before=mode.begin, after=mode.end), mode.results, mode.taken)


def varies(bench: Bench, way: Way, lines: Lines, formula: Formula) -> bool:
    """Whether the line takes other values in a run with other random numbers."""
    with bench.seeded(bench.case.seed + 1), other_seeds():
        other = next((one for one in bench.ways(bench.flagged) if one.label == way.label), None)
        again = None if other is None else measure(bench, bench.flagged, other, formula).taken
    return again is not None and not all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(lines.taken, again, strict=False))


@contextmanager
def other_seeds() -> Iterator[None]:
    """Seeds that the code sets itself are other ones meanwhile: else it draws the same numbers again."""
    plain = torch.manual_seed

    def manual_seed(seed: Any) -> torch.Generator:
        return plain(int(seed) ^ 0x5EED)

    torch.manual_seed = manual_seed
    try:
        yield
    finally:
        torch.manual_seed = plain


def compared(formula: Formula, bad: Lines, good: Lines, size: float) -> Outcome:
    """The outcome for values of this size; an equal program leaves equal results."""
    pairs = [(a, b) for a, b in zip(bad.results, good.results, strict=False) if a.shape == b.shape]
    if not pairs:
        return doubtful(bad.run, f"no values of about {size:.3g} could be given to the line")
    far, (one, two) = max(((distance(a, b), (a, b)) for a, b in pairs), key=lambda pair: pair[0])
    row = Evidence(f"relative difference for values of about {size:.3g}", f"{far:.3g}",
                   "for the values as they are", "0")
    if not far > TOLERANCE:
        return Outcome(Verdict.REFUTED, f"the results are the same, also for values of about {size:.3g}", (row,))
    if not bool(torch.isfinite(two).all()):
        return cannot_tell(f"the corrected line fails for values of about {size:.3g} as well", (row,))
    why = f"for values of about {size:.3g} the line gives {values.number(one)}, corrected {values.number(two)}"
    return Outcome(Verdict.CONFIRMED, why, (row,))


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """The distance of two results by the size of the second; infinite if only one has infinities."""
    a, b = one.double(), two.double()
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return float("inf")
    a, b = a[torch.isfinite(a)], b[torch.isfinite(b)]
    return float((a - b).norm() / b.norm().clamp(min=1e-300)) if a.numel() else 0.0
