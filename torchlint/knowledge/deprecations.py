"""Names of torch that are deprecated or gone, with what to write instead.

The rows come from torch's own sources: every minor release from 1.8 on was read for the first version that warns
and the first that lacks a name, and each row was tried on the torch version that the tables name.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchlint.knowledge.names import canonical
from torchlint.knowledge.tables import table


@dataclass(frozen=True, slots=True)
class Moved:
    """An argument of the old call: where it goes in the new one.

    `place` is a position, a keyword, "list" (collected into a list at position 0), or None where there is no
    counterpart: a call that passes it cannot be rewritten. `keyword_only`: the old call takes it by name only.
    """

    name: str
    place: int | str | None
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Deprecated:
    """One deprecated or removed name.

    `kind`: function, class, method, attribute, module, decorator; or, about a callable `name`: argument (passing
    `argument` is deprecated), missing (`argument` has to be passed), value (`argument` is `name='text'`), signature
    (`argument` lists the parameters of an old positional order).
    `since` and `removed` are minor releases such as "2.4"; "1.8" also stands for earlier ones, "" means not yet.
    `replacement` is a dotted name or an expression, "" where there is none. `same`: the arguments stay as they are;
    otherwise `moves` and `adds` (position or keyword, source text) say how they map, if `mapped`.
    `differs`: what is not the same afterwards; a rewrite keeps behaviour only where it is empty.
    `observed`: what the torch of the tables does: a warning category, "raises X", "silent" or "" (not tried).
    """

    name: str
    kind: str
    since: str
    removed: str
    replacement: str
    argument: str = ""
    same: bool = False
    mapped: bool = False
    moves: tuple[Moved, ...] = ()
    adds: tuple[tuple[int | str, str], ...] = ()
    differs: str = ""
    observed: str = ""
    evidence: str = ""

    def status(self, version: str) -> str:
        """ "removed", "deprecated" or "" under a torch version such as "2.6.1"."""
        if self.removed and release(version) >= release(self.removed):
            return "removed"
        return "deprecated" if release(version) >= release(self.since) else ""


def release(version: str) -> tuple[int, int]:
    """(major, minor) of a version text; whatever follows is left out."""
    numbers = re.findall(r"\d+", version)
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


@functools.cache
def deprecated(dotted: str) -> Deprecated | None:
    """What is known of a deprecated name as written in an import, call or attribute; None for other names.

    Any path to the same object will do, but ask with the path as written: what was moved away from an old module
    has another public name now.

    Names inside a deprecated module give the module's row, with the rest of the path added to a replacement that
    is otherwise the same.
    """
    entries = table("deprecated")
    for name in (dotted, canonical(dotted)):
        if name in entries:
            return decode(name, entries[name])
    head, _, rest = dotted.rpartition(".")
    tail = rest
    while head:
        entry = entries.get(head)
        if entry is not None and entry["kind"] == "module":
            found = dict(entry)
            if entry.get("arguments") == "same":
                found["replacement"] = f"{entry['replacement']}.{tail}"
            return decode(dotted, found)
        head, _, rest = head.rpartition(".")
        tail = f"{rest}.{tail}"
    return None


@functools.cache
def _by_callable() -> dict[str, tuple[Deprecated, ...]]:
    found: dict[str, list[Deprecated]] = {}
    for key, entry in table("deprecated").items():
        if key.endswith(")"):
            found.setdefault(key.partition("(")[0], []).append(decode(key, entry))
    return {name: tuple(rows) for name, rows in found.items()}


def deprecated_arguments(dotted: str) -> tuple[Deprecated, ...]:
    """Rows about arguments of a callable (argument, missing, value, signature); empty for most callables."""
    return _by_callable().get(dotted) or _by_callable().get(canonical(dotted), ())


def deprecations() -> Iterator[Deprecated]:
    """All rows, by name."""
    for key, entry in table("deprecated").items():
        yield decode(key, entry)


def public_name(dotted: str) -> str | None:
    """The public name of a torch object that is written with a private part (`torch._tensor.Tensor`), else None."""
    if not any(part.startswith("_") and not part.startswith("__") for part in dotted.split(".")):
        return None
    found = canonical(dotted)
    private = any(part.startswith("_") and not part.startswith("__") for part in found.split("."))
    return None if found == dotted or private else found


def decode(key: str, entry: dict[str, Any]) -> Deprecated:
    """A table entry as data."""
    name, _, argument = key.partition("(")
    text = entry.get("arguments", "")
    moves, adds = mapping(text)
    return Deprecated(
        name=name,
        kind=entry["kind"],
        since=entry["since"],
        removed=entry.get("removed", ""),
        replacement=entry.get("replacement", ""),
        argument=argument[:-1],
        same=text == "same",
        mapped=bool(text),
        moves=moves,
        adds=adds,
        differs=entry.get("differs", ""),
        observed=entry.get("observed", ""),
        evidence=entry.get("evidence", ""),
    )


def mapping(text: str) -> tuple[tuple[Moved, ...], tuple[tuple[int | str, str], ...]]:
    """Moves and additions from text such as `b=2 LU_data=0 * out=out +mode='nearest'`."""
    moves: list[Moved] = []
    adds: list[tuple[int | str, str]] = []
    keyword_only = False
    for word in text.split() if text != "same" else ():
        old, _, new = word.partition("=")
        if word == "*":
            keyword_only = True
        elif word.startswith("+"):
            adds.append((slot(old[1:]), new))
        elif word.startswith("*"):
            moves.append(Moved(old[1:], "list"))
            keyword_only = True
        else:
            moves.append(Moved(old, slot(new) if new else None, keyword_only))
    return tuple(moves), tuple(adds)


def slot(text: str) -> int | str:
    """A position or a keyword."""
    return int(text) if text.isdigit() else text
