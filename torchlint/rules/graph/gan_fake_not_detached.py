"""A generator's output that goes into the discriminator's loss with its graph.

The discriminator's backward then runs through the generator as well. Its gradients are left in the generator's
parameters, where they are added to those of the generator's own step unless they are cleared just before it,
and the work is wasted in any case.

Feed `fake.detach()` to the discriminator's step, or sample under `torch.no_grad()`. The generator's own step
needs the graph.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, Flow, Value, graphs
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL217", "gan-fake-not-detached", Severity.WARNING, stable=False, fix=Safety.UNSAFE,
            triggers=("backward",))
CLAIM = WrongGradient()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        torch.manual_seed(0)
        generator = nn.Linear(2, 3)
        critic = nn.Linear(3, 1)
        g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
        c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for real in torch.randn(2, 4, 3):
            fake = generator(torch.randn(4, 2))
            c_optimizer.zero_grad()
            c_loss = critic(fake).mean() - critic(real).mean()  #!
            c_loss.backward()
            c_optimizer.step()
            g_loss = -critic(generator(torch.randn(4, 2))).mean()
            g_loss.backward()
            g_optimizer.step()
            g_optimizer.zero_grad()
        """,
        good="""
        import torch
        from torch import nn

        torch.manual_seed(0)
        generator = nn.Linear(2, 3)
        critic = nn.Linear(3, 1)
        g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
        c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for real in torch.randn(2, 4, 3):
            fake = generator(torch.randn(4, 2))
            c_optimizer.zero_grad()
            c_loss = critic(fake.detach()).mean() - critic(real).mean()
            c_loss.backward()
            c_optimizer.step()
            g_loss = -critic(generator(torch.randn(4, 2))).mean()
            g_loss.backward()
            g_optimizer.step()
            g_optimizer.zero_grad()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    for real in torch.randn(2, 4, 3):
        fake = generator(torch.randn(4, 2))
        g_optimizer.zero_grad()
        critic(fake).mean().backward()
        g_optimizer.step()
        c_optimizer.zero_grad()
        (critic(real).mean() - critic(fake.detach()).mean()).backward()
        c_optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of the net that a step updates, on attached outputs of a net that another optimizer updates."""
    for function in (model.tree, *(info.node for info in model.functions)):
        flow = model.flow(function)
        steps = [e for e in flow.of("step") if e.depth == 0]
        calls = [e for e in flow.of("call") if e.depth == 0 and e.grad is not False]
        others = {owner(step.target) for step in steps} - {None}
        for backward in flow.of("backward"):
            step = next((s for s in steps if backward.depth == 0
                         and model.position(s.node) > model.position(backward.node)), None)
            trained = owner(step.target) if step is not None else None
            if trained is None or len(others) < 2:
                continue
            for call in calls:
                arg = fake_argument(model, call, calls, others - {trained}) if call.target.ident == trained else None
                if arg is not None and graphs.grows_from(backward.target, call.node):
                    yield Hit(
                        call.node, "this step's backward runs through the generator too; pass `fake.detach()`",
                        detached(model, arg) if sole(flow, backward, call) else None,
                        confidence=Confidence.LIKELY)


def sole(flow: Flow, backward: Event, call: Event) -> bool:
    """Whether no other backward or autograd.grad goes through a call, which would then miss its graph."""
    others = [*flow.of("backward"), *flow.of("autograd_grad")]
    return not any(graphs.grows_from(other.target, call.node) for other in others if other is not backward)


def detached(model: FileModel, arg: ast.expr) -> Repair | None:
    """The fake without its graph."""
    return edits.repair("Detach the fake", edits.append_method_call(model, arg, ".detach()"))


def owner(optimizer: Value) -> object:
    """The identity of the module whose parameters an optimizer updates; None if it is not just one."""
    params = optimizer.elements[0] if optimizer.elements else None
    return params.bound.ident if params is not None and params.bound is not None else None


def fake_argument(model: FileModel, call: Event, calls: list[Event], generators: set[object]) -> ast.expr | None:
    """The argument of a call that a generator made, with its graph."""
    if not isinstance(call.node, ast.Call):
        return None
    for arg in call.node.args:
        value = model.value(arg)
        if any(graphs.grows_from(value, made.node) for made in calls if made.target.ident in generators):
            return arg
    return None
