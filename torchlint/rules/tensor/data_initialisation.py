"""Initialising a parameter through `.data`.

`.data` was the way to change a leaf before `torch.no_grad()` and `torch.nn.init` came. It also hides the change
from autograd, so the same line gives silently wrong gradients when it is moved to where a graph exists.

Use the functions of `torch.nn.init`, which draw the same numbers, or `with torch.no_grad(): w.copy_(other)`.
Assigning `w.data = other` is another thing: it may change dtype, shape and storage.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.fixes.imports import spell
from torchlint.fixes.no_grad import data_to_no_grad
from torchlint.model import FileModel, Value
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL102", "data-initialisation", Severity.ADVICE, fix=Safety.SAFE, triggers=("data",))
CLAIM = Equivalent()
INIT = {"normal_": "normal_", "uniform_": "uniform_", "zero_": "zeros_", "fill_": "constant_"}
ARGUMENTS = {"normal_": {"mean", "std"}, "uniform_": set(), "zero_": set(), "fill_": set()}
FILLING = {*INIT, "copy_", "clamp_", "mul_", "add_", "div_", "sub_", "bernoulli_", "exponential_"}

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
            # One by one: a block of several would have done more than the statement that is measured.
            repair = with_init(model, call, node, method.attr) or data_to_no_grad(model, [node]).get(node)
            yield Hit(node, "`.data` hides this change from autograd; use `torch.nn.init` or `torch.no_grad()`",
                      repair, confidence=model.value(node.value).sure)


def is_leaf(base: Value) -> bool:
    """A parameter."""
    return base.is_tensor and base.role == "parameter"


def initialises(model: FileModel, call: ast.Call) -> bool:
    """Whether the function around a call builds or initialises, so that no graph can exist yet."""
    info = model.function(call)
    return info is not None and (info.name == "__init__" or any(
        word in info.name.lower() for word in ("init", "reset_param")))


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
