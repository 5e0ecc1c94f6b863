"""The three rules that the engine itself reports, and where every rule is documented.

They have no `check`: what they report is seen while other rules run.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.confirmed import RUNTIME
from torchlint.findings import Safety, Severity
from torchlint.rule import Hit, Meta, Rule, all_rules

if TYPE_CHECKING:
    from torchlint.model import FileModel

LAYER = "tool"
DOCS = "https://torchlint.readthedocs.io/en/latest/rules/"

_UNCHECKED = """A file that could not be checked, or not by every rule.

A syntax error, bytes that are not of the declared encoding, code nested too deep, a file that cannot
be read, or a rule that failed: no finding in such a file says nothing about the file.

Repair the file, or exclude it in the configuration. If a rule failed, the message names the rule and
the exception: that is a fault of torchlint, please report it. This rule is on whatever is selected,
and can be turned off only by naming it in `ignore`.

No claim: nothing of the file was understood, so there is nothing to run.
"""

_UNUSED = """A suppression comment that silences nothing.

The line it stands on has no such finding any more. Left alone, it would hide the next one, and it
tells the reader of a fault that is not there.

Remove it; the fix does. Only codes of torchlint that were looked for in this run are reported. A bare
`# noqa` and the codes of other tools never are.

No claim: a comment does nothing when run.
"""

_UNKNOWN = """A suppression comment that names no rule.

`# noqa: TL…` or `# torchlint: ignore[…]` with a code or name that torchlint does not have silences
nothing, most often because of a typing error.

Write the code or the name of a rule; `torchlint rule --all` lists them.

No claim: a comment does nothing when run.
"""


def _none(model: FileModel) -> Iterator[Hit]:
    """Built-in rules have nothing to say about a model."""
    return iter(())


UNCHECKED = Rule(Meta("TL000", "unchecked-file", Severity.ERROR), _none, _UNCHECKED, LAYER, __name__)
UNUSED = Rule(
    Meta("TL001", "unused-suppression", Severity.ADVICE, fix=Safety.SAFE), _none, _UNUSED, LAYER, __name__
)
UNKNOWN = Rule(Meta("TL002", "unknown-suppression", Severity.WARNING), _none, _UNKNOWN, LAYER, __name__)

BUILTIN = (UNCHECKED, UNUSED, UNKNOWN)


def every_rule() -> tuple[Rule, ...]:
    """The built-in rules, those of the package and those of `torchlint confirm`, by code."""
    return (*BUILTIN, *sorted((*all_rules(), *RUNTIME), key=lambda rule: rule.meta.code))


def rule_url(name: str) -> str:
    """Where the page of the rule with this name is."""
    return f"{DOCS}{name}/"
