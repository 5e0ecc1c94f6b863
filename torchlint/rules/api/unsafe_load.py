"""A checkpoint loaded with the full unpickler.

A pickle is a program: unpickling calls whatever callables the file names. With `weights_only=False`, `torch.load`
runs that program, so a checkpoint from anywhere else can do on this machine what its author wants. With
`weights_only=True`, the default since torch 2.6, only tensors and plain containers are rebuilt.

Drop the argument or set it to True; allow single classes with `torch.serialization.add_safe_globals`. A buffer
that this program has just written itself is no risk.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import ExecutesCode
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.layout import layout
from torchlint.fixes.statements import attached_comments
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL904", "unsafe-load", Severity.WARNING, fix=Safety.UNSAFE, aliases=("TOR102",), triggers=("weights_only",)
)
CLAIM = ExecutesCode()

EXAMPLES = [
    Example(
        bad="""
        import torch


        def restore(path):
            return torch.load(path, map_location="cpu", weights_only=False)  #!
        """,
        good="""
        import torch


        def restore(path):
            return torch.load(path, map_location="cpu", weights_only=True)
        """,
    ),
]

CLEAN = [
    """
    import io
    import torch

    torch.save({"a": 1}, "x.pt")
    torch.load("x.pt")
    torch.load("x.pt", weights_only=True)
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=False)


    def load(path, trusted):
        return torch.load(path, weights_only=not trusted)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """torch.load calls with weights_only=False."""
    for call in model.nodes(ast.Call):
        for keyword in call.keywords:
            if keyword.arg != "weights_only" or model.name_of(call.func) != "torch.load":
                continue
            if model.value(keyword.value).const is False and not (call.args and own_buffer(model, call.args[0])):
                literal = isinstance(keyword.value, ast.Constant) and not reasoned(model, call)
                fix = (
                    edits.repair("Load weights only", edits.replace(model, keyword.value, "True")) if literal else None
                )
                yield Hit(call, "this runs whatever code the file holds; load with `weights_only=True`", fix)


def reasoned(model: FileModel, call: ast.Call) -> bool:
    """Whether a comment at the statement speaks of the choice, or it is the second try after an error."""
    if model.place(call).handler:
        return True
    place, stmt = layout(model.source), model.statement(call)
    start, end = place.whole(stmt)
    first = attached_comments(place, start, place.indent(start))
    return any("weights_only" in comment.text for comment in place.comments(first, place.line_end(end)))


def own_buffer(model: FileModel, expr: ast.expr) -> bool:
    """Whether a file argument is a memory buffer that this code made."""
    site = model.value(expr).site
    return isinstance(site, ast.Call) and model.has(site) and model.name_of(site.func) == "io.BytesIO"
