"""An evaluation loop that records a graph nobody will use.

In `eval()` mode gradients are still recorded. Every forward keeps its activations for a backward that never
comes: evaluation takes about as much memory as training, and outputs that are collected keep all of it.

Decorate the function with `@torch.no_grad()`. Saliency maps, attacks and other evaluation that calls `backward`
or `autograd.grad` needs its graph; frameworks such as Lightning turn gradients off by themselves.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphGrows
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes.no_grad import add_no_grad_decorator, under_no_grad
from torchlint.model import Event, FileModel, FunctionInfo, callers
from torchlint.project import target_names
from torchlint.rule import Example, Hit, Meta

META = Meta("TL210", "missing-no-grad", Severity.WARNING, fix=Safety.UNSAFE, triggers=("eval", "train"))
CLAIM = GraphGrows()
LEARNING = ("backward", "autograd_grad", "step", "unknown_step", "make_optimizer")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        def evaluate(model, batches):
            model.eval()
            outputs = []
            for x in batches:
                outputs.append(model(x))  #!
            return torch.cat(outputs)


        evaluate(nn.Linear(2, 1), [torch.ones(1, 2)] * STEPS)
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        @torch.no_grad()
        def evaluate(model, batches):
            model.eval()
            outputs = []
            for x in batches:
                outputs.append(model(x))
            return torch.cat(outputs)


        evaluate(nn.Linear(2, 1), [torch.ones(1, 2)] * STEPS)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Tester:
            def __init__(self):
                self.net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

            def set_mode(self, training):
                self.net.train(training)

            def run(self, batches):
                self.set_mode(False)
                seen = []
                for x in batches:
                    out = self.net(x)  #!
                    seen.append(out)
                return seen


        Tester().run([torch.ones(1, 2)] * STEPS)
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Tester:
            def __init__(self):
                self.net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

            def set_mode(self, training):
                self.net.train(training)

            @torch.no_grad()
            def run(self, batches):
                self.set_mode(False)
                seen = []
                for x in batches:
                    out = self.net(x)
                    seen.append(out)
                return seen


        Tester().run([torch.ones(1, 2)] * STEPS)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = [torch.ones(2, 3) for _ in range(4)]
        outputs = []
        for epoch in range(2):
            net.train()
            for x in data:
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                optimizer.step()
            net.eval()
            for x in data:
                outputs.append(net(x))  #!
        print(len(outputs))
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = [torch.ones(2, 3) for _ in range(4)]
        outputs = []
        for epoch in range(2):
            net.train()
            for x in data:
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                for x in data:
                    outputs.append(net(x))
        print(len(outputs))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Perceptual(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.features = features

        def forward(self, x, target):
            self.features.eval()
            loss = 0
            for _ in range(2):
                loss = loss + (self.features(x) - self.features(target).detach()).square().mean()
            return loss


    x = torch.ones(1, 2, requires_grad=True)
    Perceptual(nn.Linear(2, 2))(x, torch.ones(1, 2)).backward()
    """,
    """
    import torch
    from torch import nn


    def adversarial(net, data, attack):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(2):
            net.train()
            for x in data:
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                for x in data:
                    print(net(x).sum().item())
            losses = []
            for x in data:
                losses.append(net(x).sum())
            torch.stack(losses).sum().backward()
            for x in data:
                attack(net(x))
            for x in data:
                x.requires_grad_(True)
                print(torch.autograd.grad(net(x).sum(), x))
            net.train()
            for x in data:
                print(net(x).sum().item())
    """,
    """
    import torch
    from torch import nn


    def saliency(model, batches):
        model.eval()
        maps = []
        for x in batches:
            x = x.clone().requires_grad_(True)
            model(x).sum().backward()
            maps.append(x.grad.abs())
        return maps


    @torch.inference_mode()
    def predict(model, batches):
        model.eval()
        return [model(x) for x in batches]


    def measure(model, batches):
        model.eval()
        with torch.no_grad():
            for x in batches:
                print(model(x).sum().item())


    def check(model, batches):
        model.eval()
        for x in batches:
            print(model(x).sum().item())


    net = nn.Linear(2, 1)
    data = [torch.ones(1, 2)]
    saliency(net, data)
    predict(net, data)
    measure(net, data)
    with torch.no_grad():
        check(net, data)
    """,
    """
    import torch
    from torch import nn


    def total(net, batches):
        net.eval()
        found = 0
        for x in batches:
            found = found + net(x).sum()
        return found


    def warm_up(net, batches):
        net.eval()
        restore(net)
        return [net(x) for x in batches]


    def restore(net):
        net.train()


    net = nn.Linear(2, 1)
    warm_up(net, [torch.ones(1, 2)])
    x = torch.ones(1, 2, requires_grad=True)
    total(net, [x]).backward()
    loss = total(net, [x.detach()])
    print(torch.autograd.grad(loss, net.weight))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Modules called with gradients on in loops that never learn, after they were put into eval mode."""
    yield from beside_training(model)
    for info in model.functions:
        events = model.flow(info.node).events
        if any(e.what in LEARNING for e in events) or wants_gradients(info, info.own_nodes):
            continue
        call = next((event for event, since in in_eval_mode(events) if not keeps_a_part(info, since)), None)
        if call is None or learned_from(info):
            continue
        if isinstance(info.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Hit(call.node, "evaluation records a graph that nobody uses; decorate with `torch.no_grad()`",
                      add_no_grad_decorator(model, info.node), confidence=min(call.target.sure, Confidence.LIKELY))


def keeps_a_part(info: FunctionInfo, since: Event) -> bool:
    """Whether a Module sets a part of itself to eval mode: a frozen part, through which its users may learn."""
    if info.cls is None or not info.cls.is_module:
        return False
    match since.node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute())):
            return True
    return False


