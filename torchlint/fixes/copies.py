"""Keep a copy where the code keeps a second name for the same object."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.fixes import edits
from torchlint.fixes.imports import spell

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.rule import Repair


def deepcopied(model: FileModel, expr: ast.expr, title: str) -> Repair | None:
    """`x` -> `copy.deepcopy(x)`."""
    name = spell(model, "copy.deepcopy", at=expr)
    if name is None:
        return None
    text = f"{name.text}({edits.source_of(model, expr)})"
    return edits.repair(title, edits.replace(model, expr, text), imports=name.imports)
