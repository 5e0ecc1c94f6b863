"""Makes every fix in copies of real repositories and checks what became of the files.

    python tests/ecosystem/fixes.py REPO... [--safe] [--patch FILE] [--scratch FOLDER]

Each repository is copied, then fixed with every rule, opt-in and preview ones too. Checked is, without
using the guards that fixes themselves go through:

parses     every file that parsed and compiled before still does
comments   no comment is lost (those that only tell a tool about a line that changed do not count)
places     every changed line is one that a fix said it would change, or an import
endings    no line changed in its white space or line end alone
settled    a second run changes nothing
dropped    torchlint dropped no fix as its own fault

Exit status 1 if any of it fails, or fewer files were seen than `--floor`. `--patch` keeps what was changed,
each hunk under the rules that asked for it and whether they call it unsafe, to be read.
"""
from __future__ import annotations

import argparse
import ast
import difflib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "torchlint", "--isolated", "--no-cache", "--preview", "--select", "ALL",
           "--exit-zero", "--output-format", "json")
SKIPPED = shutil.ignore_patterns(".git", "__pycache__", ".venv", "*.pt", "*.pth", "*.so", "*.png", "*.jpg", "*.gif")
FOR_TOOLS = re.compile(r"#\s*(?:noqa|type:\s*ignore|pragma|pylint|ruff|pyright|mypy|fmt|yapf|isort|nosec|torchlint)")
Hunk = tuple[int, int, list[str], list[str]]  # first and last old line (1-based; last < first: inserted), texts


@dataclass
class Result:
    """What came of one repository."""

    name: str
    files: int = 0
    changed: int = 0
    fixed: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    patch: list[str] = field(default_factory=list)


def torchlint(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The report of a run in `folder` and what it said beside. SystemExit if it did not do its job."""
    done = subprocess.run([*COMMAND, *options, "."], cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 2) or not done.stdout.strip():
        raise SystemExit(f"{folder}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout), done.stderr


def texts(folder: Path) -> dict[str, bytes]:
    """The Python files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*.py")) if path.is_file() and not path.is_symlink()}


def run(repository: Path, scratch: Path, *, unsafe: bool = True) -> Result:
    """Copy, fix, check."""
    copy = scratch / repository.name
    shutil.copytree(repository, copy, ignore=SKIPPED, symlinks=True)
    result = Result(repository.name)
    before = texts(copy)
    found, _ = torchlint(copy)
    how = ("--fix", "--unsafe-fixes") if unsafe else ("--fix",)
    report, said = torchlint(copy, *how)
    after = texts(copy)
    result.files, result.fixed = report["summary"]["files"], report["summary"]["fixed"]
    result.seconds = report["summary"]["seconds"]
    result.faults += [line for line in said.splitlines() if "a fault of torchlint" in line or " error: " in line]
    result.faults += [f"{name}: the file is gone" for name in before.keys() - after.keys()]
    result.faults += [f"{name}: a new file" for name in after.keys() - before.keys()]
    asked = _asked(found["findings"])
    for name, old in before.items():
        new = after.get(name, old)
        if new != old:
            result.changed += 1
            faults, patch = compare(name, old, new, asked.get(name, {}))
            result.faults += faults
            result.patch += patch
    again, _ = torchlint(copy, *how)
    for name, new in texts(copy).items():
        if after.get(name) != new:
            result.faults.append(f"{name}: a second run changes it")
    if again["summary"]["fixed"]:
        result.faults.append(f"a second run claims {again['summary']['fixed']} fixes")
    return result


def _asked(findings: Iterable[dict[str, Any]]) -> dict[str, dict[int, set[str]]]:
    """For each file, the lines that edits touch, and who touches them: the code, and whether that is unsafe."""
    table: dict[str, dict[int, set[str]]] = {}
    for row in findings:
        for edit in (row["fix"] or {"edits": ()})["edits"]:
            lines = table.setdefault(row["path"], {})
            for line in range(edit["line"], edit["end_line"] + 1):
                lines.setdefault(line, set()).add(row["code"] + " (unsafe)" * (row["fix"]["safety"] == "unsafe"))
    return table


def compare(name: str, old: bytes, new: bytes, asked: dict[int, set[str]]) -> tuple[list[str], list[str]]:
    """What is wrong with a changed file, and its changes for reading."""
    faults = []
    if compiles(old) and not compiles(new):
        faults.append(f"{name}: does not compile any more")
    lost = comments(old) - comments(new)
    faults += [f"{name}: the comment is lost: {text}" for text in lost if not FOR_TOOLS.match(text)]
    imports = _import_lines(old)
    asked = _whole(old, asked)
    patch = []
    for first, last, was, now in hunks(old, new):
        here = range(first, max(first, last) + 1)
        codes = set().union(*(asked.get(line, set()) for line in here))
        if not codes and not imports & {first - 1, *here}:
            faults.append(f"{name}:{first}: a line changed that no fix named")
        if [line.rstrip() for line in was] == [line.rstrip() for line in now]:
            faults.append(f"{name}:{first}: only white space at the end of the line changed")
        patch.append(f"=== {name}:{first} {' '.join(sorted(codes))}\n")
        patch += _context(old, first - 4, first - 1) + [f"-{line}" for line in was]
        patch += [f"+{line}" for line in now] + _context(old, max(first, last + 1) - 1, max(first, last + 1) + 2)
    return faults, patch


def _context(data: bytes, start: int, stop: int) -> list[str]:
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    return [f" {line}" for line in lines[max(start, 0) : max(stop, 0)]]


def hunks(old: bytes, new: bytes) -> list[Hunk]:
    """The changes between two texts, line ends included."""
    a, b = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (old, new))
    found: list[Hunk] = []
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "replace" and a2 - a1 == b2 - b1:  # line by line, so that none hides behind its neighbour
            found += [(i + 1, i + 1, [a[i]], [b[i - a1 + b1]]) for i in range(a1, a2)]
        elif tag != "equal":
            found.append((a1 + 1, a2, a[a1:a2], b[b1:b2]))
    return found


