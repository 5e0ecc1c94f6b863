"""Comments that silence findings, and findings about comments that silence nothing.

    x.data.add_(1)  # noqa: TL101
    x.data.add_(1)  # torchlint: ignore[data-mutation]
    # torchlint: skip-file

Comments are found with `tokenize`, so text in strings never counts. A comment holds for findings
that begin on its line or end there, and for those anywhere in a statement whose first or last line
it stands on.
"""
from __future__ import annotations

import bisect
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchlint.builtin import UNCHECKED, UNKNOWN, UNUSED, rule_url
from torchlint.config import did_you_mean
from torchlint.files import Source
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Span
from torchlint.rule import Rule

_WORTH = re.compile(r"noqa|torchlint\s*:", re.IGNORECASE)
_CODES = r"[A-Za-z]+[0-9]+(?:[ \t]*[,\s][ \t]*[A-Za-z]+[0-9]+)*"
_NOQA = re.compile(rf"#\s*noqa\b(?:\s*:\s*(?P<items>{_CODES}))?", re.IGNORECASE)
_IGNORE = re.compile(r"#\s*torchlint\s*:\s*ignore\b(?:\s*\[(?P<items>[^\]#]*)\])?", re.IGNORECASE)
_SKIP = re.compile(r"#\s*torchlint\s*:\s*skip-file\b", re.IGNORECASE)
_ITEM = re.compile(r"[^\s,]+")
_LAYOUT = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Item(NamedTuple):
    """One code or name in a comment, and where it begins in the text of the directive."""

    text: str
    start: int


@dataclass(frozen=True)
class Directive:
    """One `noqa` or `ignore` in a comment. No items: it silences everything."""

    line: int
    column: int  # 1-based, of its `#`
    text: str
    items: tuple[Item, ...]
    noqa: bool


@dataclass(frozen=True)
class Suppressions:
    """All directives of a file."""

    directives: tuple[Directive, ...] = ()
    starts: tuple[int, ...] = ()  # first lines of the statements, ascending
    ends: tuple[int, ...] = ()  # and their last lines; of a compound statement, the end of its head
    skip: bool = False  # `# torchlint: skip-file`

    def lines_for(self, span: Span) -> set[int]:
        """Lines on which a comment silences a finding at `span`."""
        index = bisect.bisect_right(self.starts, span.line) - 1
        lines = {span.line}
        if index >= 0 and span.line <= self.ends[index]:
            lines |= {self.starts[index], self.ends[index]}
            if span.end_line <= self.ends[index]:
                lines.add(span.end_line)
        return lines


def read_comments(source: Source, noqa: bool = True) -> Suppressions:
    """The directives in the comments of a source, those of the kind `noqa` only if they count.

    Text that cannot be split into tokens gives what stands before the trouble.
    """
    if not _WORTH.search(source.text):
        return Suppressions()
    directives: list[Directive] = []
    starts: list[int] = []
    ends: list[int] = []
    skip, inside = False, False
    for token in _tokens(source):
        if token.type == tokenize.COMMENT:
            directives += _directives(token, noqa)
            skip = skip or _SKIP.search(token.string) is not None
        elif token.type == tokenize.NEWLINE:
            ends.append(token.start[0])
            inside = False
        elif not inside and token.type not in _LAYOUT:
            starts.append(token.start[0])
            inside = True
    return Suppressions(tuple(directives), tuple(starts[: len(ends)]), tuple(ends), skip)


def _tokens(source: Source) -> Iterator[tokenize.TokenInfo]:
    """Tokens of a source up to the first place that cannot be split."""
    text = "".join(line.rstrip("\r\n") + "\n" for line in source.lines)
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError, RecursionError):
        return


def _directives(token: tokenize.TokenInfo, noqa: bool) -> Iterator[Directive]:
    """The directives in one comment."""
    for pattern in (_NOQA, _IGNORE) if noqa else (_IGNORE,):
        for match in pattern.finditer(token.string):
            at = match.start()
            offset = match.start("items") - at
            items = tuple(Item(m[0], offset + m.start()) for m in _ITEM.finditer(match["items"] or ""))
            if not items and match["items"] is not None:
                continue  # `ignore[]` silences nothing
            yield Directive(token.start[0], token.start[1] + at + 1, match[0], items, pattern is _NOQA)


def suppress(
    findings: Iterable[Finding],
    source: Source,
    found: Suppressions,
    known: Sequence[Rule],
    active: frozenset[str],
    whole: bool = True,
) -> list[Finding]:
    """`findings` without the silenced ones, and with TL001 and TL002 for comments that silence nothing.

    `known` are all rules; `active` the codes that were looked for in this file; `whole` whether those
    are at least the default rules, so that a comment that names no code, or a prefix, can be called unused.
    """
    findings = list(findings)
    if not found.directives:
        return findings
    table = _Table(known)
    used: set[tuple[int, Item | None]] = set()
    left = []
    for finding in findings:
        by = _silencers(finding, found, table)
        used |= by
        if not by:
            left.append(finding)
    about = list(_complaints(source, found, table, active, used, whole))
    return left + [finding for finding in about if not _silencers(finding, found, table, named=True)]


