"""Loading of the generated tables. Each table is read once, on first use."""
from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The entries of `<name>.json`, by dotted name.

    Raises FileNotFoundError when the package was installed without its data.
    """
    entries: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["entries"]
    return entries


@functools.cache
def torch_version() -> str:
    """The torch version that the tables were read from, for example "2.13.0"."""
    with (HERE / "names.json").open(encoding="utf-8") as file:
        head = file.readline() + file.readline()
    return str(json.loads(head.rstrip().rstrip(",") + "}")["torch"])
