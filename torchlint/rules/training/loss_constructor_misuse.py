"""Tensors handed to the constructor of a loss.

`nn.MSELoss(output, target)` makes a loss object and takes the tensors for its options (`size_average`,
`reduce`). Depending on the values it raises about an ambiguous truth value, or makes a Module that is later used
as if it were the loss value.

Make the loss first and call it: `nn.MSELoss()(output, target)`, or use `torch.nn.functional.mse_loss`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL522", "loss-constructor-misuse", Severity.ERROR, fix=Safety.SAFE, triggers=("Loss",))
CLAIM = Raises("(RuntimeError|AttributeError|TypeError)", "")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Linear(2, 1)
        out = model(torch.ones(3, 2))
        loss = nn.MSELoss(out, torch.zeros(3, 1))  #!
        loss.backward()
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Linear(2, 1)
        out = model(torch.ones(3, 2))
        loss = nn.MSELoss()(out, torch.zeros(3, 1))
        loss.backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    weights = torch.ones(3)
    weighted = nn.CrossEntropyLoss(weights)
    pos = nn.BCEWithLogitsLoss(pos_weight=torch.ones(1))
    both = nn.BCELoss(weights)
    value = nn.MSELoss()(torch.ones(2), torch.zeros(2))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loss constructors with two tensors, or with one where no option is a tensor."""
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        info = knowledge.module_class(name) if name.startswith("torch.nn.") and name.endswith("Loss") else None
        if info is None or info.kind != "loss" or len(call.args) < 2:
            continue
        values = [model.value(arg) for arg in call.args[:2]]
        if all(value.is_tensor for value in values):
            text = f"{source_of(model, call.func)}()"
            fix = edits.repair("Make it, then call it", edits.replace_callee(model, call, text))
            yield Hit(
                call, "tensors go to a call of the loss, not to its constructor", fix,
                confidence=min(value.sure for value in values))
