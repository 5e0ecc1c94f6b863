"""Colour for terminals: whether to use it, and how to put it around text."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO

from torchlint.findings import Severity

Paint = Callable[[str, str], str]  # (text, style) -> text

STYLES = {"bold": "1", "dim": "2", "red": "1;31", "yellow": "1;33", "blue": "1;34", "green": "1;32"}
SEVERITY_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.ADVICE: "blue"}


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether output to `stream` should be coloured.

    Only on a terminal, and never when NO_COLOR is set to anything (https://no-color.org) or the
    terminal is called "dumb". FORCE_COLOR asks for it where there is no terminal.
    """
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    if environ.get("FORCE_COLOR"):
        return True
    try:
        return stream.isatty()
    except ValueError:  # the stream is closed
        return False


def painter(colour: bool) -> Paint:
    """A function that puts a style of `STYLES` around text, or that leaves text alone."""
    if not colour:
        return lambda text, style: text
    return lambda text, style: f"\x1b[{STYLES[style]}m{text}\x1b[0m"
