"""From a finding, or from a rule's example, to a `Case`: a flagged program and a corrected one.

Nothing is run here and torch is not needed.
"""

from __future__ import annotations

import ast
import difflib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from runtime_check import sandbox
from runtime_check.advice import advised
from torchlint.claims import Claim, Equivalent, GraphGrows, Raises, Warns
from torchlint.files import Source
from torchlint.findings import Edit, Finding, Fix, Safety, Severity
from torchlint.fixes.imports import import_edits
from torchlint.rule import Example, Rule

if TYPE_CHECKING:
    from runtime_check.evidence import Outcome

SECONDS = 10.0
FEW, MANY = 3, 9  # the two sizes of every claim about growth


@dataclass(frozen=True)
class Lines:
    """A stretch of whole lines, 1-based, both ends included."""

    first: int
    last: int
    part: tuple[int, int, int, int] | None = None  # line, byte, line, byte of what need not be evaluated


@dataclass(frozen=True)
class Case:
    """One experiment: what to run, what is claimed of it, and within which limits."""

    key: int
    path: str
    code: str
    name: str
    claim: Claim
    text: str
    flagged: tuple[Lines, ...]  # the statements that the finding, or each marked line, names
    corrected: str | None = None
    mended: tuple[Lines, ...] = ()  # where the flagged statements are in the corrected text
    correction: str = ""  # what the corrected text is, for evidence: "with the fix"
    message: str = ""
    whole: bool = False  # a program that may be run as a whole: a rule's example
    steps: str = ""  # the constant of such a program that sets the number of iterations
    roots: tuple[str, ...] = ()
    device: str = "cpu"
    seconds: float = SECONDS
    memory: int = sandbox.MEMORY
    seed: int = 0
    factories: tuple[tuple[str, str], ...] = ()  # the user's: what is made, path:function
    only: str = ""  # the description of the one way to run it; "" for any


# -- positions ----------------------------------------------------------------------------------


def statement_lines(text: str, line: int) -> Lines:
    """The lines of the smallest statement that covers `line`; of a compound one, its header.

    A file that cannot be parsed, or a line outside every statement, gives the line itself.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Lines(line, line)
    best: Lines | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            found = header(node)
            if found.first <= line <= found.last and (best is None or found.first >= best.first):
                best = found
    return best or Lines(line, line)


def skippable(text: str, line: int, column: int) -> tuple[int, int, int, int] | None:
    """The range of the expression at a place if its statement can run without evaluating it, else None.

    So it is in a branch of `a if b else c`, and behind `and` and `or`.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = Source("", text).lines
    if not 1 <= line <= len(lines):
        return None
    place = line, len(lines[line - 1][: column - 1].encode())
    for node in ast.walk(tree):
        branches: list[ast.expr] = []
        match node:
            case ast.IfExp(body=body, orelse=other):
                branches = [body, other]
            case ast.BoolOp(values=[_, *rest]):
                branches = rest
        for branch in branches:
            end = branch.end_lineno or branch.lineno, branch.end_col_offset or branch.col_offset
            if (branch.lineno, branch.col_offset) <= place < end:
                return branch.lineno, branch.col_offset, *end
    return None


def header(node: ast.stmt) -> Lines:
    """The lines of a statement without the statements nested in it."""
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    if isinstance(body, list) and body:
        inner = min((d.lineno for d in getattr(body[0], "decorator_list", ())), default=body[0].lineno)
        last = max(node.lineno, min(last, inner - 1))
    return Lines(node.lineno, last)


def mapped(text: str, other: str, lines: Lines) -> Lines:
    """Where lines of `text` are found in `other`, an edited form of it. Indentation is ignored.

    What was deleted is taken to be where the line before it is, or the one after the head of a block.
    """
    before = [line.strip() for line in text.splitlines()]
    after = [line.strip() for line in other.splitlines()]
    where: dict[int, tuple[int, int]] = {}
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "delete":
            b1 = neighbour(after, b1)
            b2 = b1 + 1
        for number in range(a1, a2):
            where[number + 1] = (b1 + number - a1 + 1,) * 2 if tag == "equal" else (b1 + 1, max(b1 + 1, b2))
    spots = [where[n] for n in range(lines.first, lines.last + 1) if n in where]
    if not spots:
        return lines
    return Lines(min(a for a, _ in spots), min(len(after), max(b for _, b in spots)))


def translated(label: str, text: str, other: str) -> str:
    """A label with the numbers of lines of `text` as they are in an edited form of it."""

    def moved(match: re.Match[str]) -> str:
        line = int(match.group(1))
        return f"line {mapped(text, other, Lines(line, line)).first}"

    return re.sub(r"\bline (\d+)", moved, label)


