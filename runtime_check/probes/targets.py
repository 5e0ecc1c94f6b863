"""What a statement stores into, as expressions, and their values in a frame."""

from __future__ import annotations

import ast
from types import FrameType

from runtime_check.plan import Lines


def stores(text: str, spot: Lines) -> list[ast.expr]:
    """What a statement stores into: `total` in `total += x`, `self.log` in `self.log.append(x)`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno == spot.first:
            while isinstance(node, (ast.With, ast.AsyncWith)) and len(node.body) == 1:
                node = node.body[0]
            match node:
                case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                    return [base(target)]
                case ast.Assign(targets=targets):
                    return [base(part) for target in targets for part in parts(target)]
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver))):
                    return [base(receiver)]
    return []


def parts(target: ast.expr) -> list[ast.expr]:
    """The targets in a tuple, however deep, or the target itself."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [part for inner in target.elts for part in parts(inner)]
    return [target]


def base(target: ast.expr) -> ast.expr:
    """The container of a subscript, however deep."""
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    return target


def value_of(node: ast.expr, frame: FrameType) -> tuple[object, bool]:
    """The value of a name or attribute in a frame, and whether only that call can see it.

    LookupError if it has none.
    """
    match node:
        case ast.Name(id=name):
            code = frame.f_code
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            seen = code.co_name == "<module>" or name in given or name in code.co_freevars
            if name in frame.f_locals:
                return frame.f_locals[name], not seen
            return frame.f_globals[name], False
        case ast.Attribute(value=inner, attr=name):
            owner, local = value_of(inner, frame)
            try:
                return getattr(owner, name), local
            except AttributeError:
                raise LookupError(name) from None
    raise LookupError(type(node).__name__)
