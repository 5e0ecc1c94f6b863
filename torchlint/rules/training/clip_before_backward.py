"""Gradients clipped before the backward that makes them.

A clip scales what is in `.grad` at that moment. Before this step's `backward()` that is nothing, or what an
earlier step left behind; the gradients that the optimizer then uses are never limited.

Clip between `backward()` and `step()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.reorder import reorder
from torchlint.fixes.scaled import clip_before_scaled_step
from torchlint.model import Event, FileModel, Flow, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL508", "clip-before-backward", Severity.ERROR, fix=Safety.UNSAFE, triggers=("step",))
CLAIM = NoEffect()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(3, 4, 3):
            optimizer.zero_grad()
            loss = model(x).mul(100).pow(2).mean()
            clip_grad_norm_(model.parameters(), max_norm=1.0)  #!
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(3, 4, 3):
            optimizer.zero_grad()
            loss = model(x).mul(100).pow(2).mean()
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.Adam(net.parameters())

            def prepare(self):
                self.opt.zero_grad()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)  #!

            def fit(self, batches):
                for batch in batches:
                    self.prepare()
                    self.net(batch).mul(100).sum().backward()
                    self.opt.step()


        Trainer(nn.Linear(3, 1)).fit(torch.ones(3, 2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.Adam(net.parameters())

            def prepare(self):
                self.opt.zero_grad()

            def fit(self, batches):
                for batch in batches:
                    self.prepare()
                    self.net(batch).mul(100).sum().backward()
                    nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                    self.opt.step()


        Trainer(nn.Linear(3, 1)).fit(torch.ones(3, 2, 3))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch


        def train(model, optimizer, scaler, batches, clip):
            for batch in batches:
                loss = model(batch).mul(100).pow(2).mean()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)  #!
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


        net = torch.nn.Linear(3, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), scaler, torch.ones(3, 2, 3), 1.0)
        """,
        good="""
        import torch


        def train(model, optimizer, scaler, batches, clip):
            for batch in batches:
                loss = model(batch).mul(100).pow(2).mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


        net = torch.nn.Linear(3, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), scaler, torch.ones(3, 2, 3), 1.0)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(torch.ones(5, 2, 3)):
        if i and i % 2 == 0:
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model(x).mean().backward()
    for x in torch.ones(5, 2, 3):
        optimizer.zero_grad()
        model(x).mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        model.bias.pow(2).sum().backward()
        clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    """,
    """
    import torch
    from torch.nn.utils import clip_grad_norm_


    def update(engine, model, optimizer, x, y):
        optimizer.zero_grad()
        engine.accumulate_gradients(model, x)
        clip_grad_norm_(model.parameters(), 1.0)
        (model(y).mean() / 2).backward()
        optimizer.step()


    def finish(model, optimizer, x):
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model(x).mean().backward()
    """,
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    net_g, net_d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_g, opt_d = torch.optim.Adam(net_g.parameters()), torch.optim.Adam(net_d.parameters())
    for x in torch.ones(3, 4, 2):
        opt_g.zero_grad()
        net_d(net_g(x)).mean().backward()
        clip_grad_norm_(net_g.parameters(), 1.0)
        opt_d.zero_grad()
        net_d(net_g(x).detach()).mean().backward()
        opt_d.step()
        opt_g.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Clips of gradients that the next backward has yet to make."""
    yield from training.once(model, clips(model))


def clips(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The clips of every function that come too early."""
    for _, flow in training.functions_first(model):
        for clip in flow.of("clip"):
            if training.measures(model, clip):
                continue
            ahead = steps_ahead(flow, clip)
            sure = training.belongs(flow, clip, ahead[1]) if ahead is not None else None
            if ahead is None or sure is None or not nothing_yet(flow, clip, *ahead):
                continue
            yield clip, Hit(
                training.place_of(model, clip),
                "there are no gradients of this step yet; clip between `backward()` and `step()`",
                clip_later(model, flow, clip, *ahead),
                confidence=max(sure, Confidence.LIKELY),
            )


def steps_ahead(flow: Flow, clip: Event) -> tuple[Event, Event] | None:
    """(backward, step): what follows the clip in its iteration, the last backward before the step."""
    at = flow.events.index(clip)
    last: Event | None = None
    for event in flow.events[at + 1 :]:
        if event.excludes(clip) or not training.inside(event, clip.loops):
            continue
        if event.what == "backward":
            last = event
        elif event.what == "step" and training.is_stepped(event) and last is not None:
            if training.belongs(flow, clip, event) is not None:
                return last, event
        elif event.what in ("step", "unknown_step", "clip") or training.fills(event):
            return None
    return None


def nothing_yet(flow: Flow, clip: Event, backward: Event, step: Event) -> bool:
    """Whether the gradients are surely empty, or left over from an earlier step, when they are clipped."""
    at, end = flow.events.index(clip), flow.events.index(backward)
    ahead = flow.events[at:end]
    if any(e.what == "zero_grad" and training.same(e.target, step.target) for e in ahead):
        return True
    before = [e for e in flow.events[:at] if training.inside(e, clip.loops)]
    after = [e for e in flow.events[at:] if training.inside(e, clip.loops)]
    if not clip.loops and not any(training.clears(e, step.target) for e in (*before, *after)):
        return False
    for event in (*reversed(before), *reversed(after)):
        if event.excludes(clip):
            continue
        if event.what == "step" and training.same(event.target, step.target):
            return not (set(event.guards) - set(clip.guards) and event not in before)
        if event.what == "zero_grad" and training.clears(event, step.target):
            return True
        if event.what in ("step", "unknown_step") or training.fills(event):
            return False
    return False


def clip_later(model: FileModel, flow: Flow, clip: Event, backward: Event, step: Event) -> Repair | None:
    """Move the clip behind the backward, but not behind a step; a scaled one must be unscaled as well."""
    places = training.meeting(model, clip, backward)
    steps = [node for event in flow.of("step") for node in (event.node, event.inner) if node is not None]
    if step.via.known:
        others = [node for node in steps if node not in (step.node, step.inner)]
        moved = clip_before_scaled_step(model, flow, clip, backward, step, others)
        return edits.repair("Unscale and clip after backward", moved)
    if places is None or places[0] is not training.place_of(model, clip):
        return None
    return edits.repair("Clip after backward", reorder(model, places[0], after=places[1], never=steps))
