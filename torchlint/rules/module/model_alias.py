"""A model kept as the best one, or as a fixed copy, by a second name while training goes on.

Assigning a Module copies nothing: `best_model = model` is a second name for the same object. An optimizer step writes
into the Parameters in place, so the "best" model changes with every later step and is the last one in the end, and a
"frozen" teacher or target network learns along.

Keep `copy.deepcopy(model)`, or `copy.deepcopy(model.state_dict())` where the weights are enough. A name for a model
that is made anew in every round, as in a search over settings, is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Aliased
from torchlint.findings import Safety, Severity
from torchlint.fixes.copies import deepcopied
from torchlint.model import FileModel, Flow, Kind, Value, training
from torchlint.model.evaluate import path_of
from torchlint.model.keeping import Store, growing_loops
from torchlint.model.uses import reads_of_path, writes_of_path
from torchlint.rule import Example, Hit, Meta

META = Meta("TL422", "model-alias", Severity.ERROR, fix=Safety.UNSAFE, triggers=("step", "best"))
CLAIM = Aliased()
PUTTING = ("append", "appendleft", "add", "insert")

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best_loss, best_model = float("inf"), None
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best_loss:
                best_loss = loss.item()
                best_model = model  #!
        print(best_model(torch.ones(1, 2)))
        """,
        good="""
        import copy
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best_loss, best_model = float("inf"), None
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best_loss:
                best_loss = loss.item()
                best_model = copy.deepcopy(model)
        print(best_model(torch.ones(1, 2)))
        """,
    ),
    Example(
        bad="""
        import copy
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 1)

            def forward(self, x):
                return self.fc(x)


        class EarlyStopping:
            def __init__(self, patience=3):
                self.patience = patience
                self.best_score = None
                self.best_model = None

            def __call__(self, score, model):
                if self.best_score is None or score > self.best_score:
                    self.best_score = score
                    self.best_model = model  #!


        def train(model, batches):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            stopping = EarlyStopping()
            for batch in batches:
                loss = model(batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                stopping(-loss.item(), model)
            return stopping.best_model


        print(train(Net(), [torch.ones(4, 2)] * 3)(torch.ones(1, 2)))
        """,
        good="""
        import copy
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 1)

            def forward(self, x):
                return self.fc(x)


        class EarlyStopping:
            def __init__(self, patience=3):
                self.patience = patience
                self.best_score = None
                self.best_model = None

            def __call__(self, score, model):
                if self.best_score is None or score > self.best_score:
                    self.best_score = score
                    self.best_model = copy.deepcopy(model)


        def train(model, batches):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            stopping = EarlyStopping()
            for batch in batches:
                loss = model(batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                stopping(-loss.item(), model)
            return stopping.best_model


        print(train(Net(), [torch.ones(4, 2)] * 3)(torch.ones(1, 2)))
        """,
    ),
    Example(
        bad="""
        import copy
        import torch
        from torch import nn


        def learn(batches, tau=2):
            policy = nn.Linear(4, 2)
            target = policy  #!
            optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
            for number, batch in enumerate(batches):
                with torch.no_grad():
                    wanted = target(batch).max(dim=1).values
                loss = (policy(batch).mean(dim=1) - wanted).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % tau == 0:
                    target.load_state_dict(policy.state_dict())


        learn([torch.ones(3, 4)] * 3)
        """,
        good="""
        import copy
        import torch
        from torch import nn


        def learn(batches, tau=2):
            policy = nn.Linear(4, 2)
            target = copy.deepcopy(policy)
            optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
            for number, batch in enumerate(batches):
                with torch.no_grad():
                    wanted = target(batch).max(dim=1).values
                loss = (policy(batch).mean(dim=1) - wanted).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % tau == 0:
                    target.load_state_dict(policy.state_dict())


        learn([torch.ones(3, 4)] * 3)
        """,
    ),
    Example(
        bad="""
        import copy
        import torch


        def step(model, optimizer, batch):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        def run(epochs=3):
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
            optimizer = torch.optim.Adam(model.parameters())
            snapshots = []
            for epoch in range(epochs):
                loss = step(model, optimizer, torch.ones(4, 2))
                if epoch % 2 == 0:
                    snapshots.append(model)  #!
            return [net(torch.ones(1, 2)) for net in snapshots]


        print(run())
        """,
        good="""
        import copy
        import torch


        def step(model, optimizer, batch):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        def run(epochs=3):
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
            optimizer = torch.optim.Adam(model.parameters())
            snapshots = []
            for epoch in range(epochs):
                loss = step(model, optimizer, torch.ones(4, 2))
                if epoch % 2 == 0:
                    snapshots.append(copy.deepcopy(model))
            return [net(torch.ones(1, 2)) for net in snapshots]


        print(run())
        """,
    ),
]

