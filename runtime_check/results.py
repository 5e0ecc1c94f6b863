"""What a run of `torchlint confirm` hands to its reports: frozen data."""
from __future__ import annotations

import re
from dataclasses import dataclass

from runtime_check.evidence import Environment, Outcome, Verdict
from torchlint.findings import Finding
from torchlint.results import Problem


@dataclass(frozen=True)
class Result:
    """A finding and what running the code said about it."""

    finding: Finding
    outcome: Outcome
    claim: str = ""  # the claim's name; "" for a rule that makes none
    repeat: str = ""  # the command that runs this experiment again
    next_step: str = ""  # what a reader can do where nothing could be told

    @property
    def subject(self) -> str:
        """The class that was examined: the first name that the message quotes."""
        found = re.search(r"`([^`]+)`", self.finding.message)
        return found[1] if found else self.finding.name

    @property
    def harmless(self) -> bool:
        """Whether what was confirmed is that nothing changes: good news, and no reason to fail."""
        return self.claim == "Equivalent" and self.outcome.verdict is Verdict.CONFIRMED


@dataclass(frozen=True)
class Confirmation:
    """All results, in the order of the findings."""

    results: tuple[Result, ...] = ()
    errors: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Environment | None = None  # None if nothing had to be run
    seconds: float = 0.0
    examined: tuple[Result, ...] = ()  # classes that no finding is about, but that were run to be judged

    def count(self, verdict: Verdict) -> int:
        """How many results have this verdict."""
        return sum(result.outcome.verdict is verdict for result in self.results)

    @property
    def harmless(self) -> int:
        """How many of the confirmed results are good news."""
        return sum(result.harmless for result in self.results)

    @property
    def unclaimed(self) -> int:
        """How many findings are of rules that make no claim: of these nothing can be told."""
        return sum(not result.claim for result in self.results)

    def counts(self) -> dict[str, int]:
        """Results by verdict; each result is counted once, so those that are harmless or have no claim apart."""
        apart = {Verdict.CONFIRMED: self.harmless, Verdict.CANNOT_TELL: self.unclaimed}
        found = {verdict.value: self.count(verdict) - apart.get(verdict, 0) for verdict in Verdict}
        return {**found, "harmless": self.harmless, "no_claim": self.unclaimed}
