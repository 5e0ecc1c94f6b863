"""An optimizer stepped in a loop whose gradients nothing clears.

`backward()` adds to `.grad`: the accumulate-grad node of every parameter sums into the tensor that is already
there. Without `zero_grad()` each step therefore uses the sum of all gradients since the start, and training
drifts or explodes although every line looks right.

Call `optimizer.zero_grad()` once per step, before `backward()` or after `step()`. Accumulating over several
micro-batches is fine as long as something clears the gradients after each update.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GradientsAccumulate
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Flow, Kind, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL501", "missing-zero-grad", Severity.ERROR, fix=Safety.UNSAFE, triggers=("step", "optim"))
CLAIM = GradientsAccumulate()

EXAMPLES = [
    Example(
        bad="""
        import torch

        STEPS = 4
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()  #!
        """,
        good="""
        import torch

        STEPS = 4
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        def train(model, batches, epochs):
            optimizer = torch.optim.Adam(model.parameters())
            criterion = nn.MSELoss()
            for _ in range(epochs):
                optimizer.zero_grad()
                for x, y in batches:
                    criterion(model(x), y).backward()
                    optimizer.step()  #!


        train(nn.Linear(3, 1), [(torch.ones(2, 3), torch.ones(2, 1))] * STEPS, 1)
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        def train(model, batches, epochs):
            optimizer = torch.optim.Adam(model.parameters())
            criterion = nn.MSELoss()
            for _ in range(epochs):
                optimizer.zero_grad()
                for x, y in batches:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()


        train(nn.Linear(3, 1), [(torch.ones(2, 3), torch.ones(2, 1))] * STEPS, 1)
        """,
    ),
    Example(
        bad="""
        import torch

        STEPS = 4


        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def update(self, loss):
                loss.backward()
                self.optimizer.step()  #!

            def fit(self, batches):
                for batch in batches:
                    self.update(self.model(batch).sum())


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * STEPS)
        """,
        good="""
        import torch

        STEPS = 4


        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def update(self, loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

            def fit(self, batches):
                for batch in batches:
                    self.update(self.model(batch).sum())


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * STEPS)
        """,
    ),
    Example(
        bad="""
        import torch

        STEPS = 8
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(STEPS):
            loss = model(torch.ones(2, 3)).pow(2).mean() / 2
            loss.backward()
            if (i + 1) % 2 == 0:
                optimizer.step()  #!
        """,
        good="""
        import torch

        STEPS = 8
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(STEPS):
            loss = model(torch.ones(2, 3)).pow(2).mean() / 2
            loss.backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    ),
    Example(
        bad="""
        import torch

        body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (body, head)]
        for x in torch.randn(4, 5, 3):
            head(body(x)).pow(2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()  #!
        """,
        good="""
        import torch

        body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (body, head)]
        for x in torch.randn(4, 5, 3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            head(body(x)).pow(2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def forget():
        for p in model.parameters():
            p.grad = None


    for i in range(4):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        forget()
    for i in range(4):
        model(torch.ones(2, 3)).sum().backward()
        if i % 2:
            optimizer.step()
            model.zero_grad()
    """,
    """
    import torch

    for _ in range(3):
        w = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        w.sum().backward()
        optimizer.step()
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())


    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss


    for _ in range(3):
        optimizer.step(closure)
    """,
    """
    import torch


    def train(engine, model, optimizer, helper, batches):
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
            helper.reset(optimizer)
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    for _ in range(3):
        model(torch.ones(2, 3))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Steps in loops with a backward and nothing that clears."""
    yield from training.once(model, steps(model))


def steps(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The steps of every function that use what earlier iterations left."""
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            backward = uncleared(flow, step) if training.is_stepped(step) else None
            if backward is not None:
                sure = min(step.target.sure, backward.target.sure)
                yield step, Hit(
                    training.place_of(model, step),
                    "gradients of earlier iterations are still in this step; call `zero_grad()` in the loop",
                    clear_before(model, backward, step),
                    confidence=sure,
                )


def uncleared(flow: Flow, step: Event) -> Event | None:
    """The backward in the step's loop, if nothing in that loop may clear the gradients that are stepped on."""
    loop = repeated_by(flow, step)
    if loop is None:
        return None
    inside = [event for event in flow.events if loop in event.loops]
    backwards = [e for e in inside if e.what == "backward" and not e.excludes(step)]
    made_here = any(e.what == "make_optimizer" and not training.different(e.target, step.target) for e in inside)
    if not backwards or made_here or any(training.clears(event, step.target) for event in inside):
        return None
    own = backwards
    for event in inside[: inside.index(step)]:
        if event.what == "step" and training.different(event.target, step.target):
            # What another optimizer was stepped with is not meant for this one.
            own = [e for e in backwards if inside.index(e) > inside.index(event)] or own
    return own[0]


def repeated_by(flow: Flow, step: Event) -> ast.AST | None:
    """The loop that makes a step again: the innermost one that does not go over several optimizers."""
    for loop in reversed(step.loops):
        state = flow.loops.get(loop)
        if state is None or state.iterated.item is None or state.iterated.item.kind is not Kind.OPTIMIZER:
            return loop
    return None


def clear_before(model: FileModel, backward: Event, step: Event) -> Repair | None:
    """`optimizer.zero_grad()` before the statement that backwards, or after a step that is not made each time."""
    at, call = training.place_of(model, backward), training.place_of(model, step)
    if not isinstance(call, ast.Call) or model.place(at).function is not model.place(call).function:
        return None
    if step.loops and model.has(step.loops[-1]) and repeated_by(model.flow(model.owner(step.loops[-1])), step) is not (
            step.loops[-1]):
        return None  # the name stands for one optimizer after the other
    receiver = call.args[0] if step.via.known and call.args else getattr(call.func, "value", None)
    if not isinstance(receiver, (ast.Name, ast.Attribute)):
        return None
    statement = model.statement(at)
    if model.position(statement) > model.position(model.statement(call)):
        return None
    text = f"{source_of(model, receiver)}.zero_grad()"
    if accumulates(model, backward, step):
        return edits.repair("Clear the gradients after the step", edits.insert_after(model, end(model, call), text))
    return edits.repair("Clear the gradients first", edits.insert_before(model, statement, text))


def accumulates(model: FileModel, backward: Event, step: Event) -> bool:
    """Whether several backwards are meant for one step: it is made every n-th time only."""
    counted = set(training.periodic_guards(model, step)) - set(training.periodic_guards(model, backward))
    return bool(counted) or (training.early_continue(model, step) and not training.early_continue(model, backward))


def end(model: FileModel, step: ast.Call) -> ast.stmt:
    """The statement that ends an update: the step, or the `scaler.update()` that follows it."""
    statement = model.statement(step)
    block = edits.siblings(model, statement)
    match block[next(i for i, item in enumerate(block) if item is statement) + 1 :]:
        case [ast.Expr(value=ast.Call(func=ast.Attribute(attr="update"))) as update, *_]:
            return update
    return statement
