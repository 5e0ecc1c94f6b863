"""Corrected programs for findings without a fix: the rule's advice, applied to the flagged statement.

These texts are only ever run and compared, never offered to the user as a fix.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

Change = Callable[[ast.stmt], "ast.stmt | list[ast.stmt] | None"]


def advised(code: str, text: str, first: int, last: int) -> str | None:
    """The text with the advice of rule `code` applied to the statement on lines first..last, or None."""
    change = ADVICE.get(code)
    if change is None:
        return None
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno == first and (node.end_lineno or first) >= last:
            new = change(node)
            if new is None:
                continue
            return splice(text, node, new if isinstance(new, list) else [new])
    return None


def splice(text: str, old: ast.stmt, new: list[ast.stmt]) -> str:
    """The text with one statement replaced, its indentation kept. Other lines stay as they are."""
    lines = text.splitlines(keepends=True)
    first, last = lines[old.lineno - 1].encode(), lines[(old.end_lineno or old.lineno) - 1].encode()
    head, tail = first[: old.col_offset].decode(), last[old.end_col_offset :].decode()
    indent = head[: len(head) - len(head.lstrip())]
    body = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in new)
    replaced = head + body.replace("\n", "\n" + indent) + tail
    return "".join([*lines[: old.lineno - 1], replaced, *lines[old.end_lineno or old.lineno :]])


class DataToDetach(ast.NodeTransformer):
    """`x.data` becomes `x.detach()`: the same values, and autograd's version check sees the change."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "data":
            return node
        self.changed = True
        return ast.Call(ast.Attribute(node.value, "detach", ast.Load()), [], [])


def detach_data(node: ast.stmt) -> ast.stmt | None:
    """Advice of data-mutation."""
    change = DataToDetach()
    if isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef, ast.ClassDef)):
        return None
    new = change.visit(node)
    return new if change.changed and not whole_target(new) else None


def whole_target(node: ast.stmt) -> bool:
    """Whether a call would be assigned to: `x.detach() = y` is no Python."""
    match node:
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Call) for target in targets)
        case ast.AugAssign(target=ast.AST() as target):
            return isinstance(target, ast.Call)
    return False


def detached(value: ast.expr) -> ast.expr:
    """`value.detach()`."""
    return ast.Call(ast.Attribute(value, "detach", ast.Load()), [], [])


def detach_store(node: ast.stmt) -> ast.stmt | None:
    """Advice of the rules about kept graphs: what is stored is detached first."""
    match node:
        case ast.AugAssign() | ast.Assign() | ast.AnnAssign(value=ast.expr()):
            node.value = detached(node.value)  # type: ignore[arg-type]
            return node
        case ast.Expr(value=ast.Call(args=[*_, _] as args) as call):
            if not any(isinstance(arg, ast.Starred) for arg in args):
                call.args = [*args[:-1], *detach_parts(args[-1])]
                return node
    return None


def detach_parts(value: ast.expr) -> list[ast.expr]:
    """A stored value with its tensors detached; tuples and lists part by part."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            value.elts = [p for part in parts for p in detach_parts(part)]
            return [value]
        case ast.Constant():
            return [value]
    return [detached(value)]


ADVICE: dict[str, Change] = {
    "TL101": detach_data,
    "TL201": detach_store,
    "TL203": detach_store,
    "TL218": detach_store,
}
