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


def outcome(
    bench: Bench, way: Way, measure: Callable[[Bench, Program, Way], Any], judge: Callable[[Bench, Any, Any], Outcome]
) -> Outcome | None:
    """What is measured of calls that are repeated, judged; None if they do not come to the flagged line."""
    bad = measure(bench, bench.flagged, way)
    if not bad.run.reached:
        bench.note(bad.run.trouble)
        return None
    other = bench.same(way)
    good = None if other is None or bench.corrected is None else measure(bench, bench.corrected, other)
    return replace(judge(bench, bad, good), how=way.label)


def emptied(bench: Bench) -> int:
    """A line, besides the flagged one, that empties or replaces what that one stores into; 0 if there is none."""
    text, spots = bench.flagged.text, bench.flagged.spots
    tree = ast.parse(text)
    stored = [(target, around(tree, spot.first)) for spot in spots for target in stores(text, spot)]
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if any(spot.first <= line <= spot.last for spot in spots) or owner_of_init(text, line):
            continue
        for target in changed(node):
            if any(may_be_one(target, around(tree, line), *one) for one in stored):
                return int(line)
    return 0


def around(tree: ast.Module, line: int) -> list[ast.AST]:
    """The classes and functions around a line, outermost first."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node for node in ast.walk(tree) if isinstance(node, kinds))
    return [node for node in found if node.lineno <= line <= (node.end_lineno or 0)]


def may_be_one(one: ast.expr, here: list[ast.AST], other: ast.expr, there: list[ast.AST]) -> bool:
    """Whether two expressions may be one container: attributes of `self` in related classes, names of one function."""
    name = last_name(one)
    if not name or name != last_name(other):
        return False
    if isinstance(one, ast.Name) and isinstance(other, ast.Name):
        return here == there or not (own(name, here) or own(name, there))
    if of_self(one) and of_self(other):
        classes = [[node for node in place if isinstance(node, ast.ClassDef)] for place in (here, there)]
        mine, yours = (next(iter(found), None) for found in classes)
        return mine is yours or mine is None or yours is None or derives(mine, yours) or derives(yours, mine)
    return isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute)


def own(name: str, place: list[ast.AST]) -> bool:
    """Whether a name is one of the innermost function's own variables or parameters."""
    function = next((node for node in reversed(place) if not isinstance(node, ast.ClassDef)), None)
    inner = list(ast.walk(function)) if function is not None else []
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in inner):
        return False
    given = {node.arg for node in inner if isinstance(node, ast.arg)}
    return name in given | {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def derives(child: ast.ClassDef, parent: ast.ClassDef) -> bool:
    """Whether a class names another one among its bases."""
    return any(last_name(base(item)) == parent.name for item in child.bases)


def of_self(node: ast.expr) -> bool:
    """Whether an expression is an attribute of `self`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def owner_of_init(text: str, line: int) -> bool:
    """Whether a line is in a constructor, or outside all functions: there things begin."""
    return not line or owner_of(text, line)[0] in ("__init__", "<module>")


def last_name(node: ast.expr) -> str:
    """The name of a variable or attribute."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or call binds anew, deletes or empties."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (base(part) for target in targets for part in parts(target))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield base(target)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in EMPTIES:
            yield base(value)
