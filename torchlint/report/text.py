"""Reports for people: `full` with source and reasons, `concise` with one line a finding."""
from __future__ import annotations

import textwrap
from collections.abc import Iterable

from torchlint.docs import explain
from torchlint.findings import Confidence, Finding, Fix, Safety
from torchlint.report.colour import SEVERITY_STYLES, Paint, painter
from torchlint.report.common import by_severity, plural, rules_by_code, title, visible, width
from torchlint.results import Made, Proof, Report

LINE_WIDTH = 100  # of reasons and of excerpts of source, unless told otherwise
LEAST_WIDTH = 40
TAB = 4
MARK = "^"
_FIX_HINTS = {
    Safety.SAFE: "--fix applies it",
    Safety.UNSAFE: "--fix --unsafe-fixes applies it: it changes what runs, so look at the result",
    Safety.SHOW: "to be made by hand",
}
_FIX_TAGS = {Safety.SAFE: ["fix"], Safety.UNSAFE: ["unsafe fix"], Safety.SHOW: []}


def concise(report: Report, *, colour: bool = False) -> str:
    """One line for each finding, in the form that editors and scripts read: path:line:column: ..."""
    paint = painter(colour)
    lines = []
    for finding in report.findings:
        tags = _FIX_TAGS[finding.fix.safety] if finding.fix else []
        lines.append(_headline(finding, paint, tags) + "\n")
    return "".join(lines)


def full(report: Report, *, colour: bool = False, summary: bool = True, columns: int = LINE_WIDTH) -> str:
    """What was fixed, each finding with its line of source, and a summary unless that is not wanted.

    Why it matters and what to do is said where a rule is first met: a file with one fault forty
    times does not repeat it forty times. `columns` is how long lines of reasons and source get.
    """
    paint = painter(colour)
    columns = max(columns, LEAST_WIDTH)
    rules = rules_by_code(report)
    told: set[str] = set()
    blocks = ["".join(_made(made, paint) for made in report.made) + "\n"] if report.made and summary else []
    for finding in report.findings:
        lines = [_headline(finding, paint), *_excerpt(report.line(finding), finding, paint, columns)]
        rule = rules.get(finding.code)
        if rule is not None and finding.code not in told:
            told.add(finding.code)
            reason = explain(rule.doc)
            lines += _remark("why", reason.why, paint, columns) + _remark("do", reason.advice, paint, columns)
        if finding.fix is not None:
            lines += _remark("fix", _hint(finding.fix), paint, columns)
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks) + (_summary(report, paint) if summary else "")


def _headline(finding: Finding, paint: Paint, more_tags: Iterable[str] = ()) -> str:
    """Place, code, name, message, and how bad and how sure it is, on one line."""
    place = visible(finding.path)
    if finding.cell is not None:
        place += f":cell {finding.cell}"
    place = f"{place}:{finding.span.line}:{finding.span.column}"
    name = paint(title(finding), SEVERITY_STYLES[finding.severity])
    doubt = [] if finding.confidence is Confidence.SURE else [finding.confidence.word]
    tags = ", ".join([finding.severity.value, *doubt, *more_tags])
    return f"{paint(place, 'bold')}: {name}: {visible(finding.message)} {paint(f'[{tags}]', 'dim')}"


def _hint(fix: Fix) -> str:
    """What the fix does and how to get it."""
    return f"{visible(fix.title)} ({_FIX_HINTS[fix.safety]})"


def _made(made: Made, paint: Paint) -> str:
    """A fix that was made, on one line, and below it what running the code showed."""
    finding = made.finding
    place = f"{visible(finding.path)}:{finding.span.line}:{finding.span.column}"
    what = f": {visible(finding.fix.title)}" if finding.fix is not None else ""
    proof = "" if made.proof is Proof.NOT_RUN else f"  {made.proof.value}: {visible(made.why)}\n"
    return f"{paint('fixed', 'green')} {place}: {title(finding)}{what}\n{proof}"


def _remark(label: str, said: str, paint: Paint, columns: int) -> list[str]:
    """A labelled paragraph, wrapped and indented."""
    if not said:
        return []
    lines = textwrap.wrap(said, columns - 7, break_long_words=False, break_on_hyphens=False)
    head = paint(f"{label:<4}", "blue")
    return [f"  {head} {lines[0]}", *(f"       {line}" for line in lines[1:])]


