"""`torchlint confirm --script`: one finding's evidence as a Python file that repeats it with torch alone.

The file holds the flagged code cut out of its file, the corrected code, how it is run, how it is
measured, and a packed copy of what makes inputs and watches a run. It needs the project's folder only
if the code was not seen to behave the same without it.
"""

from __future__ import annotations

import ast
import base64
import json
import lzma
import os
import pprint
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from runtime_check import probes
from runtime_check.cutout import shorter
from runtime_check.evidence import Environment, Outcome, Verdict
from runtime_check.plan import Case, Lines
from runtime_check.pool import ROOT, Pool
from torchlint.findings import Finding

ENGINE = "runtime_check.replay"
PLACE = re.compile(r"(?P<path>.+?):(cell (?P<cell>\d+):)?(?P<line>\d+)(:\d+)?(: ?(?P<code>[A-Z]+\d+))?")

TEMPLATE = '''\
"""{title}

{verdict}: {why}
{rows}

How it is run: {how}
Measured with torch {torch}, Python {python}, {platform}, device {device}, seed {seed}.

    python {file}

runs it again and prints the numbers; the exit status is 0 if the verdict is the same.
{needs} The code runs in a child process that may write to a folder of its own only.
"""
import base64, importlib.abc, importlib.util, json, lzma, sys

# ---- the flagged code, cut out of {path}; flagged is {flagged_lines} of it as it stands here
CODE = {code}

# ---- the same, {correction}
CORRECTED = {corrected}

# ---- where to look, how to run it, what was seen
CASE = {case}
EXPECTED = {expected}

# ---- how it is measured: the function `{function}`
MEASUREMENT = {measurement}

# ---- what makes the inputs and watches the run (packed source text of torchlint {version})
PACKED = """
{packed}"""


class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from the text above."""

    def __init__(self):
        self.texts = json.loads(lzma.decompress(base64.b85decode("".join(PACKED.split()))))
        self.texts["{module}"] = MEASUREMENT

    def find_spec(self, name, path=None, target=None):
        if name in self.texts:
            folder = any(other.startswith(name + ".") for other in self.texts)
            return importlib.util.spec_from_loader(name, self, is_package=folder)

    def exec_module(self, module):
        module.__file__ = module.__name__.replace(".", "/") + ".py"
        exec(compile(self.texts[module.__name__], module.__file__, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    sys.meta_path.insert(0, Sources())
    from {engine} import repeat

    sys.exit(repeat(CASE, CODE, CORRECTED, EXPECTED))
'''


class ScriptError(RuntimeError):
    """Why no script can be written; one line."""


class Place(NamedTuple):
    """Where a finding is: what `net.py:8:TL405` or `net.ipynb:cell 3:8` says."""

    path: str
    line: int
    code: str = ""
    cell: int | None = None  # of a notebook


def parted(words: str) -> Place:
    """What a place says. ScriptError for anything else."""
    found = PLACE.fullmatch(words)
    if found is None:
        raise ScriptError(f"--script: {words!r} is no place such as net.py:8 or net.py:8:TL405")
    cell = None if found["cell"] is None else int(found["cell"])
    return Place(found["path"], int(found["line"]), found["code"] or "", cell)


def write(finding: Finding, case: Case, pool: Pool) -> tuple[str, Outcome]:
    """The script for a finding, and the outcome that it repeats."""
    for claim in case.claim.each:  # of several claims the one that shows itself
        case = replace(case, claim=claim)
        ((_, outcome),) = pool.run([case])
        if outcome.verdict is Verdict.CONFIRMED:
            break
    assert pool.environment is not None
    case, outcome = smallest(case, outcome, pool)
    return text_of(finding, case, outcome, pool.environment), outcome


def smallest(case: Case, outcome: Outcome, pool: Pool) -> tuple[Case, Outcome]:
    """The smallest form of a case that shows the same: without the project, cut out, run in the known way.

    With it comes what it showed: its words count the lines of its own text.
    """
    for form in forms_of(case, outcome.how):
        ((_, seen),) = pool.run([form])
        if same(outcome, seen):
            return form, seen
    return case, outcome


