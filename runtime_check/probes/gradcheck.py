"""TL313: the backward of an autograd Function against finite differences, in float64.

Derivatives for single elements are compared, with two step widths: where the two disagree the function
has a kink or too few digits, and nothing is said. A backward that differs on purpose is recognised by
what the forward does: piecewise constant (rounding, spikes, sign, clamping), or the identity (reversal,
scaling); by a gradient that is right or zero everywhere (masks); and by words in name and docstring.
Made-up arguments may be none that the Function is made for, so a backward that is right for some kind
of arguments, or for a part of the elements, is not said to be wrong; unless it is zero where the forward
moves and not zero where it stands still: that is a mask, and the wrong one. Where the forward stands still
everywhere, other arguments are tried.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.functions import Example
from runtime_check.probes.bench import Bench
from runtime_check.sandbox import shorten
from runtime_check.trace import pristine

STEPS = (1e-5, 1e-6)
STEADY = 1e-4  # relative difference of the derivatives with both steps that still counts as none
WRONG = 1e-2  # relative difference from the derivative by backward that counts
DRAWS = 3  # sets of random arguments
ELEMENTS = 8  # of each argument, for which the derivative is taken
MOST = 0.8  # share of the elements that has to be wrong
TRIED = 4  # kinds of arguments
SMALL = 1e-9
PURPOSE = re.compile(
    r"straight.?through|(^|_)ste(_|$)|surrogate|spik|heaviside|(^|_)rounding|quanti|binar|ternar|gumbel|revers"
    r"|(^|_)grl(_|$)|gradient.?(scal|clip|penal|modif|mask|hook)|grad_(scal|clip|mul)|scale_?grad|clip_?grad"
    r"|blackbox|perturb|fake|stop_?grad|pass.?through|smooth(ed)? gradient|approximat|hard(_|$)|discret|threshold"
    r"|guided|natural.?grad",
    re.IGNORECASE,
)
#: What torch says of gradients that fit no arguments, and of those that do not fit these arguments.
COUNT = re.compile(r"returned an incorrect number of gradients \(expected (\d+), got (\d+)\)")
SHAPE = re.compile(r"returned an invalid gradient at index")
#: Words for arguments that random numbers are not.
STRUCTURED = re.compile(
    r"symmetric|triang|cholesky|tril(_|\b)|triu(_|\b)|positive.definite|psd(_|\b)|eigh?\b|orthogonal", re.IGNORECASE
)


@dataclass(frozen=True)
class Slope:
    """Derivatives for one element of one argument, or along one direction."""

    argument: int
    backward: float
    differences: tuple[float, float]

    @property
    def steady(self) -> bool:
        """Whether both step widths agree."""
        one, two = self.differences
        return abs(one - two) <= STEADY * max(abs(one), abs(two), SMALL)

    @property
    def gap(self) -> float:
        """The relative difference of backward from finite differences."""
        size = max(abs(self.backward), abs(self.differences[0]))
        return abs(self.backward - self.differences[0]) / size if size > SMALL else 0.0


class Unusable(RuntimeError):
    """Why a call says nothing about its backward."""


class Refused(RuntimeError):
    """What torch has against the gradients that a backward returns: the wrong number of them, or other shapes."""


def probe(bench: Bench) -> Outcome:
    """Confirmed when backward differs from finite differences for several sets of arguments."""
    from runtime_check.drive import build_function_class

    name = qualname_at(bench.case.text, bench.case.flagged[0].first)
    tried: list[str] = []
    wrong: Outcome | None = None
    called = False
    try:
        for example in islice(build_function_class(bench.flagged.space, name, budget_s=bench.left / 3), TRIED):
            if bench.left < 0:
                break
            try:
                outcome = examined(bench, example, name)
            except Unusable as error:
                tried.append(f"with {example.label}, {error}" if example.hinted else str(error))
                continue
            except Refused as error:
                row = Evidence("gradients that torch takes", "none", "wanted", "one that fits each argument")
                return Outcome(Verdict.CONFIRMED, str(error), (row,), f"{name}.apply({example.label})")
            if outcome.verdict is Verdict.CANNOT_TELL and called:
                break  # a doubt about made-up arguments is none about those of a call
            if outcome.verdict is not Verdict.CONFIRMED:
                return outcome  # what is right for some arguments may not be made for the others
            wrong, called = wrong or outcome, called or example.as_called
    except Exception as error:
        tried.append(f"`{name}` could not be called ({type(error).__name__}: {shorten(error, 200)})")
    return wrong or cannot_tell("; ".join(dict.fromkeys(tried)) or f"no arguments for `{name}` were found")


def class_text(text: str, name: str) -> str:
    """The text of a class."""
    node = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef) and n.name == name)
    return ast.get_source_segment(text, node) or ""


def qualname_at(text: str, line: int) -> str:
    """The name of the class whose statement is on a line."""
    return next(n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef) and n.lineno == line)


def examined(bench: Bench, example: Example, name: str) -> Outcome:
    """The outcome for one kind of arguments. Unusable if nothing can be said with them."""
    from runtime_check.probes import twice

    how = f"{name}.apply({example.label})"
    slopes: list[Slope] = []
    for draw in range(DRAWS):
        with pristine(bench.case.seed + draw):
            slopes += all_slopes(example)
    steady = [slope for slope in slopes if slope.steady]
    if not steady:
        raise Unusable("finite differences give no steady derivative")
    bad = [slope for slope in steady if slope.gap > WRONG]
    if not bad:
        most = max(slope.gap for slope in steady)
        row = Evidence("largest relative difference from finite differences", f"{most:.1e}", "allowed", f"{WRONG:g}")
        return twice.second_order(bench, example, how) or twice.left_out(bench, example, how) or Outcome(
            Verdict.REFUTED, "backward agrees with finite differences", (row,), how
        )
    said = by_words(example.function)
    if not said and all(abs(slope.differences[0]) <= SMALL for slope in steady):
        raise Unusable("the forward is constant around every point that was tried, so any gradient is a choice")
    purpose = said or on_purpose(example, bad)
    if purpose:
        return cannot_tell(f"backward differs from finite differences, and seems meant to: {purpose}", how=how)
    argument = bad[0].argument
    of_it = [slope for slope in steady if slope.argument == argument]
    telling = [slope for slope in of_it if abs(slope.differences[0]) > SMALL]
    wrong_mask = masks_wrongly(example, argument, of_it)
    if not wrong_mask and sum(slope.gap > WRONG for slope in telling) < MOST * len(telling):
        raise Unusable("backward agrees with finite differences for some elements and not for others")
    if not example.as_called:
        doubt_made_up(bench, example, name)
    if wrong_mask:
        telling = sorted(of_it, key=lambda slope: -slope.gap)
    of_it = telling
    rows = [
        Evidence(f"element {number} of the gradient by backward", f"{slope.backward:.6g}", "by finite differences",
                 f"{slope.differences[0]:.6g}")
        for number, slope in enumerate(of_it[:DRAWS], 1)
    ]
    which = argument_name(example.function, argument)
    said = "it is zero where the forward moves, and not where it stands still" if wrong_mask else shape_of(of_it)
    return Outcome(Verdict.CONFIRMED, f"the gradient for {which} is not the derivative: {said}", tuple(rows), how)


def masks_wrongly(example: Example, argument: int, slopes: list[Slope]) -> bool:
    """Whether a backward lets pass what the forward does not, and the other way round.

    One that depends on the sign of the gradient that comes in, as that of a deconvolution net, is meant so.
    """
    dead = sum(abs(slope.backward) <= SMALL < abs(slope.differences[0]) for slope in slopes)
    alive = sum(abs(slope.differences[0]) <= SMALL < abs(slope.backward) for slope in slopes)
    return min(dead, alive) >= 2 and linear(example, argument)


def linear(example: Example, argument: int) -> bool:
    """Whether the gradient for an argument changes its sign with the gradient that comes in."""
    arguments = example.arguments()
    ends = outputs(applied(example.function, arguments))
    given = [torch.randn_like(end) for end in ends]
    both = [torch.autograd.grad(ends, [arguments[argument]], [sign * item for item in given], retain_graph=True)[0]
            for sign in (1.0, -1.0)]
    return bool(torch.allclose(both[0], -both[1]))


def doubt_made_up(bench: Bench, example: Example, name: str) -> None:
    """Unusable where made-up arguments may be none that the Function is made for."""
    said = STRUCTURED.search(class_text(bench.case.text, name))
    if said is not None:
        raise Unusable(f"it speaks of {said.group(0).strip('_')!r}, and made-up arguments are nothing of the kind")
    if any(isinstance(item, torch.Tensor) and not item.requires_grad for item in example.arguments()):
        raise Unusable("backward differs from finite differences, for indices or masks that were made up")


def shape_of(slopes: list[Slope]) -> str:
    """How the gradients differ: by one factor, or not."""
    ratios = [slope.backward / slope.differences[0] for slope in slopes if abs(slope.differences[0]) > SMALL]
    if ratios and max(ratios) - min(ratios) <= WRONG * abs(ratios[0]):
        return f"it is {ratios[0]:.3g} times what finite differences give"
    return f"it is off by {max(slope.gap for slope in slopes):.0%}"


def argument_name(function: Any, index: int) -> str:
    """The name of an argument of `apply`."""
    from runtime_check.functions import has_setup

    code = function.forward.__code__
    names = code.co_varnames[0 if has_setup(function) else 1 : code.co_argcount]
    return f"`{names[index]}`" if index < len(names) else f"argument {index + 1}"


# -- derivatives --------------------------------------------------------------------------------


def outputs(value: Any) -> list[torch.Tensor]:
    """The differentiable outputs of a call."""
    found = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in found if isinstance(item, torch.Tensor) and item.requires_grad]


def inputs(arguments: tuple[Any, ...]) -> list[int]:
    """Positions of the arguments that a gradient is wanted for."""
    return [i for i, item in enumerate(arguments) if isinstance(item, torch.Tensor) and item.requires_grad]


def applied(function: Any, arguments: tuple[Any, ...]) -> Any:
    """A call with copies: some Functions change their arguments in place."""
    return function.apply(*(item * 1 if isinstance(item, torch.Tensor) and item.requires_grad else item
                            for item in arguments))


def weighted(value: Any, weights: list[torch.Tensor], *, bent: bool = False) -> torch.Tensor:
    """The sum of all outputs, weighted; `bent` adds their squares, so that what comes into backward depends on them."""
    terms = [(item.real if item.is_complex() else item).double() for item in outputs(value)]
    terms = [term + term * term / 2 for term in terms] if bent else terms
    return torch.stack([(term * weight).sum() for term, weight in zip(terms, weights, strict=True)]).sum()


def objective(
    function: Any, arguments: tuple[Any, ...], *, bent: bool = False
) -> Callable[[tuple[Any, ...]], torch.Tensor]:
    """A number that depends on all outputs. Unusable if there is none, or it is left to chance."""
    value = applied(function, arguments)
    ends = outputs(value)
    if not ends:
        raise Unusable("no output is differentiable")
    if any(item.is_complex() for item in (*ends, *(arguments[i] for i in inputs(arguments)))):
        raise Unusable("complex numbers are not checked")
    if any(item.dtype != torch.float64 for item in ends):
        raise Unusable("the outputs are not in float64, so that finite differences have too few digits")
    weights = [torch.randn(item.shape, dtype=torch.float64) for item in ends]

    def number(given: tuple[Any, ...]) -> torch.Tensor:
        return weighted(applied(function, given), weights, bent=bent)

    if not torch.allclose(number(arguments), number(arguments), rtol=0, atol=0, equal_nan=True):
        raise Unusable("two calls with the same arguments differ")
    if not bool(torch.isfinite(number(arguments))):
        raise Unusable("the outputs are not finite")
    return number


def all_slopes(example: Example) -> list[Slope]:
    """Derivatives for some elements of each argument."""
    arguments = example.arguments()
    number = objective(example.function, arguments)
    wanted = inputs(arguments)
    try:
        gradients = torch.autograd.grad(number(arguments), [arguments[i] for i in wanted], allow_unused=True)
    except Exception as error:
        few = COUNT.search(str(error))
        if (few and int(few[2]) < int(few[1])) or (example.as_called and SHAPE.search(str(error))):
            raise Refused(f"backward cannot run: {shorten(error, 160)}") from None
        raise Unusable(f"backward raises {type(error).__name__}: {shorten(error)}") from None
    found = []
    for index, gradient in zip(wanted, gradients, strict=True):
        if gradient is None:  # said to be no derivative: asked about when all the others are right
            continue
        for element in torch.randperm(gradient.numel())[:ELEMENTS].tolist():
            direction = torch.zeros_like(arguments[index])
            direction.view(-1)[element] = 1.0
            differences = [slope(number, arguments, index, direction, step) for step in STEPS]
            found.append(Slope(index, float(gradient.reshape(-1)[element]), (differences[0], differences[1])))
    if not found:
        raise Unusable("backward gives no gradient for any argument")
    return found


def slope(number: Callable[[tuple[Any, ...]], torch.Tensor], arguments: tuple[Any, ...], index: int,
          direction: torch.Tensor, step: float) -> float:
    """The derivative along a direction of one argument, by central differences."""
    return joint_slope(number, arguments, {index: direction}, step)


def joint_slope(number: Callable[[tuple[Any, ...]], torch.Tensor], arguments: tuple[Any, ...],
                directions: dict[int, torch.Tensor], step: float) -> float:
    """The derivative as several arguments move together, by central differences."""

    def moved(by: float) -> float:
        changed = [(item.detach() + by * directions[i]).requires_grad_() if i in directions else item
                   for i, item in enumerate(arguments)]
        return float(number(tuple(changed)).detach())

    return (moved(step) - moved(-step)) / (2 * step)


# -- what is meant ------------------------------------------------------------------------------


def by_words(function: Any) -> str:
    """What the name or a docstring of a Function says of a gradient that is no derivative, or an empty string."""
    said = PURPOSE.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", function.__name__)) or PURPOSE.search(
        function.__doc__ or "") or PURPOSE.search(function.forward.__doc__ or "") or PURPOSE.search(
        function.backward.__doc__ or "")
    return f"its text speaks of {said.group(0).strip('_')!r}" if said is not None else ""


def on_purpose(example: Example, slopes: list[Slope]) -> str:
    """Why a backward that is no derivative for some elements seems meant to be none, or an empty string."""
    function = example.function
    if all(abs(slope.differences[0]) <= SMALL for slope in slopes):
        return "the forward is constant around every such point"
    if all(abs(slope.backward) <= SMALL for slope in slopes):
        return "it is zero where it differs, as behind a mask"
    arguments = example.arguments()
    value = applied(function, arguments)
    ends = outputs(value)
    given = arguments[slopes[0].argument]
    if len(ends) == 1 and ends[0].shape == given.shape and torch.equal(ends[0], given.to(ends[0].dtype)):
        return "the forward changes nothing"
    return ""
