"""What a rule is: data about it, examples, and the hits that its `check` yields.

A rule is one module under `torchlint/rules/<layer>/` with a docstring, `META`, `CLAIM`,
`EXAMPLES`, `CLEAN` and `check(model)`. Nothing else has to be touched to add one.
"""
from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from torchlint.claims import Claim
from torchlint.findings import Confidence, Edit, Safety, Severity

if TYPE_CHECKING:
    from torchlint.model import FileModel

LAYERS = ("tensor", "graph", "function", "module", "training", "cost", "distributed", "compiled", "api")


@dataclass(frozen=True)
class Meta:
    """Facts about a rule that users and reports see."""

    code: str
    name: str
    severity: Severity  # of most findings, and of the rule where one word has to do
    also: tuple[Severity, ...] = field(default=(), kw_only=True)  # what single findings may have instead
    since: str = "0.1"
    stable: bool = True  # False: a preview rule, reported only with --preview
    default: bool = True  # False: opt-in, reported only when selected by code, name or ALL
    fix: Safety | None = None  # the best that a fix of this rule may claim
    torch: str = ""  # version range where it applies, e.g. "<2.6"; "" is all
    aliases: tuple[str, ...] = ()  # codes of other tools accepted in select, ignore, suppressions
    runtime: bool = False  # found by running the code alone: `torchlint confirm` reports it
    triggers: tuple[str, ...] = ()  # words of which one must occur in a file's text; () is any file


@dataclass(frozen=True)
class Example:
    """A program with the fault and the same program without it. `#!` ends each flagged line.

    If the rule has a fix, `good` is exactly what the fix makes of `bad`, unless `fixed` is False.
    `steps` names the constant that sets the number of iterations, for claims about growth.
    """

    bad: str
    good: str
    fixed: bool = True
    steps: str = "STEPS"

    @property
    def flagged(self) -> tuple[int, ...]:
        """1-based line numbers of `source` that must be reported, repeated for two on a line."""
        lines = textwrap.dedent(self.bad).strip("\n").splitlines()
        return tuple(number for number, line in enumerate(lines, 1) for _ in range(line.count("#!")))

    @property
    def source(self) -> str:
        """The faulty program without its markers."""
        lines = textwrap.dedent(self.bad).strip("\n").splitlines()
        return "\n".join(line.split("#!")[0].rstrip() if "#!" in line else line for line in lines) + "\n"

    @property
    def corrected(self) -> str:
        """The program without the fault."""
        return textwrap.dedent(self.good).strip("\n") + "\n"


@dataclass(frozen=True)
class Repair:
    """A proposed fix: edits of the source text; `torchlint.fixes.edits` makes them from nodes."""

    title: str
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()
    safety: Safety | None = None  # weaker than META.fix where this place needs it


@dataclass(frozen=True)
class Hit:
    """What `check` yields: where, what happens and what to do, and perhaps a repair."""

    node: ast.AST
    message: str
    fix: Repair | None = None
    severity: Severity | None = None  # where it differs from META.severity
    confidence: Confidence = Confidence.SURE


@dataclass(frozen=True)
class Rule:
    """A loaded rule module."""

    meta: Meta
    check: Callable[[FileModel], Iterator[Hit]]
    doc: str
    layer: str
    module: str
    claim: Claim | None = None
    examples: tuple[Example, ...] = ()
    clean: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the rule's docstring."""
        return self.doc.strip().splitlines()[0].rstrip(".")


def rule_from(module: ModuleType, layer: str) -> Rule:
    """The rule that a module holds. AttributeError names what is missing."""
    return Rule(
        meta=module.META,
        check=module.check,
        doc=module.__doc__ or "",
        layer=layer,
        module=module.__name__,
        claim=module.CLAIM,
        examples=tuple(module.EXAMPLES),
        clean=tuple(textwrap.dedent(text).strip("\n") + "\n" for text in module.CLEAN),
    )


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the package, by code. Found by walking `torchlint/rules`."""
    import torchlint.rules as package

    found = []
    for layer in LAYERS:
        for info in pkgutil.iter_modules([f"{package.__path__[0]}/{layer}"]):
            module = importlib.import_module(f"{package.__name__}.{layer}.{info.name}")
            found.append(rule_from(module, layer))
    return tuple(sorted(found, key=lambda rule: rule.meta.code))
