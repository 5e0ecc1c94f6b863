"""Evaluation that leaves the model in eval mode for the next epoch of training.

`eval()` is a switch, not a scope: Dropout stays off and BatchNorm goes on using its running statistics until
`train()` is called. A model that is set to eval at the end of the first epoch trains without both from the second
one on; it overfits, its statistics freeze, and nothing says so.

Call `model.train()` at the head of every epoch, or right after evaluating. It is fine if the function that
trains, or the one that evaluates, does that itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import ModeLeaks
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.fixes.reorder import leaves
from torchlint.model import Event, FileModel, Flow, Kind, Value, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL515", "train-mode-not-restored", Severity.WARNING, fix=Safety.UNSAFE, triggers=("eval", "train"))
CLAIM = ModeLeaks()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for epoch in range(2):
            for x in torch.ones(2, 3, 4):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            model.eval()  #!
            with torch.no_grad():
                error = model(torch.ones(3, 4)).sum()
            print(epoch, error.item())
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for epoch in range(2):
            for x in torch.ones(2, 3, 4):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                error = model(torch.ones(3, 4)).sum()
            print(epoch, error.item())
            model.train()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(self.fc(x))


        def train_epoch(net, optimizer, batches):
            for batch in batches:
                optimizer.zero_grad()
                net(batch).pow(2).sum().backward()
                optimizer.step()


        @torch.no_grad()
        def validate(net, batches):
            net.eval()  #!
            return sum(net(batch).pow(2).sum().item() for batch in batches)


        def main():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = torch.randn(2, 3, 4)
            for epoch in range(2):
                train_epoch(net, optimizer, batches)
                print(validate(net, batches))


        main()
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(self.fc(x))


        def train_epoch(net, optimizer, batches):
            for batch in batches:
                optimizer.zero_grad()
                net(batch).pow(2).sum().backward()
                optimizer.step()


        @torch.no_grad()
        def validate(net, batches):
            net.eval()
            return sum(net(batch).pow(2).sum().item() for batch in batches)


        def main():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = torch.randn(2, 3, 4)
            for epoch in range(2):
                train_epoch(net, optimizer, batches)
                print(validate(net, batches))
                net.train()


        main()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net, every=2):
                self.net = net
                self.every = every
                self.opt = torch.optim.Adam(net.parameters())

            def fit(self, batches, epochs):
                self.net.train()
                for epoch in range(epochs):
                    for batch in batches:
                        self.opt.zero_grad()
                        self.net(batch).sum().backward()
                        self.opt.step()
                    if epoch % self.every == 0:
                        self.net.eval()  #!
                        with torch.no_grad():
                            print(self.net(batches[0]).sum().item())


        Trainer(nn.Sequential(nn.Linear(4, 4), nn.Dropout())).fit(torch.ones(2, 3, 4), 3)
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net, every=2):
                self.net = net
                self.every = every
                self.opt = torch.optim.Adam(net.parameters())

            def fit(self, batches, epochs):
                self.net.train()
                for epoch in range(epochs):
                    for batch in batches:
                        self.opt.zero_grad()
                        self.net(batch).sum().backward()
                        self.opt.step()
                    if epoch % self.every == 0:
                        self.net.eval()
                        with torch.no_grad():
                            print(self.net(batches[0]).sum().item())
                        self.net.train()


        Trainer(nn.Sequential(nn.Linear(4, 4), nn.Dropout())).fit(torch.ones(2, 3, 4), 3)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    def train_epoch(net, optimizer, x):
        net.train()
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()


    def validate(net, x):
        was_training = net.training
        net.eval()
        with torch.no_grad():
            total = net(x).sum().item()
        net.train(was_training)
        return total


    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        train_epoch(net, optimizer, torch.ones(2, 4))
        net.eval()
        print(net(torch.ones(2, 4)).sum().item())
    for epoch in range(2):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        validate(net, torch.ones(2, 4))
    """,
    """
    import torch
    from torch import nn

    teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    student = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for epoch in range(2):
        teacher.eval()
        with torch.no_grad():
            target = teacher(torch.ones(2, 4))
        optimizer.zero_grad()
        (student(torch.ones(2, 4)) - target).pow(2).sum().backward()
        optimizer.step()
        if epoch == 1:
            student.eval()
            print(student(torch.ones(2, 4)))
            break
    """,
    """
    import torch
    from torch import nn

    for lr in (0.1, 0.01):
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for x in torch.ones(3, 2, 4):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        net.eval()
        print(net(torch.ones(2, 4)))
    frozen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    tuned = torch.optim.SGD(frozen.parameters(), lr=0.1)
    for x in torch.ones(3, 2, 4):
        frozen.eval()
        tuned.zero_grad()
        frozen(x).sum().backward()
        tuned.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Models set to eval in a loop that goes on training them without setting them back."""
    yield from training.once(model, switched(model))