class _Table:
    """Which codes a word in a comment stands for."""

    def __init__(self, known: Sequence[Rule]) -> None:
        self.known = known
        self._codes: dict[str, frozenset[str]] = {}

    def codes(self, word: str) -> frozenset[str]:
        """Codes of the rules that `word` names: as code, prefix of codes, alias or name; none if unknown."""
        if word not in self._codes:
            self._codes[word] = frozenset(rule.meta.code for rule in self.known if _names(word.upper(), rule))
        return self._codes[word]


def _names(word: str, rule: Rule) -> bool:
    """Whether an upper-case word of a comment means `rule`."""
    if word == rule.meta.name.upper() or word in rule.meta.aliases:
        return True
    return rule.meta.code.startswith(word) and word[-1:].isdigit()


def _silencers(
    finding: Finding, found: Suppressions, table: _Table, named: bool = False
) -> set[tuple[int, Item | None]]:
    """What silences a finding: (number of the directive, item, or None for all); `named`: items only."""
    lines = found.lines_for(finding.span)
    by: set[tuple[int, Item | None]] = set()
    if finding.code == UNCHECKED.meta.code:
        return by  # it says that something was not looked at; a comment cannot change that
    for number, directive in enumerate(found.directives):
        if directive.line not in lines:
            continue
        if not directive.items and not named:
            by.add((number, None))
        by |= {(number, item) for item in directive.items if finding.code in table.codes(item.text)}
    return by


def _complaints(
    source: Source, found: Suppressions, table: _Table, active: frozenset[str],
    used: set[tuple[int, Item | None]], whole: bool,
) -> Iterator[Finding]:
    """TL001 and TL002 for the directives of a file."""
    on = {code for code in (UNUSED.meta.code, UNKNOWN.meta.code) if code in active}
    for number, directive in enumerate(found.directives):
        ours = [item for item in directive.items if _ours(item.text, directive)]
        unused = []
        for item in ours:
            codes = table.codes(item.text)
            if not codes and UNKNOWN.meta.code in on:
                yield _unknown(source, directive, item, table)
            looked_for = codes <= active or (whole and codes & active)
            about_itself = codes & {UNUSED.meta.code, UNKNOWN.meta.code}
            if codes and looked_for and not about_itself and (number, item) not in used:
                unused.append(item)
        bare = not directive.items and not directive.noqa and whole and (number, None) not in used
        if UNUSED.meta.code in on and (unused or bare):
            yield _unused(source, directive, unused)


def _ours(word: str, directive: Directive) -> bool:
    """Whether a word can only be meant for torchlint."""
    return not directive.noqa or re.fullmatch(r"TL[0-9]+", word.upper()) is not None


def _finding(rule: Rule, source: Source, span: Span, message: str, fix: Fix | None = None) -> Finding:
    meta = rule.meta
    return Finding(
        source.path, span, meta.code, meta.name, meta.severity, Confidence.SURE, message,
        rule_url(meta.name), fix, source.cell,
    )


def _unknown(source: Source, directive: Directive, item: Item, table: _Table) -> Finding:
    words = [word for rule in table.known for word in (rule.meta.code, rule.meta.name)]
    column = directive.column + item.start
    span = Span(directive.line, column, directive.line, column + len(item.text))
    message = f"`{item.text}` is no code or name of a rule and silences nothing"
    return _finding(UNKNOWN, source, span, message + did_you_mean(item.text, words))


def _unused(source: Source, directive: Directive, unused: list[Item]) -> Finding:
    span = Span(directive.line, directive.column, directive.line, directive.column + len(directive.text))
    words = ", ".join(item.text for item in unused)
    message = f"nothing to silence here: no finding of {words}" if words else "nothing to silence here"
    kept = [item.text for item in directive.items if item not in unused]
    if kept:
        first, last = directive.items[0], directive.items[-1]
        start, end = directive.column + first.start, directive.column + last.start + len(last.text)
        edit = Edit(Span(directive.line, start, directive.line, end), ", ".join(kept))
        return _finding(UNUSED, source, span, message, Fix(Safety.SAFE, f"Remove {words}", (edit,)))
    fix = Fix(Safety.SAFE, "Remove the comment", (_removal(source, span),))
    return _finding(UNUSED, source, span, message, fix)


def _removal(source: Source, span: Span) -> Edit:
    """The edit that takes a directive away: with its line if it stands alone, else with the blanks before it.

    What a comment says besides the directive stays, as a comment.
    """
    line = source.lines[span.line - 1]
    body = line.rstrip("\r\n")
    before, after = body[: span.column - 1], body[span.end_column - 1 :].strip()
    if after and not after.startswith("#"):
        rest = after.lstrip(",;:.- \t")
        return Edit(Span(span.line, span.column, span.line, len(body) + 1), f"# {rest}" if rest else "")
    if after:
        return Edit(Span(span.line, span.column, span.line, body.index(after, span.end_column - 1) + 1), "")
    if before.strip():
        return Edit(Span(span.line, len(before.rstrip()) + 1, span.line, len(body) + 1), "")
    if span.line < len(source.lines):
        return Edit(Span(span.line, 1, span.line + 1, 1), "")
    return Edit(Span(span.line, 1, span.line, len(body) + 1), "")
