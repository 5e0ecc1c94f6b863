"""Hooks registered per call whose handles are dropped.

`register_forward_hook` adds to a dictionary on the module and returns the only handle that can remove the entry.
Registered in `forward`, or in a function that runs the model each time it is called, hooks pile up: every call
runs all of them, and whatever they refer to stays alive.

Keep the handle and remove it (`with module.register_forward_hook(f):` does so), or register once in `__init__`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import MemoryGrows
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, FunctionInfo, Kind, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL416", "hook-handle-leak", Severity.WARNING, triggers=("_hook",))
CLAIM = MemoryGrows()
SETUP = ("__init__", "__post_init__", "setup", "build", "on_fit_start", "on_train_start")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Probe:
            def __init__(self, net):
                self.net = net

            def activations(self, x):
                found = []
                for layer in self.net.modules():
                    if isinstance(layer, nn.Linear):
                        layer.register_forward_hook(lambda m, a, out: found.append(out.detach()))  #!
                self.net(x)
                return found


        net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64))
        probe = Probe(net)
        for _ in range(STEPS):
            probe.activations(torch.ones(64, 3))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Probe:
            def __init__(self, net):
                self.net = net

            def activations(self, x):
                found = []
                handles = []
                for layer in self.net.modules():
                    if isinstance(layer, nn.Linear):
                        handles.append(layer.register_forward_hook(lambda m, a, out: found.append(out.detach())))
                self.net(x)
                for handle in handles:
                    handle.remove()
                return found


        net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64))
        probe = Probe(net)
        for _ in range(STEPS):
            probe.activations(torch.ones(64, 3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4
        kept = []


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 64)

            def forward(self, x):
                self.fc.register_forward_hook(lambda m, a, out: kept.append(out.detach()))  #!
                return self.fc(x)


        net = Net()
        for _ in range(STEPS):
            net(torch.ones(64, 3))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4
        kept = []


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 64)

            def forward(self, x):
                return self.fc(x)


        net = Net()
        for _ in range(STEPS):
            net(torch.ones(64, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from models import load


    def choices(path, x):
        model = load(path).eval()
        found = {}
        for i, layer in enumerate(model.layers):
            layer.gate.register_forward_hook(lambda m, inputs, out, i=i: found.__setitem__(i, out))
        with torch.no_grad():
            model(x)
        return found
    """,
    """
    import contextlib
    import torch
    from torch import nn


    class Probe:
        def __init__(self, net):
            self.net = net
            net.register_forward_hook(self.count)
            net(torch.ones(1, 3))

        def count(self, module, args, out):
            pass

        def run(self, x):
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.net.register_forward_hook(self.count))
                self.net(x)
            handle = self.net.register_forward_hook(self.count)
            out = self.net(x)
            handle.remove()
            out.register_hook(lambda g: g)
            return out


    def main():
        net = nn.Linear(3, 3)
        net.register_forward_hook(lambda m, a, out: None)
        for _ in range(3):
            net(torch.ones(1, 3))


    net = nn.Linear(3, 3)
    net.register_forward_hook(lambda m, a, out: None)
    for _ in range(3):
        net(torch.ones(1, 3))
    Probe(net)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Module hooks registered where the model also runs, with the handle thrown away."""
    for owner, flow in training.bodies(model):
        function = model.function_info(owner) if owner is not model.tree else None
        for event in flow.of("register_hook"):
            node = event.node
            if event.depth or event.target.is_tensor or not isinstance(model.parent(node), ast.Expr):
                continue
            if repeats(model, flow, function, event):
                yield Hit(
                    node, "every call adds one more hook and nothing removes it; keep the handle",
                    confidence=min(Confidence.LIKELY, event.target.sure))


def repeats(model: FileModel, flow: Flow, function: FunctionInfo | None, event: Event) -> bool:
    """Whether the registration happens again for each forward pass on a module that lives longer."""
    runs = [e for e in flow.events if e.what == "call" and e.target.kind is Kind.MODULE and e.depth <= 1]
    if function is None or function.name in SETUP or function.name.startswith("register"):
        return any(set(e.loops) & set(event.loops) and over_data(flow, e, event) for e in runs)
    if function.name == "forward" and function.cls is not None and function.cls.is_module:
        return not event.guards or all(not once(test) for test, _ in event.guards)
    if made_here(model, function, event) or any(e.what == "step" for e in flow.events):
        return any(set(e.loops) & set(event.loops) and over_data(flow, e, event) for e in runs)
    return bool(runs)


def over_data(flow: Flow, run: Event, event: Event) -> bool:
    """Whether the loop that both share goes over something else than the modules themselves."""
    shared = [loop for loop in run.loops if loop in event.loops]
    states = [flow.loops[loop].iterated for loop in shared if loop in flow.loops]
    return any(not (s.item is not None and s.item.kind is Kind.MODULE) for s in states)


def made_here(model: FileModel, function: FunctionInfo, event: Event) -> bool:
    """Whether the hooked module was made in this very function, so that both end together."""
    site = event.target.site
    if site is not None and model.has(site) and model.owner(site) is function.node:
        return True
    expr = event.node
    while isinstance(expr, (ast.Call, ast.Attribute, ast.Subscript)):
        expr = expr.func if isinstance(expr, ast.Call) else expr.value
    return isinstance(expr, ast.Name) and comes_of_call(model, function, expr.id)


def comes_of_call(model: FileModel, function: FunctionInfo, name: str, depth: int = 0) -> bool:
    """Whether a name is bound to what a call gives, or goes over parts of that in a loop."""
    for node in model.scope_of(function.node).bindings.get(name, []):
        match node:
            case ast.Assign(value=ast.Call()):
                return True
            case ast.For(iter=parts) if depth < 2:
                if any(comes_of_call(model, function, part.id, depth + 1)
                       for part in ast.walk(parts) if isinstance(part, ast.Name)):
                    return True
    return False


def once(test: ast.AST) -> bool:
    """Whether a test lets something happen only the first time: it asks for None or a flag of self."""
    if not isinstance(test, ast.If):
        return False
    return any(
        (isinstance(n, ast.Constant) and n.value is None) or isinstance(n, (ast.Attribute, ast.Not))
        for n in ast.walk(test.test))
