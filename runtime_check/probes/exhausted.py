"""What a flagged line gets of an iterator that an earlier use has consumed.

Whatever the line does with parameters, of a generator that is at its end it gets none.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import FrameType

from runtime_check.blame import names_at
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way

END = object()


@dataclass
class Given:
    """What the names that the flagged line reads hold: how many items, 0 for an iterator at its end."""

    run: Run
    items: dict[str, int] = field(default_factory=dict)


def count(value: object) -> int | None:
    """Items of a list or tuple, 0 for an iterator at its end, None for anything else. Takes one from an iterator."""
    if isinstance(value, (list, tuple)):
        return len(value)
    if isinstance(value, types.GeneratorType):
        return 0 if value.gi_frame is None else None
    if isinstance(value, Iterator) and next(value, END) is END:
        return 0
    return None


def measure(bench: Bench, program: Program, way: Way) -> Given:
    """Runs a program and looks before each execution of the flagged line."""
    given = Given(Run(way.label))
    tree = ast.parse(program.text)
    names = [names_at(tree, spot.first) for spot in program.spots]

    def look(frame: FrameType, index: int) -> None:
        for name in names[index]:
            found = count(held_by(frame, name))
            if found is not None:
                given.items.setdefault(name, found)

    given.run = bench.run(program, way, before=look)
    return given


def held_by(frame: FrameType, name: str) -> object:
    """The value of a name or of an attribute of `self` in a frame; None if it has none."""
    first, _, attribute = name.partition(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    return getattr(value, attribute, None) if attribute else value


def used_up(bench: Bench, outcome: Outcome, *, clipping: bool) -> Outcome:
    """The outcome where optimizers and results show nothing: that of looking at what the line gets."""
    other = bench.same(bench.way) if bench.way is not None and bench.corrected is not None else None
    if bench.way is None or other is None or bench.corrected is None:
        return outcome
    mine = measure(bench, bench.flagged, bench.way).items
    theirs = measure(bench, bench.corrected, other).items
    empty = [name for name, number in mine.items() if not number and theirs.get(name)]
    if not empty:
        return outcome
    name = empty[0]
    row = Evidence(f"parameters that the line gets of `{name}`", "0", bench.against, str(theirs[name]))
    rows = (*outcome.evidence, row)
    if clipping:
        why = f"`{name}` is used up, but no gradient here comes near the limit: nothing would be clipped anyway"
        return cannot_tell(why, rows)
    why = f"`{name}` is used up by an earlier line: this one gets none of {theirs[name]} parameters"
    return replace(outcome, verdict=Verdict.CONFIRMED, why=why, evidence=rows)
