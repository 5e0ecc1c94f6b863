"""A private path to something that has a public name.

Modules and names that begin with an underscore belong to torch's own implementation. They move and vanish without
notice, which is how code comes to fail at import after an upgrade.

Use the public name: it is the same object.

No claim: both names give the same object today.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.model.old_names import careful, written
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL903", "nonpublic-api", Severity.WARNING, fix=Safety.SAFE, aliases=("TOR104", "TOR105"), triggers=("torch",))
CLAIM = None

EXAMPLES = [
    Example(
        bad="""
        import torch

        batch = torch.utils.data._utils.collate.default_collate([1.0, 2.0])  #!
        """,
        good="""
        import torch

        batch = torch.utils.data.default_collate([1.0, 2.0])
        """,
    ),
    Example(
        bad="""
        from torch._tensor import Tensor  #!
        from torch.utils.data._utils.collate import default_collate as collate  #!

        print(Tensor, collate([1.0, 2.0]))
        """,
        good="""
        from torch import Tensor
        from torch.utils.data import default_collate as collate

        print(Tensor, collate([1.0, 2.0]))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.utils.data import default_collate

    torch._dynamo.reset()
    torch._C._log_api_usage_once("mine")
    net = torch.nn.Linear(1, 1)
    net._parameters
    try:
        from torch._tensor import Tensor
    except ImportError:
        from torch import Tensor
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Imports and attribute chains with a private part, where the same object has a public name."""
    for statement in model.nodes(ast.ImportFrom):
        if statement.level or careful(model, statement):
            continue
        for alias in statement.names:
            new = public(f"{statement.module}.{alias.name}")
            if new:
                yield Hit(alias, f"this name is private; import `{new}`", imported(model, statement, new))
    for node in model.nodes(ast.Attribute):
        dotted = written(model, node)
        new = public(dotted) if dotted.startswith("torch.") else ""
        if new and isinstance(node.ctx, ast.Load) and not careful(model, node) and not written_by_import(model, node):
            yield Hit(node, f"`{dotted}` is private; use `{new}`", renamed(model, node, new))


def public(dotted: str) -> str:
    """The public name of a private path that torch does not deprecate; "" if there is none."""
    found = knowledge.public_name(dotted) if dotted.startswith("torch.") else None
    return "" if found is None or knowledge.deprecated(dotted) is not None else found


def written_by_import(model: FileModel, node: ast.Attribute) -> bool:
    """Whether a member is reached through a name whose import is reported, or through a longer private chain."""
    base: ast.expr = node.value
    while isinstance(base, ast.Attribute):
        if public(written(model, base)):
            return True
        base = base.value
    return bool(public(written(model, base)))


def imported(model: FileModel, statement: ast.ImportFrom, new: str) -> Repair | None:
    """The import from the public module, where it is the only name of its statement."""
    if len(statement.names) != 1:
        return None
    alias = statement.names[0]
    module, _, name = new.rpartition(".")
    kept = alias.asname or alias.name
    text = f"from {module} import {name}" + (f" as {kept}" if kept != name else "")
    return edits.repair("Import the public name", edits.replace(model, statement, text))


def renamed(model: FileModel, node: ast.Attribute, new: str) -> Repair | None:
    """The public name in the place of the chain."""
    spelled = spell(model, new, at=node)
    if spelled is None:
        return None
    return edits.repair("Use the public name", edits.replace(model, node, spelled.text), imports=spelled.imports)
