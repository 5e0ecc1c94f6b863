"""Gradients clipped after the optimizer has used them.

`clip_grad_norm_` scales the tensors in `.grad` in place, and `step()` reads those tensors. After the step
nobody reads them again: the next `zero_grad()` throws them away, so the clip limits nothing and training can
still explode.

Clip between `backward()` and `step()`. Measuring the norm with an infinite limit is fine anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.reorder import reorder
from torchlint.fixes.scaled import clip_before_scaled_step
from torchlint.model import Event, FileModel, Flow, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL507", "clip-after-step", Severity.ERROR, fix=Safety.UNSAFE, triggers=("step",))
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
            loss.backward()
            optimizer.step()
            clip_grad_norm_(model.parameters(), max_norm=1.0)  #!
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
            def __init__(self, net, limit=0.5):
                self.net = net
                self.limit = limit
                self.opt = torch.optim.Adam(net.parameters())

            def update(self, loss):
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                # keep the gradients small
                if self.limit > 0:
                    nn.utils.clip_grad_value_(self.net.parameters(), self.limit)  #!

            def fit(self, batches):
                for batch in batches:
                    self.update(self.net(batch).mul(100).sum())


        Trainer(nn.Linear(3, 1)).fit(torch.ones(3, 2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, net, limit=0.5):
                self.net = net
                self.limit = limit
                self.opt = torch.optim.Adam(net.parameters())

            def update(self, loss):
                self.opt.zero_grad()
                loss.backward()
                # keep the gradients small
                if self.limit > 0:
                    nn.utils.clip_grad_value_(self.net.parameters(), self.limit)
                self.opt.step()

            def fit(self, batches):
                for batch in batches:
                    self.update(self.net(batch).mul(100).sum())


        Trainer(nn.Linear(3, 1)).fit(torch.ones(3, 2, 3))
        """,
    ),
    Example(
        bad="""
        import torch


        def train(model, optimizer, scaler, batches, amp):
            for batch in batches:
                optimizer.zero_grad()
                loss = model(batch).mul(100).pow(2).mean()
                if amp:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  #!


        net = torch.nn.Linear(3, 1)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu"), torch.ones(2, 3, 3), False)
        """,
        good="""
        import torch


        def train(model, optimizer, scaler, batches, amp):
            for batch in batches:
                optimizer.zero_grad()
                loss = model(batch).mul(100).pow(2).mean()
                if amp:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()


        net = torch.nn.Linear(3, 1)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu"), torch.ones(2, 3, 3), False)
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for x in torch.ones(3, 4, 3):
            optimizer.zero_grad()
            loss = model(x).mul(100).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            clip_grad_norm_(model.parameters(), max_norm=1.0)  #!
        """,
        good="""
        import torch
        from torch.nn.utils import clip_grad_norm_

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for x in torch.ones(3, 4, 3):
            optimizer.zero_grad()
            loss = model(x).mul(100).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    actor, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_a, opt_c = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
    for x in torch.ones(3, 4, 2):
        opt_c.zero_grad()
        critic(x).pow(2).mean().backward()
        clip_grad_norm_(critic.parameters(), 1.0)
        opt_c.step()
        opt_a.zero_grad()
        critic(actor(x)).mean().backward()
        clip_grad_norm_(actor.parameters(), 1.0)
        opt_a.step()
    """,
    """
    import math

    import torch
    from torch.nn.utils import clip_grad_norm_

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(torch.ones(4, 2, 3)):
        model(x).mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)
    for x in torch.ones(4, 2, 3):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        print(clip_grad_norm_(model.parameters(), math.inf))
    """,
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    model = torch.nn.Linear(3, 1)
    fast = torch.optim.SGD([model.weight], lr=0.1)
    slow = torch.optim.SGD([model.bias], lr=0.01)
    for x in torch.ones(4, 2, 3):
        model.zero_grad()
        model(x).mean().backward()
        fast.step()
        clip_grad_norm_(model.parameters(), 1.0)
        slow.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Clips that come after the step of the optimizer whose gradients they change."""
    yield from training.once(model, clips(model))


def clips(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The clips of every function that come too late."""
    for _, flow in training.functions_first(model):
        for clip in flow.of("clip"):
            if training.measures(model, clip):
                continue
            pairs = ((step, training.belongs(flow, clip, step)) for step in stepped_before(flow, clip))
            step, sure = next(((step, sure) for step, sure in pairs if sure is not None), (None, None))
            if step is None or sure is None or stepped_again(flow, clip, step):
                continue
            yield clip, Hit(
                training.place_of(model, clip),
                "the optimizer has already used these gradients; clip between `backward()` and `step()`",
                clip_earlier(model, flow, clip, step),
                confidence=max(sure, Confidence.LIKELY),
            )


def stepped_before(flow: Flow, clip: Event) -> list[Event]:
    """The steps that surely came between the last backward and a clip, the latest first."""
    at = flow.events.index(clip)
    steps: list[Event] = []
    arms: set[tuple[ast.AST, bool]] = set()  # in which a backward was found; the other arms are still open
    for event in reversed(flow.events[:at]):
        if event.excludes(clip) or not training.inside(event, clip.loops) or arms & set(event.guards):
            continue
        if arms and not any((test, not arm) in event.guards for test, arm in arms):
            break
        if event.what == "step" and training.is_stepped(event):
            steps.append(event)
        elif event.what == "unknown_step" or (event.what != "backward" and training.fills(event)):
            return []
        elif event.what == "backward":
            arms |= set(event.guards) - set(clip.guards)
            if not arms:
                return steps if surely(steps, clip) else []
    return steps if arms and surely(steps, clip) else []


def surely(steps: list[Event], clip: Event) -> bool:
    """Whether one of the steps happens whenever the clip does, or they are the two arms of one `if`."""
    extra = [set(step.guards) - set(clip.guards) for step in steps]
    if not all(extra):
        return True
    single = {guard for guards in extra if len(guards) == 1 for guard in guards}
    return any((test, not arm) in single for test, arm in single)


def stepped_again(flow: Flow, clip: Event, step: Event) -> bool:
    """Whether another step may still use the clipped gradients, in this iteration or at the head of the next."""
    at = flow.events.index(clip)
    again = [e for e in flow.events[:at] if clip.loops and training.inside(e, clip.loops)]
    for event in flow.events[at + 1 :] + again:
        if event.excludes(clip):
            continue
        if event.what == "backward" or (event.what == "zero_grad" and training.clears(event, step.target)):
            return False
        if event.what in ("step", "unknown_step") or training.fills(event):
            return True
    return False


def clip_earlier(model: FileModel, flow: Flow, clip: Event, step: Event) -> Repair | None:
    """Move the clip before the step, but not before a backward; a scaled one must be unscaled as well."""
    places = training.meeting(model, clip, step)
    steps = stepped_before(flow, clip)
    backwards = [node for event in flow.of("backward") for node in (event.node, event.inner) if node is not None]
    if any(event.via.known for event in steps):
        before = [event for event in flow.of("backward") if flow.events.index(event) < flow.events.index(step)]
        moved = clip_before_scaled_step(model, flow, clip, before[-1], step, backwards) if len(steps) == 1 else ()
        return edits.repair("Unscale and clip before the step", moved)
    if places is None or places[0] is not training.place_of(model, clip):
        return None
    return edits.repair("Clip before the step", reorder(model, places[0], before=places[1], never=backwards))
