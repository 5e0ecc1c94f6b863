"""Questions about what surrounds a computation: training mode, and whether an accelerator is meant at all."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.functions import FunctionInfo

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
        ) or any(_told_mode(method) for method in value.cls.all_methods())
    return _layer_switches(value.name, value.site)


def _told_mode(method: FunctionInfo) -> bool:
    """Whether a method gives the mode to a function of torch's: `F.dropout(x, 0.5, self.training)`."""
    mode = f"{method.self_name}.training"
    return any(
        isinstance(node, ast.Call) and method.model.name_of(node.func).startswith("torch.nn.functional.")
        and any(isinstance(arg, ast.Attribute) and ast.unparse(arg) == mode
                for arg in (*node.args, *(keyword.value for keyword in node.keywords)))
        for node in method.own_nodes)


def _layer_switches(name: str, made: ast.AST | None) -> bool:
    """The same of a layer of torch's, which may be told to drop nothing, or to keep no running statistics."""
    info = knowledge.module_class(name)
    if info is None or not info.mode_sensitive:
        return False
    match info.kind, made:
        case "dropout", _:
            return _setting(info, made, "p") != 0
        case "norm", _:
            return _setting(info, made, "track_running_stats") is not False
        case "transformer", ast.Call(args=[ast.Call() as layer, *_]):  # `TransformerEncoder(TransformerEncoderLayer(..`
            return _layer_switches(f"{name}Layer", layer)
        case "rnn", _ if _setting(info, made, "num_layers") == 1:
            return False
        case "rnn" | "attention" | "transformer", _:
            rate = _setting(info, made, "dropout")
            return isinstance(rate, float) and rate > 0
    return False


def _setting(info: knowledge.ModuleClass, made: ast.AST | None, name: str) -> object:
    """What a constructor is told for a parameter, or does if it is told nothing; `...` if that cannot be seen."""
    names = [param.name for param in info.params]
    if name not in names or not isinstance(made, ast.Call) or any(isinstance(arg, ast.Starred) for arg in made.args):
        return ...
    given = dict(zip(names, made.args, strict=False)) | {keyword.arg or "": keyword.value for keyword in made.keywords}
    if name in given:
        told = given[name]
        return told.value if isinstance(told, ast.Constant) else ...
    default = info.params[names.index(name)].default
    return ... if default is None or "" in given else ast.literal_eval(default)


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
