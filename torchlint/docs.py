"""A rule as prose: the parts of its docstring, its page in Markdown, and the index of all pages.

Everything here comes from the rule's own file, so no page can say what the rule does not.
"""
from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchlint.claims import Claim
from torchlint.findings import Safety, Severity
from torchlint.rule import Example, Rule

LAYER_TITLES = {
    "tool": "The tool itself",
    "tensor": "Tensors: storage, views, metadata",
    "graph": "The autograd graph",
    "function": "torch.autograd.Function",
    "module": "torch.nn.Module and Parameter",
    "training": "The training loop",
    "cost": "Memory and speed",
    "distributed": "Distributed training",
    "compiled": "Compilation, dispatch, extension",
    "api": "Removed, deprecated, private and unsafe API",
}
SEVERITIES = {
    Severity.ERROR: "error: a wrong result or a crash",
    Severity.WARNING: "warning: costs memory, time or safety, or is wrong in a likely case",
    Severity.ADVICE: "advice: correct today, fragile or old",
}
FIXES = {
    None: "none",
    Safety.SHOW: "shown, never applied",
    Safety.UNSAFE: "with `--fix --unsafe-fixes`: it changes what runs, so look at the result",
    Safety.SAFE: "with `--fix`",
}
FIX_WORDS = {None: "", Safety.SHOW: "shown", Safety.UNSAFE: "unsafe", Safety.SAFE: "safe"}
_NO_CLAIM = re.compile(r"^No claim:\s*(.+)$", re.DOTALL)


@dataclass(frozen=True)
class Explanation:
    """The parts of a rule's docstring, each a text without line breaks."""

    summary: str
    why: str
    advice: str
    notes: tuple[str, ...] = ()

    @property
    def no_claim(self) -> str:
        """Why the rule has no claim, from a paragraph that begins with `No claim:`; "" if none does."""
        for note in self.notes:
            if match := _NO_CLAIM.match(note):
                return match[1]
        return ""


@functools.cache
def explain(doc: str) -> Explanation:
    """Split a rule's docstring: first line, why, what to do, and whatever else it says.

    Parts that are missing are empty. Line breaks inside a paragraph become spaces; paragraphs that
    begin with a list marker or an indentation keep theirs.
    """
    parts = [_flow(part) for part in re.split(r"\n\s*\n", inspect.cleandoc(doc).strip()) if part.strip()]
    summary, why, advice, *notes = parts + [""] * (3 - len(parts))
    return Explanation(summary, why, advice, tuple(notes))


def _flow(paragraph: str) -> str:
    """A paragraph on one line, unless it is a list or a block of code."""
    lines = paragraph.splitlines()
    if any(re.match(r"\s+\S|[-*] |\d+\. ", line) for line in lines):
        return paragraph.strip("\n")
    return " ".join(line.strip() for line in lines)


def claim_sentence(claim: Claim) -> str:
    """What the claim says will be seen, from the claim's own docstring."""
    return " Or: ".join(" ".join(inspect.cleandoc(type(one).__doc__ or one.name).split()) for one in claim.each)


def page_name(rule: Rule) -> str:
    """The file name of a rule's page."""
    return f"{rule.meta.name}.md"


def page(rule: Rule) -> str:
    """One rule as a page of Markdown; `torchlint rule` prints the same text."""
    told = explain(rule.doc)
    parts = [f"# {rule.meta.code} {rule.meta.name}", told.summary, _facts(rule)]
    if told.why:
        parts += ["## Why", told.why]
    if told.advice:
        parts += ["## What to do", told.advice]
    parts += told.notes
    parts += _proof(rule)
    for number, example in enumerate(rule.examples, 1):
        parts += _example(example, number if len(rule.examples) > 1 else 0)
    parts += _silence(rule)
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(rule: Rule) -> str:
    """The table of data about a rule."""
    meta = rule.meta
    status = "stable" if meta.stable else "preview: reported with `--preview`"
    if meta.runtime:
        status = "reported by `torchlint confirm` only, which runs the code"
    others = " or ".join(one.value for one in meta.also)
    rows = [
        ("Layer", LAYER_TITLES[rule.layer]),
        ("Severity", SEVERITIES[meta.severity] + (f"; for some findings {others}" if others else "")),
        ("Status", status if meta.default else f"{status}; only when selected by code, name or `ALL`"),
        ("Fix", FIXES[meta.fix]),
        ("Since", f"torchlint {meta.since}"),
    ]
    if meta.torch:
        rows.append(("Applies to", f"torch {meta.torch}"))
    if meta.aliases:
        rows.append(("Also known as", ", ".join(f"`{alias}`" for alias in meta.aliases)))
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _proof(rule: Rule) -> list[str]:
    """What running the flagged code shows."""
    if rule.claim is None:
        return []
    return [
        "## What running it shows",
        f"**{rule.claim.name}**: {claim_sentence(rule.claim)} "
        "`torchlint confirm` runs flagged code and says whether that is so.",
    ]


def _example(example: Example, number: int) -> list[str]:
    """A faulty program and the corrected one."""
    lines = sorted(set(example.flagged))
    where = f"line {lines[0]}" if len(lines) == 1 else "lines " + ", ".join(map(str, lines))
    title = f"## Example {number}" if number else "## Example"
    return [
        title,
        f"Reported on {where}:",
        _code(example.source),
        "Instead:",
        _code(example.corrected),
    ]


def _code(text: str) -> str:
    """A block of Python in Markdown; the fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{textwrap.dedent(text).rstrip()}\n{fence}"


def _silence(rule: Rule) -> list[str]:
    """How to silence the rule, and how many near misses it is tested on."""
    meta = rule.meta
    said = f"To silence one line: `# torchlint: ignore[{meta.name}]` or `# noqa: {meta.code}`."
    if rule.clean:
        count = "1 near miss" if len(rule.clean) == 1 else f"{len(rule.clean)} near misses"
        said += f" The rule is tested to stay silent on {count}."
    return ["## Silence", said]


def index(rules: Iterable[Rule]) -> str:
    """All rules in one page of Markdown: a table for each layer, linked to the rules' pages."""
    rules = sorted(rules, key=lambda rule: rule.meta.code)
    parts = ["# Rules", f"{len(rules)} rules, by the layer of PyTorch that they protect."]
    for layer, title in LAYER_TITLES.items():
        members = [rule for rule in rules if rule.layer == layer]
        if members:
            parts += [f"## {title}", _table(members)]
    return "\n\n".join(parts) + "\n"


def _table(rules: list[Rule]) -> str:
    """The rules of one layer."""
    lines = ["| code | name | severity | fix | what is wrong |", "| --- | --- | --- | --- | --- |"]
    for rule in rules:
        meta = rule.meta
        name = f"[{meta.name}]({page_name(rule)})" + ("" if meta.stable else " (preview)")
        summary = rule.summary.replace("|", "\\|")
        lines.append(f"| {meta.code} | {name} | {meta.severity.value} | {FIX_WORDS[meta.fix]} | {summary} |")
    return "\n".join(lines)


def build(rules: Iterable[Rule], folder: Path) -> list[Path]:
    """Write a page for each rule and `index.md` into `folder`, which is made if it is missing.

    Returns the files written. OSError if the folder cannot be written.
    """
    rules = list(rules)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {page_name(rule): page(rule) for rule in rules} | {"index.md": index(rules)}
    written = []
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="\n")
        written.append(path)
    return written
