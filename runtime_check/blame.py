"""A failed attempt and who is to blame: which arguments the failing statement depends on."""
from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from runtime_check.search import Failure, Place
from runtime_check.specs import Assignment, Spec
from runtime_check.usage import plain, source_tree


@dataclass(frozen=True)
class Context:
    """One failed attempt: its arguments, the failure, the function that was called, other candidates."""

    arguments: Assignment
    failure: Failure
    function: Callable[..., Any]
    candidates: dict[str, list[Spec]]

    @property
    def text(self) -> str:
        return self.failure.text

    def place(self) -> Place | None:
        """The frame of the called function itself."""
        code = getattr(plain(self.function), "__code__", None)
        return next((item for item in self.failure.places if item.code is code), None)

    def involved(self) -> list[str]:
        """Parameters, those that the failing statement depends on first."""
        every = [name for name, _ in self.arguments.items]
        place = self.place()
        tree = source_tree(self.function)
        if place is None or tree is None:
            return self.with_parts(every)
        near = names_at(tree, place.line)
        linked = dependencies(tree)
        direct = [name for name in every if name in near]
        behind = [name for name in every if any(name in linked.get(item, ()) for item in near)]
        return self.with_parts(dict.fromkeys([*direct, *behind, *every]))

    def with_parts(self, chosen: Iterable[str]) -> list[str]:
        """Parameters, each followed by the paths of the tensors in it."""
        inner: dict[str, list[str]] = {}
        for path, _ in self.arguments.leaves():
            name = path.partition("/")[0]
            if path != name:
                inner.setdefault(name, []).append(path)
        return [path for name in chosen for path in (name, *inner.get(name, ()))]

    def untouched(self) -> set[str]:
        """Parameters that the failing statement names and that nothing before it has bound anew."""
        place, tree = self.place(), source_tree(self.function)
        if place is None or tree is None:
            return set()
        bound = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
                 and item.lineno < place.line}
        near = names_at(tree, place.line)
        return set(self.with_parts(name for name, _ in self.arguments.items if name in near and name not in bound))

    def blamed(self) -> list[str]:
        """Only the parameters that the failing statement depends on; all of them if none is known."""
        place, tree = self.place(), source_tree(self.function)
        every = [name for name, _ in self.arguments.items]
        if place is None or tree is None:
            return self.with_parts(every)
        near = names_at(tree, place.line)
        linked = dependencies(tree)
        found = [name for name in every if name in near or any(name in linked.get(item, ()) for item in near)]
        return self.with_parts(found or every)


@functools.lru_cache(maxsize=256)
def statement_at(tree: ast.AST, line: int) -> ast.stmt | None:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node is not tree
             and node.lineno <= line <= (node.end_lineno or 0)]
    return max(found, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


@functools.lru_cache(maxsize=256)
def names_at(tree: ast.AST, line: int) -> set[str]:
    node = statement_at(tree, line)
    if node is None:
        return set()
    parts: list[ast.AST] = [node]
    match node:
        case ast.If(test=test) | ast.While(test=test):
            parts = [test]
        case ast.For(iter=source):
            parts = [source]
        case ast.With(items=items):
            parts = list(items)
    return {spelling(item) for part in parts for item in ast.walk(part)} - {""}


def spelling(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return f"self.{attr}"
    return ""


@functools.lru_cache(maxsize=256)
def dependencies(tree: ast.AST) -> dict[str, set[str]]:
    """For each variable the names that its value was computed from, directly or not."""
    direct: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                targets = [target]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                continue
        read = {spelling(item) for item in ast.walk(value)} - {""}
        for target in targets:
            for item in ast.walk(target):
                if spelling(item) and spelling(item) != "self":
                    direct.setdefault(spelling(item), set()).update(read)
    for _ in range(4):
        for name, sources in direct.items():
            direct[name] = sources.union(*(direct.get(item, set()) for item in sources))
    return direct


def lookups(place: Place) -> Iterator[tuple[dict[Any, Any], Any]]:
    node = source_statement(place)
    for item in ast.walk(node) if node is not None else ():
        if isinstance(item, ast.Subscript):
            table, key = evaluate(item.value, place), evaluate(item.slice, place)
            if isinstance(table, dict):
                yield table, key


def source_statement(place: Place) -> ast.stmt | None:
    """The statement at a frame's line; its file's text is in the line cache."""
    tree = source_tree(place.code)
    return statement_at(tree, place.line) if tree is not None else None


def evaluate(node: ast.expr, place: Place) -> Any:
    """The value of a plain expression in a frame; None if it cannot be had without calling code."""
    if any(isinstance(item, ast.Call) and not harmless(item) for item in ast.walk(node)):
        return None
    try:
        return eval(compile(ast.Expression(node), "<torchlint>", "eval"), place.globals, place.locals)
    except Exception:
        return None


def harmless(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("size", "dim", "len", "numel", "int", "tuple", "list")


def conditions(place: Place) -> Iterator[ast.expr]:
    tree = source_tree(place.code)
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Assert(test=test) if node.lineno <= place.line <= (node.end_lineno or 0):
                yield test
            case ast.If(test=test, body=[ast.Raise() as raised, *_]):
                if raised.lineno <= place.line <= (raised.end_lineno or 0):
                    yield test


def compared(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            left = node.left
            for right in node.comparators:
                yield left, right
                left = right
