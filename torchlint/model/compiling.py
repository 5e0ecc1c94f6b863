"""Questions about compilation: which functions a file hands to `torch.compile`."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.model.values import Kind

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.functions import FunctionInfo

COMPILE = "torch.compile"


def compiled(model: FileModel, *, open_too: bool = True) -> Iterator[FunctionInfo]:
    """Functions of the project that `torch.compile` gets in this file; without `open_too`, not with fullgraph=False."""
    for function in model.functions:
        for decorator in getattr(function.node, "decorator_list", []):
            call = decorator if isinstance(decorator, ast.Call) else None
            target = call.func if call is not None else decorator
            if model.name_of(target) == COMPILE and (open_too or not is_open(call)):
                yield function
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == COMPILE and call.args and (open_too or not is_open(call)):
            value = model.value(call.args[0])
            found = value.cls.method("forward") if value.kind is Kind.MODULE and value.cls is not None else value.func
            if found is not None:
                yield found


def is_open(call: ast.Call | None) -> bool:
    """Whether a compile call says `fullgraph=False`."""
    return call is not None and any(
        k.arg == "fullgraph" and isinstance(k.value, ast.Constant) and k.value.value is False for k in call.keywords)
