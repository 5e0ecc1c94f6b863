"""What torchlint costs, as ratios within one run: seconds differ between machines, ratios hardly.

    python tests/bench/bench.py                     parse and model, against bare parsers
    python tests/bench/bench.py --files 400         on more files
    python tests/bench/bench.py --torchfix          and a whole run, against TorchFix from PyPI

The code measured is torch's own Python source, which is wherever torch is. Times are CPU time on one
core, the best of some rounds for each file; the works take turns, so that a busy machine hits all alike.
"""
from __future__ import annotations

import argparse
import ast
import gc
import importlib.util
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import libcst

from torchlint.builtin import every_rule
from torchlint.config import Options
from torchlint.engine import check
from torchlint.files import Source
from torchlint.model import FileModel
from torchlint.project import Project
from torchlint.select import select

FOLDERS = ("nn", "optim", "utils", "autograd", "distributed", "amp", "distributions", "profiler")
Work = Callable[[Source], object]


def sources(limit: int) -> list[Source]:
    """About `limit` of torch's files, spread evenly over FOLDERS, as sources that nobody parsed yet."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("torch is not installed here: there is nothing to measure")
    root = Path(spec.origin).parent
    paths = [path for name in FOLDERS for path in sorted((root / name).rglob("*.py")) if path.stat().st_size]
    chosen = paths[:: max(1, len(paths) // limit)]
    return [Source(str(path.relative_to(root.parent)), path.read_text(encoding="utf-8")) for path in chosen]


def works() -> dict[str, Work]:
    """What is measured, the cheapest first."""
    selection = select(Options(select=("ALL",), preview=True), every_rule())
    return {
        "ast.parse": lambda source: ast.parse(source.text),
        "libcst.parse_module": lambda source: libcst.parse_module(source.text),
        "torchlint: parse and model": lambda source: FileModel(fresh(source), Project()),
        "torchlint: every flow": lambda source: follow_everything(fresh(source)),
        "torchlint: every rule": lambda source: check(fresh(source), selection, Project()),
    }


def follow_everything(source: Source) -> None:
    """The model of a file with the flow of its own code and of every function, whether a rule asks or not."""
    model = FileModel(source, Project())
    model.flow()
    for function in model.functions:
        model.flow(function.node)


def fresh(source: Source) -> Source:
    """A source whose tree is not parsed yet."""
    return Source(source.path, source.text)


@dataclass(frozen=True)
class Row:
    """One work over all files."""

    name: str
    seconds: float


def measure(files: Iterable[Source], rounds: int = 3) -> list[Row]:
    """CPU seconds of each work, summed over the files' best rounds."""
    table = works()
    total = dict.fromkeys(table, 0.0)
    for source in files:
        best = dict.fromkeys(table, float("inf"))
        for _ in range(rounds):
            for name, work in table.items():
                best[name] = min(best[name], timed(work, source))
        for name in table:
            total[name] += best[name]
    return [Row(name, seconds) for name, seconds in total.items()]


def timed(work: Work, source: Source) -> float:
    """CPU seconds of one work on one file; the cycle collector waits."""
    gc.disable()
    try:
        start = time.process_time()
        work(source)
        return time.process_time() - start
    finally:
        gc.enable()


def ratio(rows: Iterable[Row], name: str, base: str) -> float:
    """How many times `base` costs `name`."""
    seconds = {row.name: row.seconds for row in rows}
    return seconds[name] / seconds[base]


def table(rows: list[Row], lines: int) -> str:
    """The rows, with lines per second and ratios to the bare parsers."""
    text = f"{'work':<30}{'CPU s':>8}{'lines/s':>10}{'x ast':>8}{'x libcst':>10}\n"
    for row in rows:
        by_ast = ratio(rows, row.name, "ast.parse")
        by_libcst = ratio(rows, row.name, "libcst.parse_module")
        speed = lines / row.seconds
        text += f"{row.name:<30}{row.seconds:>8.2f}{speed:>10,.0f}{by_ast:>8.1f}{by_libcst:>10.2f}\n"
    return text


def whole_runs(files: list[Source]) -> str:
    """The CPU time of whole commands over the same folder: torchlint and TorchFix, start-up included."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for source in files:
            path = scratch / "code" / source.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.text, encoding="utf-8")
        ours = [sys.executable, "-m", "torchlint", "--isolated", "--no-cache", "-j", "1", "--exit-zero", "-q"]
        mine = cpu_seconds([*ours, "--select", "ALL", "--preview", "code"], scratch)
        command = torchfix(scratch / "venv")
        if command is None:
            return f"a whole run of torchlint: {mine:.1f} CPU s; TorchFix cannot be installed here\n"
        theirs = cpu_seconds([*command, "--select", "ALL", "-j", "1", "code"], scratch)
        shutil.rmtree(scratch / "venv")
    return (
        f"whole runs, one process: torchlint {mine:.1f} CPU s with {len(every_rule())} rules, "
        f"TorchFix {theirs:.1f} CPU s: {theirs / mine:.1f} times as much\n"
    )


def torchfix(folder: Path) -> list[str] | None:
    """The command of a TorchFix installed into `folder`; None if it cannot be installed."""
    venv.create(folder, with_pip=True)
    binary = folder / ("Scripts" if sys.platform == "win32" else "bin")
    install = [str(binary / "python"), "-m", "pip", "install", "-q", "--only-binary", ":all:", "torchfix"]
    done = subprocess.run(install, capture_output=True, text=True)
    return [str(binary / "torchfix")] if done.returncode == 0 else None


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU time of a command, its children included. SystemExit if it fails to run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} failed: {done.stderr[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--files", type=int, default=120, help="about how many files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchfix", action="store_true", help="install TorchFix and compare whole runs")
    options = parser.parse_args()
    files = sources(options.files)
    lines = sum(len(source.lines) for source in files)
    print(f"{len(files)} files of torch, {lines:,} lines, best of {options.rounds} rounds")
    print(table(measure(files, options.rounds), lines), end="")
    if options.torchfix:
        print(whole_runs(files), end="")


if __name__ == "__main__":
    main()
