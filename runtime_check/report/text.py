"""The report for people: for each finding the verdict, the reason, the numbers, and how it was run."""

from __future__ import annotations

from runtime_check.evidence import Outcome, Verdict
from runtime_check.results import Confirmation, Result
from torchlint.builtin import UNCHECKED
from torchlint.report.common import plural, visible

WORDS = {
    Verdict.CONFIRMED: "confirmed",
    Verdict.REFUTED: "refuted",
    Verdict.NOT_REACHED: "not reached",
    Verdict.CANNOT_TELL: "cannot tell",
}
COLOURS = {Verdict.CONFIRMED: 31, Verdict.REFUTED: 32, Verdict.NOT_REACHED: 33, Verdict.CANNOT_TELL: 33}


HARMLESS = {**COLOURS, Verdict.CONFIRMED: 32, Verdict.REFUTED: 31}


def render(confirmation: Confirmation, *, colour: bool = False, summary: bool = True) -> str:
    """The whole report."""
    blocks = [block(result, colour) for result in confirmation.results]
    if summary:
        blocks.append(total(confirmation))
    return "\n".join(blocks)


def block(result: Result, colour: bool) -> str:
    """One finding."""
    finding, outcome = result.finding, result.outcome
    word = verdict_word(result)
    if colour:
        colours = HARMLESS if result.claim == "Equivalent" else COLOURS
        word = f"\x1b[1;{colours[outcome.verdict]}m{word}\x1b[0m"
    cell = "" if finding.cell is None else f"cell {finding.cell}:"
    place = f"{visible(finding.path)}:{cell}{finding.span.line}:{finding.span.column}"
    lines = [f"{place}: {finding.code} {finding.name}: {word}", f"    {visible(outcome.why)}"]
    lines += [f"      {visible(row)}" for row in rows_of(outcome)]
    if outcome.how:
        lines.append(f"    run: {visible(outcome.how)}, {outcome.seconds:.1f} s")
    if result.next_step:
        lines.append(f"    next: {visible(result.next_step)}")
    if result.repeat:
        lines.append(f"    again: {visible(result.repeat)}")
    return "\n".join(lines) + "\n"


def rows_of(outcome: Outcome) -> list[str]:
    """The evidence, each number once with all that it is compared with."""
    compared: dict[tuple[str, str], list[str]] = {}
    for row in outcome.evidence:
        others = compared.setdefault((row.label, row.value), [])
        said = f"{row.against}: {row.compared}"
        if said not in others:
            others.append(said)
    return [f"{label}: {value} ({'; '.join(others)})" for (label, value), others in compared.items()]


def verdict_word(result: Result) -> str:
    """The verdict as a reader understands it: to confirm a claim that nothing changes is good news."""
    if not result.claim:
        return "not checked" if result.finding.code == UNCHECKED.meta.code else "no claim"
    if result.harmless:
        return "harmless, the fix changes no result"
    if result.claim == "Equivalent" and result.outcome.verdict is Verdict.REFUTED:
        return "the fix changes results"
    return WORDS[result.outcome.verdict]


def total(confirmation: Confirmation) -> str:
    """The last line."""
    counts = confirmation.counts()
    parts = [f"{counts[verdict.value]} {WORDS[verdict]}" for verdict in Verdict]
    parts += [f"{confirmation.harmless} harmless"] if confirmation.harmless else []
    parts += [f"{confirmation.unclaimed} without a claim"] if confirmation.unclaimed else []
    where = ""
    if confirmation.environment is not None:
        where = f" (torch {confirmation.environment.torch}, {confirmation.environment.device})"
    count = plural(len(confirmation.results), "finding")
    return f"{looked_at(confirmation)}{count}: {', '.join(parts)}{where} in {confirmation.seconds:.1f} s\n"


NOT_TOLD, REASON = 10, 160  # classes that are named for having given no result, and letters of each reason
#: How classes that were run without a finding about them are called, and what their verdicts mean.
EXAMINED = {
    "TL313": ("autograd Function", "held against finite differences", "differ", "agree"),
    "TL428": ("Module", "held against what torch relies on", "break it", "keep it"),
}


def looked_at(confirmation: Confirmation) -> str:
    """A line for each kind of class that was run without a finding about it."""
    lines = []
    for code, (noun, held, bad, good) in EXAMINED.items():
        seen = [result for result in confirmation.examined if result.finding.code == code]
        verdicts = [result.outcome.verdict for result in seen]
        if seen:
            wrong, right = verdicts.count(Verdict.CONFIRMED), verdicts.count(Verdict.REFUTED)
            rest = [one for one in seen if one.outcome.verdict not in (Verdict.CONFIRMED, Verdict.REFUTED)]
            lines.append(f"{plural(len(seen), noun)} {held}: {wrong} {bad}, {right} {good}, {len(rest)} not told\n")
            lines += [f"    {not_told(one)}\n      next: {visible(one.next_step)}\n" for one in rest[:NOT_TOLD]]
            if len(rest) > NOT_TOLD:
                lines.append(f"    and {len(rest) - NOT_TOLD} more (--output-format json names them all)\n")
    return "".join(lines)


def not_told(result: Result) -> str:
    """A class of which nothing could be said, and why."""
    why = visible(result.outcome.why)
    place = f"{visible(result.finding.path)}:{result.finding.span.line}"
    return f"{place}: {result.subject}: {why if len(why) <= REASON else why[: REASON - 1] + '…'}"
