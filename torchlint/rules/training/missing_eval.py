"""A model with dropout or batch norm that is evaluated in training mode.

`no_grad` stops the recording of gradients and nothing else. In training mode Dropout still drops, and BatchNorm
normalises with the statistics of the evaluation batch and writes them into its running mean and variance, so
validation data leaks into the model and results depend on how the batches are cut.

Call `model.eval()` before evaluating and `model.train()` before training goes on. Re-estimating batch norm
statistics on purpose, with the outputs thrown away, is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Severity
from torchlint.model import Event, FileModel, Flow, training
from torchlint.model.environment import switches
from torchlint.rule import Example, Hit, Meta

META = Meta("TL514", "missing-eval", Severity.WARNING, triggers=("no_grad", "inference_mode", "optim"))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            model.train()  #!
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                error = model(torch.ones(3, 4)).sum()
            print(epoch, error.item())
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            model.train()
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                error = model(torch.ones(3, 4)).sum()
            print(epoch, error.item())
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
            return sum(net(batch).pow(2).sum().item() for batch in batches)  #!


        if __name__ == "__main__":
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = [torch.randn(3, 4)] * 2
            train_epoch(net, optimizer, batches)
            print(validate(net, batches))
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


        if __name__ == "__main__":
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = [torch.randn(3, 4)] * 2
            train_epoch(net, optimizer, batches)
            print(validate(net, batches))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
                self.drop = nn.Dropout(0.2)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.drop(self.body(x)))


        def main():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x, labels = torch.randn(8, 4), torch.tensor([0, 1] * 4)
            for epoch in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), labels).backward()
                optimizer.step()
                with torch.no_grad():
                    right = (net(x).argmax(1) == labels).sum()  #!
                print(epoch, right.item())


        main()
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
                self.drop = nn.Dropout(0.2)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.drop(self.body(x)))


        def main():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x, labels = torch.randn(8, 4), torch.tensor([0, 1] * 4)
            for epoch in range(2):
                net.train()
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), labels).backward()
                optimizer.step()
                net.eval()
                with torch.no_grad():
                    right = (net(x).argmax(1) == labels).sum()
                print(epoch, right.item())


        main()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def recalibrate(net, batches):
        net.train()
        with torch.no_grad():
            for batch in batches:
                net(batch)


    def run(net, batches, training):
        net.train(training)
        with torch.set_grad_enabled(training):
            return [net(batch).sum().item() for batch in batches]


    recalibrate(net, [torch.randn(3, 4)])
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        print(plain(torch.randn(3, 4)).sum())
    run(net, [torch.randn(3, 4)], False)
    """,
    """
    import torch
    from torch import nn


    @torch.no_grad()
    def predict(net, x):
        return net(x)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout()

        def forward(self, x):
            return self.drop(x)

        def predict(self, x):
            with torch.no_grad():
                return self(x)
    """,
    """
    import torch
    from torch import nn


    def fitted(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.zero_grad()
        net(torch.ones(2, 3, 3)).mean().backward()
        optimizer.step()
        return net


    # The same in both modes, noise that is wanted, a teacher that is meant to be so.
    still = fitted(nn.Sequential(nn.InstanceNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.Dropout(p=0)))
    noisy = fitted(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
    with torch.no_grad():
        print(still(torch.ones(2, 3, 3)).mean())
        drawn = torch.stack([noisy(torch.ones(2, 3, 3)) for _ in range(5)])
        print(drawn.mean(0), drawn.std(0))
    """,
    """
    import torch
    from torch import nn

    student, teacher = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2))
    optimizer = torch.optim.Adam(student.parameters())
    student.train()
    teacher.train()
    for x in torch.randn(2, 3, 4):
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        (student(x) - target).pow(2).mean().backward()
        optimizer.step()
    """,
    """
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    with torch.no_grad():
        print(net(torch.ones(1, 2)).argmax(1))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls without gradients, whose result is used, of a model that trained and was never set to eval."""
    seen = set()
    for owner, flow in training.bodies(model):
        for event in flow.of("call"):
            if event.grad is not False or not switches(event.target) or event.depth > 1 or inner(model, event):
                continue
            cause = training_mode(model, owner, flow, event)
            place = training.place_of(model, event)
            if cause is not None and cause not in seen and used(model, place) and not samples(model, flow, place):
                seen.add(cause)
                yield Hit(cause, told(model, cause, place), confidence=event.target.sure)


def told(model: FileModel, cause: ast.AST, call: ast.AST) -> str:
    """The message, with the place of the evaluation if the report stands elsewhere."""
    mode, place = getattr(cause, "lineno", 0), getattr(call, "lineno", 0)
    if mode == place or model.source.path.endswith(".ipynb"):  # whose lines are counted in cells
        return "evaluated in training mode: dropout and batch norm stay active; call `eval()`"
    return f"training mode lasts until the evaluation on line {place}; call `eval()` before it"


def training_mode(model: FileModel, owner: ast.AST, flow: Flow, call: Event) -> ast.AST | None:
    """Where to report that the model is in training mode at a call; None if it may be in eval mode.

    A module that is set to training mode and not trained is meant to be in it: a teacher, a sampler.
    """
    at = flow.events.index(call)
    trained = any(event.what in ("step", "unknown_step") and training.owns(event.target, call.target) is not False
                  for event in flow.events[:at])
    for event in reversed(flow.events[:at]):
        if event.excludes(call) and event.what != "backward":
            continue
        if event.what == "set_mode" or (event.what == "eval" and not training.different(event.target, call.target)):
            return None
        if event.what == "train" and training.same(event.target, call.target):
            place = training.place_of(model, event)
            here = training.place_of(model, call)
            return None if not trained else place if model.owner(place) is model.owner(here) else here
    whole = owner is model.tree and not any(
        e.what in ("eval", "set_mode") for e in flow.events
    ) and not model.calls_named("eval")
    return training.place_of(model, call) if whole and trained else None


def samples(model: FileModel, flow: Flow, call: ast.AST) -> bool:
    """Whether a loop calls the model again and again with the same input, for the noise that dropout makes."""
    for up in model.ancestors(call):
        match up:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return False
            case ast.For() | ast.ListComp() | ast.GeneratorExp():
                names = [node for node in ast.walk(up) if isinstance(node, ast.Name)]
                changed = {node.id for node in names if isinstance(node.ctx, ast.Store)}
                read = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
                return not changed & read and not any(event.what == "step" for event in flow.in_loop(up))
    return False


def inner(model: FileModel, event: Event) -> bool:
    """Whether a layer is called by the forward of a module, whose own call is looked at instead."""
    function = model.function(training.place_of(model, event)) if event.depth else None
    return function is not None and function.name == "forward" and function.cls is not None and function.cls.is_module


def used(model: FileModel, call: ast.AST) -> bool:
    """Whether the result of a call goes anywhere."""
    return not isinstance(model.parent(call), ast.Expr)