def _excerpt(line: str, finding: Finding, paint: Paint, columns: int) -> list[str]:
    """The line of source with marks under the finding; nothing if the line is not known."""
    if not line.strip():
        return []
    span = finding.span
    start = min(span.column - 1, len(line))
    end = span.end_column - 1 if span.end_line == span.line else len(line.rstrip())
    shown, before, size = _laid_out(line, start, max(end, start + 1), columns)
    number = str(span.line)
    gutter = " " * len(number)
    style = SEVERITY_STYLES[finding.severity]
    return [
        f"  {paint(number, 'dim')} | {shown}",
        f"  {gutter} | {' ' * before}{paint(MARK * size, style)}",
    ]


def _laid_out(line: str, start: int, end: int, columns: int) -> tuple[str, int, int]:
    """`line` as a terminal shows it, the column where characters `start` to `end` begin, and their width.

    Tabs become spaces, invisible characters escapes. A long line is cut on both sides.
    """
    cells = []  # what to print for each character, and its width
    column = 0
    for char in line:
        if char == "\t":
            size = TAB - column % TAB
            text = " " * size
        else:
            text = visible(char)
            size = width(char) if text == char else len(text)
        cells.append((text, size))
        column += size
    first, last = _window([size for _, size in cells], start, end, columns)
    left = "…" if first else ""
    right = "…" if last < len(cells) else ""
    shown = left + "".join(text for text, _ in cells[first:last]) + right
    before = len(left) + sum(size for _, size in cells[first:start])
    marked = sum(size for _, size in cells[start : min(end, last)])
    return shown.rstrip(), before, max(marked, 1)


def _window(sizes: list[int], start: int, end: int, columns: int) -> tuple[int, int]:
    """The characters to show, as a range that holds `start` and, if there is room, `end`."""
    if sum(sizes) <= columns:
        return 0, len(sizes)
    first, room = start, columns - 2
    last = start
    while last < min(end, len(sizes)) and room >= sizes[last]:
        room -= sizes[last]
        last += 1
    while first > 0 and room >= sizes[first - 1]:
        first -= 1
        room -= sizes[first]
    while last < len(sizes) and room >= sizes[last]:
        room -= sizes[last]
        last += 1
    return first, last


def _summary(report: Report, paint: Paint) -> str:
    """The last line: how much was found, how much of it can be fixed."""
    fixed = f"Fixed {plural(report.fixed, 'finding')}{_verified(report)}. " if report.fixed else ""
    missed = f" {plural(len(report.errors), 'error')}: not everything was checked." if report.errors else ""
    if not report.findings:
        left = "Nothing left to report" if report.fixed else "Nothing found"
        return f"{fixed}{paint(left, 'green')} in {plural(report.files, 'file')}.{missed}\n"
    counts = [_counted(severity.value, count) for severity, count in by_severity(report).items() if count]
    paths = len({finding.path for finding in report.findings})
    said = f"{plural(len(report.findings), 'finding')} ({', '.join(counts)})"
    said = f"{fixed}{paint(said, 'bold')} in {paths} of {plural(report.files, 'file')}."
    safe, unsafe = report.fixable(Safety.SAFE), report.fixable(Safety.UNSAFE)
    if safe:
        said += f" --fix repairs {safe}."
    if unsafe:
        said += f" --fix --unsafe-fixes repairs {safe + unsafe}."
    rest = len(report.findings) - safe - unsafe
    if report.fixed and rest:
        said += f" {rest} {'is' if rest == 1 else 'are'} left to you."
    return f"{said}{missed}\n"


def _verified(report: Report) -> str:
    """How many fixes were seen to do what they should by running the code."""
    proofs = [made.proof for made in report.made if made.proof is not Proof.NOT_RUN]
    return f" ({sum(proof is Proof.VERIFIED for proof in proofs)} verified by running the code)" if proofs else ""


def _counted(word: str, count: int) -> str:
    """Like `plural`, for the severities: "advice" has no plural."""
    return f"{count} advice" if word == "advice" else plural(count, word)
