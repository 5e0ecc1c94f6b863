"""An attribute that is nearly, but not quite, called `requires_grad`.

Python lets any name be set on a tensor or a Module, so `p.require_grad = False` makes a new attribute that
autograd never reads: the layer that was meant to be frozen goes on training, and nothing says so.

Write `requires_grad`. Attributes of that name on objects of your own are fine.
"""
from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

SWAPPED = ("gard", "grda", "rgad")  # two letters of "grad" changed places
META = Meta("TL208", "requires-grad-typo", Severity.ERROR, fix=Safety.SAFE, aliases=("TOR002",),
            triggers=("grad", "Grad", *SWAPPED))
CLAIM = NoEffect()

EXAMPLES = [
    Example(
        bad="""
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        for p in net[0].parameters():
            p.require_grad = False  #!
        """,
        good="""
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        for p in net[0].parameters():
            p.requires_grad = False
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Tune(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.layer.weight.required_grad = False  #!


        x = torch.ones(2)
        x.requires_grads = True  #!
        Tune()
        """,
        good="""
        import torch
        from torch import nn


        class Tune(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.layer.weight.requires_grad = False


        x = torch.ones(2)
        x.requires_grad = True
        Tune()
        """,
    ),
    Example(
        bad="""
        import torch

        weight, bias = torch.zeros(3), torch.zeros(3)
        weight.requires_gard = bias.Requires_Grad = True  #! #!
        """,
        good="""
        import torch

        weight, bias = torch.zeros(3), torch.zeros(3)
        weight.requires_grad = bias.requires_grad = True
        """,
    ),
]

CLEAN = [
    """
    from torch import nn


    class Extractor(nn.Module):
        def __init__(self):
            super().__init__()
            self._requires_grad = True
    """,
    """
    import torch


    class Settings:
        require_grad = False


    settings = Settings()
    settings.require_grad = False
    x = torch.ones(2)
    x.requires_grad = settings.require_grad
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Assignments of a misspelled `requires_grad` to tensors and Modules."""
    for node in model.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and misspelled(node.attr):
            base = model.value(node.value)
            if base.is_tensor or (base.kind is Kind.MODULE and not reads(model, node.attr)):
                fix = edits.repair("Spell requires_grad", edits.rename_attribute(model, node, "requires_grad"))
                yield Hit(node, f"`{node.attr}` means nothing to autograd; write `requires_grad`",
                          fix if base.is_tensor else None, confidence=base.sure)


def misspelled(name: str) -> bool:
    """Whether a name looks like `requires_grad`, but is another."""
    if name == "requires_grad" or name.startswith("_") or name.endswith("_"):
        return False  # a private name is a class's own flag
    if not any(word in name.lower() for word in ("grad", *SWAPPED)):
        return False
    return difflib.SequenceMatcher(None, name.lower(), "requires_grad").ratio() >= 0.88 or (
        name.lower() in {"requires_gradient", "require_gradient", "requiregrad", "required_gradient"})


def reads(model: FileModel, name: str) -> bool:
    """Whether the file reads an attribute of that name, so that it has a meaning of its own."""
    return any(isinstance(node.ctx, ast.Load) for node in model.attributes_named(name))
