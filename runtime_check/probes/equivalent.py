"""Equivalent: flagged and corrected code give bit-identical results, gradients and random states.

Confirmed here is good news: harmless today, and the fix is safe. A program compared with itself shows
nothing and is refuted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from runtime_check import placeholder
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.probes.gradients import Record, recorded
from runtime_check.trace import Enough

#: Rules that may be about memory that is not set to anything.
MEMORY = {"TL109"}


@dataclass
class State:
    """All that a run leaves behind."""

    run: Run
    result: values.Result
    values: dict[str, object] = field(default_factory=dict)
    random: int = 0

    @property
    def ended(self) -> bool:
        """Whether the run came to its end, so that what only one run has counts."""
        return self.run.error is None


@contextmanager
def random_state(into: list[int]) -> Iterator[None]:
    """Notes where the random generator stands at the end."""
    try:
        yield
    finally:
        into.append(values.drawn())


def measure(bench: Bench, program: Program, way: Way) -> State:
    """Runs a program and collects everything that could differ."""
    record, random = Record(Run(way.label)), [0]
    result = values.measure(bench, program, way, recorded(record), random_state(random))
    found = dict(result.values)
    for number, gradients in enumerate(record.backwards, 1):
        found.update({f"gradient {number} of {leaf}": g for leaf, g in gradients.items()})
    return State(result.run, result, found, random[-1])


def probe(bench: Bench) -> Outcome:
    """Confirmed when nothing differs between two programs that are not the same, or their imports give the same."""
    outcome = judge_imports(bench)
    if outcome is not None:
        return outcome
    return contrast(bench, lambda program, way: measure(bench, program, way), lambda bad, good: judge(bench, bad, good))


def judge_imports(bench: Bench) -> Outcome | None:
    """The outcome for an import from torch: whether the corrected one binds the same objects; None for other lines."""
    if bench.corrected is None or bench.flagged.text == bench.corrected.text:
        return None
    way = Way("the import by itself", dict)
    found = []
    for program in (bench.flagged, bench.corrected):
        node = imported(program)
        if node is None:
            return None
        code = compile(ast.Module([node], []), program.path, "exec")
        names: dict[str, object] = {}
        run = bench.run(program, replace(way, run=partial(exec, code, names)), traced=False)
        if run.error is not None:
            return None
        found.append({name: value for name, value in names.items() if name != "__builtins__"})
    one, two = found
    same = [name for name in one if name in two and one[name] is two[name]]
    if not one or len(same) < len({*one, *two}):
        return None
    row = Evidence("names that stand for the same object", str(len(same)), "names imported", str(len(one)))
    why = f"`{same[0]}` is the same object {bench.against}: harmless here, and safe to fix"
    return Outcome(Verdict.CONFIRMED, why, (row,), way.label)


def imported(program: Program) -> ast.stmt | None:
    """The import from torch at the one watched place of a program."""
    lines = {spot.first for spot in program.spots}
    for node in ast.walk(ast.parse(program.text)):
        if isinstance(node, ast.ImportFrom) and {node.lineno} == lines and not node.level:
            plain = all(alias.name != "*" for alias in node.names)
            return node if plain and (node.module or "").partition(".")[0] == "torch" else None
    return None


def judge(bench: Bench, bad: State, good: State | None) -> Outcome:
    """The outcome of one way of running the program."""
    if bench.corrected is None or good is None:
        return cannot_tell(f"{bench.absent}, to compare with")
    broken = not bad.result.usable or not good.result.usable
    if raises_alone(bench, bad, good):
        row = Evidence("error at the end", "none", bench.against, type(good.run.error).__name__)
        return Outcome(Verdict.REFUTED, f"only the fixed program raises: {good.run.trouble}", (row,))
    if broken and not same_end(bad.run, good.run):
        return doubtful(bad.run if not bad.result.usable else good.run, "a run did not end")
    one, two = {**bad.values, **bad.result.passing}, {**good.values, **good.result.passing}
    compared = len(set(one) & set(two))
    if bench.flagged.text == bench.corrected.text:
        row = Evidence("lines that the correction changes", "0", "values compared", str(compared))
        return Outcome(Verdict.REFUTED, "the corrected program is the same: there is nothing to compare", (row,))
    if bad.result.start and good.result.start and bad.result.start != good.result.start:
        return cannot_tell("the two runs have drawn other random numbers before they came to the flagged line")
    found = values.gaps(one, two, exact=True)
    outcome = judge_ends(bench, bad, good) if bad.ended and good.ended else None
    if outcome is not None:
        return outcome
    lasting = values.steady(bench, found, bad.result, exact=True)
    unset = [gap.path for gap in found if is_memory(bench) and alike(one[gap.path], two[gap.path])]
    found = [gap for gap in found if gap.path not in unset]
    lasting = [gap for gap in lasting if gap.path not in unset]
    if found and not lasting:
        return cannot_tell("two runs of the flagged program differ as well")
    found = lasting
    if found:
        row = Evidence(found[0].path, found[0].one, bench.against, found[0].other)
        return Outcome(Verdict.REFUTED, f"{found[0].path} is not bit for bit the same", (row,))
    if bad.ended and good.ended and bad.random != good.random:
        row = Evidence("state of the random generator", "differs", "values compared", str(compared))
        return Outcome(Verdict.REFUTED, "the programs draw different random numbers", (row,))
    if not compared:
        return doubtful(bad.run, "the program left no value to compare")
    row = Evidence("values that differ in a bit", "0", "compared", str(compared))
    what = "1 value is" if compared == 1 else f"{compared} values and gradients are"
    why = f"{what} bit for bit the same {bench.against}: harmless here, and safe to fix"
    if unset:
        why = f"{compared} values have the same form {bench.against}, {len(unset)} of them memory that is not set yet"
        row = Evidence("values of another shape or type", "0", "compared", str(compared))
    if broken:
        why += f" (both programs end alike: {bad.run.trouble})"
    return Outcome(Verdict.CONFIRMED, why, (row,))


def judge_ends(bench: Bench, bad: State, good: State) -> Outcome | None:
    """The outcome where two runs leave other results behind, or one that requires a gradient and one that does not."""
    both = set(bad.values) & set(good.values)
    alone = sorted(set(bad.values) ^ set(good.values))
    if alone:
        row = Evidence("results that only one program has", str(len(alone)), "in both", str(len(both)))
        return Outcome(Verdict.REFUTED, f"only one program has {alone[0]}", (row,))
    told = sorted((bad.result.recording ^ good.result.recording) & both)
    if told:
        one, other = ("yes" if told[0] in each.result.recording else "no" for each in (bad, good))
        row = Evidence(f"{told[0]} requires a gradient", one, bench.against, other)
        return Outcome(Verdict.REFUTED, f"{told[0]} requires a gradient in one program only", (row,))
    return None


def is_memory(bench: Bench) -> bool:
    """Whether the flagged line makes memory that is not set to anything, which holds what was there before."""
    lines = (bench.case.corrected or "").splitlines()
    return bench.case.code in MEMORY and any(
        "empty" in line for spot in bench.case.mended for line in lines[spot.first - 1 : spot.last])


def alike(one: object, two: object) -> bool:
    """Whether two values are tensors of one shape and type."""
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return False
    return bool(one.shape == two.shape and one.dtype == two.dtype)


def raises_alone(bench: Bench, bad: State, good: State) -> bool:
    """Whether the corrected program ends in an error of its own where the flagged one goes on, each time.

    Where the flagged one was stopped because it was enough, the other must have come less far.
    """
    error = good.run.error
    outside = isinstance(error, (ImportError, MemoryError, OSError)) or missing(error)  # what this machine lacks
    if good.result.usable or good.run.stopped or outside or not isinstance(error, Exception):
        return False
    further = isinstance(bad.run.error, Enough) and bad.result.executions > good.result.executions
    same = bench.corrected is None or bench.flagged.text == bench.corrected.text
    if not (bad.ended or further) or bad.run.stopped or bench.way is None or same:
        return False
    return values.measure(bench, bench.flagged, bench.way).usable


def same_end(one: Run, other: Run) -> bool:
    """Whether two runs got past the flagged line and came to the same error elsewhere: the code's own fault.

    An error of something that is missing here is not the code's.
    """
    fine = all(run.reached and not run.raised and isinstance(run.error, Exception) for run in (one, other))
    alike = (type(one.error), str(one.error)) == (type(other.error), str(other.error))
    return fine and alike and not missing(one.error)


def missing(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is about a placeholder."""
    while error is not None:
        if isinstance(error, placeholder.MissingError) or "Missing" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