def forms_of(case: Case, how: str) -> Iterator[Case]:
    """Smaller forms of a case, the smallest first."""
    name = os.path.basename(case.path)
    for whole in (shorter(case, how), replace(case, only=how)):
        if whole is not None:
            yield replace(whole, path=name, roots=(), factories=())
            yield whole
    yield replace(case, path=name, roots=(), factories=())


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes have the same verdict and evidence about the same quantities."""
    if one.verdict is not other.verdict:
        return False
    first, second = ([row.label for row in outcome.evidence] for outcome in (one, other))
    return [re.sub(r"\d+", "", label) for label in first] == [re.sub(r"\d+", "", label) for label in second]


def text_of(finding: Finding, case: Case, outcome: Outcome, environment: Environment) -> str:
    """The script."""
    from torchlint import __version__

    module, function = probes.place(case)
    alone = not os.path.isabs(case.path)
    rows = [row.text for row in outcome.evidence]
    file = f"repro_{case.code}.py"
    cell = "" if finding.cell is None else f"cell {finding.cell}:"
    return TEMPLATE.format(
        title=docstring(f"{finding.path}:{cell}{finding.span.line}: {case.code} {case.name}: {finding.message}"),
        verdict=outcome.verdict.value,
        why=docstring(outcome.why),
        rows=docstring("\n".join(f"  {row}" for row in rows)),
        how=docstring(case.only or outcome.how or "(not at all)"),
        **asdict(environment),
        seed=case.seed,
        file=file,
        needs="It needs torch alone." if alone else f"It needs torch and the files around {case.path}.",
        path=docstring(finding.path),
        flagged_lines=" and ".join(map(lines_named, case.flagged)),
        code=literal(case.text),
        correction=case.correction if case.corrected is not None else "corrected: nobody knows how",
        corrected="None" if case.corrected is None else literal(case.corrected),
        case=pprint.pformat(described(case), width=100, sort_dicts=False),
        expected=pprint.pformat((outcome.verdict.value, tuple(rows)), width=100),
        function=function,
        module=module,
        measurement=literal(source_of(module)),
        version=__version__,
        packed=re.sub(r"(.{110})", r"\1\n", packed(module)),
        engine=ENGINE,
    )


def docstring(text: str) -> str:
    """A text that may stand in a docstring and in a comment's line."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def lines_named(spot: Lines) -> str:
    """`line 3`, `lines 3 to 5`."""
    return f"line {spot.first}" if spot.first == spot.last else f"lines {spot.first} to {spot.last}"


def described(case: Case) -> dict[str, object]:
    """A case without its texts, as literals; `replay.case_from` reads it."""
    return {
        "path": case.path,
        "code": case.code,
        "name": case.name,
        "claim": (case.claim.name, asdict(case.claim)),
        "flagged": [(spot.first, spot.last, spot.part) for spot in case.flagged],
        "mended": [(spot.first, spot.last, spot.part) for spot in case.mended],
        "correction": case.correction,
        "roots": list(case.roots),
        "factories": list(case.factories),
        "device": case.device,
        "seconds": case.seconds * 3,  # another machine may be slower
        "seed": case.seed,
        "only": case.only,
    }


def literal(text: str) -> str:
    """A string literal that shows a text as it is, where that can be."""
    for quotes in ("'''", '"""'):
        shown = f"r{quotes}\n{text}{quotes}"
        if quotes not in text and not text.endswith(quotes[0]) and ast.literal_eval(shown) == "\n" + text:
            return f"{shown}[1:]"
    return "(\n" + "".join(f"    {line!r}\n" for line in text.splitlines(keepends=True)) + ")"


# -- what is packed -----------------------------------------------------------------------------


def packed(module: str) -> str:
    """The modules that a script needs, but the one that measures, as text of printable characters."""
    texts = {name: without_words(source_of(name)) for name in needed(ENGINE, module) if name != module}
    return base64.b85encode(lzma.compress(json.dumps(texts).encode(), preset=9)).decode("ascii")


def needed(*modules: str) -> list[str]:
    """Our own modules that some of them import, at once or later, themselves included."""
    found: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name in found or file_of(name) is None:
            continue
        found.add(name)
        todo += [name.rpartition(".")[0], *imported(ast.parse(source_of(name)))]
    return sorted(found)


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a text may import, other than for its annotations."""
    annotations = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as module, names=names) if id(node) not in annotations:
                yield from (module, *(f"{module}.{alias.name}" for alias in names))
            case ast.Import(names=names) if id(node) not in annotations:
                yield from (alias.name for alias in names)


def file_of(name: str) -> Path | None:
    """The file of one of our own modules."""
    place = Path(ROOT, *name.split("."))
    if not name or name.partition(".")[0] not in ("runtime_check", "torchlint"):
        return None
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def source_of(name: str) -> str:
    """The text of one of our own modules."""
    file = file_of(name)
    assert file is not None, name
    return file.read_text(encoding="utf-8")


def without_words(text: str) -> str:
    """A module's text without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.unparse(tree)
