"""Amounts with which a statement does nothing: no layers, a single copy, a probability of zero.

Such amounts often are defaults. What a statement makes of them says nothing of the statement. The same holds for a
dtype that is that of new tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import torch

SIZES = (4, 4)  # of layers
EMPTY = ("()", "[]")
SOME = 2  # layers, copies
OFTEN = 0.5  # a probability
#: Functions that drop values at random, with the place of the probability among their arguments, and its names.
ATTENTION = "scaled_dot_product_attention"
NAMES = ("p", "dropout_p")
#: Defaults that are the dtype of new tensors, and none at all: then the usual one is guessed.
USUAL = ("torch.float32", "torch.float", "torch.get_default_dtype()", "None", "")


@dataclass(frozen=True)
class Amount:
    """An expression for an amount, the values of it with which nothing happens, and one with which something does."""

    node: ast.expr
    idle: tuple[object, ...]  # numbers, or other defaults as they are written
    enough: object
    what: str  # happens with an idle one


def amounts(function: ast.FunctionDef, line: int) -> Iterator[Amount]:
    """Amounts on which it depends whether a statement of a function does anything."""
    for statement in statements(function, line):
        parts = [statement.target, statement.iter] if isinstance(statement, ast.For) else [statement]
        yield from (found for part in parts for node in ast.walk(part) for found in of_node(node))
        if isinstance(statement, ast.For):
            yield from plain(statement.iter, EMPTY, SIZES, "the loop runs no time")


def statements(function: ast.FunctionDef, line: int) -> Iterator[ast.stmt]:
    """The statement on a line, and the loops around it and of those that add to what it stores."""
    names: set[str] = set()
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line):
            if not hasattr(node, "body"):
                yield node
                names |= stored(node)
    for loop in loops:
        inside = loop.lineno <= line <= (loop.end_lineno or line)
        if inside or any(isinstance(part, ast.expr) and ast.unparse(part) in names for part in ast.walk(loop)):
            yield loop


def stored(statement: ast.stmt) -> set[str]:
    """What a statement assigns, as it is written."""
    match statement:
        case ast.Assign(targets=targets):
            return {ast.unparse(target) for target in targets}
        case ast.AnnAssign(target=target):
            return {ast.unparse(target)}
    return set()


def of_node(node: ast.AST) -> Iterator[Amount]:
    """The amount that an expression is about, if it is one that a statement can have too little of."""
    match node:
        case ast.comprehension(iter=values):
            yield from plain(values, EMPTY, SIZES, "the loop runs no time")
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            yield from plain(count, (0,), SOME, "the loop runs no time")
        case ast.Call(func=ast.Attribute(value=ast.Call()), args=args, keywords=keywords) if converts(node):
            for part in (*args, *(keyword.value for keyword in keywords)):
                if ast.unparse(part).endswith("dtype"):
                    yield from plain(part, USUAL, torch.float64, "the conversion changes nothing")
        case ast.BinOp(left=ast.List(), op=ast.Mult(), right=count) | ast.BinOp(
            left=count, op=ast.Mult(), right=ast.List()
        ):
            yield from plain(count, (0, 1), SOME, "there are no two copies")
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
            if "dropout" in name or name == ATTENTION:
                place = 4 if name == ATTENTION else 1
                given = [part.value for part in keywords if part.arg in NAMES] + args[place : place + 1]
                for probability in given[:1]:
                    yield from plain(probability, (0,), OFTEN, "nothing is dropped")


def converts(node: ast.AST) -> bool:
    """Whether an expression converts a new parameter to what variables say, be it what it is already."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=made), attr="to" | "type" | "type_as" | "cuda" as name)):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            constant = all(isinstance(part, ast.Constant) or ast.unparse(part).startswith("torch.") for part in given)
            return ast.unparse(made).rpartition(".")[2] == "Parameter" and (name == "cuda" or not constant)
    return False


def plain(node: ast.expr, idle: tuple[object, ...], enough: object, what: str) -> Iterator[Amount]:
    """An amount that is a variable or an attribute."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield Amount(node, idle, enough, what)
