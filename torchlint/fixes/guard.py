"""What must hold after a fix. A guard that trips says why in one sentence; the fix is then dropped.

Guards know nothing of rules: they compare text, tokens, names and findings before and after.
"""
from __future__ import annotations

import ast
import bisect
import builtins
import functools
import symtable
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from torchlint.files import Source
from torchlint.findings import Edit, Finding, Safety
from torchlint.fixes.layout import Layout, Token, layout
from torchlint.fixes.statements import PRAGMA

UNUSED_SUPPRESSION = "TL001"  # a comment that has nothing left to silence is no fault of the fix

_MODULE_NAMES = frozenset({
    "__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__", "__builtins__",
    "__annotations__", "__dict__", "__debug__", "__class__",
})


class Moved:
    """Where offsets of the old text are in the new one."""

    def __init__(self, place: Layout, edits: Iterable[Edit]) -> None:
        self.ranges = sorted((*place.offsets(edit.span), len(edit.text)) for edit in edits)
        self._starts = [start for start, _, _ in self.ranges]
        self._shift = [0]
        for start, end, length in self.ranges:
            self._shift.append(self._shift[-1] + length - (end - start))

    def offset(self, old: int) -> int:
        """The new offset of a place; inside a replaced text, the start of what replaced it."""
        index = bisect.bisect_right(self._starts, old)
        if index and old < self.ranges[index - 1][1]:
            return self.ranges[index - 1][0] + self._shift[index - 1]
        return old + self._shift[index]

    def over(self, start: int, end: int) -> tuple[int, int] | None:
        """The last edit that changes text between two old offsets, or inserts strictly between them."""
        index = bisect.bisect_left(self._starts, end)
        if index and self.ranges[index - 1][1] > start:
            return self.ranges[index - 1][:2]
        return None

    def new_regions(self) -> list[tuple[int, int]]:
        """Start and end, in the new text, of what each edit put there."""
        return [(start + shift, start + shift + length)
                for (start, _, length), shift in zip(self.ranges, self._shift, strict=False)]


def lost_comments(source: Source, edits: Sequence[Edit]) -> list[str]:
    """Comments that edits take away; those that only tell a tool about the changed line do not count."""
    place = layout(source)
    new = Counter[str]()
    lost: list[str] = []
    for edit in edits:
        start, end = place.offsets(edit.span)
        if start < end:
            near = place.comments(place.line_start(start), end)
            lost += [token.text.rstrip() for token in near if token.end > start]
        if "#" in edit.text:
            new.update(token.text.rstrip() for token in Layout(Source("", edit.text)).tokens if token.comment)
    left = []
    for text in lost:
        if PRAGMA.match(text):
            continue
        if new[text]:
            new[text] -= 1
        else:
            left.append(text)
    return left


def broken(old: Source, new: Source, edits: Sequence[Edit]) -> str:
    """Why the new text cannot stand, as far as that can be told without linting it; "" if it can."""
    return _unparsable(old, new) or _other_tokens(old, new, edits) or _other_names(old, new)


def _unparsable(old: Source, new: Source) -> str:
    try:
        assert new.tree
    except SyntaxError as error:
        return f"the result does not parse (line {error.lineno}: {error.msg})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the result does not parse ({type(error).__name__})"
    problem = _compile_error(new)
    return f"the result does not compile ({problem})" if problem and not _compile_error(old) else ""


@functools.lru_cache(maxsize=4)
def _compile_error(source: Source) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source.text, source.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            return type(error).__name__
    return ""


def _other_tokens(old: Source, new: Source, edits: Sequence[Edit]) -> str:
    """Whether names, strings and comments outside the edits are still read as they were."""
    before, after = layout(old), layout(new)
    moved = Moved(before, edits)
    for token in before.tokens:
        if token.kind == tokenize.STRING and _cuts(moved, token) and not _only_fields(new, moved, token):
            return f"it changes the inside of a string ({_short(token.text)})"
    regions = moved.new_regions()
    ends = [end for _, end in regions]

    def outside(token: Token) -> bool:
        index = bisect.bisect_right(ends, token.start)
        return index == len(regions) or regions[index][0] >= token.end

    kept = [token.text for token in before.tokens if moved.over(token.start, token.end) is None]
    found = [token.text for token in after.tokens if outside(token)]
    if kept != found:
        wrong = next((a for a, b in zip(kept, found, strict=False) if a != b), "the end of the file")
        return f"it changes how the text around it is read (at {_short(wrong)})"
    return ""


