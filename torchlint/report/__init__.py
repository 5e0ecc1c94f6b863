"""Reports: pure functions from a `Report` to text. Nothing here prints or reads files."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torchlint.report import github, gitlab, json, junit, sarif, text
from torchlint.report.colour import wants_colour
from torchlint.results import Report

__all__ = ["FORMATS", "render", "wants_colour"]

_PLAIN: Mapping[str, Callable[[Report], str]] = MappingProxyType(
    {
        "json": json.render,
        "github": github.render,
        "sarif": sarif.render,
        "junit": junit.render,
        "gitlab": gitlab.render,
    }
)
FORMATS = ("text", "concise", *_PLAIN)


def render(
    report: Report, form: str = "text", *, colour: bool = False, summary: bool = True, columns: int = text.LINE_WIDTH
) -> str:
    """`report` in one of `FORMATS`, ending in a line break unless it is empty.

    `text` and `concise` leave `report.errors` and `report.notes` to whoever prints, for the error stream.
    `colour` is for `text` and `concise`; `wants_colour(stream)` answers what it should be.
    `summary` is the last line of `text`, `columns` the width that its paragraphs and excerpts get.
    KeyError if there is no such format.
    """
    match form:
        case "text":
            return text.full(report, colour=colour, summary=summary, columns=columns)
        case "concise":
            return text.concise(report, colour=colour)
    return _PLAIN[form](report)
