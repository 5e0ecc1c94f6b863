"""Gradients clipped while a GradScaler still holds them multiplied by its scale.

`scaler.scale(loss).backward()` leaves gradients that are larger by the loss scale (65536 at first).
`scaler.step` divides them again, but a clip before that compares the scaled norm with the limit, so nearly
every step is shrunk to almost nothing.

Call `scaler.unscale_(optimizer)` before clipping. A scaler made with `enabled=False` scales nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Flow, Kind, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL509", "clip-before-unscale", Severity.ERROR, fix=Safety.UNSAFE, triggers=("scale",))
CLAIM = WrongGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        another = torch.optim.SGD(other.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = (model(torch.ones(2, 3)) + other(torch.ones(2, 3))).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(another)
        clip_grad_norm_(model.parameters(), 1.0)  #!
        scaler.step(optimizer)
        scaler.step(another)
        scaler.update()
        """,
        good="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        another = torch.optim.SGD(other.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = (model(torch.ones(2, 3)) + other(torch.ones(2, 3))).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(another)
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.step(another)
        scaler.update()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=1.0)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def clip(self):
                nn.utils.clip_grad_value_(self.net.parameters(), 0.5)  #!

            def step(self, x):
                self.opt.zero_grad()
                self.scaler.scale(self.net(x).sum()).backward()
                self.clip()
                self.scaler.step(self.opt)
                self.scaler.update()


        Trainer(nn.Linear(3, 1)).step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=1.0)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def clip(self):
                nn.utils.clip_grad_value_(self.net.parameters(), 0.5)

            def step(self, x):
                self.opt.zero_grad()
                self.scaler.scale(self.net(x).sum()).backward()
                self.scaler.unscale_(self.opt)
                self.clip()
                self.scaler.step(self.opt)
                self.scaler.update()


        Trainer(nn.Linear(3, 1)).step(torch.ones(2, 3))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def clip(self):
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)  #!

            def step(self, x):
                self.opt.zero_grad()
                self.scaler.scale(self.net(x).pow(2).mean()).backward()
                self.clip()
                self.scaler.step(self.opt)
                self.scaler.update()


        Trainer(nn.Linear(3, 1)).step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def clip(self):
                self.scaler.unscale_(self.opt)
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)

            def step(self, x):
                self.opt.zero_grad()
                self.scaler.scale(self.net(x).pow(2).mean()).backward()
                self.clip()
                self.scaler.step(self.opt)
                self.scaler.update()


        Trainer(nn.Linear(3, 1)).step(torch.ones(2, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    """,
    """
    import torch


    def step(model, optimizer, scaler, loss, use_amp):
        if use_amp:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    """,
    """
    import torch


    def step(net, optimizer, scaler, x):
        optimizer.zero_grad()
        scaler.scale(net(x).sum()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Clips between a scaled backward and the scaler's step, without unscale_."""
    yield from training.once(model, clips(model))


def clips(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The clips of every function that compare scaled gradients with their limit."""
    for _, flow in training.functions_first(model):
        for clip in flow.of("clip"):
            step = None if clip.via.known else scaled_step(flow, clip)
            place = training.place_of(model, clip)
            if step is not None and not knows_scale(model, place):
                yield clip, Hit(
                    place,
                    "the gradients are still scaled here; call `scaler.unscale_(optimizer)` before clipping",
                    unscale_first(model, clip, step),
                    confidence=min(step.via.sure, step.target.sure if step.target.known else step.via.sure),
                )


def scaled_step(flow: Flow, clip: Event) -> Event | None:
    """The scaler step that the clip is meant for, if nothing unscales before the clip."""
    at = flow.events.index(clip)
    step = next((event for event in flow.events[at:] if not event.excludes(clip) and (
        event.what == "backward" or (event.what == "step" and event.via.kind is Kind.SCALER))), None)
    if step is None or step.what == "backward":
        return None
    scaled: Event | None = None
    for event in flow.events[:at]:
        if event.excludes(clip):
            continue
        if event.what == "backward":
            scaled = event if "scaled" in event.target.facts else None
        elif event.what == "step" or (event.what == "unscale" and not of_another(flow, event, step)):
            scaled = None
    disabled = scaled is not None and scaled.target.bound is not None and "disabled" in scaled.target.bound.facts
    return step if scaled is not None and not disabled else None


def of_another(flow: Flow, unscale: Event, step: Event) -> bool:
    """Whether an optimizer that is unscaled is another one, with a step of its own."""
    return training.different(unscale.target, step.target) and any(
        training.same(other.target, unscale.target) for other in flow.of("step"))


def knows_scale(model: FileModel, clip: ast.AST) -> bool:
    """Whether the limit may be scaled as the gradients are: the function asks for the scale."""
    return any(model.owner(call) is model.owner(clip) for call in model.calls_named("get_scale"))


def unscale_first(model: FileModel, clip: Event, step: Event) -> Repair | None:
    """`scaler.unscale_(optimizer)` before the clip, which torch takes once for each step."""
    if not set(step.guards) <= set(clip.guards):
        return None  # several clips for one step
    match training.place_of(model, step), training.place_of(model, clip):
        case ast.Call(func=ast.Attribute(value=scaler), args=[optimizer, *_]) as end, ast.Call() as call if (
            model.owner(end) is model.owner(call) or all(seen_from(model, call, each) for each in (scaler, optimizer))
        ):
            text = f"{edits.operand(model, scaler)}.unscale_({source_of(model, optimizer)})"
            return edits.repair("Unscale first", edits.insert_before(model, model.statement(call), text))
    return None


def seen_from(model: FileModel, place: ast.AST, expr: ast.expr) -> bool:
    """Whether an attribute of the instance means the same in another method: `self.scaler`."""
    here, there = model.function(place), model.function(expr)
    return (here is not None and there is not None and here.cls is not None and here.cls is there.cls
            and isinstance(expr, ast.Attribute) and isinstance(expr.value, ast.Name)
            and expr.value.id == here.self_name == there.self_name)
