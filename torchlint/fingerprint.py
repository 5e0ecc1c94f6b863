"""A name for a finding that stays the same when lines above it come and go."""
from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torchlint.files import Source
from torchlint.findings import Finding

Scopes = list[tuple[int, int, str]]
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def scopes_of(tree: ast.Module) -> Scopes:
    """(first line, last line, dotted name) of every class and function, outer before inner."""
    found: Scopes = []
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        if isinstance(node, _DEFINITIONS):
            prefix = f"{prefix}.{node.name}" if prefix else node.name
            found.append((node.lineno, node.end_lineno or node.lineno, prefix))
        children = ast.iter_child_nodes(node)
        stack.extend((child, prefix) for child in children if not isinstance(child, ast.expr))
    return sorted(found, key=lambda scope: (scope[0], -scope[1]))


def with_fingerprints(findings: Iterable[Finding], source: Source, scopes: Scopes) -> list[Finding]:
    """`findings` (in order) with fingerprints of path, code, scope, text of the line, and which of equals."""
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        line = finding.span.line
        scope = next((name for first, last, name in reversed(scopes) if first <= line <= last), "")
        text = source.lines[line - 1] if 1 <= line <= len(source.lines) else ""
        key = "\0".join((finding.path, str(finding.cell), finding.code, scope, " ".join(text.split())))
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\0{seen[key]}".encode("utf-8", "surrogatepass")).hexdigest()
        named.append(replace(finding, fingerprint=digest[:20]))
    return named