def neighbour(lines: list[str], place: int) -> int:
    """The index of the line to stand for one that was deleted before index `place`."""
    above = max([index for index in range(place) if lines[index]], default=0)
    if not lines[above].endswith(":"):
        return above
    return next((index for index in range(place, len(lines)) if lines[index]), above)


# -- edits --------------------------------------------------------------------------------------


Change = tuple[int, int, str]  # from, to, as offsets into a text, and what stands there afterwards


def apply_fixes(text: str, fixes: list[Fix]) -> str:
    """The text after fixes, whatever their safety; one that overlaps an earlier one is left out.

    ValueError if an edit of the first fix lies outside the text or overlaps another of its own.
    """
    return followed(text, fixes, Lines(1, 1))[0]


def followed(text: str, fixes: list[Fix], lines: Lines) -> tuple[str, Lines]:
    """The text after fixes, as `apply_fixes` makes it, and where lines of it are then."""
    taken, imports = chosen(text, fixes)
    new = spliced(text, taken)
    lines = carried(text, new, taken, lines)
    extra = import_edits(Source("", new), imports)
    return followed(new, [Fix(Safety.SAFE, "imports", extra)], lines) if extra else (new, lines)


def chosen(text: str, fixes: list[Fix]) -> tuple[list[Change], list[str]]:
    """The changes that fixes make, in order, and the imports that these need."""
    taken: list[Change] = []
    imports: list[str] = []
    starts = [0]
    for line in Source("", text).lines:
        starts.append(starts[-1] + len(line))
    for index, fix in enumerate(fixes):
        mine = sorted(offsets(edit, starts) for edit in fix.edits)
        if any(a[1] > b[0] for a, b in pairwise(mine)) or (mine and mine[-1][1] > len(text)):
            if index == 0:
                raise ValueError("the edits of a fix overlap")
            continue
        if all(end <= a or start >= b for start, end, _ in mine for a, b, _ in taken):
            taken += mine
            imports += [line for line in fix.imports if line not in imports]
    return sorted(taken), imports


def spliced(text: str, changes: list[Change]) -> str:
    """The text with changes made."""
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    return text


def carried(text: str, new: str, changes: list[Change], lines: Lines) -> Lines:
    """Where lines of a text are after changes: what stands elsewhere is not mistaken for them, if it is the same.

    What the changes take away as a whole is looked for in the rest.
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    first, last = lines.first, min(lines.last, len(starts) - 1)
    for start, end, _ in (*changes, *reversed(changes)):  # up and down, as a change may reach into lines of another
        if first <= last and end >= starts[first - 1] and start < starts[last]:
            first = min(first, bisect_right(starts, start))
            last = max(last, bisect_left(starts, end))
    if first > last:
        return lines
    here, there = starts[first - 1], starts[last]
    inner = [(start - here, end - here, put) for start, end, put in changes if here <= start < there]
    shift = sum(len(put) - (end - start) for start, end, put in changes if start < here)
    part = spliced(text[here:there], inner)
    if not part.strip():
        return mapped(text, new, lines)
    above = len(new[: here + shift].splitlines())
    found = mapped(text[here:there], part, Lines(lines.first - first + 1, lines.last - first + 1))
    return Lines(found.first + above, found.last + above)


def offsets(edit: Edit, starts: list[int]) -> Change:
    """An edit as offsets into the text. ValueError outside it."""
    span = edit.span
    if not 1 <= span.line <= span.end_line <= len(starts):
        raise ValueError(f"an edit outside the text: line {span.line}")
    start = starts[span.line - 1] + span.column - 1
    return start, starts[span.end_line - 1] + span.end_column - 1, edit.text


# -- findings -----------------------------------------------------------------------------------


def claim_of(finding: Finding, claim: Claim | None) -> Claim | None:
    """What a finding claims, given what its rule does.

    Of a deprecated name about which torch says nothing there is no warning to be heard; that the new name does
    the same can be shown where a fix says how it is called.
    """
    if isinstance(claim, Warns) and finding.severity is Severity.ADVICE:
        return None if finding.fix is None else Equivalent()
    return claim


def from_finding(
    finding: Finding,
    claim: Claim,
    text: str,
    key: int,
    *,
    others: tuple[Finding, ...] = (),
    path: str = "",
    roots: tuple[str, ...] = (),
    device: str = "cpu",
    seconds: float = SECONDS,
    factories: tuple[tuple[str, str], ...] = (),
) -> Case:
    """The case of one finding in `text`.

    `others` are the findings of the file, for fixes that are complete only together.
    """
    flagged = statement_lines(text, finding.span.line)
    flagged = replace(flagged, part=skippable(text, finding.span.line, finding.span.column))
    together = isinstance(claim, (Raises, GraphGrows))
    corrected, correction, mended = correct(finding, text, flagged, others, together=together)
    return Case(
        key,
        path or finding.path,
        finding.code,
        finding.name,
        claim,
        text,
        (flagged,),
        corrected,
        () if corrected is None else (mended,),
        correction,
        finding.message,
        roots=roots,
        device=device,
        seconds=seconds,
        factories=factories,
    )


#: Rules whose fixes repair a program only together.
TOGETHER = {"TL301": ("TL301", "TL302"), "TL302": ("TL301", "TL302")}


def correct(
    finding: Finding, text: str, flagged: Lines, others: tuple[Finding, ...], *, together: bool = False
) -> tuple[str | None, str, Lines]:
    """The corrected text and what it is: fixed, else with the rule's advice followed; None if neither.

    The third is where the flagged lines are in it.

    `together` makes the fixes of the rule's other findings in the file as well.
    """
    codes = TOGETHER.get(finding.code, (finding.code,) if together else ())
    partners = [other.fix for other in others if other.code in codes and other != finding]
    fixes = [fix for fix in (finding.fix, *partners) if fix is not None]
    if finding.fix is not None:
        try:
            fixed, mended = followed(text, fixes, flagged)
            return fixed, "with the fix", mended
        except (ValueError, SyntaxError):
            pass  # a fix that cannot be applied is the fixer's fault; the experiment goes on without
    advice = advised(finding.code, text, flagged.first, flagged.last, finding.span.column)
    return advice, "with the advice followed", flagged if advice is None else mapped(text, advice, flagged)


# -- examples -----------------------------------------------------------------------------------


def with_steps(text: str, name: str, count: int) -> str:
    """The program with the constant `name` set to `count`; unchanged if there is no such line."""
    return re.sub(rf"(?m)^{re.escape(name)}(\s*(?::\s*int\s*)?=\s*)\d+\b", rf"{name}\g<1>{count}", text)


def example_path(rule: Rule, kind: str) -> str:
    """The file name that an example's program is compiled under."""
    return f"<{rule.meta.code} {kind}>"