def _cuts(moved: Moved, token: Token) -> bool:
    """Whether an edit lies inside a string without replacing it whole."""
    edit = moved.over(token.start, token.end)
    return edit is not None and (edit[0] > token.start or edit[1] < token.end)


def _only_fields(new: Source, moved: Moved, token: Token) -> bool:
    """Whether only fields of an f-string change, which is one token before Python 3.12, and not its text."""
    prefix = token.text[: min(token.text.find(mark) for mark in "\"'" if mark in token.text)]
    if "f" not in prefix.lower():
        return False
    text = new.text[moved.offset(token.start) : moved.offset(token.end)]
    return _text_of(token.text) == _text_of(text) is not None


def _text_of(literal: str) -> list[str] | None:
    """The parts of an f-string that are text, and how its fields are shown."""
    try:
        node = ast.parse(f"({literal})", mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.JoinedStr):
        return None
    told = []
    for part in node.values:
        match part:
            case ast.Constant(value=value):
                told.append(str(value))
            case ast.FormattedValue(conversion=conversion, format_spec=spec):
                told.append(f"{conversion} {'' if spec is None else ast.unparse(spec)}")
    return told


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


# -- names -----------------------------------------------------------------------------------


def _other_names(old: Source, new: Source) -> str:
    """Whether every name is bound that was bound, or is new, and none has got another meaning."""
    before, after = _Names.of(old), _Names.of(new)
    if before is None or after is None:
        return "" if before is None else "the result does not compile"
    unbound = after.unbound - before.unbound
    if unbound and not after.star:
        return f"it uses {', '.join(sorted(unbound))}, which nothing binds"
    elsewhere = before.builtins | (before.unbound if before.star else frozenset())
    hidden = sorted((after.bound - before.bound) & elsewhere)
    if hidden:
        return f"it gives {hidden[0]} another meaning"
    for key, kind in after.kinds.items():
        if before.kinds.get(key, kind) != kind:
            return f"it gives {key[-1]} another meaning in {'.'.join(key[:-1])}"
    return ""


class _Names:
    """Which names a file binds and uses, by scope."""

    def __init__(self, top: symtable.SymbolTable, star: bool) -> None:
        self.star = star  # `from x import *`: any name may be bound
        self.bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
        self.used: set[str] = set()
        self.kinds: dict[tuple[str, ...], str] = {}
        self._scan(top, ())
        self.builtins = {name for name in self.used - self.bound if hasattr(builtins, name)}
        self.unbound = self.used - self.bound - self.builtins - _MODULE_NAMES

    @classmethod
    @functools.lru_cache(maxsize=4)
    def of(cls, source: Source) -> _Names | None:
        """The names of a source; None if Python cannot tell."""
        try:
            top = symtable.symtable(source.text, source.path, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        stars = (node for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom))
        return cls(top, any(node.names[0].name == "*" for node in stars))

    def _scan(self, table: symtable.SymbolTable, path: tuple[str, ...]) -> None:
        module = table.get_type() == "module"
        for symbol in table.get_symbols():
            name = symbol.get_name()
            everywhere = module or symbol.is_global()
            if everywhere and symbol.is_referenced():
                self.used.add(name)
            if everywhere and not module and symbol.is_assigned():
                self.bound.add(name)  # `global x` and an assignment
            if not module and symbol.is_referenced():
                kind = "global" if everywhere else "free" if symbol.is_free() else "local"
                key = (*path, name)
                self.kinds[key] = kind
        seen: Counter[str] = Counter()
        for child in table.get_children():
            seen[child.get_name()] += 1
            self._scan(child, (*path, f"{child.get_name()}#{seen[child.get_name()]}"))


# -- findings --------------------------------------------------------------------------------


def judge(
    old: Source, new: Source, edits: Sequence[Edit], before: Sequence[Finding], after: Sequence[Finding],
    fixed: Sequence[Finding],
) -> str:
    """Why the findings after a fix are not those before it less the `fixed` ones; "" if they are.

    A fix may let the model know more, for example of which layers a network consists: what another rule then
    finds in functions that the fix left as they were is no damage, it was there before, unseen. Where the fix
    is known to change what runs, the lines that it left as they were suffice.
    """
    gone = {id(finding) for finding in fixed}
    matcher = _Matcher(old, new, edits)
    unmatched = [finding for finding in after if finding.code != UNUSED_SUPPRESSION]
    unmatched = matcher.without([f for f in before if id(f) not in gone], unmatched)
    if not unmatched:
        return ""
    still = matcher.without(fixed, unmatched)
    if len(still) < len(unmatched):
        return "the finding is still there after it"
    codes = {finding.code for finding in fixed}
    unsafe = all(one.fix is not None and one.fix.safety is Safety.UNSAFE for one in fixed)
    touched = matcher.on_edited_lines if unsafe else matcher.in_edited_function
    still = [finding for finding in still if finding.code in codes or touched(finding)]
    if not still:
        return ""
    one = still[0]
    return f"it brings a new finding: {one.code} in line {one.span.line} of the result"


