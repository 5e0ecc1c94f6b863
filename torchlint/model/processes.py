"""Questions about distributed code: which conditions differ between the processes of one job."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model import FileModel

RANK_CALLS = {"torch.distributed.get_rank", "torch.distributed.distributed_c10d.get_rank"}
RANK_NAMES = {"rank", "local_rank", "global_rank", "world_rank", "node_rank", "local_process_index", "process_index"}
VARIABLES = {"RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
ENVIRONMENT = {"os.getenv", "os.environ.get"}
MAIN_NAMES = {
    "is_main_process", "is_master", "is_rank_zero", "is_rank0", "is_main", "is_local_main_process",
    "is_world_process_zero", "is_global_zero", "master_process", "is_master_process",
}


def leaving_before(model: FileModel, node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """`if test: return` in front of a statement works like a guard on the other side."""
    statement: ast.AST = model.statement(node)
    while isinstance(statement, ast.stmt):
        parent = model.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                for before in block[: block.index(statement)]:
                    if isinstance(before, ast.If) and isinstance(before.body[-1], (ast.Return, ast.Continue)):
                        yield before, False
        if parent is None or isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        statement = parent


def rank_test(model: FileModel, test: ast.expr) -> tuple[str, bool] | None:
    """(what is tested, True if the test holds on the first rank) of a test that differs between ranks."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = rank_test(model, operand)
            return None if inner is None else (inner[0], not inner[1])
        case ast.BoolOp(values=values):
            return next((found for value in values if (found := rank_test(model, value)) is not None), None)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if is_rank(model, left) or is_rank(model, right):
            match op:
                case ast.Eq() | ast.In() | ast.Is() | ast.LtE() | ast.Lt():
                    return "rank", True
                case ast.NotEq() | ast.NotIn() | ast.IsNot() | ast.Gt() | ast.GtE():
                    return "rank", False
        case ast.Call(func=func) if last_name(func) in MAIN_NAMES:
            return "main", True
        case ast.Call() if is_rank(model, test):
            return "rank", False
        case ast.Name() | ast.Attribute():
            if last_name(test) in MAIN_NAMES:
                return "main", True
            return ("rank", False) if is_rank(model, test) else None
    return None


def is_rank(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression is this process's rank: a call of get_rank, or a name that all scripts use for it."""
    match expr:
        case ast.Subscript(value=base, slice=ast.Constant(value=str(name))):
            return name in VARIABLES and model.name_of(base) == "os.environ"
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if model.name_of(func) in ENVIRONMENT:
            return name in VARIABLES
        case ast.Call(func=func, args=[inner]) if model.name_of(func) == "builtins.int":
            return is_rank(model, inner)
    if isinstance(expr, ast.Call):
        return model.name_of(expr.func) in RANK_CALLS or last_name(expr.func) in ("get_rank", "get_local_rank")
    return last_name(expr) in RANK_NAMES


def last_name(expr: ast.expr) -> str:
    """The last part of a name or attribute chain."""
    match expr:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
