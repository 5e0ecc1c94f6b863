"""What TL313 asks where a backward is right: is going back through it, and is a gradient that it leaves out wanted?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.functions import Example
from runtime_check.probes.bench import Bench
from runtime_check.probes.gradcheck import (
    DRAWS,
    SMALL,
    STEPS,
    WRONG,
    Slope,
    argument_name,
    inputs,
    joint_slope,
    objective,
    shape_of,
)
from runtime_check.trace import pristine

Number = Callable[[tuple[Any, ...]], torch.Tensor]


def second_order(bench: Bench, example: Example, how: str) -> Outcome | None:
    """Confirmed if going back twice gives something else than finite differences of the gradient; else None.

    A backward that says that it can be used once only raises when it is gone back through: that is no wrong result.
    One whose whole result carries no graph raises as well, unless another term of the loss has a graph. Whether
    anybody goes back through it then cannot be seen, so that is not called wrong.
    """
    how = f"{how}, twice backward"
    found = (wrong_twice(bench, example, bent=bent) for bent in (False, True))
    if slopes := next(filter(None, found), None):
        why = f"backward is right, but going back through it is not: {shape_of(slopes)}"
        return Outcome(Verdict.CONFIRMED, why, rows_of(slopes), how)
    if slopes := wrong_twice(bench, example, bent=True, beside=True):
        why = ("backward is right, but its result carries no graph: beside other terms of a loss its second derivative "
               "is left out without an error")
        return cannot_tell(why, rows_of(slopes), how)
    return None


def rows_of(slopes: list[Slope]) -> tuple[Evidence, ...]:
    """The second derivatives of each draw."""
    return tuple(
        Evidence(f"second derivative by backward, draw {number}", f"{slope.backward:.6g}", "by finite differences",
                 f"{slope.differences[0]:.6g}")
        for number, slope in enumerate(slopes, 1)
    )


def wrong_twice(bench: Bench, example: Example, *, bent: bool, beside: bool = False) -> list[Slope]:
    """The second derivatives of every draw if most of them are wrong; else none."""
    slopes: list[Slope] = []
    try:
        for draw in range(DRAWS):
            with pristine(bench.case.seed + draw):
                slopes.append(second_slope(example, bent=bent, beside=beside))
    except Exception:
        return []
    wrong = sum(slope.gap > WRONG for slope in slopes)  # by chance what is missing may be small along one direction
    return slopes if all(slope.steady for slope in slopes) and wrong > DRAWS // 2 else []


def second_slope(example: Example, *, bent: bool, beside: bool) -> Slope:
    """The derivative of the gradients for all arguments together, along a random direction of all of them.

    Where what comes in depends on the arguments, by `bent`, a backward whose own part carries no graph raises nothing,
    and that part of the derivative is missing. So it is where a cube of the arguments stands `beside` it.
    """
    arguments = example.arguments()
    number = objective(example.function, arguments, bent=bent)
    places = asked(number, arguments)
    weights = {i: torch.randn_like(arguments[i]) for i in places}
    cubes = {i: 0.01 * torch.randn_like(arguments[i]) for i in places}

    def projected(given: tuple[Any, ...]) -> torch.Tensor:
        value = number(given)
        if beside:
            value = torch.stack([value, *((given[i] ** 3 * cubes[i]).sum() for i in places)]).sum()
        gradients = torch.autograd.grad(value, [given[i] for i in places], create_graph=True)
        return torch.stack([(gradient * weights[i]).sum() for i, gradient in zip(places, gradients, strict=True)]).sum()

    projected(arguments).backward()  # with `grad`, what says that it is used once only would be passed by
    directions = {i: torch.randn_like(arguments[i]) for i in places}
    found = sum(float((second * directions[i]).sum()) for i in places if (second := arguments[i].grad) is not None)
    one, two = (joint_slope(projected, arguments, directions, step) for step in STEPS)
    return Slope(places[0], found, (one, two))


def asked(number: Number, arguments: tuple[Any, ...]) -> list[int]:
    """Positions of the arguments that backward gives a gradient for."""
    wanted = inputs(arguments)
    gradients = torch.autograd.grad(number(arguments), [arguments[i] for i in wanted], allow_unused=True)
    return [i for i, gradient in zip(wanted, gradients, strict=True) if gradient is not None]


# -- gradients that are left out ----------------------------------------------------------------


def left_out(bench: Bench, example: Example, how: str) -> Outcome | None:
    """What is said where backward gives no gradient for an argument that the forward depends on; None if it does not.

    That is wrong where it is trained, and right for a constant. Only a call in the project can tell which it is.
    """
    for index in missing(example):
        slopes = [along(bench, example, index, draw) for draw in range(DRAWS)]
        if not all(slope.steady and abs(slope.differences[0]) > SMALL for slope in slopes):
            continue
        rows = tuple(
            Evidence(f"derivative along a direction, draw {number}", "None", "by finite differences",
                     f"{slope.differences[0]:.6g}") for number, slope in enumerate(slopes, 1))
        name = argument_name(example.function, index)
        if index in example.trained():
            why = f"backward gives no gradient for {name}, which is to be trained"
            return Outcome(Verdict.CONFIRMED, why, rows, how)
        return cannot_tell(f"backward gives no gradient for {name}, on which the forward depends", rows, how)
    return None


def missing(example: Example) -> list[int]:
    """Positions of the arguments that want a gradient and get none."""
    arguments = example.arguments()
    given = asked(objective(example.function, arguments), arguments)
    return [i for i in inputs(arguments) if i not in given]


def along(bench: Bench, example: Example, index: int, draw: int) -> Slope:
    """The derivative along a random direction of an argument that backward says nothing of."""
    with pristine(bench.case.seed + draw):
        arguments = example.arguments()
        number = objective(example.function, arguments)
        direction = torch.randn_like(arguments[index])
        one, two = (joint_slope(number, arguments, {index: direction}, step) for step in STEPS)
        return Slope(index, 0.0, (one, two))
