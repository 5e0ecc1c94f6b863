"""From selectors (codes, prefixes, names, aliases, ALL) to the rules that look at a file."""
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pathspec import GitIgnoreSpec

from torchlint.builtin import UNCHECKED
from torchlint.config import ConfigError, Options, did_you_mean, load
from torchlint.discover import patterns
from torchlint.files import show
from torchlint.rule import Rule

EXACT = 1000  # outranks every prefix
_PREFIX = re.compile(r"[A-Z]+[0-9]*")
_RANGE = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Selection:
    """The rules that are on, and which of them are off in which files."""

    rules: tuple[Rule, ...]
    known: tuple[Rule, ...]  # all rules there are
    per_file: tuple[tuple[GitIgnoreSpec, frozenset[str]], ...] = ()
    base: str = "."
    notes: tuple[str, ...] = ()  # for stderr: selected, but not run
    narrowed: bool = False  # a selection keeps some default rule from being run
    torch_version: str = ""  # what the configuration says

    @cached_property
    def codes(self) -> frozenset[str]:
        """Codes of the rules that are on."""
        return frozenset(rule.meta.code for rule in self.rules)

    def active(self, path: str) -> frozenset[str]:
        """Codes of the rules that are on for the file `path`."""
        if not self.per_file or path.startswith("<"):
            return self.codes
        try:
            relative = os.path.relpath(path, self.base).replace(os.sep, "/")
        except ValueError:  # another drive on Windows
            return self.codes
        if relative.startswith("../"):
            return self.codes
        off = [codes for spec, codes in self.per_file if spec.match_file(relative)]
        return self.codes.difference(*off)


def configured(paths: Iterable[str], known: Sequence[Rule], isolated: bool = False) -> Options:
    """The configuration for `paths`. ConfigError names the file if it or a selector in it is at fault."""
    options = load(paths, isolated)
    rows = [("select", options.select or ()), ("extend-select", options.extend_select), ("ignore", options.ignore)]
    rows += [(f"per-file-ignores: {pattern!r}", codes) for pattern, codes in options.per_file]
    for key, selectors in rows:
        try:
            _ranks(selectors, known, opt_in=True)
        except ConfigError as error:
            raise ConfigError(f"{show(options.file)}: tool.torchlint.{key}: {error}") from None
    return options


def select(options: Options, known: Sequence[Rule]) -> Selection:
    """The rules of `known` that `options` turn on. ConfigError names a selector that matches none.

    The more exact selector wins (name or code, then the longer prefix, then ALL); `ignore` wins a tie.
    Preview rules need `preview`; opt-in rules their code, name or alias, or ALL.
    """
    chosen = (*(options.select or ()), *options.extend_select)
    on = _ranks(chosen, known, opt_in=False)
    off = _ranks(options.ignore, known, opt_in=True)
    rules, notes, missing, left_out = [], [], False, 0
    for rule in known:
        meta = rule.meta
        rank = on.get(meta.code, -1)
        if rank < 0 and (meta.default if options.select is None else rule is UNCHECKED):
            rank = 0
        if off.get(meta.code, -1) >= max(rank, 0) or rank < 0:
            missing = missing or (meta.default and meta.stable)
        elif not meta.stable and not options.preview:
            left_out += 1
            if rank == EXACT:
                notes.append(f"{meta.code} ({meta.name}) is a preview rule: not run without --preview")
        elif applies(meta.torch, options.torch_version):
            rules.append(rule)
    if left_out and any(word.upper() == "ALL" for word in chosen):
        said = "1 preview rule is left out; --preview adds it" if left_out == 1 else (
            f"{left_out} preview rules are left out; --preview adds them")
        notes.append(said)
    per_file = tuple(
        (patterns([pattern]), frozenset(_ranks(codes, known, opt_in=True)))
        for pattern, codes in options.per_file
    )
    return Selection(
        tuple(rules), tuple(known), per_file, options.base, tuple(notes), missing, options.torch_version)


def _ranks(selectors: Iterable[str], known: Sequence[Rule], opt_in: bool) -> dict[str, int]:
    """For each code that a selector matches, how exact the best match is."""
    ranks: dict[str, int] = {}
    for selector in selectors:
        matched = matches(selector, known)
        if not matched:
            raise ConfigError(f"unknown rule {selector!r}{_suggestion(selector, known)}")
        for rule, rank in matched:
            if opt_in or rule.meta.default or rank in (EXACT, 0):
                ranks[rule.meta.code] = max(rank, ranks.get(rule.meta.code, -1))
    return ranks


def matches(selector: str, known: Sequence[Rule]) -> list[tuple[Rule, int]]:
    """Rules that a selector means, with how exact it is: 0 for ALL, EXACT for a code, name or alias."""
    code = selector.strip().upper()
    if code == "ALL":
        return [(rule, 0) for rule in known]
    exact = [rule for rule in known if code in _codes(rule) or code == rule.meta.name.upper()]
    if exact:
        return [(rule, EXACT) for rule in exact]
    if not _PREFIX.fullmatch(code):
        return []
    return [(rule, len(code)) for rule in known if any(one.startswith(code) for one in _codes(rule))]


def find_rule(word: str, known: Sequence[Rule]) -> list[Rule]:
    """Rules with this code, name or alias. ConfigError if there is none."""
    found = [rule for rule, rank in matches(word, known) if rank == EXACT]
    if not found:
        raise ConfigError(f"unknown rule {word!r}{_suggestion(word, known)}")
    return found


def find_rules(word: str, known: Sequence[Rule]) -> list[Rule]:
    """Rules with this code, name or alias, else those whose code begins with it. ConfigError if there is none."""
    return [rule for rule, _ in matches(word, known)] or find_rule(word, known)


def _codes(rule: Rule) -> tuple[str, ...]:
    return (rule.meta.code, *rule.meta.aliases)


def _suggestion(word: str, known: Sequence[Rule]) -> str:
    """A near name, or a near code of the same layer, as the end of an error message."""
    code = word.upper()
    codes = [one for rule in known for one in _codes(rule) if one[:3] == code[:3]]
    return did_you_mean(word.lower(), [rule.meta.name for rule in known]) or did_you_mean(code, codes)


def applies(versions: str, torch: str) -> bool:
    """Whether a rule for torch `versions` (such as ">=2.0,<2.6"; "" for all) applies to version `torch`."""
    if not versions or not torch:
        return True
    return all(_holds(sign, _numbers(torch), _numbers(bound)) for sign, bound in _RANGE.findall(versions))


def _holds(sign: str, have: tuple[int, ...], bound: tuple[int, ...]) -> bool:
    match sign:
        case "<":
            return have < bound
        case "<=":
            return have <= bound
        case ">":
            return have > bound
        case ">=":
            return have >= bound
        case "==":
            return have == bound
    return have != bound


def _numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, filled with zeros so that 2.6 equals 2.6.0."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))
