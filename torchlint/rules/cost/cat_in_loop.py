"""A tensor that grows by concatenation in a loop.

A tensor cannot grow: `torch.cat` makes a new one and copies all that was collected so far, in every iteration, so
the work rises with the square of the number of iterations. When gradients are recorded, backward goes through all
those copies again.

Append to a list and concatenate once, after the loop. Where each iteration needs the tensor so far, as in
generation, there is nothing to gain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Slower
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL606", "cat-in-loop", Severity.WARNING, triggers=("cat", "concat", "concatenate", "vstack", "hstack"))
CLAIM = Slower()
JOINS = {f"torch.{name}" for name in ("cat", "concat", "concatenate", "vstack", "hstack", "dstack", "row_stack")}

EXAMPLES = [
    Example(
        bad="""
        import torch

        ROWS = 3000
        scores = torch.empty(0)
        for batch in torch.ones(ROWS, 50):
            scores = torch.cat([scores, batch * 2])  #!
        print(scores.sum())
        """,
        good="""
        import torch

        ROWS = 3000
        parts = []
        for batch in torch.ones(ROWS, 50):
            parts.append(batch * 2)
        scores = torch.cat(parts)
        print(scores.sum())
        """,
    ),
    Example(
        bad="""
        import torch

        ROWS = 3000


        def collect(batches):
            found = None
            for batch in batches:
                if found is None:
                    found = batch
                else:
                    found = torch.cat((found, batch), dim=0)  #!
            return found


        print(collect(torch.ones(ROWS, 50)).sum())
        """,
        good="""
        import torch

        ROWS = 3000


        def collect(batches):
            found = []
            for batch in batches:
                found.append(batch)
            return torch.cat(found, dim=0)


        print(collect(torch.ones(ROWS, 50)).sum())
        """,
    ),
]

CLEAN = [
    """
    import torch


    def generate(model, ids, steps):
        for _ in range(steps):
            ids = torch.cat([ids, model(ids)], dim=1)
        return ids


    def dense(x, layers):
        for layer in layers:
            new = layer(x)
            x = torch.cat([x, new], 1)
        return x


    def rows(batches):
        out = []
        for batch in batches:
            row = batch[0]
            row = torch.cat([row, batch[1]])
            out.append(row)
        for name in ("a", "b"):
            row = torch.cat([row, row.new_zeros(1)])
        return out, row
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Concatenations of a name with itself in a loop that does not use it otherwise."""
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[target], value=ast.Call() as call):
                pass
            case ast.Assign(targets=[target], value=ast.IfExp(orelse=ast.Call() as call, body=ast.expr())):
                pass  # `x = first if x is None else cat([x, more])`
            case _:
                continue
        match call.args:
            case [ast.List(elts=parts) | ast.Tuple(elts=parts), *_]:
                pass
            case _:
                continue
        loops = model.place(assign).loops
        if not loops or len(parts) < 2 or model.name_of(call.func) not in JOINS:
            continue
        if any(same(part, target) for part in (parts[0], parts[-1])) and only_grows(model, loops[-1], assign, target):
            yield Hit(
                call, "this copies all so far in every iteration; collect in a list, `cat` once",
                confidence=Confidence.LIKELY)


def same(left: ast.AST, right: ast.AST) -> bool:
    """Whether two expressions are the same name or the same attribute of one name."""
    match left, right:
        case ast.Name(id=one), ast.Name(id=two):
            return one == two
        case ast.Attribute(value=ast.Name(id=one), attr=a), ast.Attribute(value=ast.Name(id=two), attr=b):
            return (one, a) == (two, b)
    return False


def only_grows(model: FileModel, loop: ast.AST, assign: ast.Assign, target: ast.expr) -> bool:
    """Whether a loop of unknown or large length does nothing with the tensor but add to it."""
    if isinstance(loop, ast.For) and is_short(loop.iter):
        return False
    own = set(ast.walk(assign))
    once = [node for node in own if same(node, target) and not is_none_test(model, node)]
    if len(once) > 2:  # as the target, and once as a part
        return False
    body = loop.body if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)) else []
    if isinstance(loop, ast.While) and any(same(node, target) for node in ast.walk(loop.test)):
        return False
    for node in (n for statement in body for n in ast.walk(statement)):
        if node in own or not same(node, target) or is_none_test(model, node):
            continue
        if not (isinstance(getattr(node, "ctx", None), ast.Store) and is_first(model, assign, node)):
            return False
    return True


def is_short(expr: ast.expr) -> bool:
    """A literal sequence, or range of a small number."""
    match expr:
        case ast.Tuple() | ast.List():
            return True
        case ast.Call(func=ast.Name(id="range"), args=[*_, ast.Constant(value=int(count))]):
            return count < 10
    return False


def is_none_test(model: FileModel, node: ast.AST) -> bool:
    """Whether a name is only compared with None, or its length with 0."""
    parent = model.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Call, ast.UnaryOp)):
        if isinstance(parent, ast.Call) and parent.func is not node and not (
                isinstance(parent.func, ast.Name) and parent.func.id == "len"):
            return False
        node, parent = parent, model.parent(parent)
    return isinstance(parent, ast.Compare) or (isinstance(parent, ast.If) and parent.test is node)


def is_first(model: FileModel, assign: ast.Assign, node: ast.AST) -> bool:
    """Whether a name is set in the other arm of the `if` around the concatenation: its first value."""
    return model.place(assign).excludes(model.place(node))
