"""A forward hook that collects outputs with their graphs in a list that is never emptied.

The hook runs in every forward, and an output that requires grad holds the graph that made it. A list that is only
appended to keeps the activations of every step of the training.

Store `output.detach()`, or empty the list in each step. Code whose forwards all run without gradients has no
graphs to keep.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphGrows
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.model.evaluate import path_of
from torchlint.rule import Example, Hit, Meta

META = Meta("TL218", "hook-keeps-graph", Severity.WARNING, fix=Safety.UNSAFE, triggers=("register_forward_hook",))
CLAIM = GraphGrows()
Hook = ast.FunctionDef | ast.Lambda

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        seen = []


        def keep(module, inputs, output):
            seen.append(output)  #!


        net[0].register_forward_hook(keep)
        for _ in range(STEPS):
            loss = net(torch.ones(4, 2)).mean()
            loss.backward()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        seen = []


        def keep(module, inputs, output):
            seen.append(output.detach())


        net[0].register_forward_hook(keep)
        for _ in range(STEPS):
            loss = net(torch.ones(4, 2)).mean()
            loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


        class Probe:
            def __init__(self, layer):
                self.outputs = []
                layer.register_forward_hook(self.hook)

            def hook(self, module, inputs, output):
                self.outputs.append(output.mean())  #!


        probe = Probe(net[1])
        for _ in range(STEPS):
            net(torch.ones(4, 2)).mean().backward()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


        class Probe:
            def __init__(self, layer):
                self.outputs = []
                layer.register_forward_hook(self.hook)

            def hook(self, module, inputs, output):
                self.outputs.append(output.mean().detach())


        probe = Probe(net[1])
        for _ in range(STEPS):
            net(torch.ones(4, 2)).mean().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    features, latest, sizes, values = [], {}, [], []


    def collect(module, inputs, output):
        features.append(output)
        latest["out"] = output
        sizes.append(output.shape[0])
        values.append(output.detach().mean())
        local = []
        local.append(output)


    net[0].register_forward_hook(collect)
    for _ in range(4):
        features.clear()
        loss = net(torch.ones(4, 2)).mean() + features[0].mean()
        loss.backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Appends of a hook's output to a list from outside that the file never empties, where it trains in a loop."""
    if not any(model.place(call).loops for call in model.calls_named("backward")):
        return
    seen: set[ast.AST] = set()
    for register in model.calls_named("register_forward_hook"):
        hook = hook_of(model, register)
        if hook is None or hook in seen or len(hook.args.args) < 3:
            continue
        seen.add(hook)
        output = hook.args.args[-1].arg
        for call in ast.walk(hook):
            match call:
                case ast.Call(func=ast.Attribute(value=kept, attr="append" | "appendleft"), args=[value]) if (
                        carries(model, value, output) and from_outside(model, kept, hook)
                        and not emptied(model, path_of(kept))):
                    yield Hit(call, "every forward adds an output with its graph; store `.detach()`ed outputs",
                              edits.repair("Detach it", edits.append_method_call(model, value, ".detach()")),
                              confidence=Confidence.LIKELY)


def hook_of(model: FileModel, register: ast.Call) -> Hook | None:
    """The function of this file that is registered: by name, as a lambda, or as a method."""
    match register.args:
        case [ast.Lambda() as hook, *_]:
            return hook
        case [ast.Name() | ast.Attribute() as name, *_]:
            info = model.function_named(name) or model.value(name).func
            if info is not None and isinstance(info.node, ast.FunctionDef) and model.has(info.node):
                return info.node
    return None


def carries(model: FileModel, value: ast.expr, output: str) -> bool:
    """Whether an expression is the output, or a differentiable operation on it."""
    match value:
        case ast.Name(id=name):
            return name == output
        case ast.Call(func=ast.Attribute(value=inner, attr="mean" | "sum" | "clone" | "flatten" | "squeeze" | "view"
                                         | "reshape" | "norm" | "abs" | "float" | "cpu")):
            return carries(model, inner, output)
        case ast.Subscript(value=inner):
            return carries(model, inner, output)
    return False


def from_outside(model: FileModel, kept: ast.expr, hook: Hook) -> bool:
    """Whether a list outlives the hook."""
    match kept:
        case ast.Name(id=name):
            return name not in model.scope_of(hook).bindings
        case ast.Attribute(value=ast.Name(id=name)):
            owner = model.function(kept)
            return owner is not None and name == owner.self_name
    return False


def emptied(model: FileModel, path: str) -> bool:
    """Whether the file clears, pops, deletes or makes anew what it appends to, or hands it to other code."""
    made = 0
    nodes: list[ast.Name | ast.Attribute] = [*model.nodes(ast.Name), *model.nodes(ast.Attribute)]
    for node in nodes:
        if path_of(node) != path:
            continue
        made += isinstance(node.ctx, ast.Store)
        match model.parent(node):
            case ast.Attribute(attr="clear" | "pop" | "popleft") | ast.Delete() | ast.Return():
                return True
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                return True
            case ast.Call(args=args) if node in args:
                return True
    return made > 1
