"""A checkpoint loaded with the full unpickler.

A pickle is a program: unpickling calls whatever callables the file names. With `weights_only=False`, `torch.load`
runs that program, so a checkpoint from anywhere else can do on this machine what its author wants. With
`weights_only=True`, the default since torch 2.6, only tensors and plain containers are rebuilt.

Drop the argument or set it to True; allow single classes with `torch.serialization.add_safe_globals`. A buffer
that this program has just written itself is no risk; a file that it writes too, or a choice that a comment gives a
reason for, is worth a second look and no more (advice). Where the argument is missing, the torch that is installed
decides; that is not reported.
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
    "TL904", "unsafe-load", Severity.WARNING, also=(Severity.ADVICE,), fix=Safety.UNSAFE, aliases=("TOR102",),
    triggers=("weights_only",),
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
    Example(
        bad="""
        import torch


        def resumed(state, path):
            torch.save(state, path)
            return torch.load(path, weights_only=False)  #!


        def restored(path):
            # weights_only=False: the state of the sampler is an object of its own
            return torch.load(path, weights_only=False)  #!
        """,
        good="""
        import torch


        def resumed(state, path):
            torch.save(state, path)
            return torch.load(path, weights_only=True)


        def restored(path):
            # weights_only=False: the state of the sampler is an object of its own
            return torch.load(path, weights_only=True)
        """,
        fixed=False,
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
                meant = reasoned(model, call)
                literal = isinstance(keyword.value, ast.Constant) and not meant
                fix = (
                    edits.repair("Load weights only", edits.replace(model, keyword.value, "True")) if literal else None
                )
                severity = Severity.ADVICE if meant or own_file(model, call) else None
                yield Hit(call, "this runs whatever code the file holds; load with `weights_only=True`", fix, severity)


def own_file(model: FileModel, call: ast.Call) -> bool:
    """Whether this file's code writes what it loads: `torch.save(state, path)` names the same path."""
    loaded = call.args[0] if call.args else None
    return loaded is not None and any(
        model.name_of(save.func) == "torch.save" and len(save.args) > 1 and same_path(model, save.args[1], loaded)
        for save in model.calls_named("save"))


def same_path(model: FileModel, written: ast.expr, read: ast.expr) -> bool:
    """Whether two expressions name one file: the same constant, or the same attribute or variable of the file."""
    if isinstance(written, ast.Constant) or isinstance(read, ast.Constant):
        return model.value(written).const is not None and model.value(written).const == model.value(read).const
    same = ast.unparse(written) == ast.unparse(read)
    return same and (model.owner(written) is model.owner(read) or isinstance(written, ast.Attribute))


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
