"""A tensor kept on a module becomes a Parameter or a buffer of it."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.findings import Edit
from torchlint.fixes.arguments import remove_argument
from torchlint.fixes.expressions import drop_method_call, outer_range, source_of, spaced
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel


def tensor_to_parameter(model: FileModel, value: ast.expr) -> Repair | None:
    """Wrap a tensor in `nn.Parameter(...)`; `requires_grad=True` and `.requires_grad_()` on it go away.

    `torch.autograd.Variable(x, requires_grad=True)` becomes `nn.Parameter(x)`. None inside f-strings.
    """
    spelled = spell(model, "torch.nn.Parameter", value)
    if spelled is None:
        return None
    place = layout(model.source)
    edits: list[Edit] = []
    inner: ast.expr = value
    while (call := _grad_call(inner)) is not None:
        made = drop_method_call(model, call)
        if not made:
            return None
        edits += made
        assert isinstance(call.func, ast.Attribute)
        inner = call.func.value
    keyword = _grad_keyword(inner)
    if keyword is not None:
        assert isinstance(inner, ast.Call)
        edits += remove_argument(model, inner, keyword)
        if model.name_of(inner.func) in ("torch.autograd.Variable", "torch.autograd.variable.Variable"):
            edits.append(place.edit(*place.range(inner.func), spelled.text))
            return Repair("Make it a Parameter", tuple(edits), spelled.imports)
    start, end = outer_range(model, value)
    edits = [spaced(model, start, start, f"{spelled.text}("), *edits, place.edit(end, end, ")")]
    return Repair("Make it a Parameter", tuple(edits), spelled.imports)


def _grad_call(node: ast.expr) -> ast.Call | None:
    """`x.requires_grad_()` or `x.requires_grad_(True)`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="requires_grad_"), args=args, keywords=[]):
            if not args or (isinstance(args[0], ast.Constant) and args[0].value is True):
                return node
    return None


def _grad_keyword(node: ast.expr) -> ast.keyword | None:
    """The `requires_grad=True` of a call."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        match keyword:
            case ast.keyword(arg="requires_grad", value=ast.Constant(value=True)):
                return keyword
    return None


def to_buffer(model: FileModel, stmt: ast.stmt, *, persistent: bool = True) -> Repair | None:
    """`self.mask = x` -> `self.register_buffer("mask", x)`. None for any other kind of statement."""
    match stmt:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name() as owner, attr=name) as target], value=value):
            place = layout(model.source)
            start, end = outer_range(model, value)
            mark = place.quote
            head = f"{source_of(model, owner)}.register_buffer({mark}{name}{mark}, "
            if isinstance(value, (ast.Tuple, ast.Yield, ast.YieldFrom)):
                return None
            if place.comments(place.range(target)[0], start):
                return None
            tail = ")" if persistent else ", persistent=False)"
            edits = (place.edit(place.range(target)[0], start, head), place.edit(end, end, tail))
            return Repair("Register it as a buffer", edits)
    return None
