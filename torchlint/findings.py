"""What the linter says about code: frozen data that imports nothing of torchlint.

Lines and columns are 1-based, columns count characters, ends are exclusive.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How bad it is: a wrong result or crash, a cost or risk, or old and fragile style."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


class Safety(str, enum.Enum):
    """What a fix promises.

    SAFE keeps behaviour, or turns a certain crash into what was meant. UNSAFE changes what runs.
    SHOW is displayed and never applied.
    """

    SAFE = "safe"
    UNSAFE = "unsafe"
    SHOW = "show"

    @property
    def rank(self) -> int:
        """0 for SAFE, rising as the promise gets weaker."""
        return list(Safety).index(self)


class Confidence(enum.IntEnum):
    """How sure the weakest fact behind a finding is; a higher number is surer."""

    GUESS = 1
    LIKELY = 2
    SURE = 3

    @property
    def word(self) -> str:
        """The lower-case word used in reports."""
        return self.name.lower()


@dataclass(frozen=True, order=True)
class Span:
    """A stretch of source text; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, order=True)
class Edit:
    """Replace the text of `span` by `text`. An empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together: all are applied or none."""

    safety: Safety
    title: str
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()  # import statements that the new text needs, e.g. "import torch"


@dataclass(frozen=True)
class Finding:
    """One report about one place."""

    path: str
    span: Span
    code: str
    name: str
    severity: Severity
    confidence: Confidence
    message: str
    url: str = ""
    fix: Fix | None = None
    cell: int | None = None
    fingerprint: str = ""

    @property
    def order(self) -> tuple[str, int, int, int, str, str]:
        """Sort key: place first, then code."""
        return (self.path, self.cell or 0, self.span.line, self.span.column, self.code, self.message)