def compiles(data: bytes) -> bool:
    """Whether Python accepts the text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "file.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def comments(data: bytes) -> Counter[str]:
    """The comments of a text; none if Python cannot read it."""
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (tokenize.TokenError, SyntaxError):
        return Counter()
    return Counter(token.string.rstrip() for token in tokens if token.type == tokenize.COMMENT)


def _whole(data: bytes, asked: dict[int, set[str]]) -> dict[int, set[str]]:
    """The same for all lines of a simple statement, which may have to be laid out anew."""
    try:
        nodes = list(ast.walk(ast.parse(data)))
    except (SyntaxError, ValueError):
        return asked
    found = {line: set(codes) for line, codes in asked.items()}
    for node in nodes:
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            codes = set().union(*(asked.get(line, ()) for line in lines))
            for line in lines if codes else ():
                found.setdefault(line, set()).update(codes)
    return found


def _import_lines(data: bytes) -> set[int]:
    """The lines at the top level where imports stand, and those above the first statement."""
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError):
        return set()
    lines = set(range(body[0].lineno + 1)) if body else set()
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif node is body[0] and isinstance(node, ast.Expr):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 3))
    return lines


def main() -> int:
    """Run over each repository and print a table."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--safe", action="store_true", help="safe fixes only")
    parser.add_argument("--patch", type=Path, help="write all changes there")
    parser.add_argument("--scratch", type=Path, help="keep the copies there")
    parser.add_argument("--floor", type=int, default=1, help="the least number of files to have seen")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or Path(temporary)
        results = []
        for repository in options.repositories:
            result = run(repository.resolve(), scratch, unsafe=not options.safe)
            print(f"{result.name:<28} {result.files:>5} files {result.fixed:>5} fixes in {result.changed:>4} files "
                  f"{result.seconds:>6.1f} s  {len(result.faults)} faults", flush=True)
            print("".join(f"  {fault}\n" for fault in result.faults), end="", flush=True)
            results.append(result)
            if options.patch:
                options.patch.write_text("".join("".join(one.patch) for one in results), encoding="utf-8")
    seen = sum(result.files for result in results)
    print(f"{seen} files, {sum(result.fixed for result in results)} fixes")
    if seen < options.floor:
        print(f"only {seen} files seen, expected {options.floor}", file=sys.stderr)
    return int(any(result.faults for result in results) or seen < options.floor)


if __name__ == "__main__":
    sys.exit(main())
