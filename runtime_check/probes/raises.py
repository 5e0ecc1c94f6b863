"""Raises: running the flagged code raises the exception that the rule names.

An exception under guessed inputs proves nothing by itself: it must be of the named type, fit the
claim's pattern, and come through the flagged code or be about nothing else; and the corrected
program, run in the same way, must get past that point.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.plan import Lines
from runtime_check.probes import backwards, shadowed
from runtime_check.probes.bench import Bench, Program, Run, Way, doubtful, first_decisive
from runtime_check.sandbox import shorten
from runtime_check.trace import class_around, frames_of
from torchlint.claims import Raises

#: Rules that flag a definition whose error comes where an instance of the class is called.
INSTANCE_CALLS = {"TL301", "TL302"}
#: Rules about what torch calls on a Module, whether the program does or not.
SHADOWED = {"TL414", "TL418"}
OUTPUT = "TL420"  # about a forward that returns None, whether that is used or not
LATER = {"TL202", "TL510"}  # about what one step leaves for the next
TWICE = 2
ALONE = "alone"  # the kind of a way that is the flagged call without what is around it


def probe(bench: Bench) -> Outcome:
    """Confirmed when the flagged program raises as claimed and the corrected one does not."""
    claim = bench.case.claim
    if not isinstance(claim, Raises):
        return cannot_tell(f"the claim {claim.name} names no exception")
    backwards.with_copies(bench)
    if bench.case.code in SHADOWED or bench.case.code == OUTPUT:
        outcome = shadowed.probe_output(bench) if bench.case.code == OUTPUT else shadowed.probe(bench)
        if outcome.verdict in (Verdict.CONFIRMED, Verdict.REFUTED):
            return outcome
    later = first_decisive(bench, ways(bench), lambda way: judge(bench, claim, way), most=6)
    return outcome if bench.case.code == OUTPUT and later.verdict is Verdict.REFUTED else later


def ways(bench: Bench) -> Iterator[Way]:
    """The usual ways; for definitions used through instances, where the instances are called too."""
    seen: set[str] = set()
    lines: list[int | None] = [None]
    if bench.case.code in INSTANCE_CALLS:
        lines = [*instance_calls(bench.flagged.text, bench.flagged.spots), None]
    for line in lines:
        for way in bench.ways(bench.flagged, line):
            if way.label not in seen:
                seen.add(way.label)
                yield way
    for name in called_instances(bench):
        yield Way(f"{name}() called by itself with a made-up argument", partial(call_instance, bench, name), ALONE)


def called_instances(bench: Bench) -> list[str]:
    """Classes at the flagged places whose instances the program calls: defined there, or called there."""
    if bench.case.code not in INSTANCE_CALLS:
        return []
    text, spots = bench.flagged.text, bench.flagged.spots
    around = {class_around(text, spot.first) for spot in spots}
    tree = ast.parse(text)
    known = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Call(func=ast.Name(id=name)), lineno=line) if name in known:
                if name in around or any(spot.first <= line <= spot.last for spot in spots):
                    found.append(name)
    return list(dict.fromkeys(found))


def call_instance(bench: Bench, name: str) -> object:
    """Calls an instance of a Function; torch refuses before it looks at the argument."""
    function: Any = bench.flagged.space.resolve(name)
    return function()(torch.ones(2))


def call_apply(bench: Bench, name: str) -> object:
    """The control: the same class through `apply`."""
    function: Any = bench.flagged.space.resolve(name)
    return function.apply(torch.ones(2))


def instance_calls(text: str, spots: tuple[Lines, ...]) -> list[int]:
    """Lines where a class defined around a spot is called and its instance called in turn: `Fn()(x)`."""
    tree = ast.parse(text)
    names = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(node.lineno <= spot.first <= (node.end_lineno or 0) for spot in spots)
    }
    made = {
        ast.unparse(node.targets[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and creates(node.value, names)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (creates(node.func, names) or ast.unparse(node.func) in made):
            found.append(node.lineno)
    return found


def creates(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a call of one of the classes."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in names
    return False


def fits(claim: Raises, error: BaseException) -> bool:
    """Whether an exception is the one that is claimed; its name is a pattern, too."""
    kinds = (kind.__name__ for kind in type(error).__mro__)
    named = any(re.fullmatch(rf"(?:[\w.]*\.)?(?:{claim.exception})", kind) for kind in kinds)
    return named and re.search(claim.match, str(error)) is not None


def through(program: Program, error: BaseException) -> bool:
    """Whether an exception came through the flagged statements, or the bodies that they head."""
    stretches = [body_of(program.text, spot) for spot in program.spots]
    return any(
        path == program.path and any(s.first <= line <= s.last for s in stretches) for path, line, _ in frames_of(error)
    )


def concerns(program: Program, error: BaseException) -> bool:
    """Whether an exception can come from the flagged code: a function of its own may fail for reasons of its own.

    It can if it was raised in the flagged function or in one that names it. What a method leaves in its object may
    raise anywhere, and so may code outside of functions.
    """
    if through(program, error):
        return True
    lines = program.text.splitlines()
    if any(".backward(" in line for spot in program.spots for line in lines[spot.first - 1 : spot.last]):
        return False  # that statement would have raised it itself
    tree = ast.parse(program.text)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    methods = {item for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    places = {line for path, line, _ in frames_of(error) if path == program.path}
    passed = [node for node in functions if any(node.lineno <= line <= (node.end_lineno or 0) for line in places)]
    if not passed:
        return True
    for spot in program.spots:
        around = [node for node in functions if node.lineno <= spot.first <= (node.end_lineno or 0)]
        if not around or any(node in methods for node in around):
            return True
        if any(node in around or names_any(node, {one.name for one in around}) for node in passed):
            return True
    return False


def names_any(node: ast.AST, names: set[str]) -> bool:
    """Whether code reads one of some names."""
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def body_of(text: str, spot: Lines) -> Lines:
    """A spot, or the whole definition that it heads."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.lineno == spot.first:
            return Lines(spot.first, node.end_lineno or spot.last)
    return spot


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it was raised from: a search for arguments ends with its best failure."""
    while error is not None:
        yield error
        error = error.__cause__


def predicted(claim: Raises, program: Program, run: Run) -> BaseException | None:
    """The claimed exception in a run, whether it ended the run or was caught by the code.

    Without a pattern to recognise it by, it must come through the flagged code.
    """
    for error in (*run.raised, *run.backward_errors, *causes(run.error)):
        if fits(claim, error) and (claim.match or through(program, error)):
            return error
    return None


def judge(bench: Bench, claim: Raises, way: Way) -> Outcome | None:
    """The outcome of one way of running the program."""
    run, back = backwards.run(bench, bench.flagged, way)
    error = predicted(claim, bench.flagged, run) or shown(bench, claim, bench.flagged, back)
    if error is None:
        return without(claim, bench, run, back)
    text = f"{type(error).__name__}: {shorten(str(error).splitlines()[0] if str(error) else '', 110)}"
    places = [f"line {line}" for path, line, _ in frames_of(error) if path == bench.flagged.path]
    where = "a backward from what the call returns" if error is back.failed else "the call"
    what = f"{places[-1] if places else where} raises {text}"
    if error is back.failed and back.further:
        return cannot_tell(f"{what}, but none from its first output alone does", how=way.label)
    if not concerns(bench.flagged, error):
        return cannot_tell(f"{what}, which is not where the flagged code runs", how=way.label)
    other = bench.same(way)
    if way.kind == ALONE:
        name = way.label.split("(")[0]
        control = bench.run(bench.flagged, Way(way.label, partial(call_apply, bench, name)), limit=0)
        refused = predicted(claim, bench.flagged, control)
        row = Evidence("called through an instance", text, "through apply", control.trouble or "runs")
        if refused is not None:
            return cannot_tell("the class is refused through apply as well", (row,), way.label)
        return Outcome(Verdict.CONFIRMED, what, (row,), way.label)
    if bench.corrected is None or other is None:
        # Guessed arguments may be at fault for an exception elsewhere; the flagged line is not guessed.
        if claim.match and (through(bench.flagged, error) or not way.made_up):
            row = Evidence("raised by the flagged code", text, "claimed", f"{claim.exception} /{claim.match}/")
            return Outcome(Verdict.CONFIRMED, what, (row,), way.label)
        return cannot_tell(f"{what}, and there is no corrected program to compare with", how=way.label)
    good, after = backwards.run(bench, bench.corrected, other)
    rows = (Evidence("flagged program", text, bench.against, good.trouble or "runs to its end"),)
    same = predicted(claim, bench.corrected, good) or shown(bench, claim, bench.corrected, after)
    if same is not None:
        return cannot_tell(f"the corrected program raises {type(same).__name__} as well", rows, way.label)
    if error is back.failed and (good.trouble or after.failed is not None or not after.ours):
        return cannot_tell(f"{what}, and no backward could be run through the corrected program", rows, way.label)
    return Outcome(Verdict.CONFIRMED, what, rows, way.label)


def shown(bench: Bench, claim: Raises, program: Program, back: backwards.Backwards) -> BaseException | None:
    """The claimed exception in a backward that the check has added; of other rules it must come through the code."""
    error = back.failed
    if error is None or not fits(claim, error):
        return None
    return error if bench.case.code in backwards.RULES or through(program, error) else None


def without(claim: Raises, bench: Bench, run: Run, back: backwards.Backwards) -> Outcome | None:
    """The outcome of a run in which the claimed exception did not occur."""
    if not run.reached:
        bench.note(run.trouble)
        return None
    if run.trouble:
        return doubtful(run, f"{claim.exception} was not raised before the run ended")
    if bench.case.code in LATER and run.hits < TWICE and not bench.case.whole:
        return doubtful(run, "the flagged line ran once, and the fault shows from the second time on")
    if bench.case.code in backwards.RULES and not bench.case.whole:
        if back.failed is not None:
            said = f"{type(back.failed).__name__}: {shorten(str(back.failed), 100)}"
            return doubtful(run, f"a backward from what the call returns ends with another error ({said})")
        if not back.ours and not back.count:
            return doubtful(run, "no backward could be run through what the flagged code makes")
    row = Evidence("exceptions", "none", "claimed", f"{claim.exception} /{claim.match}/")
    return Outcome(Verdict.REFUTED, "the flagged code runs without the claimed exception", (row,), run.label)
