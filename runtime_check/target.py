"""Which class, method or function has to run for a line to be executed."""
from __future__ import annotations

import ast
from dataclasses import dataclass

from runtime_check.statements import is_main_guard


@dataclass(frozen=True)
class Target:
    """The code that has to run for a finding to be tested."""

    kind: str  # "class", "method", "function" or "script"
    qualname: str  # "Net", "Net.forward", "train"; "" for a script
    line: int
    first_line: int
    last_line: int


def target_at(text: str, line: int) -> Target:
    """The innermost class, method or top-level function around `line`, else the whole script.

    Functions inside a function are exercised through the outer one. Raises SyntaxError.
    """
    tree = ast.parse(text)
    last = max(text.count("\n") + 1, line)
    path: list[ast.stmt] = []
    body: list[ast.stmt] = tree.body
    while True:
        node = next((item for item in body if _first(item) <= line <= (item.end_lineno or 0)), None)
        if node is None or is_main_guard(node):
            break
        match node:
            case ast.ClassDef():
                path.append(node)
                body = node.body
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                path.append(node)
                break
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                body = [item for item in ast.iter_child_nodes(node) if isinstance(item, ast.stmt)]
                body += [item for part in getattr(node, "handlers", []) for item in part.body]
            case _:
                break
    if not path:
        return Target("script", "", line, 1, last)
    inner = path[-1]
    names = ".".join(getattr(item, "name", "") for item in path)
    kind = "class" if isinstance(inner, ast.ClassDef) else "method" if len(path) > 1 else "function"
    return Target(kind, names, line, _first(inner), inner.end_lineno or line)


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])
