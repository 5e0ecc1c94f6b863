"""The code of a Jupyter notebook as one source, and findings in it by cell and line.

Names are shared by all cells, so that they are read as one program in the order of the notebook. Lines for IPython
(`%matplotlib inline`, `!pip install`, `model?`) take the place of statements and become `pass`.
"""
from __future__ import annotations

import bisect
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchlint.files import Source, UnreadableFile, read_source
from torchlint.findings import Finding, Span

ENDING = ".ipynb"
_COMMAND = re.compile(r"(?P<indent>\s*)(?:[%!?].*|[\w.%!]+\?{1,2}\s*)$")
_CAPTURED = re.compile(r"(?P<head>\s*[\w\s,.\[\]]+=\s*)[%!].*$")
# Magics of a whole cell whose body is Python; the body of any other is not.
_TIMED = re.compile(r"%%(?:time|timeit|capture|prun|debug)\b")


def read_notebook(path: str | os.PathLike[str], shown: str) -> Source:
    """The code cells of a notebook on disk, one below the other. UnreadableFile if it is no notebook of Python."""
    try:
        data = json.loads(read_source(path, shown).text)
        cells = [cell for cell in data["cells"] if cell["cell_type"] == "code"]
        texts = [_python("".join(cell["source"])) for cell in cells]
        language = data.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile("not a Jupyter notebook of format 4") from None
    if language != "python":
        raise UnreadableFile(f"a notebook of {language}, not of Python")
    lines: list[str] = []
    starts = []
    for text in texts:
        starts.append(len(lines))
        lines += text
    return Source(shown, "".join(f"{line}\n" for line in lines), cells=tuple(starts))


def _python(text: str) -> list[str]:
    """The lines of a cell, with `pass` for what only IPython understands."""
    lines = text.splitlines()
    if lines and lines[0].startswith("%%") and not _TIMED.match(lines[0]):
        return ["" for _ in lines]
    return [_plain(line) for line in lines]


def _plain(line: str) -> str:
    if match := _COMMAND.match(line):
        return f"{match['indent']}pass"
    if match := _CAPTURED.match(line):
        return f"{match['head']}None"
    return line


def by_cell(findings: Iterable[Finding], source: Source) -> Iterator[Finding]:
    """The findings in the code of a notebook by cell and line there; without fixes, which would not reach the file."""
    for finding in findings:
        number = max(bisect.bisect_right(source.cells, finding.span.line - 1), 1)
        first = source.cells[number - 1] if source.cells else 0
        span = finding.span
        moved = Span(span.line - first, span.column, span.end_line - first, span.end_column)
        yield replace(finding, span=moved, cell=number, fix=None)


def in_source(finding: Finding, source: Source) -> Finding:
    """A finding in a cell with its lines in the source of the whole notebook; any other one as it is."""
    if finding.cell is None or not source.cells:
        return finding
    first, span = source.cells[finding.cell - 1], finding.span
    return replace(finding, span=Span(span.line + first, span.column, span.end_line + first, span.end_column))
