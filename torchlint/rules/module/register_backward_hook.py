"""A backward hook of the old kind on a Module.

`register_backward_hook` hangs on the autograd node that made the module's output, so it sees the gradients of the last
operation in `forward`: for `nn.Linear` bias, input and transposed weight. What the hook returns replaces those, not
the gradients of the module's inputs: parameters inside get other gradients than with the full hook.

Use `register_full_backward_hook`, which is given the gradients of the inputs. It wraps inputs and outputs in a node of
its own, so the output may not be changed in place (`nn.ReLU(inplace=True)` right behind the module raises).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL417", "register-backward-hook", Severity.WARNING, fix=Safety.UNSAFE,
            triggers=("register_backward_hook", "register_module_backward_hook"))
CLAIM = Warns("non-full backward hook")
OLD, FULL = "register_backward_hook", "register_full_backward_hook"
GLOBAL_OLD = "torch.nn.modules.module.register_module_backward_hook"
GLOBAL_FULL = "torch.nn.modules.module.register_module_full_backward_hook"

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Probe:
            def __init__(self, model: nn.Module):
                self.sizes = []
                for layer in model.modules():
                    if isinstance(layer, nn.Linear):
                        layer.register_backward_hook(self.note)  #!

            def note(self, module, grad_input, grad_output):
                self.sizes.append([None if g is None else tuple(g.shape) for g in grad_input])


        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        probe = Probe(model)
        model(torch.ones(5, 3)).sum().backward()
        print(probe.sizes)
        """,
        good="""
        import torch
        from torch import nn


        class Probe:
            def __init__(self, model: nn.Module):
                self.sizes = []
                for layer in model.modules():
                    if isinstance(layer, nn.Linear):
                        layer.register_full_backward_hook(self.note)

            def note(self, module, grad_input, grad_output):
                self.sizes.append([None if g is None else tuple(g.shape) for g in grad_input])


        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        probe = Probe(model)
        model(torch.ones(5, 3)).sum().backward()
        print(probe.sizes)
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Reversal(nn.Module):
            def __init__(self, size=3, scale=-1.0):
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.scale = scale
                self.handle = self.register_backward_hook(self.reverse)  #!

            def reverse(self, module, grad_input, grad_output):
                return tuple(None if g is None else g * self.scale for g in grad_input)

            def forward(self, x):
                return self.fc(x) * 2


        x = torch.ones(5, 3, requires_grad=True)
        Reversal()(x).sum().backward()
        print(x.grad)
        """,
        good="""
        import torch
        import torch.nn as nn


        class Reversal(nn.Module):
            def __init__(self, size=3, scale=-1.0):
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.scale = scale
                self.handle = self.register_full_backward_hook(self.reverse)

            def reverse(self, module, grad_input, grad_output):
                return tuple(None if g is None else g * self.scale for g in grad_input)

            def forward(self, x):
                return self.fc(x) * 2


        x = torch.ones(5, 3, requires_grad=True)
        Reversal()(x).sum().backward()
        print(x.grad)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Registry:
        def register_backward_hook(self, hook):
            self.hook = hook


    def watch(module: nn.Module, hook):
        if hasattr(module, "register_full_backward_hook"):
            return module.register_full_backward_hook(hook)
        else:
            return module.register_backward_hook(hook)


    def watch_any(module: nn.Module, hook):
        try:
            return module.register_full_backward_hook(hook)
        except AttributeError:
            return module.register_backward_hook(hook)


    Registry().register_backward_hook(print)
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda m, i, o: None)
    layer.register_full_backward_pre_hook(lambda m, o: None)
    layer(torch.ones(2, requires_grad=True)).register_hook(print)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of the old method on Modules, and of the function that registers such a hook for all Modules."""
    for call in model.calls_named(OLD):
        if not isinstance(call.func, ast.Attribute) or falls_back(model, call):
            continue
        value = model.value(call.func.value)
        if value.kind is Kind.MODULE or (not value.known and not model.name_of(call.func)):
            yield Hit(call, f"this hook sees gradients of the last operation only; use `{FULL}`",
                      edits.repair("Register a full hook", edits.rename_attribute(model, call.func, FULL)),
                      confidence=value.sure if value.known else Confidence.LIKELY)
    for call in model.calls_named("register_module_backward_hook"):
        if model.name_of(call.func) == GLOBAL_OLD and not falls_back(model, call):
            yield Hit(call, "these hooks see the gradients of the last operation only; use the full version",
                      renamed(model, call))


def renamed(model: FileModel, call: ast.Call) -> Repair | None:
    """The function for full hooks, as this file would write it."""
    name = spell(model, GLOBAL_FULL, at=call)
    if name is None:
        return None
    return edits.repair("Register full hooks", edits.replace(model, call.func, name.text), imports=name.imports)


def falls_back(model: FileModel, call: ast.Call) -> bool:
    """Whether the call is meant for versions of torch that lack the full hook."""
    place = model.place(call)
    if place.handler:
        return True
    return any(
        (isinstance(node, ast.Constant) and node.value == FULL)
        or (isinstance(node, ast.Attribute) and node.attr == "__version__")
        for test, _ in place.guards if isinstance(test, (ast.If, ast.IfExp)) for node in ast.walk(test.test)
    )
