"""What runs of one program have shown about how it can be run, so that its corrected form is run by the same."""
from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from runtime_check import again, unbound
from runtime_check.evidence import Outcome, Verdict
from runtime_check.lazy import wanted
from runtime_check.specs import Assignment

if TYPE_CHECKING:
    from runtime_check.extract import Namespace
    from runtime_check.plan import Case, Lines

#: What layers say of images that are too small for the network.
CRAMPED = re.compile(r"more than 1 (spatial element|value per channel)|[Kk]ernel size can't be greater than|"
                     r"[Oo]utput size is too small|[Pp]adding size should be less than")
#: Which names that nothing binds may have stand-ins, by the claim, where these are not those of data: all where both
#: programs are given the same and are compared, none where an exception is what is claimed.
STANDS = {"Equivalent": "all", "Raises": "", "ExecutesCode": ""}
STANDING = ", with stand-ins for names that nothing binds"


@dataclass
class Learned:
    """What is known of one program. `standing`: which names that nothing binds may have stand-ins, but for those
    that are `barred`: none, those of "data", or "all"."""

    complaint: str = ""  # of a loss about the shape of a target, in an earlier run
    cramped: bool = False  # small images are too small
    standing: str = ""
    barred: frozenset[str] = frozenset()
    lacking: bool = False  # a run ended where it read a name that nothing binds, and that can have a stand-in
    told: tuple[str, ...] = ()  # the stand-ins that were given, each in a sentence
    chosen: dict[str, Assignment] = field(default_factory=dict)  # arguments that searches have found

    @classmethod
    def of(cls, case: Case) -> Learned:
        """What is known before the first run."""
        return cls(standing=STANDS.get(case.claim.name, "data"), barred=read_at(case.text, case.flagged))

    def tell(self, outcome: Outcome, label: str) -> Outcome:
        """The outcome of a run, told with its stand-ins; that these do not show what is claimed refutes nothing."""
        if STANDING not in label:
            return outcome
        unsure = outcome.verdict is Verdict.REFUTED and self.standing != "all"
        verdict = Verdict.CANNOT_TELL if unsure else outcome.verdict
        return replace(outcome, verdict=verdict, why="; ".join([outcome.why, *self.told]))

    def copy(self) -> Learned:
        """The same, which what is learned later does not change, with the arguments that were found last."""
        return replace(self, chosen=again.found())

    def take(self, error: Exception, space: Namespace) -> None:
        """Learns from what a run has raised."""
        text = str(error)
        if wanted(text) is not None:
            self.complaint = text
        if CRAMPED.search(text):
            self.cramped = True
        if self.standing and type(error) is NameError and error.name and error.name not in self.barred:
            place = raised_in(error, space)
            self.lacking |= place is not None and self.stand_in(place, error.name, space) is not None

    def stand_in(self, place: Namespace, name: str, main: Namespace, choice: int = 0) -> tuple[str, Any] | None:
        """What may stand for a name that nothing binds."""
        if not unbound.is_unbound(place, name):
            return None
        found = unbound.data(place, name, choice, self.complaint)
        return found or (unbound.other(place, name, main) if self.standing == "all" else None)

    def say(self, sentence: str) -> None:
        """Takes note of a stand-in that was given."""
        if sentence not in self.told:
            self.told = (*self.told, sentence)


@contextlib.contextmanager
def standing_for(space: Namespace, learned: Learned, choice: int | None) -> Iterator[None]:
    """While it lasts, names that nothing binds have stand-ins, with data of a form; none if that is None."""
    made: dict[str, Any] = {}

    def make(place: Namespace, name: str) -> Any:
        if name not in made and name not in learned.barred:
            found = learned.stand_in(place, name, space, choice or 0)
            if found is None:
                return None
            made[name] = found[1]
            learned.say(f"`{name}` is bound nowhere in {place.path.rpartition('/')[2]}: {found[0]} stood in for it")
        return made.get(name)

    with contextlib.nullcontext() if choice is None else unbound.standing_in(make):
        yield


def read_at(text: str, spots: Sequence[Lines]) -> frozenset[str]:
    """Names that are read on some lines of a text."""
    with contextlib.suppress(SyntaxError, ValueError):
        return frozenset(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
                         and any(spot.first <= node.lineno <= spot.last for spot in spots))
    return frozenset()


def raised_in(error: Exception, space: Namespace) -> Namespace | None:
    """The namespace whose code an error comes from."""
    trace: types.TracebackType | None = error.__traceback__
    path = ""
    while trace is not None:
        path, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return next((one for one in [space, *space.loader.spaces.values()] if one.path == path), None)
