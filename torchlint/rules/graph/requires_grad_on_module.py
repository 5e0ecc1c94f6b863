"""A `requires_grad` that is set as an attribute of a Module.

A Module has no such switch. The assignment makes a plain attribute that nothing reads, and all parameters of
the module go on training.

Call `module.requires_grad_(False)`, which sets the flag of every parameter. A class may have a flag of its own
with that name.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL209", "requires-grad-on-module", Severity.ERROR, fix=Safety.UNSAFE, triggers=("requires_grad",))
CLAIM = NoEffect()

EXAMPLES = [
    Example(
        bad="""
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        net[0].requires_grad = False  #!
        """,
        good="""
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        net[0].requires_grad_(False)
        """,
    ),
    Example(
        bad="""
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(2, 2)
                self.body.requires_grad = False  #!


        net = Net()
        for child in net.children():
            child.requires_grad = False  #!
        """,
        good="""
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(2, 2)
                self.body.requires_grad_(False)


        net = Net()
        for child in net.children():
            child.requires_grad_(False)
        """,
    ),
]

CLEAN = [
    """
    from torch import nn


    class Switch(nn.Module):
        def __init__(self, requires_grad=True):
            super().__init__()
            self.requires_grad = requires_grad
            self.layer = nn.Linear(2, 2)
            if not self.requires_grad:
                self.layer.weight.requires_grad = False


    for p in Switch().parameters():
        p.requires_grad = False
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Assignments to `requires_grad` of Modules, other than a class's own attribute of that name."""
    for node in model.attributes_named("requires_grad"):
        parent = model.parent(node)
        base = model.value(node.value)
        if not isinstance(node.ctx, ast.Store) or base.kind is not Kind.MODULE or (
                base.cls is not None and "requires_grad" in base.cls.stores):
            continue
        method = model.function(node)
        own = isinstance(node.value, ast.Name) and method is not None and node.value.id == method.self_name
        if isinstance(parent, ast.Assign) and not own:
            text = f"{edits.source_of(model, node)}_({edits.source_of(model, parent.value)})"
            fix = edits.repair("Set it for all parameters", edits.replace(model, parent, text))
            yield Hit(node, "a Module has no `requires_grad`; call `requires_grad_(...)`",
                      fix if len(parent.targets) == 1 else None, confidence=base.sure)