CLEAN = [
    """
    import copy

    import torch


    def fit(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()


    best, best_model = float("inf"), None
    for width in (2, 4, 8):
        model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))
        loss = fit(model, [torch.ones(4, 2)] * 2)
        if loss < best:
            best, best_model = loss, model
    print(best_model)

    best_model = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(3):
        loss = model(torch.ones(4, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss < best:
            best_model = copy.deepcopy(model)
        if step > 1:
            net = model
            print(net(torch.ones(1, 2)))
        found.append(copy.deepcopy(model))
    last = model
    print(best_model, last, found)
    """,
    """
    import torch
    from torch import nn


    def distributed(model: nn.Module, batches, many=False):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inner = model
        if many:
            model = nn.parallel.DistributedDataParallel(model)
            inner = model.module
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            print(inner(batch))
        torch.save(inner.state_dict(), "x.pt")


    class Runner:
        def __init__(self, model: nn.Module, wrap=False):
            self.model = model
            self.inner = None
            self.best = 0.0

        def watch(self, model: nn.Module, score):
            if self.inner is None:
                self.inner = model
            if score > self.best:
                self.best = score
                torch.save(model.state_dict(), "best.pt")

        def run(self, batches):
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for number, batch in enumerate(batches):
                model = self.model
                if number > 1:
                    current = model
                    current.train()
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Second names and entries of containers for a module that is trained on and used through them later."""
    for target, kept in aliases(model):
        value = model.value(kept)
        if value.kind is not Kind.MODULE or value.ident is None or not isinstance(kept, (ast.Name, ast.Attribute)):
            continue
        if isinstance(target, ast.Subscript):
            if path_of(target.value) and any(True for _ in training_loops(model, kept, value, path_of(target.value))):
                yield hit(model, model.statement(kept), kept, value)
        elif outlives(model, target, kept, value) or both_run(model, target, kept, value):
            yield hit(model, model.statement(kept), kept, value)
    for _, flow in training.bodies(model):
        for event in flow.of("store"):
            match event.node:
                case ast.Call(args=[(ast.Name() | ast.Attribute()) as kept]) if event.name in PUTTING:
                    value = model.value(kept)
                    if not event.depth and value.kind is Kind.MODULE and any(
                            True for _ in training_loops(model, kept, value, event.path)):
                        yield hit(model, event.node, kept, value)


def hit(model: FileModel, node: ast.AST, kept: ast.expr, value: Value) -> Hit:
    """The report."""
    return Hit(node, "a second name, no copy: later steps change this model too; use `copy.deepcopy`",
               deepcopied(model, kept, "Copy the model"), confidence=value.sure)


def aliases(model: FileModel) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of every assignment, tuples opened."""
    for assign in model.nodes(ast.Assign):
        for target in assign.targets:
            match target, assign.value:
                case ast.Tuple(elts=left), ast.Tuple(elts=right) if len(left) == len(right):
                    yield from zip(left, right, strict=True)
                case _:
                    yield target, assign.value


def outlives(model: FileModel, target: ast.expr, kept: ast.expr, value: Value) -> bool:
    """Whether the alias is used after later steps: behind a training loop, or by other methods of its object."""
    if not path_of(target) or path_of(target) == path_of(kept):
        return False
    reads = reads_of_path(model, target)
    block = model.parent(model.statement(kept))
    for loop in training_loops(model, kept, value):
        if any(not within(model, read, loop) for read in reads if not within(model, read, block)):
            return True
    if not isinstance(target, ast.Attribute) or not best_so_far(model, kept):
        return False
    return any(model.owner(read) is not model.owner(kept) for read in reads) or not reads


def both_run(model: FileModel, target: ast.expr, kept: ast.expr, value: Value) -> bool:
    """Whether one training step calls the module by both names, as if one were a frozen or delayed copy."""
    alias, original = path_of(target), path_of(kept)
    if not alias or not original or model.place(target).loops or len(writes_of_path(model, target)) > 1:
        return False
    if any(model.position(node) > model.position(target) for node in writes_of_path(model, kept)):
        return False
    attribute = isinstance(target, ast.Attribute) and model.class_of(target) is not None
    if attribute != isinstance(kept, ast.Attribute):
        return False
    owners = {model.owner(read) for read in reads_of_path(model, target)}
    for owner in owners if attribute else {model.owner(target)} & owners:
        run = {path_of(node.func) for node in model.nodes(ast.Call) if model.owner(node) is owner}
        steps = model.flow(owner).of("step")
        if {alias, original} <= run and any(
                attribute or training.owns(event.target, value) is not False for event in steps):
            return True
    return False


def training_loops(model: FileModel, kept: ast.expr, value: Value, into: str = "") -> Iterator[ast.AST]:
    """The loops around an expression that step the parameters of one and the same module.

    `into` is the container that it is put in, which must not be made anew in the loop either.
    """
    statement = model.statement(kept)
    loops = model.place(statement).loops
    if not loops:
        return
    flow = model.flow(model.owner(statement))
    lasting = growing_loops(model, Store(statement, path_of(kept), (value,), loops))
    if into:
        lasting = [loop for loop in growing_loops(model, Store(statement, into, (value,), loops)) if loop in lasting]
    for event in flow.of("step"):
        # An attribute is known by other marks in the constructor, where optimizers are made.
        if isinstance(kept, ast.Attribute) or training.owns(event.target, value) is not False:
            yield from (loop for loop in lasting if loop in event.loops and not replaced(flow, kept, loop))


def replaced(flow: Flow, kept: ast.expr, loop: ast.AST) -> bool:
    """Whether a method that the loop calls binds the attribute to another module."""
    return isinstance(kept, ast.Attribute) and any(
        event.name == kept.attr and loop in event.loops for event in flow.of("store_attr"))


def within(model: FileModel, node: ast.AST, outer: ast.AST | None) -> bool:
    """Whether a node is inside another one; everything at the top level counts as outside of the file."""
    if outer is None or isinstance(outer, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return any(up is outer for up in model.ancestors(node))


def best_so_far(model: FileModel, kept: ast.expr) -> bool:
    """Whether the statement runs when a score beats the best one yet, which is updated beside it."""
    for test, taken in model.place(kept).guards:
        if not isinstance(test, ast.If) or not any(
            isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))
            for node in ast.walk(test.test)
        ):
            continue
        compared = {path_of(node) for node in ast.walk(test.test) if isinstance(node, (ast.Name, ast.Attribute))}
        for stmt in test.body if taken else test.orelse:
            for node in ast.walk(stmt):
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                    if path_of(node) in compared - {""}:
                        return True
    return False
