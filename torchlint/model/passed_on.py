"""What an iteration of a loop may read of the one before it.

Following a body a second time, from what the first left behind, tells something new only if the body reads
some of it. Most bodies bind their variables anew each time.
"""
from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchlint.project import target_names

if TYPE_CHECKING:
    from torchlint.model import FileModel

INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
WITHS = (ast.With, ast.AsyncWith)


@dataclass
class Pass:
    """One way through a body, up to where it has been read.

    `bound` are the variables that are surely bound on it by now, `open` those that may have been read before
    they were, `settled` those that are bound whichever way the iteration ends (None: no `continue` or `break` yet).
    """

    bound: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    settled: set[str] | None = None

    def lasting(self) -> frozenset[str]:
        """Variables that every iteration binds before it reads them."""
        return frozenset((self.bound if self.settled is None else self.settled) - self.open)

    def branch(self) -> Pass:
        """A way that starts here and notes what it reads in the same place."""
        return Pass(set(self.bound), self.open)

    def read(self, *nodes: ast.AST | None) -> None:
        """Expressions are evaluated."""
        for node in nodes:
            if node is not None:
                self.open.update(
                    part.id for part in ast.walk(node)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in self.bound)

    def bind(self, target: ast.AST) -> None:
        """A target gets a value; `x[i] = ...` and `x.y = ...` read `x`."""
        self.read(target)
        self.bound.update(target_names(target))

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Statements run in order."""
        for statement in statements:
            if self.settled is None and jumps(statement) and not isinstance(statement, WITHS):  # looks inside itself
                self.settled = set(self.bound)
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """One statement runs."""
        match node:
            case ast.Assign(targets=targets, value=value):
                self.read(value)
                for target in targets:
                    self.bind(target)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.read(value)
                self.bind(target)
            case ast.AugAssign(target=target, value=value):
                self.read(value, target)
                self.open.update(name for name in target_names(target) if name not in self.bound)
            case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
                self.read(items)
                inner = self.branch()
                inner.bind(target)
                inner.block(node.body)
                self.branch().block(node.orelse)
            case ast.While(test=test):
                self.read(test)
                self.branch().block([*node.body, *node.orelse])
            case ast.If(test=test):
                self.read(test)
                arms = self.branch(), self.branch()
                arms[0].block(node.body)
                arms[1].block(node.orelse)
                self.bound |= arms[0].bound & arms[1].bound
            case ast.With(items=contexts) | ast.AsyncWith(items=contexts):
                for context in contexts:
                    self.read(context.context_expr)
                    if context.optional_vars is not None:
                        self.bind(context.optional_vars)
                if any("suppress" in ast.dump(context.context_expr) for context in contexts):
                    self.branch().block(node.body)
                else:
                    self.block(node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.read(node)
                self.bound.add(node.name)
            case _:
                self._other(node)

    def _other(self, node: ast.AST) -> None:
        """Any other statement: its parts may or may not run."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.branch().statement(child)
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                self.branch()._other(child)
            else:
                self.read(child)


def jumps(node: ast.AST) -> bool:
    """Whether a statement may end the iteration that it is part of."""
    if isinstance(node, (ast.Break, ast.Continue)):
        return True
    if isinstance(node, (*INNER, ast.expr)):
        return False
    inside = node.orelse if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else ast.iter_child_nodes(node)
    return any(jumps(child) for child in inside)


def bound_anew(model: FileModel, loop: ast.For | ast.AsyncFor | ast.While, owner: ast.AST) -> frozenset[str]:
    """Variables of `owner`'s body of which no iteration of a loop sees what the one before it has left."""
    way = Pass()
    if isinstance(loop, ast.While):
        way.read(loop.test)
    else:
        way.bind(loop.target)
    way.block(loop.body)
    return way.lasting() - read_inside(model, owner)


def read_inside(model: FileModel, owner: ast.AST) -> frozenset[str]:
    """Names that functions and classes inside of a function or file read, whenever they are called."""
    inside = (node for kind in INNER for node in model.nodes(kind) if node is not owner)
    return frozenset(
        part.id
        for node in inside
        if isinstance(owner, ast.Module) or owner in model.ancestors(node)
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    )
