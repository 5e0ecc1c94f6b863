"""What a run showed: frozen data that survives a process boundary as one JSON line.

No number stands alone: every `Evidence` row carries what it is compared with.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

#: How the reason begins where code ends in an error of its own, whatever it is given.
OWN_FAULT = "it ends in its own error"


class Verdict(str, enum.Enum):
    """What running the code says about a finding.

    CONFIRMED: the predicted symptom was measured, and it is absent where it should be absent.
    REFUTED: the flagged code ran and the predicted symptom did not occur.
    NOT_REACHED: the flagged code was never executed. CANNOT_TELL: it ran or broke, and the
    measurement allows no conclusion; every failure of the checker itself is of this kind.
    """

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_REACHED = "not-reached"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class Evidence:
    """One measured value, and the value that it is compared with."""

    label: str
    value: str
    against: str  # what the compared value is, e.g. "with the correction"
    compared: str  # the compared value

    @property
    def text(self) -> str:
        """One line for a report."""
        return f"{self.label}: {self.value} ({self.against}: {self.compared})"


@dataclass(frozen=True)
class Environment:
    """Where the code was run. A verdict holds for this torch and device only."""

    torch: str
    python: str
    platform: str
    device: str = "cpu"


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment: verdict, reason in one sentence, evidence, how it was run."""

    verdict: Verdict
    why: str
    evidence: tuple[Evidence, ...] = ()
    how: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] = ()  # that were read, or looked for in vain; not part of a report
    loaded: tuple[str, ...] = ()  # files of the project of which code was run; neither

    def as_row(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "verdict": self.verdict.value,
            "why": self.why,
            "evidence": [asdict(row) for row in self.evidence],
            "how": self.how,
            "seconds": round(self.seconds, 3),
        }

    def to_line(self) -> str:
        """One JSON line without the line end."""
        row = {**self.as_row(), "files": self.files, "loaded": self.loaded}
        return json.dumps(row, ensure_ascii=True, separators=(",", ":"))

    @staticmethod
    def from_row(row: dict[str, Any]) -> Outcome:
        """The outcome that `as_row` described. ValueError, KeyError or TypeError for anything else."""
        names = {field.name for field in fields(Evidence)}
        rows = tuple(Evidence(**{k: str(v) for k, v in e.items() if k in names}) for e in row["evidence"])
        verdict, seconds = Verdict(row["verdict"]), float(row["seconds"])
        files, loaded = (tuple(str(path) for path in row.get(name, ())) for name in ("files", "loaded"))
        return Outcome(verdict, str(row["why"]), rows, str(row["how"]), seconds, files, loaded)

    @staticmethod
    def from_line(line: str) -> Outcome:
        """The outcome written by `to_line`. ValueError, KeyError or TypeError for anything else."""
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("an outcome is a JSON object")
        return Outcome.from_row(row)


def cannot_tell(why: str, evidence: Iterable[Evidence] = (), how: str = "") -> Outcome:
    """An outcome without a conclusion."""
    return Outcome(Verdict.CANNOT_TELL, why, tuple(evidence), how)


def not_reached(why: str, how: str = "") -> Outcome:
    """An outcome for code that was never executed."""
    return Outcome(Verdict.NOT_REACHED, why, (), how)
