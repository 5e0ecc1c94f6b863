"""Edits of expressions: replace one, take a call away from its argument, add a method call behind it."""
from __future__ import annotations

import ast
import unicodedata
from typing import TYPE_CHECKING

from torchlint.findings import Edit
from torchlint.fixes.layout import CLOSING, FSTRING_POSITIONS, OPENING, layout
from torchlint.fixes.precedence import ATOM, PRIMARY, field_of, level, needed, parse_expression, text_level

if TYPE_CHECKING:
    from torchlint.model import FileModel

Edits = tuple[Edit, ...]


def source_of(model: FileModel, node: ast.AST) -> str:
    """The exact text of a node, without parentheses around it; of a definition, from its decorators on."""
    place = layout(model.source)
    start, end = place.whole(node) if isinstance(node, ast.stmt) else place.range(node)
    return place.text[start:end]


def operand(model: FileModel, node: ast.expr, least: int = PRIMARY) -> str:
    """The text of a node to put an operator of level `least` behind, or a `.`: in parentheses where it needs them."""
    if own := parens(model, node):
        return layout(model.source).text[slice(*own[0])]
    text = source_of(model, node)
    return f"({text})" if text_level(text)[0] < least else text


def in_fstring(model: FileModel, node: ast.AST) -> bool:
    """Whether a node stands inside an f-string."""
    for parent in model.ancestors(node):
        if isinstance(parent, ast.JoinedStr):
            return True
        if isinstance(parent, ast.stmt):
            break
    return False


def editable(model: FileModel, node: ast.AST, text: str = "", *, tokens: bool = True) -> bool:
    """Whether `text` may be put at a node: inside f-strings only what every Python version can read.

    `tokens` says that the edit needs the tokens there, which only Python 3.12 and later know.
    """
    if not in_fstring(model, node):
        return True
    if any(mark in text for mark in "'\"\\\n\r#{}"):
        return False
    return FSTRING_POSITIONS or (not tokens and found_there(model, node))


def found_there(model: FileModel, node: ast.AST) -> bool:
    """Whether the text where a node says it stands is that node: inside f-strings it was not always so."""
    if not isinstance(node, ast.expr):
        return False
    place = layout(model.source)
    start, end = place.range(node)
    parsed = parse_expression(place.text[start:end])
    string = next((token for token in place.tokens_in(0, start) if token.end >= end), None)
    return parsed is not None and string is not None and ast.dump(parsed[0]) == ast.dump(node)


def parens(model: FileModel, node: ast.expr) -> list[tuple[int, int]]:
    """The pairs of parentheses around an expression that belong to it alone, inside out, as offsets."""
    if not FSTRING_POSITIONS and in_fstring(model, node):
        return []  # they are no tokens there
    place = layout(model.source)
    start, end = place.range(node)
    pairs: list[tuple[int, int]] = []
    while True:
        left, right = place.before(start), place.after(end)
        if left is None or right is None or left.text != "(" or right.text != ")":
            break
        start, end = left.start, right.end
        pairs.append((start, end))
    match model.parent(node):
        case ast.Call(args=[only], keywords=[]) | ast.ClassDef(bases=[only], keywords=[]) if only is node:
            if pairs and not _shares_parens(model, node):
                pairs.pop()
        case ast.MatchValue():
            return []
    return pairs


def _shares_parens(model: FileModel, node: ast.expr) -> bool:
    """Whether a generator is the only argument and written without parentheses of its own."""
    match node, model.parent(node):
        case ast.GeneratorExp(), ast.Call(args=[only]) as call if only is node:
            return (node.end_lineno, node.end_col_offset) == (call.end_lineno, call.end_col_offset)
    return False


def outer_range(model: FileModel, node: ast.expr) -> tuple[int, int]:
    """Start and end offset of an expression with all the parentheses that are its own."""
    pairs = parens(model, node)
    return pairs[-1] if pairs else layout(model.source).range(node)


def inside_brackets(model: FileModel, offset: int, stmt: ast.stmt) -> bool:
    """Whether a line break at `offset` would not end the statement."""
    place = layout(model.source)
    depth = 0
    for token in place.tokens_in(place.whole(stmt)[0], offset):
        depth += (token.text in OPENING) - (token.text in CLOSING)
    return depth > 0


