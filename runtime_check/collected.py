"""The advice of cat-in-loop as a text to run: pieces are kept in a list, and concatenated once, after the loop.

The name keeps its first piece while the loop runs, so that a test whether there is one answers as before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

JOINS = frozenset({"cat", "concat", "concatenate", "vstack", "hstack", "dstack", "row_stack"})
PIECES = "torchlint_pieces"
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def collected(text: str, tree: ast.Module, statement: ast.stmt) -> str | None:
    """The text with the concatenation in a statement moved behind its loop, or None if it is no such statement."""
    target = getattr(statement, "targets", [None])[0]
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    grown = next((node for node in ast.walk(statement) if isinstance(node, ast.Call) and joins(node, target)), None)
    loop = outermost(tree, statement, ast.unparse(target))
    if grown is None or loop is None:
        return None
    name, parts = ast.unparse(target), grown.args[0].elts  # type: ignore[attr-defined]
    after = ast.unparse(parts[0]) == name
    new = ", ".join(ast.unparse(part) for part in (parts[1:] if after else parts[:-1]))
    where = f"{PIECES}.extend(({new},))" if after else f"{PIECES}.__setitem__(slice(0, 0), ({new},))"
    kept = f"({where} or {name})"
    grown.args[0] = ast.parse(f"[{name}, *{PIECES}]" if after else f"[*{PIECES}, {name}]", mode="eval").body
    joined = ast.unparse(grown)
    lines = text.splitlines(keepends=True)
    margin = lines[loop.lineno - 1][: loop.col_offset]
    last = loop.end_lineno or loop.lineno
    lines.insert(last, f"{margin}if {PIECES}:\n{margin}    {name} = {joined}\n")
    replace(lines, grown, kept)
    lines.insert(loop.lineno - 1, f"{margin}{PIECES} = []\n")
    return "".join(lines)


def joins(node: ast.Call, target: ast.expr) -> bool:
    """Whether a call puts a name and other pieces beside each other."""
    match node:
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called),
                      args=[ast.List(elts=[first, *_, last]) | ast.Tuple(elts=[first, *_, last]), *_]):
            return called in JOINS and ast.unparse(target) in (ast.unparse(first), ast.unparse(last))
    return False


def outermost(tree: ast.Module, statement: ast.stmt, name: str) -> ast.stmt | None:
    """The outermost loop around a statement that does nothing with a name but let the statement add to it."""
    function = min((node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                    and holds(node, statement)), key=lambda node: len(list(ast.walk(node))), default=tree)
    found: ast.stmt | None = None
    for loop in sorted((node for node in ast.walk(function) if isinstance(node, LOOPS) and holds(node, statement)),
                       key=lambda node: -node.lineno):
        if found is not None and any(other_uses(loop, found, name)):
            break
        found = loop
    return found


def other_uses(loop: ast.stmt, inner: ast.stmt, name: str) -> Iterator[ast.AST]:
    """Where a loop names a variable outside another one in it."""
    own = set(ast.walk(inner))
    return (node for node in ast.walk(loop) if node not in own
            and isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == name)


def holds(outer: ast.stmt, inner: ast.stmt) -> bool:
    """Whether a statement is in the lines of another one."""
    return outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def replace(lines: list[str], old: ast.expr, new: str) -> None:
    """Replaces an expression in lines; it may be several lines long."""
    first, last = old.lineno - 1, (old.end_lineno or old.lineno) - 1
    head = lines[first].encode()[: old.col_offset].decode()
    tail = lines[last].encode()[old.end_col_offset :].decode()
    lines[first : last + 1] = [head + new + tail]
