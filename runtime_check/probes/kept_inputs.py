"""TL305 of an input: what becomes of the gradient when the input is changed in place before backward.

`save_for_backward` notes the version of a tensor, and backward refuses to use another one. A tensor on `ctx`
is used as it is by then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.functions import Example
from runtime_check.probes.bench import Bench, Program
from runtime_check.trace import class_around, pristine

TRIED = 4  # kinds of arguments
REFUSED = "modified by an inplace operation"
RELATIVE = 1e-6


def probe(bench: Bench) -> Outcome:
    """Confirmed when a change of the input changes the gradient silently, and the corrected program refuses."""
    line = bench.flagged.spots[0].first
    if not list(kept(bench.flagged.text, class_around(bench.flagged.text, line), line)):
        row = Evidence("inputs that the line keeps on ctx", "0", "predicted", "1")
        return Outcome(Verdict.REFUTED, "the line keeps no input on ctx", (row,))
    found = seen_by(bench, bench.flagged)
    if found is None:
        return cannot_tell("the Function could not be called with an input that needs a gradient")
    state, change, how = found
    shown = state or f"{change:.3g}, relative"
    label = "change of the gradient by a change of the input before backward"
    rows = [Evidence(label, shown, "allowed", f"{RELATIVE:g}")]
    if state == REFUSED:
        return Outcome(Verdict.REFUTED, "backward refuses an input that was changed in place", tuple(rows), how)
    if change <= RELATIVE:
        return Outcome(Verdict.REFUTED, "the gradient does not depend on the input that is kept", tuple(rows), how)
    good = None if bench.corrected is None else seen_by(bench, bench.corrected)
    if good is None:
        return cannot_tell("the gradient changes, and there is no corrected program to compare with", rows, how)
    rows.append(Evidence("backward after the change", "runs", bench.against, good[0] or "runs"))
    if good[0] != REFUSED:
        return cannot_tell("the corrected program does not refuse the changed input either", rows, how)
    why = "an input that is changed in place before backward gives another gradient, without an error"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows), how)


def seen_by(bench: Bench, program: Program) -> tuple[str, float, str] | None:
    """How a program's backward ended after its input was changed, by how much the gradient changed, and the call."""
    from runtime_check.drive import build_function_class

    line = program.spots[0].first
    name = class_around(program.text, line)
    for example in islice(build_function_class(program.space, name, budget_s=bench.left / 4), TRIED):
        for index in kept(program.text, name, line):
            with suppress(Exception):  # arguments that do not fit
                right, _ = gradient(bench, example, index, change=False)
                wrong, state = gradient(bench, example, index, change=True)
                size = max(float(right.norm()), 1e-12)
                change = 0.0 if wrong is None else float((wrong - right).norm()) / size
                return state, change, f"{name}.apply({example.label})"
    return None


def kept(text: str, name: str, line: int) -> Iterator[int]:
    """Places among the arguments of `apply` of what the statement on a line keeps."""
    cls = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == name)
    for method in cls.body:
        if isinstance(method, ast.FunctionDef) and method.name == "forward":
            places = {arg.arg: place - 1 for place, arg in enumerate(method.args.args)}
            for statement in ast.walk(method):
                if isinstance(statement, ast.stmt) and statement.lineno == line:
                    names = [part.id for part in ast.walk(statement) if isinstance(part, ast.Name)]
                    yield from (places[part] for part in names if places.get(part, -1) >= 0)


def gradient(bench: Bench, example: Example, index: int, *, change: bool) -> tuple[Any, str]:
    """The gradient for an argument, and how its backward ended; the same arguments each time."""
    with pristine(bench.case.seed), torch.enable_grad():
        arguments = list(example.arguments())
        leaf = arguments[index]
        arguments[index] = inner = leaf * 1
        outputs = example.function.apply(*arguments)
        loss = sum(out.sum() for out in (outputs if isinstance(outputs, tuple) else (outputs,)) if out.requires_grad)
        if change:
            with torch.no_grad():
                inner.add_(1)
        try:
            return torch.autograd.grad(loss, leaf)[0], ""
        except RuntimeError as error:
            if not change or REFUSED not in str(error):
                raise
            return None, REFUSED