def fit(model: FileModel, node: ast.expr, text: str) -> str:
    """`text`, in parentheses if it needs them to stand where `node` stands."""
    parent = model.parent(node)
    if parent is None or parens(model, node):
        return text
    holds, loose = text_level(text)
    if isinstance(parent, ast.withitem) and _is_tuple(text):
        return f"(({text}))" if holds < ATOM else f"({text})"  # `with (a, b):` has two items
    if holds < needed(parent, field_of(parent, node)):
        return f"({text})"
    if loose and not inside_brackets(model, layout(model.source).range(node)[0], model.statement(node)):
        return f"({text})"
    return text


def _is_tuple(text: str) -> bool:
    parsed = parse_expression(text)
    return parsed is not None and isinstance(parsed[0], ast.Tuple)


def _word(text: str) -> bool:
    return text.isidentifier() or text.isdigit()


def spaced(model: FileModel, start: int, end: int, text: str) -> Edit:
    """An edit that does not let `text` grow together with the words around it: `return(x)` -> `return x`."""
    place = layout(model.source)
    before, after = place.text[start - 1 : start], place.text[end : end + 1]
    if text and before and _word(before) and (_word(text[0]) or text[0] in "'\"("):
        text = " " + text
    if text and after and _word(text[-1]) and _word(after):
        text += " "
    return place.edit(start, end, text)


def replace(model: FileModel, node: ast.AST, text: str) -> Edits:
    """Replace an expression, argument or statement by `text`.

    An expression gets parentheses where it would otherwise be read differently. For a statement,
    `text` may have several lines, written without the indentation of the place.
    Returns () where the text cannot be put there (inside f-strings, before Python 3.12).
    """
    place = layout(model.source)
    if isinstance(node, ast.stmt):
        from torchlint.fixes.statements import replace_statement

        return replace_statement(model, node, text)
    if not editable(model, node, text, tokens=False):
        return ()
    start, end = place.range(node)
    if isinstance(node, ast.expr):
        if gone := _without_itself(model, node, text):
            return gone
        if _shares_parens(model, node):
            return (place.edit(start + 1, end - 1, text),)
        start, end = _idle_parens(model, node, text) or (start, end)
        text = fit(model, node, text)
    return (spaced(model, start, end, text),)


def _without_itself(model: FileModel, node: ast.expr, text: str) -> Edits:
    """The removal of an assignment that would be `x = x`; () where it is none, or all that makes `x` a name here."""
    match model.parent(node):
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as stmt if value is node and text == name:
            from torchlint.fixes.statements import remove

            scope = next(iter(model.scopes(node)))
            return remove(model, stmt) if len(scope.bindings.get(name, ())) > 1 else ()
    return ()


def _idle_parens(model: FileModel, node: ast.expr, text: str) -> tuple[int, int] | None:
    """The parentheses around an operation if `text` is none and needs none."""
    own, parent = parens(model, node), model.parent(node)
    if len(own) != 1 or parent is None or "\n" in text or text.startswith("("):
        return None
    least = needed(parent, field_of(parent, node))
    place = layout(model.source)
    tight = "\n" not in place.text[own[0][0] : own[0][1]]  # else they may hold a comment, or the lines together
    return own[0] if tight and level(node) < PRIMARY and text_level(text)[0] >= max(least, PRIMARY) else None


def unwrap_call(model: FileModel, call: ast.Call) -> Edits:
    """Replace a call by its only argument: `float(x)` -> `x`. () if there is not exactly one."""
    match call:
        case ast.Call(args=[arg], keywords=[]) if not isinstance(arg, ast.Starred):
            return replace(model, call, source_of(model, arg))
        case ast.Call(args=[], keywords=[ast.keyword(arg=str(), value=value)]):
            return replace(model, call, source_of(model, value))
    return ()


def drop_method_call(model: FileModel, call: ast.Call) -> Edits:
    """Remove a method call behind its receiver: `x.detach()` -> `x`. () if it is not one."""
    if not isinstance(call.func, ast.Attribute) or not editable(model, call, tokens=False):
        return ()
    if gone := _without_itself(model, call, source_of(model, call.func.value)):
        return gone
    if not FSTRING_POSITIONS and in_fstring(model, call):  # where the parentheses are is not known
        return replace(model, call, source_of(model, call.func.value))
    place = layout(model.source)
    return (place.edit(outer_range(model, call.func.value)[1], place.range(call)[1], ""),)