def learned_from(info: FunctionInfo) -> bool:
    """Whether what a function returns is backpropagated where it is called."""
    for call in callers.find(info):
        model, statement = info.model, info.model.statement(call)
        names = set(target_names(statement.targets[0])) if isinstance(statement, ast.Assign) else set()
        for event in model.flow(model.owner(call)).of("backward", "autograd_grad"):
            parts = list(ast.walk(event.node))
            read = any(isinstance(part, ast.Name) and part.id in names for part in parts)
            if call in parts or (read and model.position(event.node) > model.position(call)):
                return True
    return False


def beside_training(model: FileModel) -> Iterator[Hit]:
    """The same for a loop of a function, or of a script, that trains in another loop."""
    for owner in (model.tree, *(info.node for info in model.functions)):
        events = model.flow(owner).events
        if not any(e.what in LEARNING for e in events):
            continue
        seen: set[ast.AST] = set()
        for event, since in in_eval_mode(events):
            loop = next((each for each in event.loops if each not in since.loops), None)
            if since.depth or not isinstance(loop, ast.For) or loop in seen or not only_measures(model, loop, events):
                continue
            seen.add(loop)
            yield Hit(event.node, "evaluation records a graph that nobody uses; put the loop under `torch.no_grad()`",
                      under_no_grad(model, [loop]), confidence=min(event.target.sure, Confidence.LIKELY))


def only_measures(model: FileModel, loop: ast.For, events: list[Event]) -> bool:
    """Whether nothing in a loop learns, asks for gradients, or hands a graph to code that cannot be seen."""
    inside = [event for event in events if loop in event.loops]
    info = model.function(loop.body[0])
    for event in events:
        if event.what in ("backward", "autograd_grad") and model.position(event.node) > model.position(loop):
            return False  # it may go through what the loop collects
    for event in inside:
        if event.what in (*LEARNING, "train", "apply"):
            return False
        if event.what == "unknown_call" and any(arg.attached or arg.is_tensor or not arg.known for arg in event.args):
            return False
    return not wants_gradients(info if info is not None else model, list(ast.walk(loop)))


def in_eval_mode(events: list[Event]) -> Iterator[tuple[Event, Event]]:
    """The calls in loops, with gradients on, of modules that were set to eval mode last, each with where they were."""
    mode: dict[object, Event] = {}
    for event in events:
        if event.what in ("train", "eval", "set_mode") and event.target.ident is not None:
            mode[event.target.ident] = event
        since = mode.get(event.target.ident)
        called = event.what == "call" and not event.depth and event.grad is True and event.loops
        if called and since is not None and since.what == "eval" and not learned(event):
            yield event, since


def learned(event: Event) -> bool:
    """Whether an input asks for its own gradient."""
    return any(value.attached for value in event.args)


def wants_gradients(where: FunctionInfo | FileModel, nodes: list[ast.AST]) -> bool:
    """Whether code mentions gradients of inputs, enters a context of its own, or is a generator."""
    model = where if isinstance(where, FileModel) else where.model
    for node in nodes:
        match node:
            case ast.Attribute(attr="requires_grad_" | "requires_grad" | "retain_grad" | "grad" | "backward"):
                return True
            case ast.keyword(arg="requires_grad" | "create_graph"):
                return True
            case ast.With(items=items) if any(unseen(model, item.context_expr) for item in items):
                return True
    return isinstance(where, FunctionInfo) and where.is_generator


def unseen(model: FileModel, context: ast.expr) -> bool:
    """Whether a context manager may turn gradients off where that cannot be seen."""
    name = model.name_of(context.func) if isinstance(context, ast.Call) else ""
    return not name.startswith(("builtins.open", "torch.autocast", "torch.amp", "torch.cuda.amp", "tqdm"))
