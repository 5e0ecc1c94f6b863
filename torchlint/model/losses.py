"""Questions about loss calls: which loss it is, and what goes in as prediction and target."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.model.tensors import KEEPS_SQUASH
from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

# Loss classes and the function that each calls.
FUNCTIONAL = {
    "torch.nn.CrossEntropyLoss": "torch.nn.functional.cross_entropy",
    "torch.nn.NLLLoss": "torch.nn.functional.nll_loss",
    "torch.nn.NLLLoss2d": "torch.nn.functional.nll_loss",
    "torch.nn.BCELoss": "torch.nn.functional.binary_cross_entropy",
    "torch.nn.BCEWithLogitsLoss": "torch.nn.functional.binary_cross_entropy_with_logits",
    "torch.nn.KLDivLoss": "torch.nn.functional.kl_div",
    "torch.nn.MSELoss": "torch.nn.functional.mse_loss",
    "torch.nn.L1Loss": "torch.nn.functional.l1_loss",
    "torch.nn.SmoothL1Loss": "torch.nn.functional.smooth_l1_loss",
    "torch.nn.HuberLoss": "torch.nn.functional.huber_loss",
}
FUNCTIONS = frozenset(FUNCTIONAL.values())
# Layers whose output has no bounds.
RAW = {"torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d", "torch.nn.functional.linear"}
BOUNDING = {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max"}
DEPTH = 6  # operations looked through on the way to the layer


@dataclass(frozen=True)
class LossCall:
    """One call of a loss: the prediction's and the target's expressions and the options that matter."""

    call: ast.Call
    function: str  # the functional name, whichever form is used
    input: ast.expr
    target: ast.expr | None
    options: dict[str, Value]


def loss_calls(model: FileModel, *functions: str) -> Iterator[LossCall]:
    """Calls of the given functional losses, or of the Modules that stand for them."""
    wanted = {f"torch.nn.functional.{name}" for name in functions}
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name in FUNCTIONS:
            function, options = name, _options(model, call)
        elif not name:
            function, options = _module_loss(model, call)
        else:
            continue
        if function not in wanted:
            continue
        parts = _operands(call)
        if parts is not None:
            yield LossCall(call, function, parts[0], parts[1], options)


def _options(model: FileModel, call: ast.Call) -> dict[str, Value]:
    return {k.arg: model.value(k.value) for k in call.keywords if k.arg}


def _module_loss(model: FileModel, call: ast.Call) -> tuple[str, dict[str, Value]]:
    value = model.value(call.func)
    if value.kind is not Kind.MODULE or value.cls is not None or value.optional:
        return "", {}
    made = value.site
    options = {}
    if isinstance(made, ast.Call):
        # The loss may have been made in another file: literals are read from the tree itself.
        options = {
            k.arg: Value(Kind.NUMBER, const=k.value.value) for k in made.keywords
            if k.arg and isinstance(k.value, ast.Constant)
        }
    return FUNCTIONAL.get(value.name, ""), options


def _operands(call: ast.Call) -> tuple[ast.expr, ast.expr | None] | None:
    if any(isinstance(arg, ast.Starred) for arg in call.args[:2]):
        return None
    named = {k.arg: k.value for k in call.keywords if k.arg}
    first = call.args[0] if call.args else named.get("input")
    target = call.args[1] if len(call.args) > 1 else named.get("target")
    return None if first is None else (first, target)


def is_raw(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether a value comes straight from a linear or convolution layer, its elements at most moved."""
    value = model.value(expr)
    if value.squash or not value.is_tensor or depth > DEPTH:
        return False
    if value.name in RAW:
        return True
    site = value.site
    if isinstance(site, (ast.Call, ast.Subscript)) and site is not expr and model.has(site):
        return is_raw(model, site, depth + 1)  # of a name, or what a function of the file returns
    match expr:
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in KEEPS_SQUASH - BOUNDING:
            return is_raw(model, inner, depth + 1)
        case ast.Subscript(value=inner):
            return is_raw(model, inner, depth + 1)
    return False
