"""Ways to write the same call: a function of torch or a method of a tensor, an option, a loader behind an iterator."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model import FileModel

LOADER = "torch.utils.data.DataLoader"


def operand(model: FileModel, call: ast.Call, name: str) -> tuple[ast.expr, list[ast.expr | ast.keyword]] | None:
    """(the tensor, the further arguments) of `torch.name(x, ...)` or `x.name(...)`; None for another call."""
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    if model.name_of(call.func) == f"torch.{name}":
        return (call.args[0], [*call.args[1:], *call.keywords]) if call.args else None
    match call.func:
        case ast.Attribute(value=receiver, attr=attr) if attr == name and model.value(receiver).is_tensor:
            return receiver, [*call.args, *call.keywords]
    return None


def says_true(call: ast.Call | None, name: str) -> ast.keyword | None:
    """The argument `name=True` of a call."""
    for keyword in call.keywords if call is not None else ():
        if keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
            return keyword
    return None


def loader_call(model: FileModel, expr: ast.expr) -> ast.Call | None:
    """The DataLoader call of the file behind what a loop iterates over, through `enumerate` and progress bars."""
    if isinstance(expr, ast.Call) and expr.args and model.name_of(expr.func) != LOADER:
        return loader_call(model, expr.args[0])
    site = model.value(expr).site
    return site if isinstance(site, ast.Call) and model.has(site) and model.name_of(site.func) == LOADER else None
