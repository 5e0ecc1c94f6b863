"""An optimizer or scheduler made anew for every batch.

An optimizer keeps its state between steps: momentum, Adam's running moments and their step count. Made anew
for every step it starts from nothing each time: momentum never builds up, Adam's bias correction turns every
update into a step of about the learning rate whatever the gradient, and a scheduler starts its schedule over.

Make it once, before the loop. One optimizer per fold, per task or per model is fine, and so is one for tensors
that are made in the same iteration; plain SGD has no state to lose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Severity
from torchlint.model import Event, FileModel, Flow, Kind, Value, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL513", "optimizer-in-loop", Severity.WARNING, triggers=("optim",))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        for x in torch.randn(4, 8, 3):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  #!
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for x in torch.randn(4, 8, 3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn, optim


        def update(model, x, lr=0.1):
            optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)  #!
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        def main():
            torch.manual_seed(0)
            model = nn.Linear(3, 1)
            losses = [0.0]
            for epoch in range(2):
                for x in torch.randn(4, 8, 3):
                    losses.append(update(model, x))
            print(losses)


        main()
        """,
        good="""
        import torch
        from torch import nn, optim


        def update(model, optimizer, x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        def main():
            torch.manual_seed(0)
            model = nn.Linear(3, 1)
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            losses = [0.0]
            for epoch in range(2):
                for x in torch.randn(4, 8, 3):
                    losses.append(update(model, optimizer, x))
            print(losses)


        main()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.optim.lr_scheduler import StepLR

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(4, 8, 3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            scheduler = StepLR(optimizer, step_size=2, gamma=0.5)  #!
            scheduler.step()
        """,
        good="""
        import torch
        from torch.optim.lr_scheduler import StepLR

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
        for x in torch.randn(4, 8, 3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()
        """,
    ),
]

CLEAN = [
    """
    import copy

    import torch

    base = torch.nn.Linear(3, 1)
    for fold in range(2):
        optimizer = torch.optim.Adam(base.parameters())
        for x in torch.ones(3, 2, 3):
            optimizer.zero_grad()
            base(x).sum().backward()
            optimizer.step()
    for x in torch.ones(3, 2, 3):
        model = copy.deepcopy(base)
        optimizer = torch.optim.Adam(model.parameters())
        model(x).sum().backward()
        optimizer.step()
    for x in torch.ones(3, 2, 3):
        noise = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.Adam([noise])
        base(x + noise).sum().backward()
        optimizer.step()
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(4):
        if epoch == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    for x in torch.ones(3, 2, 3):
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        plain.zero_grad()
        model(x).sum().backward()
        plain.step()
    """,
    """
    import torch


    def fit(model, batches):
        optimizer = torch.optim.Adam(model.parameters())
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


    net = torch.nn.Linear(3, 1)
    for epoch in range(2):
        fit(net, torch.ones(2, 2, 3))
    for lr in (0.1, 0.01):
        torch.nn.init.zeros_(net.weight)
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Optimizers and schedulers that are made and stepped once in every iteration of one loop."""
    yield from training.once(model, remade(model))


def remade(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """What every function makes anew for each step."""
    for _, flow in training.functions_first(model):
        for made, what in (*remade_optimizers(model, flow), *remade_schedulers(model, flow)):
            yield made, Hit(
                training.place_of(model, made),
                f"made anew for every step, this {what} loses its state; make it once, before the loop",
                confidence=made.target.sure,
            )


def remade_optimizers(model: FileModel, flow: Flow) -> Iterator[tuple[Event, str]]:
    """Optimizers with state, over parameters that outlive the iteration, that step once and are made again."""
    for made in flow.of("make_optimizer"):
        params = made.args[0] if made.args else made.target
        module = params.bound if params.kind is Kind.PARAMETERS else None
        if not made.loops or module is None or not has_state(model, made) or fresh(model, module, made.loops):
            continue
        steps = [e for e in flow.of("step") if training.same(e.target, made.target)]
        once = steps and all(step.loops == made.loops and not step.args for step in steps)
        if once and set(made.guards) <= set(steps[0].guards) and not renewed(flow, made, module):
            yield made, "optimizer"


def remade_schedulers(model: FileModel, flow: Flow) -> Iterator[tuple[Event, str]]:
    """Schedulers made in the loop in which they are stepped, for an optimizer that outlives it."""
    for event in flow.of("scheduler_step"):
        site, optimizer = event.target.site, event.target.bound
        if site is None or not event.loops or optimizer is None or optimizer.kind is not Kind.OPTIMIZER:
            continue
        if not model.has(site) or not event.target.name.startswith("torch.optim.lr_scheduler."):
            continue
        place = model.place(site)
        here = model.place(event.node) if event.depth == 0 else model.place(training.place_of(model, event))
        if place.function is not here.function or place.loops != here.loops or place.guards != here.guards:
            continue
        if event.depth == 0 and fresh(model, optimizer, event.loops):
            continue
        if event.depth == 0 or optimizer.site is None or model.owner(optimizer.site) is not model.owner(site):
            yield Event("make", site, event.target, inner=site), "scheduler"


def has_state(model: FileModel, made: Event) -> bool:
    """Whether the class keeps state between steps: SGD only with momentum."""
    if not made.name.startswith("torch.optim.") or made.name == "torch.optim.Optimizer":
        return False  # which class it is, is chosen when the program runs
    if made.name != "torch.optim.SGD":
        return True
    match made.inner:
        case ast.Call(keywords=keywords):
            given = [k.value for k in keywords if k.arg == "momentum"]
            return bool(given) and isinstance(given[0], ast.Constant) and bool(given[0].value)
    return False


def fresh(model: FileModel, value: Value, loops: tuple[ast.AST, ...]) -> bool:
    """Whether an object may be made anew in the innermost loop, or is unknown."""
    while "wrapper" in value.facts and value.bound is not None:
        value = value.bound
    loop = loops[-1]
    node = value.site if value.site is not None else value.ident
    if not isinstance(node, ast.AST):
        return True
    if not model.has(node) or not model.has(loop):
        return True
    return node is loop or any(parent is loop for parent in model.ancestors(node)) or _is_loop_item(value)


def _is_loop_item(value: Value) -> bool:
    return isinstance(value.ident, tuple)


def renewed(flow: Flow, made: Event, module: Value) -> bool:
    """Whether the parameters start over in the loop: loaded, initialised or reset."""
    loop = made.loops[-1]
    for event in flow.events:
        if loop not in event.loops:
            continue
        if event.what in ("load_state", "setattr", "apply"):
            return True
        if event.what in ("inplace", "data_write") and event.target.role == "parameter":
            return True
        if event.what == "unknown_call" and any(training.same(arg, module) for arg in event.args):
            return True
    return False