def switched(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The evals of every function that the next epoch inherits."""
    for _, flow in training.functions_first(model):
        for event in flow.of("eval"):
            loop = trained_loop(model, flow, event)
            if loop is None or not stays(flow, event, loop) or ends(model, event, loop):
                continue
            yield event, Hit(
                training.place_of(model, event),
                "the next epoch trains in eval mode; call `train()` after evaluating",
                back_to_train(model, event),
                confidence=min(event.target.sure, Confidence.SURE if switching(event.target) else Confidence.LIKELY),
            )


def trained_loop(model: FileModel, flow: Flow, event: Event) -> ast.AST | None:
    """The innermost loop around an eval in which the same model, made outside of it, is trained before."""
    module = event.target
    if module.kind is not Kind.MODULE or module.ident is None or not may_switch(module):
        return None
    at = flow.events.index(event)
    for loop in reversed(event.loops):
        earlier = [e for e in flow.events[:at] if loop in e.loops]
        called = [e for e in earlier if e.what == "call" and e.grad is not False and same_module(e.target, module)]
        backwards = [e for e in earlier if e.what == "backward"]
        steps = [e for e in earlier if e.what == "step"]
        if not called or not backwards or not steps or not model.has(loop):
            continue
        owned = {training.owns(step.target, unwrapped(module)) for step in steps}
        others = any(e.what == "call" and e.grad is not False and not same_module(e.target, module)
                     and e.depth == 0 and is_net(e.target) for e in earlier)
        if True in owned or (owned == {None} and not others):
            return None if made_in(model, module, loop) else loop
        return None
    return None


def unwrapped(module: Value) -> Value:
    """The module inside DataParallel and the like."""
    while "wrapper" in module.facts and module.bound is not None and module.bound.kind is Kind.MODULE:
        module = module.bound
    return module


def same_module(one: Value, other: Value) -> bool:
    """Whether two values are the same module, perhaps wrapped."""
    return training.same(one, other) or training.same(unwrapped(one), unwrapped(other))


def is_net(module: Value) -> bool:
    """Whether a module may have parameters, unlike a loss."""
    info = knowledge.module_class(module.name)
    return info is None or info.has_parameters or module.name == "torch.nn.Sequential"


def made_in(model: FileModel, module: Value, loop: ast.AST) -> bool:
    """Whether the loop makes the model anew in every iteration."""
    site = unwrapped(module).site
    return site is not None and model.has(site) and any(parent is loop for parent in model.ancestors(site))


def stays(flow: Flow, event: Event, loop: ast.AST) -> bool:
    """Whether the next thing that happens to the model, round the loop, is a training step."""
    at = flow.events.index(event)
    following = [e for e in (*flow.events[at + 1 :], *flow.events[:at]) if loop in e.loops]
    for other in following:
        if other.what in ("train", "set_mode"):
            if not training.different(unwrapped(other.target), unwrapped(event.target)):
                return False
        elif other.what in ("unknown_call", "construct") and any(holds(arg, event.target) for arg in other.args):
            return False
        elif other.what == "call" and other.grad is not False and same_module(other.target, event.target):
            later = following[following.index(other) :]
            if any(e.what == "backward" for e in later[: next_mode(later)]):
                return True
    return False


def next_mode(events: list[Event]) -> int:
    """How many events come before the next change of mode."""
    return next((i for i, e in enumerate(events) if e.what in ("train", "set_mode")), len(events))


def holds(arg: Value, module: Value) -> bool:
    """Whether code that is given this may set the mode of the model."""
    parts = (arg, *arg.parts())
    return arg.kind is Kind.INSTANCE or any(same_module(part, module) for part in parts)


def ends(model: FileModel, event: Event, loop: ast.AST) -> bool:
    """Whether the loop is left after the eval."""
    node: ast.AST = model.statement(event.node)
    while node is not loop:
        parent = model.parent(node)
        if parent is None:
            return True
        for _, block in ast.iter_fields(parent):
            if isinstance(block, list) and node in block and isinstance(block[-1], (ast.Break, ast.Return, ast.Raise)):
                return True
        node = parent
    return False


def switching(module: Value) -> bool:
    """Whether the model surely has layers that depend on the mode."""
    from torchlint.model.environment import switches

    return switches(unwrapped(module))


def may_switch(module: Value, depth: int = 0) -> bool:
    """Whether a module may have layers that depend on the mode: not if all of it is known and none does."""
    module = unwrapped(module)
    if module.kind is not Kind.MODULE or depth > 3:
        return False
    if module.elements is not None:
        return any(may_switch(part, depth + 1) for part in module.elements)
    if module.cls is not None:
        if any(method.name in ("train", "eval") for method in module.cls.all_methods()):
            return False
        parts = [module.cls.attr(name) for cls in module.cls.project_mro for name in cls.stores]
        return any(may_switch(part, depth + 1) for part in parts)
    info = knowledge.module_class(module.name)
    if info is None or module.name == "torch.nn.Module" or "wrapper" in module.facts:
        return True
    return info.mode_sensitive or info.kind == "container"


# -- the fix --------------------------------------------------------------------------------------


def back_to_train(model: FileModel, event: Event) -> Repair | None:
    """`model.train()` at the end of the block that evaluates, or after the call of the helper that does."""
    receiver = spelling(model, event)
    if not receiver:
        return None
    stmt = model.statement(event.node)
    if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.If, ast.With)):
        return None
    block = edits.siblings(model, stmt)
    rest = block[next(i for i, item in enumerate(block) if item is stmt) :]
    last = stmt if event.depth else rest[-1]
    if any(leaves(item) for item in rest[: rest.index(last) + 1]):
        return None
    return edits.repair("Go back to training", edits.insert_after(model, last, f"{receiver}.train()"))


def spelling(model: FileModel, event: Event) -> str:
    """How the model is called where the eval happens, or where the helper is called that does it."""
    inner = event.inner
    match inner:
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as receiver)) if inner is event.node:
            return source_of(model, receiver)
    match event.node:
        case ast.Call(args=args) as call:
            for arg in args:
                if isinstance(arg, (ast.Name, ast.Attribute)) and training.same(model.value(arg), event.target):
                    return source_of(model, arg)
            here = model.function(call)
            there = model.function(inner) if inner is not None and model.has(inner) else None
            if here is not None and there is not None and here.cls is not None and here.cls is there.cls:
                match inner:
                    case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name)) as receiver)) if (
                        name == here.self_name == there.self_name
                    ):
                        return source_of(model, receiver)
    return ""
