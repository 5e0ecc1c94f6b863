"""The backwards of a run, for errors that show in them alone: its own, or else one from what it returned."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from runtime_check.plan import Lines
from runtime_check.probes.bench import WHOLE, Bench, Program, Run, Way
from runtime_check.probes.gradients import backward_from, outputs_of
from runtime_check.probes.targets import base

#: Rules about statements that run, and make a later backward raise.
RULES = {"TL105"}
COPIED = "with a copy made first"


@dataclass
class Backwards:
    """What the backwards of a run did."""

    count: int = 0  # that the program ran itself
    errors: list[BaseException] = field(default_factory=list)
    ours: bool = False  # one was run from the result
    failed: BaseException | None = None  # what that one ended with
    further: bool = False  # and another one from the first output alone did not: it may be all that is used


@contextmanager
def watched(found: Backwards) -> Iterator[None]:
    """Notes what backwards raise: the engine does so after the flagged `backward` has returned."""
    plain, grad = torch.autograd.backward, torch.autograd.grad

    def backward(*args: Any, **kwargs: Any) -> Any:
        found.count += 1
        try:
            return plain(*args, **kwargs)
        except BaseException as error:
            found.errors.append(error)
            raise

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.count += 1
        return grad(*args, **kwargs)

    torch.autograd.backward, torch.autograd.grad = backward, counted
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = plain, grad


def run(bench: Bench, program: Program, way: Way) -> tuple[Run, Backwards]:
    """Runs a program; where it goes back through nothing itself, a backward from what it returned follows.

    What a script as a whole leaves behind is no result: there only its own backwards count.
    """
    found = Backwards()

    def follow(value: object) -> None:
        if found.count or way.label == WHOLE:
            return
        try:
            several = outputs_of(value)
            if len(several) > 1:
                backward_from(several[0], keep=True)
                found.further = True
            found.ours = backward_from(value)
        except Exception as error:
            found.ours, found.failed = True, error
            found.errors.remove(error)

    result = bench.run(program, way, watched(found), limit=0, inspect=follow)
    result.backward_errors = found.errors
    return result, found


def with_copies(bench: Bench) -> None:
    """Where there is no corrected program, one whose flagged statements work on copies shows what is their doing."""
    if bench.corrected is not None or bench.case.code not in RULES:
        return
    text = bench.flagged.text
    for spot in bench.flagged.spots:
        changed = copied(text, spot)
        if changed is None:
            return
        text = changed
    bench.case = replace(bench.case, corrected=text, mended=bench.case.flagged, correction=COPIED)
    bench.corrected = replace(bench.flagged, text=text)


def copied(text: str, spot: Lines) -> str | None:
    """A program whose statement works on a copy of what it changes, on the same line; None if it cannot be told."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or (node.lineno, node.end_lineno) != (spot.first, spot.last):
            continue
        changed = target(node)
        name = ast.unparse(base(changed)) if changed is not None else ""
        if not name.replace(".", "_").isidentifier():
            return None
        rows = text.splitlines(keepends=True)
        row = rows[node.lineno - 1].encode()
        made = f"{name} = {name}.clone(); ".encode()
        rows[node.lineno - 1] = (row[: node.col_offset] + made + row[node.col_offset :]).decode()
        return "".join(rows)
    return None


def target(node: ast.stmt) -> ast.expr | None:
    """What a statement changes in place."""
    match node:
        case ast.AugAssign(target=changed) | ast.Assign(targets=[ast.Subscript() as changed]):
            return changed
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed, attr=name))) if name.endswith("_"):
            return changed
    return None
