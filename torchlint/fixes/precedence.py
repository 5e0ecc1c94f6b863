"""When an expression needs parentheses to stand where another one stood."""
from __future__ import annotations

import ast

from torchlint.files import Source
from torchlint.fixes.layout import Layout

# How tightly an expression holds together; higher is tighter. Python's grammar, from the outside in.
YIELD, TUPLE, NAMED, LAMBDA, TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, TERM, \
    UNARY, POWER, AWAIT, PRIMARY, ATOM = range(20)

_BINARY: dict[type[ast.operator], int] = {
    ast.BitOr: BIT_OR, ast.BitXor: BIT_XOR, ast.BitAnd: BIT_AND, ast.LShift: SHIFT, ast.RShift: SHIFT,
    ast.Add: SUM, ast.Sub: SUM, ast.Mult: TERM, ast.Div: TERM, ast.FloorDiv: TERM, ast.Mod: TERM,
    ast.MatMult: TERM, ast.Pow: POWER,
}
_OPEN = {  # places that take a tuple or yield without parentheses
    (ast.Assign, "value"), (ast.AugAssign, "value"), (ast.Expr, "value"), (ast.AnnAssign, "value"),
}
_TUPLE = {(ast.Return, "value"), (ast.For, "iter"), (ast.AsyncFor, "iter"), (ast.Subscript, "slice"),
          (ast.Yield, "value")}
_NAMED = {(ast.Call, "args"), (ast.If, "test"), (ast.While, "test"), (ast.List, "elts"), (ast.Set, "elts"),
          (ast.Tuple, "elts"), (ast.ListComp, "elt"), (ast.SetComp, "elt"), (ast.GeneratorExp, "elt"),
          (ast.match_case, "guard"), (ast.Match, "subject")}


def level(node: ast.expr) -> int:
    """How tightly an expression without parentheses around it holds together."""
    match node:
        case ast.Yield() | ast.YieldFrom():
            return YIELD
        case ast.NamedExpr():
            return NAMED
        case ast.Lambda():
            return LAMBDA
        case ast.IfExp():
            return TERNARY
        case ast.BoolOp(op=ast.Or()):
            return OR
        case ast.BoolOp():
            return AND
        case ast.UnaryOp(op=ast.Not()):
            return NOT
        case ast.Compare():
            return COMPARE
        case ast.BinOp(op=op):
            return _BINARY[type(op)]
        case ast.UnaryOp():
            return UNARY
        case ast.Await():
            return AWAIT
        case ast.Attribute() | ast.Call() | ast.Subscript():
            return PRIMARY
    return ATOM


def needed(parent: ast.AST, field: str) -> int:
    """The lowest level that may stand, without parentheses, in this field of a node."""
    key = (type(parent), field)
    if key in _OPEN:
        return YIELD
    if key in _TUPLE:
        return TUPLE
    if key in _NAMED:
        return NAMED
    match parent, field:
        case (ast.Attribute() | ast.Call() | ast.Subscript(), "value" | "func"):
            return PRIMARY
        case ast.Await(), _:
            return PRIMARY
        case ast.BinOp(op=ast.Pow()), _:
            return AWAIT if field == "left" else UNARY
        case ast.BinOp(op=op), _:
            return _BINARY[type(op)] + (field == "right")
        case ast.UnaryOp(op=ast.Not()), _:
            return NOT
        case ast.UnaryOp(), _:
            return UNARY
        case ast.BoolOp(op=op), _:
            return (OR if isinstance(op, ast.Or) else AND) + 1
        case ast.Compare() | ast.Starred(), _:
            return BIT_OR
        case ast.IfExp(), _:
            return LAMBDA if field == "orelse" else OR
        case ast.comprehension(), _:
            return OR
        case ast.FormattedValue(), _:
            return TERNARY
    return LAMBDA


def field_of(parent: ast.AST, node: ast.AST) -> str:
    """The name of the field of `parent` that holds `node`; "" if none does."""
    for name, value in ast.iter_fields(parent):
        if value is node or (isinstance(value, list) and any(item is node for item in value)):
            return name
    return ""


def parse_expression(text: str) -> tuple[ast.expr, bool] | None:
    """(the expression that `text` is, whether it needs brackets to go over several lines)."""
    try:
        body = ast.parse(text.strip(), mode="exec").body
        if len(body) == 1 and isinstance(body[0], ast.Expr):
            return body[0].value, False
        return None
    except (SyntaxError, ValueError):
        pass
    try:
        return ast.parse(f"(\n{text}\n)", mode="eval").body, True
    except (SyntaxError, ValueError):
        return None


def text_level(text: str) -> tuple[int, bool]:
    """(how tightly `text` holds together, whether it needs brackets to go over several lines).

    Text that is no expression, such as `*args`, counts as an atom: it is taken as it is.
    """
    parsed = parse_expression(text)
    if parsed is None:
        return ATOM, False
    node, loose = parsed
    if not loose and text.strip().startswith("(") and node.col_offset > 0:
        return (ATOM if _closed(text.strip()) else level(node)), False
    if isinstance(node, ast.Tuple) and not (text.strip().startswith("(") and _closed(text.strip())):
        return TUPLE, loose
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return PRIMARY - 1, loose  # `1.real` is no attribute
    return level(node), loose


def _closed(text: str) -> bool:
    """Whether the parenthesis that starts `text` is closed by its last character."""
    place = Layout(Source("", text))
    tokens = [token for token in place.tokens if not token.comment]
    return bool(tokens) and place.closing(tokens[0]) is tokens[-1]
