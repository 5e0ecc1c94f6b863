"""Read the installed torch and write torchlint's tables about it.

    python scripts/generate_knowledge.py [--output FOLDER]

Without --output the tables in torchlint/knowledge are replaced. The result depends on the installed torch alone.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]


def write(folder: Path, name: str, entries: dict[str, Any]) -> None:
    """Write one table: a JSON object with one entry per line, so that a new torch shows as a readable diff."""
    import torch

    version = torch.__version__.partition("+")[0]
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, separators=(',', ':'))}"
             for key, value in sorted(entries.items())]
    text = '{\n"torch": ' + json.dumps(version) + ',\n"entries": {\n' + ",\n".join(lines) + "\n}}\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Build all tables and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "torchlint" / "knowledge")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    from knowledge import classes, deprecations, operators

    # Deprecations come last: trying them changes torch's defaults.
    for part in (classes, operators, deprecations):
        for name, entries in part.build().items():
            write(folder, name, entries)
            print(f"{name}: {len(entries)} entries")


if __name__ == "__main__":
    main()
