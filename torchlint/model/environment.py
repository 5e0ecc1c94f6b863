"""Questions about what surrounds a computation: training mode, and whether an accelerator is meant at all."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

# Names of the argument of `train(mode)`.
MODES = ("mode", "train", "training", "flag", "enable", "enabled", "state", "status", "value", "on")


def switches(value: Value, depth: int = 0) -> bool:
    """Whether a module surely behaves differently in training and evaluation."""
    if value.kind is not Kind.MODULE or depth > 3:
        return False
    if "wrapper" in value.facts and value.bound is not None:
        return switches(value.bound, depth + 1)
    if value.elements is not None:
        return any(switches(part, depth + 1) for part in value.elements)
    if value.cls is not None:
        if any(method.name in ("train", "eval") for method in value.cls.all_methods()):
            return False
        return any(
            switches(value.cls.attr(name), depth + 1) for cls in value.cls.project_mro for name in cls.stores
        )
    info = knowledge.module_class(value.name)
    return info is not None and info.mode_sensitive and info.kind in ("norm", "dropout") and not drops_nothing(value)


def drops_nothing(value: Value) -> bool:
    """`nn.Dropout(0.0)`, which is the same in both modes."""
    match value.site:
        case ast.Call(args=[ast.Constant(value=0)]) | ast.Call(args=[], keywords=[
                ast.keyword(arg="p", value=ast.Constant(value=0))]):
            return value.name.rpartition(".")[2].endswith("Dropout")
    return False


def mentions_device(model: FileModel) -> bool:
    """Whether the file uses an accelerator: a device string, `.cuda()`, or something of torch.cuda."""
    strings = any(isinstance(c.value, str) and c.value.startswith(("cuda", "xpu", "mps"))
                  for c in model.nodes(ast.Constant))
    return strings or bool(model.calls_named("cuda"))


def mode_like(arg: ast.arg) -> bool:
    """Whether a parameter of a method called `train` is the mode that Module's own takes."""
    if isinstance(arg.annotation, ast.Name) and arg.annotation.id == "bool":
        return True
    name = arg.arg.lower()
    return name in MODES or name.startswith("is_") or name.endswith(("mode", "flag"))
