"""A tensor's type asked for by an old type name such as "torch.cuda.FloatTensor".

These names join dtype and device in one word. They are from before torch had either, know no device index, no
bfloat16 and no device but cpu and cuda, and `.type(torch.FloatTensor)` silently moves a CUDA tensor to the CPU.

Write `.to(torch.float32)`, `.to(device)` or `.to(other)`, and compare `x.dtype` or `x.device`.

No claim: code with the old names does what it says for as long as there is one device.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL116", "type-by-string", Severity.ADVICE, fix=Safety.UNSAFE, triggers=("type",))
CLAIM = None
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
          "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.ones(2)
        x = (x + 1).type("torch.DoubleTensor")  #!
        y = x.type(torch.LongTensor)  #!
        """,
        good="""
        import torch

        x = torch.ones(2)
        x = (x + 1).to(torch.float64)
        y = x.to(torch.int64)
        """,
    ),
    Example(
        bad="""
        import torch


        def on_gpu(x):
            return x.type() == "torch.cuda.FloatTensor"  #!


        on_gpu(torch.ones(1))
        """,
        good="""
        import torch


        def on_gpu(x):
            return x.is_cuda and x.dtype == torch.float32


        on_gpu(torch.ones(1))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch


    def run(x, y, kind):
        x.type(torch.float32)
        x.type_as(y)
        x.type(kind)
        kind.type("keyboard input")
        return x.type() == y.type(), isinstance(x, torch.FloatTensor), kind.type() == "linear"
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of `.type(old name)` and comparisons of `.type()` with one."""
    for call in model.calls_named("type"):
        match call:
            case ast.Call(func=ast.Attribute(), args=[wanted], keywords=[]) if (name := old_name(model, wanted)):
                yield Hit(call, "old type names join dtype and device; use `.to(dtype)` or `.to(device)`",
                          converted(model, call, name))
            case ast.Call(func=ast.Attribute(), args=[]) if isinstance(parent := model.parent(call), ast.Compare):
                if any(old_name(model, each) for each in (parent.left, *parent.comparators)):
                    yield Hit(parent, "old type names join dtype and device; compare `.dtype` and `.device`")


def old_name(model: FileModel, expr: ast.expr) -> str:
    """The old type name that an expression is, as text or as a class; "" if it is something else."""
    match expr:
        case ast.Constant(value=str(text)):
            name = text
        case _:
            name = model.name_of(expr)
    word = name.rpartition(".")[2].removesuffix("Tensor")
    return name if name in (f"torch.{word}Tensor", f"torch.cuda.{word}Tensor") and word in DTYPES else ""


def converted(model: FileModel, call: ast.Call, name: str) -> Repair | None:
    """The same with `.to`."""
    word = name.rpartition(".")[2].removesuffix("Tensor")
    spelled = spell(model, f"torch.{DTYPES[word]}", at=call)
    if spelled is None or not isinstance(call.func, ast.Attribute):
        return None
    arguments = f'"cuda", {spelled.text}' if ".cuda." in name else spelled.text
    text = f"{source_of(model, call.func)[:-len('type')]}to({arguments})"
    return edits.repair("Use .to", edits.replace(model, call, text), imports=spelled.imports)