def from_example(
    rule: Rule, example: Example, kind: str, key: int, *, fixed: str = "", seconds: float = SECONDS
) -> Case:
    """The case of an example's program: `kind` is bad, good or fixed (then `fixed` is its text).

    Good and fixed programs are compared with themselves: whatever is confirmed there is our error.
    """
    if rule.claim is None:
        raise ValueError(f"{rule.meta.code} makes no claim")
    bad, good = example.source, example.corrected
    text = {"bad": bad, "good": good, "fixed": fixed}[kind]
    marked = tuple(dict.fromkeys(statement_lines(bad, line) for line in example.flagged))
    flagged = marked if kind == "bad" else tuple(dict.fromkeys(mapped(bad, text, lines) for lines in marked))
    return Case(
        key,
        example_path(rule, kind),
        rule.meta.code,
        rule.meta.name,
        rule.claim,
        text,
        flagged,
        good,
        tuple(dict.fromkeys(mapped(bad, good, lines) for lines in marked)),
        "in the corrected program",
        whole=True,
        steps=example.steps,
        seconds=seconds,
    )


@dataclass(frozen=True)
class Checked:
    """The outcomes of one example's programs; `fixed` is None where the rule's fix was not given."""

    bad: Outcome
    good: Outcome
    fixed: Outcome | None = None


def check_example(rule: Rule, example: Example, *, fixed: str | None = None, seconds: float = 30.0) -> Checked:
    """Tests the rule's claim on an example: the bad program, the good one, and the fixed bad one.

    Starts a server process of its own; use `check_examples` for many.
    """
    return next(check_examples([(rule, example, fixed)], seconds=seconds))[2]


def check_examples(
    rows: list[tuple[Rule, Example, str | None]], *, jobs: int = 2, seconds: float = 30.0
) -> Iterator[tuple[Rule, Example, Checked]]:
    """`check_example` for many examples in one pool, in the order given."""
    from runtime_check.pool import Pool

    cases: list[Case] = []
    for rule, example, fixed in rows:
        for kind in ("bad", "good") if fixed is None else ("bad", "good", "fixed"):
            cases.append(from_example(rule, example, kind, len(cases), fixed=fixed or "", seconds=seconds))
    with Pool(jobs) as pool:
        outcomes = {case.key: outcome for case, outcome in pool.run(cases)}
    keys = iter(range(len(cases)))
    for rule, example, fixed in rows:
        bad, good = outcomes[next(keys)], outcomes[next(keys)]
        yield rule, example, Checked(bad, good, None if fixed is None else outcomes[next(keys)])
