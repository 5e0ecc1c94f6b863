"""A module's `forward` called directly instead of the module.

Hooks, DDP, FSDP, torch.compile and many profilers work in `Module.__call__`. `layer.forward(x)` goes around
it: forward and backward hooks on that layer do not run, and nothing says so.

Call the module: `layer(x)`. `super().forward(x)`, a method that calls its own `self.forward`, a wrapper that passes its
arguments on, code that is itself a hook, and classes whose `__call__` means something else are left alone, as is a call
whose comment speaks of hooks or scripting.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import HooksSkipped
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind, Value
from torchlint.model.held import comment_on
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL402", "direct-forward-call", Severity.WARNING, fix=Safety.SAFE, triggers=(".forward",))
CLAIM = HooksSkipped()
ON_PURPOSE = ("hook", "script", "jit", "trace", "export", "bypass", "skip", "overhead", "avoid", "__call__")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Sparse(nn.Module):
            def __init__(self, layer: nn.Module, k=2):
                super().__init__()
                self.layer = layer
                self.k = k

            def forward(self, x):
                out = self.layer.forward(x)  #!
                kth = out.topk(self.k, dim=-1).values[..., -1:]
                return torch.where(out >= kth, out, 0.0)


        print(Sparse(nn.Linear(4, 4))(torch.ones(1, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Sparse(nn.Module):
            def __init__(self, layer: nn.Module, k=2):
                super().__init__()
                self.layer = layer
                self.k = k

            def forward(self, x):
                out = self.layer(x)
                kth = out.topk(self.k, dim=-1).values[..., -1:]
                return torch.where(out >= kth, out, 0.0)


        print(Sparse(nn.Linear(4, 4))(torch.ones(1, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(2)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer.forward(x).relu()  #!
                return x


        def evaluate(model, x):
            model.eval()
            return model.forward(x)  #!


        print(evaluate(Net(), torch.ones(1, 4)))
        """,
        good="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(2)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x).relu()
                return x


        def evaluate(model, x):
            model.eval()
            return model(x)


        print(evaluate(Net(), torch.ones(1, 4)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Gain(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

        def twice(self, x):
            return self.forward(self.forward(x))


    class Other(nn.Linear):
        def forward(self, x):
            return nn.Linear.forward(self, x)


    class Export(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.forward(x)


    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.own = Called()

        def forward(self, x):
            x = self.own.forward(x)
            # without hooks: they would run twice
            y = self.layer.forward(x)
            return y + x


    class Called(nn.Module):
        def __call__(self, x):
            return self.forward(x) + 1

        def forward(self, x):
            return x


    class Adapted(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model
            self.model.register_forward_pre_hook(self.look)

        def look(self, module, args):
            print(self.model.forward(*args).shape)

        def forward(self, *args, **kwargs):
            out = self.model.forward(*args, **kwargs)
            return out + 1


    class Family(Called):
        def __init__(self, *parts):
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, x):
            return [part.forward(x) for part in self.parts]


    class Car:
        def forward(self, distance):
            return distance


    x = torch.ones(1, 2)
    print(Gain(2, 2).twice(x), Other(2, 2)(x), Export(Own())(x), Car().forward(3), nn.ReLU().forward(x))
    """,
    """
    import torch
    from torch import nn


    class Model(nn.Module):
        def prior(self, x):
            return self(x)


    class Exact(Model):
        def __call__(self, x):
            return super().__call__(x) + 1

        def forward(self, x):
            return 2 * x


    def leave_one_out(model: Model, x):
        return model.forward(x)


    def prepared(step, x):
        return step.forward(x) if isinstance(step, nn.Flatten) else step(x)


    leave_one_out(Exact(), torch.ones(1))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`.forward(...)` on modules that are not the one whose code this is."""
    for call in model.calls_named("forward"):
        if not isinstance(call.func, ast.Attribute) or is_own(model, call, call.func.value):
            continue
        value = model.value(call.func.value)
        if value.kind is not Kind.MODULE or "super" in value.facts or own_call(value) or passes_on(model, call):
            continue
        if value.site is call.func.value:
            continue  # made for this one call: nobody can have hooked it
        if in_family(model, call, value) or in_hook(model, call) or is_interface(value) or chosen(model, call):
            continue
        if comment_on(model, model.statement(call), ON_PURPOSE):
            continue
        name = ast.unparse(call.func.value)
        name = name if len(name) <= 30 else "module"
        yield Hit(call, f"`{name}.forward(...)` skips the hooks; call `{name}(...)`", called(model, call, value),
                  confidence=value.sure)


def is_own(model: FileModel, call: ast.Call, receiver: ast.expr) -> bool:
    """Whether a method calls the forward of its own instance or of a base class."""
    function = model.function(call)
    while function is not None:
        if isinstance(receiver, ast.Name) and receiver.id == function.self_name:
            return True
        function = model.function(function.node)
    return isinstance(receiver, ast.Call) and model.name_of(receiver.func) == "builtins.super"


def own_call(value: Value) -> bool:
    """Whether calling the module means something else than running its forward with hooks."""
    if value.cls is not None:
        if value.cls.method("__call__") is not None:
            return True
        return any(base and (known := knowledge.third_party_class(base)) is not None and "own_call" in known.flags
                   for base in value.cls.outside)
    known = knowledge.third_party_class(value.name) if value.name else None
    return known is not None and "own_call" in known.flags


def in_family(model: FileModel, call: ast.Call, value: Value) -> bool:
    """Whether a base of the class around the call gave calls another meaning, which its parts may share."""
    cls = model.class_of(call)
    if cls is None or not cls.is_module or value.cls is not None:
        return False
    return own_call(cls.instance()) and (not value.name or value.name == "torch.nn.Module")


def is_interface(value: Value) -> bool:
    """Whether a class that was only named leaves forward to subclasses, which may give calls another meaning."""
    return value.sure is not Confidence.SURE and value.cls is not None and value.cls.method("forward") is None


def chosen(model: FileModel, call: ast.Call) -> bool:
    """Whether the other arm of a condition calls the module: `x.forward(v) if isinstance(x, Norm) else x(v)`."""
    assert isinstance(call.func, ast.Attribute)
    module, choice = ast.unparse(call.func.value), model.parent(call)
    return isinstance(choice, ast.IfExp) and any(
        isinstance(arm, ast.Call) and ast.unparse(arm.func) == module for arm in (choice.body, choice.orelse))


def in_hook(model: FileModel, call: ast.Call) -> bool:
    """Whether the function around the call is registered as a hook, so that hooks are running already."""
    function = model.function(call)
    if function is None:
        return False
    for node in model.nodes(ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(attr=how), args=[ast.Name(id=name) | ast.Attribute(attr=name), *_]):
                if name == function.name and how.startswith("register_") and how.endswith("hook"):
                    return True
    return False


def passes_on(model: FileModel, call: ast.Call) -> bool:
    """Whether a forward or `__call__` hands its arguments on as they are: a wrapper that stands for the module."""
    function = model.function(call)
    if function is None or function.name not in ("forward", "__call__"):
        return False
    assert isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    body = function.node.body
    rest = body[1:] if ast.get_docstring(function.node) is not None else body
    if len(rest) == 1 and isinstance(rest[0], ast.Return) and rest[0].value is call:
        return True
    match call.args, call.keywords:
        case [ast.Starred(value=ast.Name(id=args))], [ast.keyword(arg=None, value=ast.Name(id=kwargs))]:
            own = (function.args.vararg, function.args.kwarg)
            return [arg.arg for arg in own if arg is not None] == [args, kwargs]
    return False


def called(model: FileModel, call: ast.Call, value: Value) -> Repair | None:
    """`x.forward(a)` -> `x(a)`.

    Not safe where the file registers hooks, which would run from now on, or where the class is unknown, or perhaps
    a subclass of the one named, and may have a `__call__` of its own, as those of gpytorch have.
    """
    assert isinstance(call.func, ast.Attribute)
    hooks = any(node.attr.startswith("register_") and node.attr.endswith("hook") for node in model.nodes(ast.Attribute))
    exact = (value.cls is not None or value.name) and value.sure is Confidence.SURE and "isinstance" not in value.facts
    text = edits.source_of(model, call.func.value)
    return edits.repair("Call the module", edits.replace_callee(model, call, text),
                        safety=Safety.UNSAFE if hooks or not exact else None)
