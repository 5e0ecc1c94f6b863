"""`with` items that change what the code inside means."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.values import UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from torchlint.model.interp import Run

GRAD_MODES = {"torch.no_grad": False, "torch.inference_mode": False, "torch.enable_grad": True}


def enter_context(run: Run, item: ast.expr, value: Value) -> Value:
    """Apply what a context manager does on entry; returns what `as` binds."""
    match item:
        case ast.Call(args=args):
            name = run.model.name_of(item.func)
            if name in GRAD_MODES:
                mode: bool | None = GRAD_MODES[name]
                if name == "torch.inference_mode" and args:
                    mode = _literal_not(args[0])
                run.grad = mode
            elif name == "torch.set_grad_enabled":
                run.grad = literal_bool(args[0]) if args else None
            elif value.kind is Kind.CONTEXT and "grad_off" in value.facts:
                run.grad = False
            elif value.kind in (Kind.LOADER, Kind.TENSOR):
                return value
        case ast.Name() | ast.Attribute():
            if value.kind is Kind.CONTEXT and "grad_off" in value.facts:
                run.grad = False
            elif value.kind is Kind.CONTEXT and "grad_unknown" in value.facts:
                run.grad = None
            elif value.kind is not Kind.CONTEXT:
                return value
    if value.kind is Kind.INSTANCE and value.cls is not None:
        enter = value.cls.method("__enter__")
        if enter is not None:
            returned = enter.returned()
            return value if returned.cls is value.cls else returned
    return value if value.kind is not Kind.CONTEXT else UNKNOWN


def exit_context(run: Run, node: ast.With | ast.AsyncWith, grad: bool | None) -> None:
    """The grad mode of before holds again."""
    run.grad = grad


def literal_bool(expr: ast.expr) -> bool | None:
    """The value of a literal True or False; None for anything else."""
    match expr:
        case ast.Constant(value=bool(mode)):
            return mode
    return None


def _literal_not(expr: ast.expr) -> bool | None:
    mode = literal_bool(expr)
    return None if mode is None else not mode
