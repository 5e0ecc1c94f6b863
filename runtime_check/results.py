"""What a run of `torchlint confirm` hands to its reports: frozen data."""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from runtime_check.evidence import Environment, Outcome, Verdict
from torchlint.files import Source
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

    def counts(self, fail_on: Collection[str]) -> bool:
        """Whether it is of a kind that fails a build. What was not reached counts as what cannot be told.

        One that was shown to be harmless counts for nothing, and one whose rule makes no claim neither: a style that
        changes no result, and what no run could ever tell, must not fail a build.
        """
        verdict = self.outcome.verdict
        kinds = {verdict, Verdict.CANNOT_TELL} if verdict is Verdict.NOT_REACHED else {verdict}
        return bool(self.claim) and not self.harmless and any(kind.value in fail_on for kind in kinds)


@dataclass(frozen=True)
class Confirmation:
    """All results, in the order of the findings."""

    results: tuple[Result, ...] = ()
    errors: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Environment | None = None  # None if nothing had to be run
    seconds: float = 0.0
    examined: tuple[Result, ...] = ()  # classes that no finding is about, but that were run to be judged
    sources: Mapping[str, Source] = field(default_factory=dict)  # of the files with findings, by path

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
