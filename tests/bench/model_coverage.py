"""How much of real code the model understands: receivers of tensor-like methods, and bases of classes.

    python tests/bench/model_coverage.py FOLDER... [--import PACKAGE=SYS_PATH]... [--sure N] [--any] [--seed S]

For every folder: how many receivers of `.backward()`, `.step()`, `.zero_grad()`, `.detach()` and `.item()`
have a kind, and how many bases of classes are resolved to a definition or a known outside class. With
`--import` the package is imported in a process of its own, and "is it a Module" is compared with what Python
says of each class. `--sure N` prints N random answers that the model calls sure, to be checked by hand:
receivers, or with `--any` whatever name, attribute, call, item or sum stands in the code.
"""
from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2]))

from torchlint.files import read_source  # noqa: E402
from torchlint.model import ClassInfo, Confidence, FileModel, Kind  # noqa: E402
from torchlint.project import Project  # noqa: E402

# What is known of these is no more than a literal or a name.
PLAIN = {
    Kind.FUNCTION, Kind.NAMESPACE, Kind.CLASS, Kind.STRING, Kind.NUMBER, Kind.NONE, Kind.UNKNOWN, Kind.SIZE,
    Kind.DEVICE, Kind.DTYPE,
}
METHODS = ("backward", "step", "zero_grad", "detach", "item")
# Objects with a `step` that train nothing: simulators, environments, profilers, progress.
OTHER_STEPS = {"env", "envs", "prof", "profiler", "progress", "pbar", "game", "simulator", "venv", "eval_env"}

# Imports every module of a package and prints, for each class it defines, whether it is a Module.
ASK_PYTHON = """
import importlib, inspect, json, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import torch
package = importlib.import_module(sys.argv[1])
found, failed = {}, 0
inner = pkgutil.walk_packages(package.__path__, sys.argv[1] + ".", onerror=lambda name: None)
names = [sys.argv[1]] + [module.name for module in inner]
for name in names:
    try:
        module = importlib.import_module(name)
    except BaseException:
        failed += 1
        continue
    for item in list(vars(module).values()):
        if inspect.isclass(item) and item.__module__ == name:
            found[name + "." + item.__qualname__] = issubclass(item, torch.nn.Module)
print("RESULT" + json.dumps([found, failed]))
"""


@dataclass
class Coverage:
    """What was counted in one folder."""

    files: int = 0
    lines: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    bases: int = 0
    resolved: int = 0
    unresolved: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    sure: list[str] = field(default_factory=list)
    any: list[str] = field(default_factory=list)
    modules: dict[str, bool] = field(default_factory=dict)

    @property
    def receivers(self) -> str:
        """How many receivers have a kind, of how many."""
        return share(sum(self.known.values()), sum(self.calls.values()))


def share(part: int, whole: int) -> str:
    """`12 of 20 (60 %)`."""
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "none"


def python_files(folder: Path) -> Iterator[Path]:
    """Python files in a stable order."""
    yield from sorted(path for path in folder.rglob("*.py") if ".git" not in path.parts)


def measure(folder: Path, everything: bool = False) -> Coverage:
    """Count over every file of a folder; with `everything`, all sure answers are collected."""
    found = Coverage()
    project = Project([folder])
    for path in python_files(folder):
        try:
            model = FileModel.begin(read_source(path), project)
        except (OSError, SyntaxError, ValueError):
            continue
        found.files += 1
        found.lines += len(model.source.lines)
        count_receivers(model, found, path.relative_to(folder))
        if everything:
            found.any.extend(sure_answers(model, path.relative_to(folder)))
        count_bases(model, found)
    return found


def count_receivers(model: FileModel, found: Coverage, path: Path) -> None:
    """Receivers of the five methods."""
    for name in METHODS:
        for call in model.calls_named(name):
            if not isinstance(call.func, ast.Attribute) or is_other(call.func.value):
                continue
            value = model.value(call.func.value)
            found.calls[name] += 1
            found.known[name] += value.known
            spot = f"{path}:{call.lineno} {ast.unparse(call.func)[:60]}"
            if not value.known:
                found.unknown.append(spot)
            elif value.sure is Confidence.SURE:
                found.sure.append(f"{spot} is {value.kind.value} {value.grad.value} {value.name}")


