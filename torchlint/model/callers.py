"""Who calls a function: the calls in its own file that surely or likely mean it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.autograd import apply_calls
from torchlint.model.values import UNKNOWN, Kind, Value, join_all, promised

if TYPE_CHECKING:
    from torchlint.model.functions import FunctionInfo


def find(info: FunctionInfo) -> list[ast.Call]:
    """The calls of a function in its file; what calls a Module's forward is not looked for."""
    model, cls = info.model, info.cls
    if info.name == "__init__" and cls is not None:
        return [call for call in model.calls_named(cls.node.name) if model.class_info_of(call.func) is cls]
    if info.name == "forward" and cls is not None and cls.is_module:
        return []
    if info.is_applied and cls is not None:
        return list(apply_calls(model, cls))
    if info.name == "__call__":
        return [call for call in model.nodes(ast.Call) if _calls_instance(info, call)]
    return [call for call in model.calls_named(info.name) if _calls(info, call)]


def _calls(info: FunctionInfo, call: ast.Call) -> bool:
    """Whether a call of something with the function's name is a call of the function."""
    match call.func:
        case ast.Name():
            return info.cls is None and info.model.name_of(call.func) == info.dotted
        case ast.Attribute(value=receiver) if info.cls is not None:
            method = info.model.function(call)
            if method is not None and method.cls is not None and isinstance(receiver, ast.Name):
                if receiver.id == method.self_name:
                    return info.cls in method.cls.mro or method.cls in info.cls.mro
            return _fits(info, receiver)
    return False


def _calls_instance(info: FunctionInfo, call: ast.Call) -> bool:
    """`stopper(x)`, where the local or attribute `stopper` is an instance of the class."""
    if not isinstance(call.func, (ast.Name, ast.Attribute)) or info.model.name_of(call.func):
        return False
    return info.model.value(call.func).kind is Kind.INSTANCE and _fits(info, call.func)


def _fits(info: FunctionInfo, receiver: ast.expr) -> bool:
    """Whether an object's method of the function's name is the function."""
    value = info.model.value(receiver)
    return value.cls is not None and info.cls is not None and value.cls.method(info.name) is info


def parametrised(info: FunctionInfo, arg: ast.arg) -> Value:
    """What `@pytest.mark.parametrize` passes for a parameter of a test: any of its rows."""
    for decorator, name in zip(getattr(info.node, "decorator_list", ()), info.decorators, strict=True):
        match decorator:
            case ast.Call(args=[ast.Constant(value=str(names)), rows, *_]) if name == "pytest.mark.parametrize":
                words = [word.strip() for word in names.split(",")]
                if arg.arg in words:
                    given = info.model.value(rows)
                    members = list(given.elements) if given.elements is not None else [given.item or UNKNOWN]
                    if len(words) > 1:
                        position = words.index(arg.arg)
                        members = [(row.elements or (UNKNOWN,) * len(words))[position] for row in members]
                    return promised(join_all(members))
    return UNKNOWN
