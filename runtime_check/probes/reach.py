"""How far code can be run with nothing from its author: a module called, a Function applied, a loop driven.

These are no claims about findings. "Confirmed" stands for: it ran; "refuted": it was built and did not
run; cannot-tell: neither. The reason is that of the attempt that came furthest.
"""

from __future__ import annotations

import ast
import sys
from itertools import islice
from typing import Any

import torch

from runtime_check.evidence import Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench
from runtime_check.trace import OutOfTime, pristine, time_limit

BUILDS, CALLS, DRIVES = 6, 8, 12
LOOP_SECONDS = 2.5  # for one way to drive a loop
ITERATIONS = 2


def told(error: BaseException) -> str:
    """An error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def module(bench: Bench) -> Outcome:
    """Whether a Module can be built, and its forward run."""
    from runtime_check.drive import build_module

    name, why = bench.case.name, "nothing was tried"
    built_once = ""
    try:
        for built in islice(build_module(bench.flagged.space, name, seed=bench.case.seed), BUILDS):
            built_once = built_once or built.label
            if built.call is None:
                why = built.why
                continue
            try:
                built.call()
                return Outcome(Verdict.CONFIRMED, "its forward ran", how=built.label)
            except Exception as error:
                why = told(error)
    except Exception as error:
        why = told(error)
    if built_once:
        return Outcome(Verdict.REFUTED, why, how=built_once)
    return cannot_tell(why)


def function(bench: Bench) -> Outcome:
    """Whether an autograd Function can be called."""
    from runtime_check.drive import build_function_class

    why = "nothing was tried"
    try:
        for example in islice(build_function_class(bench.flagged.space, bench.case.name), CALLS):
            try:
                example.call()
                return Outcome(Verdict.CONFIRMED, "it was called", how=example.label)
            except Exception as error:
                why = told(error)
    except Exception as error:
        why = told(error)
    return cannot_tell(why)


class Enough(BaseException):
    """Ends a loop that has shown that it runs."""


class Backwards:
    """Counts calls of backward from one file."""

    def __init__(self, path: str) -> None:
        self.path, self.count = path, 0
        self.real = torch.Tensor.backward

    def __enter__(self) -> Backwards:
        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.count += sys._getframe(1).f_code.co_filename == self.path
            if self.count > ITERATIONS:
                raise Enough
            return self.real(tensor, *args, **kwargs)

        torch.Tensor.backward = counting  # type: ignore[assignment,method-assign,unused-ignore]
        return self

    def __exit__(self, *details: object) -> None:
        torch.Tensor.backward = self.real  # type: ignore[method-assign,unused-ignore]


def loop(bench: Bench) -> Outcome:
    """Whether a training function or script comes to its backward again and again."""
    from runtime_check.drive import drives
    from runtime_check.extract import target_at

    line = line_of_backward(ast.parse(bench.case.text), bench.case.name)
    target = target_at(bench.case.text, line)
    why = "nothing was tried"
    reached = ""
    try:
        for drive in islice(drives(bench.flagged.space, target, budget_s=bench.left / 3), DRIVES):
            with Backwards(bench.case.path) as backwards, pristine(bench.case.seed):
                try:
                    with time_limit(min(LOOP_SECONDS, bench.left)):
                        drive.run()
                    why = f"{drive.label}: backward was not called again"
                except Enough:
                    pass
                except OutOfTime:
                    why = f"{drive.label}: it took too long"
                except BaseException as error:  # also what test runners raise to skip or fail a test
                    why = told(error)
            if backwards.count >= ITERATIONS:
                return Outcome(Verdict.CONFIRMED, "its backward was reached again and again", how=drive.label)
            reached = reached or (drive.label if backwards.count else "")
            if bench.left < 0:
                break
    except Exception as error:
        why = told(error)
    return Outcome(Verdict.REFUTED, why, how=reached) if reached else cannot_tell(why)


def line_of_backward(tree: ast.Module, name: str) -> int:
    """A line with `.backward` in a function, or at the top level."""
    scope: ast.AST = tree
    for part in name.split(".") if name else []:
        scope = next(item for item in ast.iter_child_nodes(scope) if getattr(item, "name", "") == part)
    skip = {
        id(inner)
        for item in tree.body
        if not name and isinstance(item, (ast.FunctionDef, ast.ClassDef))
        for inner in ast.walk(item)
    }
    return next(
        item.lineno
        for item in ast.walk(scope)
        if isinstance(item, ast.Attribute) and item.attr == "backward" and id(item) not in skip
    )
