"""A method that is named but not called.

`model.eval` without parentheses only looks the method up: the statement does nothing, and neither Python nor
torch says so. `torch.save(model.state_dict, path)` even works: it pickles the bound method with the whole model
behind it, and what is loaded later is no dictionary.

Add the parentheses, or remove the line if no call was meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL523", "method-not-called", Severity.ERROR, fix=Safety.SAFE,
    triggers=("eval", "train", "step", "zero_grad", "backward", "state_dict", "detach", "cuda"),
)
CLAIM = NoEffect()
METHODS = {
    Kind.MODULE: {"eval", "train", "zero_grad", "cuda", "cpu", "half", "float", "double", "requires_grad_"},
    Kind.OPTIMIZER: {"step", "zero_grad"},
    Kind.SCHEDULER: {"step"},
    Kind.SCALER: {"update"},
    Kind.TENSOR: {"backward", "detach_", "zero_", "requires_grad_", "retain_grad"},
}

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval  #!
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad  #!
        """,
        good="""
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
    ),
    Example(
        bad="""
        import io
        import torch

        model = torch.nn.Linear(2, 2)
        torch.save(model.state_dict, io.BytesIO())  #!
        copy = torch.nn.Linear(2, 2)
        copy.load_state_dict(dict(model.state_dict()))
        """,
        good="""
        import io
        import torch

        model = torch.nn.Linear(2, 2)
        torch.save(model.state_dict(), io.BytesIO())
        copy = torch.nn.Linear(2, 2)
        copy.load_state_dict(dict(model.state_dict()))
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(2, 2)
    hooks = [model.eval, model.train]
    run = model.zero_grad


    class Config:
        eval = True


    config = Config()
    config.eval
    model.weight
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Methods as bare statements, and state_dict handed over uncalled."""
    for statement in model.nodes(ast.Expr):
        match statement.value:
            case ast.Attribute(value=receiver, attr=name) as node if any(name in names for names in METHODS.values()):
                value = model.value(receiver)
                if name in METHODS.get(value.kind, ()) and not overridden(model, node):
                    yield hit(model, node, f"`{name}` is not called here: the line does nothing")
    for node in model.attributes_named("state_dict"):
        parent = model.parent(node)
        if isinstance(parent, ast.Call) and parent.args[:1] == [node] and is_taken(model, parent):
            if model.value(node.value).kind in (Kind.MODULE, Kind.OPTIMIZER):
                yield hit(model, node, "this hands over the method, not the state; call `state_dict()`")


def hit(model: FileModel, node: ast.Attribute, message: str) -> Hit:
    """A finding with the parentheses added."""
    fix = edits.repair("Call it", edits.replace(model, node, f"{source_of(model, node)}()"))
    return Hit(node, message, fix, confidence=model.value(node.value).sure)


def is_taken(model: FileModel, call: ast.Call) -> bool:
    """Whether a call stores or loads its first argument."""
    loads = isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict"
    return loads or model.name_of(call.func) == "torch.save"


def overridden(model: FileModel, node: ast.Attribute) -> bool:
    """Whether the receiver's class makes the name a property."""
    cls = model.value(node.value).cls
    method = cls.method(node.attr) if cls is not None else None
    return method is not None and method.is_property