def vanished(
    old: Source, new: Source, edits: Sequence[Edit], before: Sequence[Finding], after: Sequence[Finding],
    fixed: Sequence[Finding],
) -> int:
    """How many findings besides the `fixed` ones a fix did away with."""
    gone = {id(finding) for finding in fixed}
    rest = [one for one in before if id(one) not in gone and one.code != UNUSED_SUPPRESSION]
    found = [one for one in after if one.code != UNUSED_SUPPRESSION]
    left = _Matcher(old, new, edits).without(rest, found)
    return len(rest) - (len(found) - len(left))


class _Matcher:
    """Recognises findings of the old text in the new one."""

    def __init__(self, old: Source, new: Source, edits: Sequence[Edit]) -> None:
        self.after = new
        self.old, self.new = layout(old), layout(new)
        self.moved = Moved(self.old, edits)
        self.regions = self.moved.new_regions()

    def without(self, known: Iterable[Finding], found: Sequence[Finding]) -> list[Finding]:
        """`found` less what is known: same place, else same fingerprint, else same line, else in an edit."""
        left = list(found)
        missing = list(known)
        for key in (self._place, self._print, self._line):
            was = functools.partial(key, place=self.old, moved=self.moved)
            is_ = functools.partial(key, place=self.new, moved=None)
            common = Counter(map(was, missing)) & Counter(map(is_, left))
            missing, left = _less(missing, common, was), _less(left, common, is_)
        near = Counter[object](f.code for f in missing if self._edited(f))
        return _less(left, near, lambda f: f.code if self._in_region(f) else None)

    def on_edited_lines(self, finding: Finding) -> bool:
        """Whether an edit changed one of the lines of a finding of the new text."""
        start, end = self.new.offsets(finding.span)
        first, last = self._lines(start, end)
        return any(begin <= last and first <= stop for begin, stop in self._edited_lines())

    def in_edited_function(self, finding: Finding) -> bool:
        """Whether an edit changed the function of a finding of the new text, or the code outside of all."""
        tree = self.after.tree
        mine = _function(tree, finding.span.line)
        return self.on_edited_lines(finding) or any(
            _function(tree, line + 1) is mine for edited in self._edited_lines() for line in edited)

    def _edited_lines(self) -> list[tuple[int, int]]:
        return [self._lines(*region) for region in self.regions]

    def _lines(self, start: int, end: int) -> tuple[int, int]:
        return self.new.line_of(start), self.new.line_of(max(start, end - 1))

    def _place(self, finding: Finding, place: Layout, moved: Moved | None) -> object:
        offset = _start(place, finding)
        return finding.code, moved.offset(offset) if moved is not None else offset

    def _print(self, finding: Finding, place: Layout, moved: Moved | None) -> object:
        return finding.code, finding.fingerprint or self._line(finding, place, moved)

    def _line(self, finding: Finding, place: Layout, moved: Moved | None) -> object:
        line = finding.span.line
        text = place.lines[line - 1] if 1 <= line <= len(place.lines) else ""
        return finding.code, finding.message, text.strip()

    def _edited(self, finding: Finding) -> bool:
        start, end = self.old.offsets(finding.span)
        return self.moved.over(start, max(end, start + 1)) is not None

    def _in_region(self, finding: Finding) -> bool:
        start = _start(self.new, finding)
        end = self.new.offsets(finding.span)[1]
        return any(first < max(end, start + 1) and last > start for first, last in self.regions)


def _function(tree: ast.Module, line: int) -> ast.AST | None:
    """The innermost function that a line is part of."""
    found: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= line <= (node.end_lineno or line) and (found is None or node.lineno > found.lineno):
                found = node
    return found


def _start(place: Layout, finding: Finding) -> int:
    return place.offsets(finding.span)[0]


def _less(
    findings: Sequence[Finding], gone: Counter[object], key: Callable[[Finding], object]
) -> list[Finding]:
    """`findings` without as many of each key as `gone` counts."""
    left = Counter(gone)
    kept = []
    for finding in findings:
        name = key(finding)
        if left[name] > 0:
            left[name] -= 1
        else:
            kept.append(finding)
    return kept
