"""The old ToTensor among the transforms of version 2.

`v2.ToTensor` converts images and scales their values in one step, but leaves boxes, masks and videos alone, and
does both only for PIL images and arrays. It is kept for old code, warns, and will be removed.

Convert with `v2.ToImage()` and scale with `v2.ToDtype(torch.float32, scale=True)`.

No claim: torchvision need not be installed where the check runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL910", "torchvision-to-tensor", Severity.ADVICE, fix=Safety.UNSAFE, aliases=("TOR202",), triggers=("ToTensor",))
CLAIM = None
OLD = "torchvision.transforms.v2.ToTensor"

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torchvision.transforms import v2

        prepare = v2.Compose([v2.Resize(8), v2.ToTensor()])  #!
        """,
        good="""
        import torch
        from torchvision.transforms import v2

        prepare = v2.Compose([v2.Resize(8), v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])])
        """,
    ),
]

CLEAN = [
    """
    from torchvision import transforms
    from torchvision.transforms import v2

    transforms.Compose([transforms.ToTensor()])
    v2.ToImage()
    v2.ToPureTensor()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of v2.ToTensor."""
    for call in model.calls_named("ToTensor"):
        if model.name_of(call.func) == OLD:
            yield Hit(call, "`v2.ToTensor` is deprecated; use `ToImage` and `ToDtype`", two_steps(model, call))


def two_steps(model: FileModel, call: ast.Call) -> Repair | None:
    """Convert, then scale."""
    if call.args or call.keywords or not isinstance(call.func, ast.Attribute):
        return None
    dtype = spell(model, "torch.float32", at=call)
    if dtype is None:
        return None
    v2 = edits.source_of(model, call.func.value)
    text = f"{v2}.Compose([{v2}.ToImage(), {v2}.ToDtype({dtype.text}, scale=True)])"
    return edits.repair("Convert, then scale", edits.replace(model, call, text), imports=dtype.imports)
