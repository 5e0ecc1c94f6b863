"""Gradients cleared in every micro-batch while the optimizer steps only on every n-th.

Accumulation works because `backward()` adds into `.grad`. A `zero_grad()` in each micro-batch throws the sum
away, so a step sees only the last micro-batch: the effective batch is n times smaller than it looks, and with
a loss divided by n the step is n times too small as well.

Clear the gradients where the optimizer steps, under the same condition.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import GradientsAccumulate
from torchlint.findings import Severity
from torchlint.model import Event, FileModel, Flow, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL503", "zero-grad-breaks-accumulation", Severity.ERROR, triggers=("zero_grad",))
CLAIM = GradientsAccumulate()

EXAMPLES = [
    Example(
        bad="""
        import torch

        STEPS = 4
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(STEPS):
            optimizer.zero_grad()  #!
            loss = model(torch.ones(2, 3)).mean() / 2
            loss.backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
        """,
        good="""
        import torch

        STEPS = 4
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(STEPS):
            loss = model(torch.ones(2, 3)).mean() / 2
            loss.backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    ),
    Example(
        bad="""
        import torch


        class Trainer:
            def __init__(self, model, every=2):
                self.model = model
                self.every = every
                self.opt = torch.optim.SGD(model.parameters(), lr=0.1)

            def fit(self, batches):
                for i, batch in enumerate(batches):
                    self.model.zero_grad()  #!
                    self.model(batch).mean().div(self.every).backward()
                    last = i % self.every == self.every - 1
                    if last:
                        self.opt.step()


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * 4)
        """,
        good="""
        import torch


        class Trainer:
            def __init__(self, model, every=2):
                self.model = model
                self.every = every
                self.opt = torch.optim.SGD(model.parameters(), lr=0.1)

            def fit(self, batches):
                for i, batch in enumerate(batches):
                    self.model(batch).mean().div(self.every).backward()
                    last = i % self.every == self.every - 1
                    if last:
                        self.opt.step()
                        self.model.zero_grad()


        Trainer(torch.nn.Linear(3, 1)).fit([torch.ones(2, 3)] * 4)
        """,
    ),
]

CLEAN = [
    """
    import torch

    net_g, net_d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_g, opt_d = torch.optim.SGD(net_g.parameters(), 0.1), torch.optim.SGD(net_d.parameters(), 0.1)
    for i in range(4):
        opt_d.zero_grad()
        net_d(net_g(torch.ones(3, 2)).detach()).mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        if i % 2 == 0:
            net_d(net_g(torch.ones(3, 2))).mean().backward()
            opt_g.step()
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        if i % 2 == 0:
            optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        if (i + 1) % 2:
            continue
        optimizer.step()
    for i in range(4):
        optimizer.zero_grad()
        for part in torch.ones(3, 2, 3):
            model(part).mean().backward()
        optimizer.step()
        if i % 2 == 0:
            print(i)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Clears in every iteration of a loop that steps only in some."""
    yield from training.once(model, clears(model))


def clears(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The clears of every function that come too often."""
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            guards = training.periodic_guards(model, step)
            if not step.loops or not training.is_stepped(step) or not (guards or training.early_continue(model, step)):
                continue
            clear = every_time(model, flow, step)
            if clear is not None:
                yield clear, Hit(
                    training.place_of(model, clear),
                    "this clears what earlier micro-batches accumulated; clear only where the optimizer steps",
                    confidence=min(step.target.sure, clear.target.sure),
                )


def every_time(model: FileModel, flow: Flow, step: Event) -> Event | None:
    """The unconditional clear in the loop of a step that does not run in every iteration."""
    guards = set(training.periodic_guards(model, step))
    inside = [event for event in flow.events if step.loops[-1] in event.loops and event.loops[-1] is step.loops[-1]]

    def free(event: Event) -> bool:
        return not training.periodic_guards(model, event) and not training.early_continue(model, event)

    def with_step(event: Event) -> bool:
        return bool(guards & {node for node, _ in event.guards})

    backwards = [event for event in inside if event.what == "backward"]
    clears = [event for event in inside if training.clears(event, step.target)]
    if not backwards or not all(free(event) for event in backwards) or any(with_step(e) for e in backwards):
        return None
    if not clears or not all(event.what == "zero_grad" and free(event) for event in clears):
        return None
    return clears[0]
