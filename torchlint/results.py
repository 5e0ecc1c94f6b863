"""What one run hands to the reports: frozen data."""
from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torchlint import __version__
from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.rule import Rule


@dataclass(frozen=True)
class Problem:
    """Something that kept a part of the job from being done: one line, exit status 2."""

    message: str
    path: str = ""  # "" where it concerns no single path

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Proof(enum.Enum):
    """What running the code before and after a fix showed."""

    NOT_RUN = "not run"  # nobody asked for it
    VERIFIED = "verified"
    UNVERIFIED = "not verified"
    FAILED = "failed"


@dataclass(frozen=True)
class Made:
    """A fix that was made: the finding as it stood when its turn came, and what running it showed."""

    finding: Finding
    proof: Proof = Proof.NOT_RUN
    why: str = ""  # of the proof, one sentence


@dataclass(frozen=True)
class Report:
    """Everything that a report may show.

    `findings` are sorted by place and are those that are left, after fixes if fixes were made.
    `sources` holds the files that have findings, by path, as they are now. `rules` are all rules
    that there are, built-in ones too, by code.
    """

    findings: tuple[Finding, ...] = ()
    errors: tuple[Problem, ...] = ()
    files: int = 0  # looked at, those without torch included
    fixed: int = 0  # findings that --fix removed
    made: tuple[Made, ...] = ()  # what removed them, sorted by file
    sources: Mapping[str, Source] = field(default_factory=lambda: MappingProxyType({}))
    rules: tuple[Rule, ...] = ()
    notes: tuple[str, ...] = ()  # no fault, e.g. a preview rule selected without --preview
    seconds: float = 0.0
    version: str = __version__

    def line(self, finding: Finding) -> str:
        """The physical line on which `finding` begins, without its end; "" if it is not known."""
        source = self.sources.get(finding.path)
        lines = source.lines_of(finding.cell) if source is not None else ()
        return lines[finding.span.line - 1].rstrip("\r\n") if 1 <= finding.span.line <= len(lines) else ""

    def count(self, code: str) -> int:
        """How many findings have this code."""
        return sum(finding.code == code for finding in self.findings)

    def fixable(self, safety: Safety) -> int:
        """How many findings have a fix of exactly this safety."""
        return sum(finding.fix is not None and finding.fix.safety is safety for finding in self.findings)
