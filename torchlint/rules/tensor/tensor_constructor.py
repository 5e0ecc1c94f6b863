"""A tensor made by the old constructor `torch.Tensor(...)` instead of a factory function.

The constructor means different things by what it is given: `torch.Tensor(3)` is three elements of leftover
memory, `torch.Tensor([3])` holds the value 3, and both are float32 whatever the data are. If the argument is a
number that was meant as a value, the result is garbage of that length.

Use `torch.tensor(data)` for values and `torch.empty(sizes)` for memory to fill.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Equivalent
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL109", "tensor-constructor", Severity.ADVICE, fix=Safety.SAFE, triggers=("Tensor",))
CLAIM = Equivalent()

EXAMPLES = [
    Example(
        bad="""
        import torch

        values = torch.Tensor([0.5, 1.0])  #!
        memory = torch.Tensor(2, 3)  #!
        memory.fill_(1.0)
        print(values, memory)
        """,
        good="""
        import torch

        values = torch.tensor([0.5, 1.0])
        memory = torch.empty(2, 3)
        memory.fill_(1.0)
        print(values, memory)
        """,
    ),
]

CLEAN = [
    """
    import torch


    def run(x: torch.Tensor, data):
        if isinstance(x, torch.Tensor):
            torch.Tensor.add(x, 1)
        return torch.tensor(data), torch.Tensor(), torch.Tensor(*data), torch.Tensor(data)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of `torch.Tensor` with sizes or literal values."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != "torch.Tensor" or call.keywords or not call.args:
            continue
        factory = meant(model, call.args)
        if factory == "torch.tensor":
            yield Hit(call, "the constructor's meaning depends on its arguments; use `torch.tensor` for values",
                      renamed(model, call, factory) if floats(call.args[0]) else None)
        elif factory:
            yield Hit(call, "this is memory that is not set to anything; say `torch.empty`, or `torch.tensor` for a "
                      "value", renamed(model, call, factory), confidence=Confidence.LIKELY)


def meant(model: FileModel, args: list[ast.expr]) -> str:
    """The factory that does what the constructor does with these arguments; "" if that cannot be told."""
    match args:
        case [ast.List() | ast.Tuple() | ast.ListComp()]:
            return "torch.tensor"
        case _ if all(model.value(arg).kind is Kind.NUMBER for arg in args):
            return "torch.empty"
        case [_, _, *_] if not any(isinstance(arg, (ast.Starred, ast.List, ast.Tuple)) for arg in args):
            return "torch.empty"
    return ""


def floats(data: ast.expr) -> bool:
    """Whether a literal gives the default dtype by itself: a list of numbers, one of them a float."""
    if not isinstance(data, (ast.List, ast.Tuple)):
        return False
    numbers = [node.value for node in ast.walk(data) if isinstance(node, ast.Constant)]
    plain = all(isinstance(node, (ast.List, ast.Tuple, ast.Constant, ast.Load, ast.UnaryOp, ast.USub))
                for node in ast.walk(data))
    return plain and any(isinstance(number, float) for number in numbers)


def renamed(model: FileModel, call: ast.Call, factory: str) -> Repair | None:
    """The same arguments for a factory function."""
    spelled = spell(model, factory, at=call)
    if spelled is None:
        return None
    return edits.repair(f"Use {factory}", edits.replace(model, call.func, spelled.text), imports=spelled.imports)
