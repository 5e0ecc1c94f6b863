"""One object called again and again, where a single call shows no growth.

What piles up in such calls may be emptied by the program in between: where the file says so anywhere, nothing is told.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from runtime_check.driver import Drive
from runtime_check.evidence import Outcome, Verdict, cannot_tell
from runtime_check.extract import Target
from runtime_check.probes.bench import Bench, Program, Way, first_decisive
from runtime_check.probes.targets import base, parts, stores
from runtime_check.slices import Arguments
from runtime_check.trace import owner_of

CALLS = 9
EMPTIES = {"clear", "pop", "popitem", "popleft", "detach_", "remove", "zero_", "fill_"}
CALLED = {"forward", "__call__", "__init__"}


def again(program: Program, target: Target, drive: Drive) -> Callable[[], object] | None:
    """The call of a drive several times over, where its arguments can be had alone."""
    if drive.prepare is None or target.kind == "script":
        return None
    return partial(repeated, program, target.qualname, drive.prepare)


def repeated(program: Program, qualname: str, prepare: Callable[[], Arguments]) -> None:
    """Calls one instance, or one function, several times, with arguments of its own each time, all made beforehand."""
    for space in list(program.space.loader.spaces.values()):
        space.reset()  # what earlier runs have left in the files' variables
    given = [prepare() for _ in range(CALLS)]
    name = qualname.rpartition(".")[2]
    function: Any = given[0].receiver
    if function is None:
        function = program.space.resolve(qualname)
    elif not isinstance(function, nn.Module) or (name and name not in CALLED and "." in qualname):
        function = getattr(function, name)
    for one in given:
        function(*one.args, **one.kwargs)


def judged(bench: Bench, outcome: Outcome, judge: Callable[[Way], Outcome | None]) -> Outcome:
    """The outcome of repeated calls where that of single ones is open; if these are too few as well, why."""
    if outcome.verdict is not Verdict.CANNOT_TELL:
        return outcome  # a run that came by often enough says more than one call made again and again
    ways = (way.repeated for way in bench.ways(bench.flagged))
    again = first_decisive(bench, (way for way in ways if way is not None), judge)
    if again.verdict is Verdict.NOT_REACHED:
        return outcome
    line = emptied(bench)
    if again.verdict is Verdict.CONFIRMED and line:
        why = f"{again.why}, and line {line} may empty it in between"
        return cannot_tell(why, again.evidence, again.how)
    if again.verdict is Verdict.CANNOT_TELL and "too few" in again.why:
        why = f"in {CALLS} calls of one object with inputs of one size {again.why}"
        return replace(again, why=why)
    return again


def emptied(bench: Bench) -> int:
    """A line, besides the flagged one, that empties or replaces what that one stores into; 0 if there is none."""
    text = bench.flagged.text
    spots = bench.flagged.spots
    names = {known for spot in spots for target in stores(text, spot) if (known := last_name(target))}
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if any(spot.first <= line <= spot.last for spot in spots) or owner_of_init(text, line):
            continue
        if names & set(changed(node)):
            return int(line)
    return 0


def owner_of_init(text: str, line: int) -> bool:
    """Whether a line is in a constructor, or outside all functions: there things begin."""
    return not line or owner_of(text, line)[0] in ("__init__", "<module>")


def last_name(node: ast.expr) -> str:
    """The name of a variable or attribute."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def changed(node: ast.AST) -> Iterator[str]:
    """The names that a statement or call binds anew, deletes or empties."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (last_name(base(part)) for target in targets for part in parts(target))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield last_name(base(target))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in EMPTIES:
            yield last_name(base(value))