def sure_answers(model: FileModel, path: Path) -> Iterator[str]:
    """Every sure answer about an expression of a file that says more than a literal or a name."""
    for node in model.nodes(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp):
        value = model.value(node)
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if value.sure is Confidence.SURE and value.kind not in PLAIN and not stored and ast.unparse(node) != "self":
            more = f"{value.grad.value} {value.role}" if value.is_tensor else ""
            none = "or None" if value.optional else ""
            yield f"{path}:{node.lineno} {ast.unparse(node)[:70]!r} is {value.kind.value} {more} {value.name} {none}"


def is_other(receiver: ast.expr) -> bool:
    """A receiver whose `step` has nothing to do with training, by its name; `super().step()` asks for no value."""
    match receiver:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in OTHER_STEPS
        case ast.Call(func=ast.Name(id="super")):
            return True
    return False


def count_bases(model: FileModel, found: Coverage) -> None:
    """Bases with a definition in the folder, or a dotted origin outside it."""
    for info in model.classes:
        found.modules[info.dotted] = info.is_module
        for base in info.bases:
            found.bases += 1
            if isinstance(base, ClassInfo) or base:
                found.resolved += 1
            else:
                found.unresolved[", ".join(ast.unparse(node) for node in info.node.bases)] += 1


def compare(package: str, path: str, ours: dict[str, bool]) -> tuple[int, int, int, list[str]]:
    """(right Modules, Modules, classes called a Module that are none, the wrong ones) against the imported package."""
    command = [sys.executable, "-c", ASK_PYTHON, package]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path, "PATH": ""}, timeout=900)
    line = next((item for item in done.stdout.splitlines() if item.startswith("RESULT")), None)
    if line is None:
        raise SystemExit(f"{package} cannot be imported: {done.stderr[-400:]}")
    theirs, _ = json.loads(line.removeprefix("RESULT"))
    both = {name: (mine, theirs[name]) for name, mine in ours.items() if name in theirs}
    modules = [name for name, (_, real) in both.items() if real]
    wrong = [name for name, (mine, real) in both.items() if mine is not real]
    right = sum(both[name][0] for name in modules)
    return right, len(modules), sum(mine and not real for mine, real in both.values()), wrong


def main() -> None:
    """Measure and print a table."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="PACKAGE=SYS_PATH")
    parser.add_argument("--sure", type=int, default=0)
    parser.add_argument("--any", action="store_true", help="--sure: of all expressions, not only of receivers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unknown", type=int, default=0, help="print that many receivers without a kind")
    options = parser.parse_args()
    imports = dict(item.split("=", 1) for item in options.imports)
    print("| code | files | lines | receivers with a kind | bases resolved | Modules known | wrongly called Modules |")
    print("|---|---|---|---|---|---|---|")
    details, everything = [], []
    for folder in options.folders:
        found = measure(folder, options.any)
        package = next((name for name in imports if (folder / name).is_dir()), "")
        known, wrong = "", ""
        if package:
            right, modules, false, names = compare(package, imports[package], found.modules)
            known, wrong = share(right, modules), str(false)
            details.append(f"{package}, told wrongly: {', '.join(names[:40]) or 'nothing'}")
        name = folder.resolve().name
        print(f"| {name} | {found.files} | {found.lines:,} | {found.receivers} | {share(found.resolved, found.bases)} "
              f"| {known} | {wrong} |")
        each = ", ".join(f".{m}() {share(found.known[m], found.calls[m])}" for m in METHODS)
        details.append(f"{name}: {each}")
        details.append(f"{name}, bases unresolved: {dict(found.unresolved.most_common(12))}")
        pick = random.Random(options.seed)
        spots = pick.sample(found.unknown, min(options.unknown, len(found.unknown)))
        details += [f"  unknown {spot}" for spot in spots]
        everything += [f"{name}/{spot}" for spot in (found.any if options.any else found.sure)]
    print("\n" + "\n".join(details))
    if options.sure:
        chosen = random.Random(options.seed).sample(everything, min(options.sure, len(everything)))
        print(f"\n{len(everything):,} sure answers, of which:\n" + "\n".join(sorted(chosen)))


if __name__ == "__main__":
    main()
