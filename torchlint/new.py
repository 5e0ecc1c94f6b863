"""`torchlint new`: writes the file of a new rule, complete but for its `check`.

The file imports, and its generated tests fail until `check` is written. A rule is one file, so
there is nothing else to write; only a code that no list promised yet is added to the code history.
"""
from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from torchlint.rule import LAYERS

HISTORY = Path("tests", "data", "code_history.txt")
PLACEHOLDER = "(replace this)"  # marks the texts that the author has to write
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ROW = re.compile(r"^(TL\d{3}) ([a-z0-9-]+)$", re.MULTILINE)

_TEMPLATE = Template('''\
"""What is wrong, as a noun phrase $placeholder.

Why PyTorch makes it wrong: what happens inside, and what the user sees $placeholder.

What to write instead, and when the code is fine as it is $placeholder.

No claim: say here why running the code cannot show the fault, or set CLAIM to one of
`torchlint.claims` and drop this paragraph $placeholder.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("$code", "$name", Severity.WARNING, since="$since", stable=False)
CLAIM = None

# Whole programs. `#!` ends each line that must be reported.
EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.ones(3)
        torch.sum(x)  #!
        """,
        good="""
        import torch

        x = torch.ones(3)
        total = torch.sum(x)
        """,
    ),
]

# Near misses: programs that a careless check would report. Each false alarm met later adds one.
CLEAN = [
    "import torch\\n\\nprint(torch.sum(torch.ones(3)))\\n",
]


def check(model: FileModel) -> Iterator[Hit]:
    """Yield a hit for each place that is wrong."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == "":  # the full name of what is called, such as "torch.sum"
            yield Hit(call, "what happens here, and what to do $placeholder")
''')


class NewRuleError(ValueError):
    """The rule cannot be made; the message is one line for the user."""


@dataclass(frozen=True)
class Created:
    """What was written."""

    path: Path
    code: str
    name: str
    recorded: bool  # the code was added to the history

    @property
    def next_steps(self) -> str:
        """What was written besides the rule's file, and what the author does now."""
        promised = f"{HISTORY}: a line for {self.code}, which no other rule may take now\n" if self.recorded else ""
        return (
            f"{self.path}: {self.code} {self.name}\n{promised}"
            "Write the examples, then `check`, then the docstring, until this passes:\n"
            f"    pytest tests/test_rules.py -k {self.name}\n"
        )


def create(name: str, layer: str, root: Path | None = None, since: str = "0.1") -> Created:
    """Write the rule file for `name` below `root`, a clone of torchlint (default: the working directory).

    The code is the one that the history promises to this name, else the next free one of the layer.
    NewRuleError if the name or the layer will not do, the rule exists, or `root` is no clone.
    """
    root = root or Path()
    folder = root / "torchlint" / "rules" / layer
    if layer not in LAYERS:
        raise NewRuleError(f"no layer {layer!r}: it is one of {', '.join(LAYERS)}")
    if not _NAME.fullmatch(name):
        raise NewRuleError(f"{name!r} is no name for a rule: use lower-case words joined by hyphens")
    if not folder.is_dir():
        raise NewRuleError(f"{root}: no torchlint/rules/{layer} here; run this in a clone of torchlint")
    written, promised = _written(root), _promised(root)
    if name in written:
        raise NewRuleError(f"a rule {name!r} exists: {written[name][1]}")
    code = promised.get(name) or _next(layer, {code for code, _ in written.values()} | set(promised.values()))
    if code[2] != _hundred(layer):
        raise NewRuleError(f"{name!r} is promised {code}, which belongs to layer {LAYERS[int(code[2]) - 1]}")
    path = folder / f"{name.replace('-', '_')}.py"
    text = _TEMPLATE.substitute(code=code, name=name, since=since, placeholder=PLACEHOLDER)
    try:
        with open(path, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        recorded = _record(root, code, name, promised)
    except OSError as error:
        raise NewRuleError(f"{path}: cannot be written: {error.strerror}") from None
    return Created(path, code, name, recorded)


def _written(root: Path) -> dict[str, tuple[str, Path]]:
    """Codes and files of the rules below `root`, by name; nothing is imported."""
    found = {}
    for path in sorted((root / "torchlint" / "rules").glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            match node:
                case ast.Call(
                    func=ast.Name(id="Meta"),
                    args=[ast.Constant(value=str(code)), ast.Constant(value=str(name)), *_],
                ):
                    found[name] = (code, path)
    return found


def _promised(root: Path) -> dict[str, str]:
    """Codes by name from the history; empty if there is none."""
    path = root / HISTORY
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {name: code for code, name in _ROW.findall(text)}


def _record(root: Path, code: str, name: str, promised: dict[str, str]) -> bool:
    """Add the code to the history if there is one that lacks it; says whether it did."""
    path = root / HISTORY
    if name in promised or not path.exists():
        return False
    with open(path, "a", encoding="utf-8", newline="\n") as stream:
        stream.write(f"{code} {name}\n")
    return True


def _hundred(layer: str) -> str:
    """The first digit of the codes of a layer."""
    return str(LAYERS.index(layer) + 1)


def _next(layer: str, taken: set[str]) -> str:
    """The lowest code of the layer's hundred above all that were ever taken."""
    first = int(_hundred(layer)) * 100
    numbers = [int(code[2:]) for code in taken if code[2] == _hundred(layer)]
    number = max(numbers, default=first) + 1
    if number >= first + 100:
        raise NewRuleError(f"layer {layer!r} has no free code left")
    return f"TL{number}"
