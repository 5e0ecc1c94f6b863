"""A whole model saved instead of its state_dict.

`torch.save(model, path)` pickles the object: the tensors, and for the code only the import path of its class.
The file can be read only where that class can be imported under the same name, breaks when the class changes,
and since torch 2.6 needs `weights_only=False`, which runs whatever code a file contains.

Save `model.state_dict()`, and load it into a model that the code builds. A file that is written only to measure
its size is no harm.

No claim: what goes wrong needs a second program, with other code or another torch, that reads the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL527", "whole-model-saved", Severity.ADVICE, fix=Safety.SHOW, triggers=("save",))
CLAIM = None

EXAMPLES = [
    Example(
        bad="""
        import io

        import torch

        model = torch.nn.Linear(3, 1)
        torch.save(model, io.BytesIO())  #!
        """,
        good="""
        import io

        import torch

        model = torch.nn.Linear(3, 1)
        torch.save(model.state_dict(), io.BytesIO())
        """,
    ),
    Example(
        bad="""
        import io

        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.model = nn.DataParallel(nn.Linear(3, 1))
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def checkpoint(self, file, epoch):
                state = {"epoch": epoch, "model": self.model.module, "optimizer": self.optimizer.state_dict()}
                torch.save(state, file)  #!


        Trainer().checkpoint(io.BytesIO(), 3)
        """,
        good="""
        import io

        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.model = nn.DataParallel(nn.Linear(3, 1))
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def checkpoint(self, file, epoch):
                weights = self.model.module.state_dict()
                state = {"epoch": epoch, "model": weights, "optimizer": self.optimizer.state_dict()}
                torch.save(state, file)


        Trainer().checkpoint(io.BytesIO(), 3)
        """,
    ),
]

CLEAN = [
    """
    import io

    import torch
    from torch import nn


    def copied(net):
        with io.BytesIO() as file:
            torch.save(net, file)
            file.seek(0)
            return torch.load(file, weights_only=False)


    copied(nn.Linear(2, 2))
    """,
    """
    import io

    import torch

    model = torch.nn.Linear(3, 1)
    torch.save(model.state_dict(), io.BytesIO())
    torch.save({"model": model.state_dict(), "epoch": 3}, io.BytesIO())
    torch.save([p.detach() for p in model.parameters()], io.BytesIO())
    torch.jit.save(torch.jit.script(model), io.BytesIO())


    def save(obj, file):
        torch.save(obj, file)


    def size(net):
        buffer = io.BytesIO()
        torch.save(net, buffer)
        return buffer.tell()


    save(torch.ones(3), io.BytesIO())
    print(size(model))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """torch.save of a Module, or of a dict, list or tuple that holds one."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != "torch.save":
            continue
        given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "obj"), None)
        if given is None:
            continue
        value = model.value(given)
        modules = [part for part in (value, *value.parts()) if is_whole(part)]
        if modules and not is_measured(model, call):
            fix = None
            if value.kind is Kind.MODULE:
                fix = edits.repair("Save the weights", edits.append_method_call(model, given, ".state_dict()"))
            yield Hit(
                call,
                "this pickles the whole model, bound to its code; save `state_dict()`",
                fix,
                confidence=modules[0].sure,
            )


def is_whole(value: Value) -> bool:
    """A Module that pickles as an object (scripted ones write their own format)."""
    return value.kind is Kind.MODULE and not value.name.startswith("torch.jit.") and "compiled" not in value.facts


def is_measured(model: FileModel, call: ast.Call) -> bool:
    """Whether the function around only wants to know how large the file is, or reads it again: a copy."""
    owner = model.place(call).function
    measures = ("getsize", "getvalue", "tell", "getbuffer", "seek")
    return owner is not None and any(
        isinstance(node, ast.Attribute) and node.attr in measures for node in ast.walk(owner)
    )