def append_method_call(model: FileModel, expr: ast.expr, call: str) -> Edits:
    """Put `call`, such as ".detach()", behind an expression; `a + b` becomes `(a + b).detach()`."""
    if not editable(model, expr, call, tokens=False) or isinstance(expr, (ast.Starred, ast.Slice)):
        return ()
    place = layout(model.source)
    own = parens(model, expr)
    if own:
        return (place.edit(own[0][1], own[0][1], call),)
    start, end = place.range(expr)
    number = isinstance(expr, ast.Constant) and isinstance(expr.value, int)
    if _shares_parens(model, expr):
        return place.edit(start, start, "("), place.edit(end, end, call + ")")
    if level(expr) >= PRIMARY and not number:
        if isinstance(expr, ast.Tuple) and place.text[start] != "(":
            return place.edit(start, start, "("), place.edit(end, end, ")" + call)
        return (place.edit(end, end, call),)
    return spaced(model, start, start, "("), place.edit(end, end, ")" + call)


def wrap_call(model: FileModel, expr: ast.expr, function: str) -> Edits:
    """Hand an expression to a function: `x` -> `list(x)`."""
    unfit = (ast.Starred, ast.Slice, ast.Yield, ast.YieldFrom)
    if not editable(model, expr, function) or isinstance(expr, unfit):
        return ()
    place = layout(model.source)
    own = parens(model, expr)
    if own:  # the parentheses that are there become those of the call
        start = own[-1][0]
        return (spaced(model, start, start, function),)
    start, end = place.range(expr)
    if isinstance(expr, ast.Tuple) and place.text[start] != "(":
        return spaced(model, start, start, f"{function}(("), place.edit(end, end, "))")
    if isinstance(expr, ast.GeneratorExp) and not _shares_parens(model, expr):
        return (spaced(model, start, start, function),)
    if _shares_parens(model, expr):
        return place.edit(start + 1, start + 1, f"{function}("), place.edit(end - 1, end - 1, ")")
    return spaced(model, start, start, f"{function}("), place.edit(end, end, ")")


def generator_to_list(model: FileModel, node: ast.GeneratorExp) -> Edits:
    """`(x for x in y)` -> `[x for x in y]`, which can be gone through more than once."""
    if not editable(model, node):
        return ()
    place = layout(model.source)
    start, end = place.range(node)
    if _shares_parens(model, node):
        return place.edit(start + 1, start + 1, "["), place.edit(end - 1, end - 1, "]")
    return place.edit(start, start + 1, "["), place.edit(end - 1, end, "]")


def replace_callee(model: FileModel, call: ast.Call, text: str) -> Edits:
    """Replace what is called and keep the arguments as they are: `f(x)` -> `text(x)`."""
    return replace(model, call.func, text)


def rename_attribute(model: FileModel, node: ast.Attribute, name: str) -> Edits:
    """Change the last name of an attribute: `ctx.saved_tensor` -> `ctx.saved_tensors`."""
    place = layout(model.source)
    end = place.range(node)[1]
    start = end - len(node.attr)
    if not editable(model, node, name, tokens=False) or not _same_name(place.text[start:end], node.attr):
        return ()
    return (place.edit(start, end, name),)


def rename_definition(model: FileModel, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
                      name: str) -> Edits:
    """Change the name in a `def` or `class` line. Uses of the name are left alone."""
    place = layout(model.source)
    start = place.range(node)[0]
    for token in place.tokens_in(start, place.range(node)[1]):
        if token.text not in ("async", "def", "class"):
            return (place.edit(token.start, token.end, name),) if _same_name(token.text, node.name) else ()
    return ()


def rename_keyword(model: FileModel, keyword: ast.keyword, name: str) -> Edits:
    """Change the name of a keyword argument and keep its value."""
    place = layout(model.source)
    start = place.range(keyword)[0]
    old = keyword.arg or ""
    if not editable(model, keyword, name) or not _same_name(place.text[start : start + len(old)], old):
        return ()
    return (place.edit(start, start + len(old), name),)


def _same_name(written: str, name: str) -> bool:
    """Whether `written` is the identifier `name`, which Python normalises."""
    return bool(name) and unicodedata.normalize("NFKC", written) == name

