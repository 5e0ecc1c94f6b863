"""A learning-rate scheduler stepped before its optimizer.

A scheduler sets the rate for the *next* epoch or step. Called first, it skips the value that was meant for the
start: the first updates already run with a decayed rate, a warm-up misses its first stage, and torch warns once
that it "detected call of lr_scheduler.step() before optimizer.step()".

Step the scheduler after the optimizer: after the batch loop for a schedule in epochs, after `optimizer.step()`
for one in steps. `ReduceLROnPlateau` and `CosineAnnealingWarmRestarts` do not mind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.reorder import reorder
from torchlint.model import Event, FileModel, Flow, Kind, Value, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL506", "scheduler-before-optimizer", Severity.WARNING, fix=Safety.UNSAFE,
            triggers=("step", "lr_scheduler"))
CLAIM = Warns("before `optimizer.step")
PREFIX = "torch.optim.lr_scheduler."
UNMINDFUL = {PREFIX + "ReduceLROnPlateau", PREFIX + "CosineAnnealingWarmRestarts"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.optim.lr_scheduler import StepLR

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, step_size=1)
        for epoch in range(2):
            scheduler.step()  #!
            for x in torch.ones(2, 4, 3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            print(epoch)
        """,
        good="""
        import torch
        from torch.optim.lr_scheduler import StepLR

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, step_size=1)
        for epoch in range(2):
            for x in torch.ones(2, 4, 3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            scheduler.step()
            print(epoch)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn, optim


        def train_epoch(model, optimizer, batches):
            for batch in batches:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()


        def main():
            model = nn.Linear(3, 1)
            optimizer = optim.Adam(model.parameters(), lr=0.1)
            scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
            for _ in range(2):
                scheduler.step()  # next rate  #!
                train_epoch(model, optimizer, torch.ones(2, 4, 3))


        main()
        """,
        good="""
        import torch
        from torch import nn, optim


        def train_epoch(model, optimizer, batches):
            for batch in batches:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()


        def main():
            model = nn.Linear(3, 1)
            optimizer = optim.Adam(model.parameters(), lr=0.1)
            scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
            for _ in range(2):
                train_epoch(model, optimizer, torch.ones(2, 4, 3))
                scheduler.step()  # next rate


        main()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda step: min(1.0, step / 10))

            def step(self, batch):
                self.opt.zero_grad()
                loss = self.net(batch).sum()
                loss.backward()
                self.schedule.step()  #!
                self.opt.step()
                return loss.item()


        trainer = Trainer(nn.Linear(3, 1))
        for _ in range(3):
            trainer.step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda step: min(1.0, step / 10))

            def step(self, batch):
                self.opt.zero_grad()
                loss = self.net(batch).sum()
                loss.backward()
                self.opt.step()
                self.schedule.step()
                return loss.item()


        trainer = Trainer(nn.Linear(3, 1))
        for _ in range(3):
            trainer.step(torch.ones(2, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)
    for epoch in range(3):
        if epoch > 0:
            scheduler.step()
        restarts.step()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for epoch in range(3):
        scheduler.step()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """,
    """
    import torch

    net_a, net_b = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    opt_a, opt_b = torch.optim.Adam(net_a.parameters()), torch.optim.Adam(net_b.parameters())
    schedule_a = torch.optim.lr_scheduler.StepLR(opt_a, 1)
    schedule_b = torch.optim.lr_scheduler.StepLR(opt_b, 1)
    for _ in range(3):
        opt_a.zero_grad()
        net_a(torch.ones(2, 3)).sum().backward()
        opt_a.step()
        schedule_a.step()
        opt_b.zero_grad()
        net_b(torch.ones(2, 3)).sum().backward()
        opt_b.step()
        schedule_b.step()
    """,
    """
    import torch
    import engine

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(3):
        engine.train(model, optimizer)
        scheduler.step()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Scheduler steps before which the optimizer surely made none."""
    yield from training.once(model, early(model))


def early(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The scheduler steps of every function that come too early."""
    for _, flow in training.functions_first(model):
        for event in flow.of("scheduler_step"):
            step = first_step(model, flow, event) if minds(event.target) else None
            if step is None:
                continue
            yield event, Hit(
                training.place_of(model, event),
                "this skips the first value of the schedule; step the scheduler after the optimizer",
                step_later(model, event, step),
                confidence=max(min(event.target.sure, step.target.sure), Confidence.LIKELY),
            )


def minds(scheduler: Value) -> bool:
    """Whether it is a scheduler of torch, or of the project's with torch's `step`, that warns."""
    if scheduler.cls is not None:
        bases = scheduler.cls.outside
        return scheduler.cls.method("step") is None and any(b.startswith(PREFIX) and b not in UNMINDFUL for b in bases)
    return scheduler.name.startswith(PREFIX) and scheduler.name not in UNMINDFUL


def first_step(model: FileModel, flow: Flow, event: Event) -> Event | None:
    """The optimizer's step that follows a scheduler's in its loop, if nothing before may have made one."""
    optimizer = event.target.bound
    if optimizer is None or optimizer.kind is not Kind.OPTIMIZER:
        return None
    at = flow.events.index(event)
    for before in flow.events[:at]:
        if before.excludes(event):
            continue
        other = training.different(before.target, optimizer) and not training.alike(before.target, optimizer)
        if before.what in ("step", "unknown_step") and not other:
            return None
        if before.what in ("unknown_call", "train", "eval") and any(may_hold(arg, optimizer) for arg in before.args):
            return None
    for after in flow.events[at + 1 :]:
        if after.what == "step" and training.alike(after.target, optimizer) and training.inside(after, event.loops):
            return None if after.excludes(event) or waits(model, event, after) else after
    return None


def may_hold(arg: Value, optimizer: Value) -> bool:
    """Whether code that cannot be seen may step the optimizer when it is given this."""
    return arg.kind is Kind.OPTIMIZER and not training.different(arg, optimizer)


def waits(model: FileModel, event: Event, step: Event) -> bool:
    """Whether the scheduler is stepped only from some later iteration on: its condition changes with the loop."""
    bound: set[str] = set()
    for loop in event.loops:
        bound |= {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    shared = {(training.test_of(node), arm) for node, arm in step.guards}
    for node in (node for node, arm in event.guards if (training.test_of(node), arm) not in shared):
        tests = [node.test] if isinstance(node, ast.If) else [node]
        for part in (part for test in tests for part in ast.walk(test)):
            if isinstance(part, ast.Attribute) or (isinstance(part, ast.Name) and part.id in bound):
                return True
            if not event.loops and isinstance(part, ast.Name):
                return True
    return not model.holds(event.node)


def step_later(model: FileModel, event: Event, step: Event) -> Repair | None:
    """Move the scheduler's step behind the optimizer's, or behind the loop that holds it."""
    places = training.meeting(model, event, step)
    if places is None or places[0] is not training.place_of(model, event):
        return None
    return edits.repair("Step the scheduler after the optimizer", reorder(model, places[0], after=places[1]))
