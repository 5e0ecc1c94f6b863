"""Initialisers without the underscore.

The initialisers of `torch.nn.init` change their tensor in place, and since torch 0.4 their names say so with a
trailing underscore. The old names still work, warn at each call, and will be removed.

Add the underscore; nothing else changes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

OLD = ("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform",
       "xavier_normal", "xavier_uniform")
META = Meta("TL907", "legacy-init", Severity.WARNING, fix=Safety.SAFE, triggers=OLD)
CLAIM = Warns("deprecated in favor of")
NAMES = {f"torch.nn.init.{name}" for name in OLD}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        layer = nn.Linear(2, 2)
        nn.init.xavier_uniform(layer.weight, gain=2.0)  #!
        nn.init.constant(layer.bias, 0)  #!
        """,
        good="""
        import torch
        from torch import nn

        layer = nn.Linear(2, 2)
        nn.init.xavier_uniform_(layer.weight, gain=2.0)
        nn.init.constant_(layer.bias, 0)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn.init import kaiming_normal

        weight = torch.empty(2, 2)
        kaiming_normal(weight)  #!
        """,
        good="""
        import torch
        from torch.nn.init import kaiming_normal_

        weight = torch.empty(2, 2)
        kaiming_normal_(weight)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    nn.init.normal_(torch.empty(2))
    nn.init.calculate_gain("relu")
    torch.normal(torch.zeros(2), torch.ones(2))
    torch.eye(2)


    def uniform(tensor):
        return nn.init.uniform_(tensor)


    uniform(torch.empty(2))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Uses of the old names, called or handed on."""
    for node in model.nodes(ast.Attribute, ast.Name):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            name = model.name_of(node)
            if name in NAMES and not isinstance(model.parent(node), ast.Attribute):
                yield Hit(
                    node, f"`{name[14:]}` is deprecated; use `{name[14:]}_`", renamed(model, node, name + "_"))


def renamed(model: FileModel, node: ast.Attribute | ast.Name, dotted: str) -> Repair | None:
    """The name with its underscore."""
    if isinstance(node, ast.Attribute):
        return edits.repair("Use the new name", edits.rename_attribute(model, node, node.attr + "_"))
    spelled = spell(model, dotted, at=node)
    if spelled is None:
        return None
    return edits.repair("Use the new name", edits.replace(model, node, spelled.text), imports=spelled.imports)
