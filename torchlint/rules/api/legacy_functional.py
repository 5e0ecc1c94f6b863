"""Functions of torch.nn.functional that have another name today.

`upsample` and its two relatives are thin shells around `interpolate` that warn at each call and fix the mode.
`F.tanh` and `F.sigmoid` are the `torch` functions under an old second name, kept for old code only.

Call the function that does the work. Results are the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL908", "legacy-functional", Severity.WARNING, also=(Severity.ADVICE,), fix=Safety.SAFE,
    triggers=("upsample", "upsample_nearest", "upsample_bilinear", "tanh", "sigmoid"))
CLAIM = Equivalent()
PREFIX = "torch.nn.functional."
# old name -> (new name, the arguments that the old one adds; QUOTE stands for the file's quotation mark)
NEW = {
    "upsample": ("torch.nn.functional.interpolate", ""),
    "upsample_nearest": ("torch.nn.functional.interpolate", "mode=QUOTEnearestQUOTE"),
    "upsample_bilinear": ("torch.nn.functional.interpolate", "mode=QUOTEbilinearQUOTE, align_corners=True"),
    "tanh": ("torch.tanh", ""),
    "sigmoid": ("torch.sigmoid", ""),
}
QUIET = {"tanh", "sigmoid"}  # torch does not warn about these

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        image = torch.rand(1, 3, 4, 4)
        out = F.upsample(image, scale_factor=2)  #!
        print(out.sum())
        """,
        good="""
        import torch
        import torch.nn.functional as F

        image = torch.rand(1, 3, 4, 4)
        out = F.interpolate(image, scale_factor=2)
        print(out.sum())
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        image = torch.rand(1, 3, 4, 4)
        out = F.upsample_bilinear(image, (8, 8))  #!
        print(out.sum())
        """,
        good="""
        import torch
        import torch.nn.functional as F

        image = torch.rand(1, 3, 4, 4)
        out = F.interpolate(image, (8, 8), mode="bilinear", align_corners=True)
        print(out.sum())
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        image = torch.rand(1, 3, 4, 4)
        out = F.sigmoid(image)  #!
        print(out.sum())
        """,
        good="""
        import torch

        image = torch.rand(1, 3, 4, 4)
        out = torch.sigmoid(image)
        print(out.sum())
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    x = torch.rand(1, 1, 2, 2)
    F.interpolate(x, scale_factor=2)
    torch.sigmoid(x)
    x.tanh()
    F.logsigmoid(x)
    nn.Sigmoid()(x)


    def upsample(image):
        return F.interpolate(image, scale_factor=2)


    upsample(x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Uses of the old names, called or handed on."""
    for node in model.nodes(ast.Attribute, ast.Name):
        if not isinstance(node, (ast.Attribute, ast.Name)) or not isinstance(node.ctx, ast.Load):
            continue
        name = model.name_of(node)
        old = name.removeprefix(PREFIX)
        if old != name and old in NEW:
            new = NEW[old][0].replace(PREFIX, "F.")
            yield Hit(
                node, f"`F.{old}` is an old name; use `{new}`", renamed(model, node, old),
                severity=Severity.ADVICE if old in QUIET else None)


def renamed(model: FileModel, node: ast.Attribute | ast.Name, old: str) -> Repair | None:
    """The new name, with the arguments that the old function added."""
    new, extra = NEW[old]
    spelled = spell(model, new, at=node)
    if spelled is None:
        return None
    groups = [edits.replace(model, node, spelled.text)]
    if extra:
        call = model.parent(node)
        if not isinstance(call, ast.Call) or call.func is not node:
            return None
        groups.append(edits.add_keyword_argument(model, call, extra.replace("QUOTE", layout(model.source).quote)))
    return edits.repair("Use the new name", *groups, imports=spelled.imports)
