"""Initialising a parameter through `.data`.

`.data` was the way to change a leaf before `torch.no_grad()` and `torch.nn.init` came. It also hides the change
from autograd, so the same line gives silently wrong gradients when it is moved to where a graph exists.

Use the functions of `torch.nn.init`, which draw the same numbers, or `with torch.no_grad(): w.copy_(other)`.
Assigning `w.data = other` is another thing: it may change dtype, shape and storage.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torchlint import knowledge
from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.fixes.imports import spell
from torchlint.fixes.no_grad import data_to_no_grad
from torchlint.model import FileModel, Kind, Value, graphs
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL102", "data-initialisation", Severity.ADVICE, fix=Safety.SAFE, triggers=("data",))
CLAIM = Equivalent()
INIT = {"normal_": "normal_", "uniform_": "uniform_", "zero_": "zeros_", "fill_": "constant_"}
ARGUMENTS = {"normal_": {"mean", "std"}, "uniform_": set(), "zero_": set(), "fill_": set()}
FILLING = {*INIT, "copy_", "clamp_", "mul_", "add_", "div_", "sub_", "bernoulli_", "exponential_"}
RECORDING = ("torch.autograd.", "torch.utils.")
MARKING = {"backward", "register_hook", "retain_grad"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.layer.weight.data.normal_(0.0, 0.02)  #!
                self.layer.bias.data.zero_()  #!
                self.scale = nn.Parameter(torch.empty(2))
                self.scale.data.fill_(0.5)  #!
                self.reset_parameters()

            def reset_parameters(self):
                self.scale.data.uniform_(-0.1, 0.1)  #!

            def forward(self, x):
                return self.layer(x) * self.scale


        torch.manual_seed(0)
        print(Scale()(torch.ones(1, 2)))
        """,
        good="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                nn.init.normal_(self.layer.weight, 0.0, 0.02)
                nn.init.zeros_(self.layer.bias)
                self.scale = nn.Parameter(torch.empty(2))
                nn.init.constant_(self.scale, 0.5)
                self.reset_parameters()

            def reset_parameters(self):
                nn.init.uniform_(self.scale, -0.1, 0.1)

            def forward(self, x):
                return self.layer(x) * self.scale


        torch.manual_seed(0)
        print(Scale()(torch.ones(1, 2)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self, start):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(2))
                self.bias = nn.Parameter(torch.zeros(2))
                self.init_weights(start)

            def init_weights(self, start):
                self.weight.data.copy_(start)  #!
                least = -0.5
                self.weight.data.clamp_(min=least)  #!
                if start.sum() > 0:
                    self.bias.data.add_(1)  #!

            def forward(self, x):
                return x * self.weight + self.bias


        print(Gate(torch.tensor([-1.0, 2.0]))(torch.ones(1, 2)))
        """,
        good="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self, start):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(2))
                self.bias = nn.Parameter(torch.zeros(2))
                self.init_weights(start)

            def init_weights(self, start):
                with torch.no_grad():
                    self.weight.copy_(start)
                least = -0.5
                with torch.no_grad():
                    self.weight.clamp_(min=least)
                if start.sum() > 0:
                    with torch.no_grad():
                        self.bias.add_(1)

            def forward(self, x):
                return x * self.weight + self.bias


        print(Gate(torch.tensor([-1.0, 2.0]))(torch.ones(1, 2)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.data = [1]
            self.data.append(2)
            self.layer.weight.data = other
            nn.init.zeros_(self.layer.bias)
            with torch.no_grad():
                self.layer.weight.copy_(other)

        def forward(self, x):
            self.layer.weight.data.clamp_(0, 1)
            return self.layer(x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Statements `parameter.data.fill_(...)` in constructors and functions that initialise."""
    for node in model.attributes_named("data"):
        method = model.parent(node)
        call = model.parent(method) if isinstance(method, ast.Attribute) else None
        if not isinstance(method, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not method:
            continue
        if method.attr in FILLING and is_leaf(model.value(node.value)) and initialises(model, call) and isinstance(
                model.parent(call), ast.Expr):
            yield Hit(node, "`.data` hides this change from autograd; use `torch.nn.init` or `torch.no_grad()`",
                      repaired(model, call, node, method.attr), confidence=model.value(node.value).sure)


def repaired(model: FileModel, call: ast.Call, node: ast.Attribute, method: str) -> Repair | None:
    """The fix, which is safe only where all that stands in the block, and all around it, stays as it is."""
    repair, safe = with_init(model, call, node, method), True
    if repair is None:
        # One by one: a block of several would have done more than the statement that is measured.
        repair = data_to_no_grad(model, [node]).get(node)
        safe = all(plain(model, each) for each in (node.value, *call.args, *(k.value for k in call.keywords)))
    if repair is None or (safe and not graph_alive(model, call, model.value(node.value))):
        return repair
    return replace(repair, safety=Safety.UNSAFE)


def is_leaf(base: Value) -> bool:
    """A parameter."""
    return base.is_tensor and base.role == "parameter"


def initialises(model: FileModel, call: ast.Call) -> bool:
    """Whether the function around a call builds or initialises, as its name says."""
    info = model.function(call)
    if info is None:
        return False
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", info.name).lower()
    words = re.findall("[a-z]+", spaced)
    return any(word.startswith(("init", "reinit", "resetparam")) or word.endswith("init") for word in words) or (
        "reset_param" in spaced)


def plain(model: FileModel, expr: ast.expr) -> bool:
    """Whether it makes no difference to an expression, and to what it leaves behind, that no graph is recorded."""
    for node in ast.walk(expr):
        match node:
            case ast.NamedExpr() | ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return False
            case ast.Call() if not computes(model, node):
                return False
            case ast.Attribute() if is_property(model, node):
                return False
    return True


def computes(model: FileModel, call: ast.Call) -> bool:
    """Whether a call only computes its result: no code of the project, no module, and nothing of autograd."""
    name = model.name_of(call.func)
    if name.startswith(RECORDING):
        return False
    if name.partition(".")[0] in ("builtins", "math", "numpy") or knowledge.function(name) is not None:
        return True
    if not isinstance(call.func, ast.Attribute) or knowledge.method(call.func.attr) is None:
        return False
    base = model.value(call.func.value)
    if call.func.attr.endswith("_"):
        return base.is_tensor and not base.attached and call.func.attr != "requires_grad_"
    return base.kind in (Kind.TENSOR, Kind.NDARRAY, Kind.NUMBER, Kind.UNKNOWN) and call.func.attr not in MARKING


def is_property(model: FileModel, node: ast.Attribute) -> bool:
    """Whether an attribute is computed by a method of the project."""
    cls = model.value(node.value).cls
    method = cls.method(node.attr) if cls is not None else None
    return method is not None and method.is_property


def graph_alive(model: FileModel, call: ast.Call, parameter: Value) -> bool:
    """Whether the function around a write backwards, or returns what was computed before it.

    A graph that holds the parameter notices a write to the parameter itself, and none through `.data`.
    """
    function = model.owner(call)
    flow = model.flow(function)
    if flow.of("backward") or flow.of("autograd_grad"):
        return True
    made = [event.node for event in flow.of("call") if event.grad is not False]
    return any(graphs.runs_before(model, node, call) and graphs.used_after(model, function, node, call)
               for node in (*graphs.kept_by(model, function, parameter, call), *made))


def with_init(model: FileModel, call: ast.Call, node: ast.Attribute, method: str) -> Repair | None:
    """The function of `torch.nn.init` that does exactly the same."""
    if method not in INIT or any(k.arg not in ARGUMENTS[method] for k in call.keywords):
        return None
    if (method == "fill_" and len(call.args) != 1) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if method == "uniform_" and not call.args and call.keywords:
        return None
    spelled = spell(model, f"torch.nn.init.{INIT[method]}", at=call)
    if spelled is None:
        return None
    given = [source_of(model, each) for each in (node.value, *call.args)]
    given += [f"{k.arg}={source_of(model, k.value)}" for k in call.keywords]
    return edits.repair("Use torch.nn.init", edits.replace(model, call, f"{spelled.text}({', '.join(given)})"),
                        imports=spelled.imports)
