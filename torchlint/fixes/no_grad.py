"""Writes through `.data` become writes under `torch.no_grad()`; neighbours share one block."""
from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchlint.findings import Edit
from torchlint.fixes.blocks import wrap_in_with
from torchlint.fixes.expressions import Edits, editable, outer_range
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.fixes.statements import add_decorator, siblings
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel

SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)
NO_GRAD = "torch.no_grad"


def drop_attribute(model: FileModel, node: ast.Attribute) -> Edits:
    """Take the last name of an attribute away: `x.data` -> `x`."""
    if not editable(model, node):
        return ()
    place = layout(model.source)
    return (place.edit(outer_range(model, node.value)[1], place.range(node)[1], ""),)


def data_to_no_grad(model: FileModel, writes: Iterable[ast.Attribute]) -> dict[ast.Attribute, Repair]:
    """The repairs of statements that write through `x.data`, by the attribute node.

    `writes` are all such attributes of the file. `.data` goes away and the statement into a
    `torch.no_grad()` block; neighbouring statements share one block (and one repair), and a loop that
    does nothing else is put into the block whole. Where gradients are off already, only `.data` goes.
    An attribute has no repair where `x.data = y` replaces the tensor (another shape, dtype or storage
    may be meant), in a lambda, and in the head of a compound statement.
    """
    by_stmt: dict[ast.stmt, list[ast.Attribute]] = {}
    for node in writes:
        stmt = model.statement(node)
        if isinstance(stmt, SIMPLE) and not _replaces(stmt, node) and not _later(model, node):
            by_stmt.setdefault(stmt, []).append(node)
    found: dict[ast.Attribute, Repair] = {}
    plain = [stmt for stmt in by_stmt if model.grad_at(stmt) is not False]
    for run in _runs(model, plain):
        inside = [stmt for stmt in plain if any(stmt is top or top in model.ancestors(stmt) for top in run)]
        nodes = [node for stmt in inside for node in by_stmt[stmt]]
        repair = _wrapped(model, run, nodes)
        if repair is not None:
            found.update(dict.fromkeys(nodes, repair))
    for stmt, nodes in by_stmt.items():
        if stmt not in plain:
            edits = [edit for node in nodes for edit in drop_attribute(model, node)]
            found.update(dict.fromkeys(nodes, Repair("Drop .data, gradients are off here", tuple(edits))))
    return found


def _replaces(stmt: ast.stmt, node: ast.Attribute) -> bool:
    """Whether the statement is `x.data = y`."""
    targets = stmt.targets if isinstance(stmt, ast.Assign) else [getattr(stmt, "target", None)]
    return not isinstance(stmt, ast.AugAssign) and any(target is node for target in targets)


def _later(model: FileModel, node: ast.AST) -> bool:
    """Whether a node runs later than its statement."""
    for parent in model.ancestors(node):
        if isinstance(parent, (ast.Lambda, ast.GeneratorExp)):
            return True
        if isinstance(parent, ast.stmt):
            break
    return False


def _runs(model: FileModel, stmts: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Neighbours together; a `for` loop all of whose statements are in stands for them."""
    chosen = {id(stmt) for stmt in stmts}
    tops: list[ast.stmt] = []
    for stmt in stmts:
        top = stmt
        parent = model.parent(top)
        while isinstance(parent, ast.For) and not parent.orelse and {id(s) for s in parent.body} <= chosen:
            top = parent
            chosen.add(id(top))
            parent = model.parent(top)
        if not any(top is other for other in tops):
            tops.append(top)
    runs: list[list[ast.stmt]] = []
    for top in tops:
        if any(other is not top and other in model.ancestors(top) for other in tops):
            continue
        block = siblings(model, top)
        index = next(i for i, item in enumerate(block) if item is top)
        if index and runs and runs[-1][-1] is block[index - 1]:
            runs[-1].append(top)
        else:
            runs.append([top])
    return runs


def _wrapped(model: FileModel, run: list[ast.stmt], nodes: list[ast.Attribute]) -> Repair | None:
    spelled = spell(model, NO_GRAD, run[0])
    drops: list[Edit] = []
    for node in nodes:
        drop = drop_attribute(model, node)
        if not drop:
            return None
        drops += drop
    block = wrap_in_with(model, run, f"{spelled.text}()") if spelled is not None else ()
    if spelled is None or not block:
        return None
    return Repair("Write under torch.no_grad()", (*block, *drops), spelled.imports)


def under_no_grad(model: FileModel, stmts: list[ast.stmt]) -> Repair | None:
    """Put neighbouring statements into a `torch.no_grad()` block."""
    spelled = spell(model, NO_GRAD, stmts[0])
    block = wrap_in_with(model, stmts, f"{spelled.text}()") if spelled is not None else ()
    if spelled is None or not block:
        return None
    return Repair("Run under torch.no_grad()", block, spelled.imports)


def add_no_grad_decorator(model: FileModel, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Repair | None:
    """Decorate a function with `@torch.no_grad()`, below its other decorators.

    None for generators and coroutines: the decorator of older torch versions does not reach into them.
    """
    spelled = spell(model, NO_GRAD, node)
    if spelled is None or isinstance(node, ast.AsyncFunctionDef) or _yields(node):
        return None
    edits = add_decorator(model, node, f"{spelled.text}()", inner=True)
    return Repair("Evaluate under torch.no_grad()", edits, spelled.imports)


def _yields(node: ast.FunctionDef) -> bool:
    stack: list[ast.AST] = list(node.body)
    while stack:
        child = stack.pop()
        if isinstance(child, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(child))
    return False
