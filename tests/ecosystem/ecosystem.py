"""Runs torchlint over real code and says what changed since the last time.

    python tests/ecosystem/ecosystem.py FOLDER... --save before.json
    python tests/ecosystem/ecosystem.py FOLDER... --against before.json

Every rule runs, opt-in and preview ones too. Each folder is a project of its own. A change of a rule
is judged by the findings that come and go in code that nobody wrote for the test.

Exit status 1 if torchlint itself failed somewhere, or saw fewer files than `--floor`.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUR_FAULT = "a fault of torchlint"
EVERYTHING = ("--isolated", "--no-cache", "--preview", "--select", "ALL", "--exit-zero", "--output-format", "json")


@dataclass(frozen=True)
class Run:
    """What one run over some folders saw."""

    files: int
    seconds: float
    counts: dict[str, int]  # findings by "CODE name"
    findings: list[dict[str, Any]]  # folder, path, line, code, message, fingerprint

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Findings that tell of a fault of torchlint itself."""
        return [row for row in self.findings if OUR_FAULT in row["message"]]


def run(folders: Iterable[Path], jobs: int | None = None) -> Run:
    """Lint each folder. SystemExit if the command does not do its job."""
    files, seconds, findings = 0, 0.0, []
    for folder in folders:
        more = ["-j", str(jobs)] if jobs else []
        command = [sys.executable, "-m", "torchlint", *EVERYTHING, *more, "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{folder}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
        data = json.loads(done.stdout)
        files += data["summary"]["files"]
        seconds += data["summary"]["seconds"]
        findings += [_kept(folder.name, row) for row in data["findings"]]
    counts = Counter(f"{row['code']} {row['name']}" for row in findings)
    return Run(files, seconds, dict(sorted(counts.items())), findings)


def _kept(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    """The part of a finding that is compared and shown."""
    keys = ("path", "line", "code", "name", "severity", "confidence", "message", "fingerprint")
    return {"folder": folder, **{key: row[key] for key in keys}}


def as_json(seen: Run) -> str:
    """A run, to be stored."""
    fields = {"files": seen.files, "seconds": seen.seconds, "counts": seen.counts, "findings": seen.findings}
    return json.dumps(fields, indent=1) + "\n"


def from_json(text: str) -> Run:
    """A stored run."""
    data = json.loads(text)
    return Run(data["files"], data["seconds"], data["counts"], data["findings"])


def difference(old: Run, new: Run) -> str:
    """Counts that changed, then each finding that came (+) or went (-); "" if nothing did."""
    lines = []
    for name in sorted(set(old.counts) | set(new.counts)):
        before, after = old.counts.get(name, 0), new.counts.get(name, 0)
        if before != after:
            lines.append(f"{name}: {before} -> {after} ({after - before:+d})")
    before, after = Counter(map(_key, old.findings)), Counter(map(_key, new.findings))
    for sign, rows, others in (("-", old.findings, after), ("+", new.findings, before)):
        left = others.copy()
        for row in rows:
            if left[_key(row)] > 0:
                left[_key(row)] -= 1
            else:
                lines.append(f"{sign} {shown(row)}")
    return "".join(f"{line}\n" for line in lines)


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    """What makes two findings the same although lines above them moved."""
    return row["folder"], row["path"], row["fingerprint"]


def shown(row: dict[str, Any]) -> str:
    """One finding on one line."""
    return f"{row['folder']}/{row['path']}:{row['line']}: {row['code']} {row['name']}: {row['message']}"


def table(seen: Run) -> str:
    """Findings by rule."""
    rows = "".join(f"{count:6}  {name}\n" for name, count in seen.counts.items())
    return f"{seen.files} files, {len(seen.findings)} findings, {seen.seconds:.1f} s\n{rows}"


def main() -> int:
    """Run, compare, print."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--save", type=Path, help="store the run here")
    parser.add_argument("--against", type=Path, help="compare with this stored run")
    parser.add_argument("--floor", type=int, default=1, help="the least number of files to have seen")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    seen = run(options.folders, options.jobs)
    print(table(seen), end="")
    if options.against:
        print(difference(from_json(options.against.read_text(encoding="utf-8")), seen) or "no change\n", end="")
    if options.save:
        options.save.write_text(as_json(seen), encoding="utf-8")
    for row in seen.failures:
        print(shown(row), file=sys.stderr)
    if seen.files < options.floor:
        print(f"only {seen.files} files seen, expected {options.floor}", file=sys.stderr)
    return int(bool(seen.failures) or seen.files < options.floor)


if __name__ == "__main__":
    sys.exit(main())
