"""Gradients cleared between backward and step.

`zero_grad()` sets every `.grad` to None (or zero). An optimizer skips parameters whose gradient is None, so a
step after it changes nothing at all: the loss stays where it is and nothing complains.

Clear the gradients before `backward()` or after `step()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.reorder import reorder
from torchlint.model import Event, FileModel, Flow, Kind, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL502", "zero-grad-before-step", Severity.ERROR, fix=Safety.UNSAFE, triggers=("zero_grad",))
CLAIM = NoEffect()

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            optimizer.zero_grad()  #!
            optimizer.step()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            model(torch.zeros(2, 3)).pow(2).mean().backward()
            optimizer.zero_grad()  #!
            optimizer.step()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            model(torch.zeros(2, 3)).pow(2).mean().backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.Adam(net.parameters())

            def update(self, loss):
                self.opt.zero_grad()  #!
                self.opt.step()

            def fit(self, batches):
                for batch in batches:
                    loss = self.net(batch).sum()
                    loss.backward()
                    self.update(loss)


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * 2)
        """,
        good="""
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.Adam(net.parameters())

            def update(self, loss):
                self.opt.step()
                self.opt.zero_grad()

            def fit(self, batches):
                for batch in batches:
                    loss = self.net(batch).sum()
                    loss.backward()
                    self.update(loss)


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * 2)
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.randn(3, 4, 2):
        optimizer.zero_grad()
        net(x).mean().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if norm > 10:
            optimizer.zero_grad()  # this update is left out, but the optimizer counts it
            optimizer.step()
            break
        optimizer.step()
    """,
    """
    import torch

    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_a, opt_b = torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)
    for _ in range(2):
        opt_a.zero_grad()
        b(a(torch.ones(3, 2))).sum().backward()
        opt_b.zero_grad()
        opt_a.step()
        b(a(torch.ones(3, 2)).detach()).sum().backward()
        opt_b.step()
        opt_b.zero_grad()
        b(a(torch.ones(3, 2)).detach()).sum().backward()
        opt_b.step()
    """,
    """
    import torch

    net = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(4):
        loss = net(torch.ones(3, 2)).sum()
        if torch.isnan(loss):
            opt.zero_grad()
            continue
        loss.backward()
        if i == 3:
            opt.zero_grad()
            break
        opt.step()
        opt.zero_grad()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Clears after the backward that a step is meant for."""
    yield from training.once(model, clears(model))


def clears(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The clears of every function that come too late."""
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            clear = cleared(flow, step) if training.is_stepped(step) else None
            if clear is not None and not skips_update(model, flow, step):
                yield clear[1], Hit(
                    training.place_of(model, clear[1]),
                    "this clears the gradients that the step after it needs; clear before `backward()`",
                    clear_earlier(model, flow, *clear),
                    confidence=min(step.target.sure, clear[1].target.sure),
                )


def cleared(flow: Flow, step: Event) -> tuple[Event, Event] | None:
    """(backward, clear) where the clear comes after the last backward before the step."""
    at = flow.events.index(step)
    clear: Event | None = None
    for event in reversed(flow.events[:at]):
        if event.excludes(step) or event.loops != step.loops:
            continue
        if event.what == "zero_grad" and covers(step, event) and set(event.guards) <= set(step.guards):
            clear = clear or event
        elif event.what == "backward":
            if clear is None or not set(event.guards) <= set(step.guards):
                return None
            return event, clear
        elif event.what in ("step", "set_grad", "autograd_grad", "unknown_step"):
            return None
    return None


def skips_update(model: FileModel, flow: Flow, step: Event) -> bool:
    """Whether the step stands where a pass is given up, and the update is made elsewhere: gradients are dropped."""
    statement = model.statement(training.place_of(model, step))
    arm = model.parent(statement)
    if not isinstance(arm, ast.If):
        return False
    block = arm.body if statement in arm.body else arm.orelse
    return isinstance(block[-1], (ast.Break, ast.Continue, ast.Return)) and any(
        other is not step and training.same(other.target, step.target) and arm not in {test for test, _ in other.guards}
        for other in flow.of("step"))


def covers(step: Event, clear: Event) -> bool:
    """Whether a clear surely empties the gradients of the step's optimizer."""
    if clear.target.kind is Kind.MODULE:
        return training.owns(step.target, clear.target) is True
    return training.same(step.target, clear.target)


def clear_earlier(model: FileModel, flow: Flow, backward: Event, clear: Event) -> Repair | None:
    """Move the clear before the backward, or take it away if there is one already."""
    places = training.meeting(model, clear, backward)
    if places is None or places[0] is not training.place_of(model, clear):
        return None
    statement = model.statement(places[0])
    if is_clear(flow, backward, clear):
        alone = clear.depth == 0 and isinstance(statement, ast.Expr) and statement.value is places[0]
        return edits.repair("Keep the first clear only", edits.remove(model, statement)) if alone else None
    return edits.repair("Clear before backward", reorder(model, places[0], before=places[1]))


def is_clear(flow: Flow, backward: Event, clear: Event) -> bool:
    """Whether the same gradients are cleared before the backward already, and no step comes in between."""
    for event in reversed(flow.events[: flow.events.index(backward)]):
        if event.what == "zero_grad" and training.same(event.target, clear.target):
            return event.loops == clear.loops and set(event.guards) <= set(clear.guards)
        if event.what != "backward" and training.fills(event):
            return False
        if event.what in ("step", "unknown_step") and not training.different(event.target, clear.target):
            return False
    return False
