"""Runs a repository's own tests before and after its safe fixes and compares each test's outcome.

    python tests/ecosystem/same_tests.py REPO [--python PYTHON] [--unsafe] -- PYTEST-ARGUMENTS...

The repository is copied twice; one copy is fixed with every rule, opt-in and preview ones too. PYTHON must
have what the tests need. Exit status 1 if a test that passed does not any more (or the other way round), if
nothing was fixed, or if no test passed.
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import fixes

QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts=", "-o", "filterwarnings=")


def outcomes(folder: Path, python: str, arguments: list[str]) -> dict[str, str]:
    """What became of each test: passed, failed, error or skipped."""
    log = folder / "outcomes.xml"
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "pytest", *QUIET, f"--junitxml={log}", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not log.exists():
        raise SystemExit(f"{folder}: pytest ended with {done.returncode}: {done.stdout[-800:]}{done.stderr[-400:]}")
    found = {}
    for case in ET.parse(log).iter("testcase"):
        words = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcome = {"failure": "failed"}.get(words[0], words[0]) if words else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main() -> int:
    """Copy, test, fix, test again, compare."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--unsafe", action="store_true", help="unsafe fixes, too")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, arguments = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    with tempfile.TemporaryDirectory() as scratch:
        plain, changed = Path(scratch, "before"), Path(scratch, "after")
        for copy in (plain, changed):
            shutil.copytree(options.repository, copy, ignore=fixes.SKIPPED, symlinks=True)
        how = ("--fix", "--unsafe-fixes") if options.unsafe else ("--fix",)
        report, _ = fixes.torchlint(changed, *how)
        before = outcomes(plain, options.python, arguments)
        after = outcomes(changed, options.python, arguments)
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in different:
        print(f"  {name}: {before.get(name, 'not there')} -> {after.get(name, 'not there')}")
    counts = Counter(before.values())
    told = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    fixed = report["summary"]["fixed"]
    print(f"{options.repository.name}: {fixed} fixes; {len(before)} tests ({told}); {len(different)} differ")
    return int(bool(different) or not fixed or not counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
