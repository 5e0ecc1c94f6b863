"""Values read back from the device in every step of a training loop.

Device work is queued, and Python runs ahead of it. `.item()`, `float()`, `.cpu()`, `print` and a test of a tensor's
truth need the value now: Python waits until all that was queued is done, and only then prepares the next step, while
the device has nothing to do.

Keep running totals as tensors (detached) and read them every hundred steps, or once after the loop. One report is
made per loop, at its first read. A read that decides what happens next cannot be avoided.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WaitsEveryStep
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, training
from torchlint.model.environment import mentions_device
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL602", "sync-in-hot-loop", Severity.WARNING, also=(Severity.ADVICE,), stable=False,
    triggers=("item", "cpu", "numpy", "tolist", "float", "print", "bool"))
CLAIM = WaitsEveryStep()

EXAMPLES = [
    Example(
        bad="""
        import torch

        STEPS = 4
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = 0.0
        for batch in torch.ones(STEPS, 2, 3, device=device):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            total += loss.item()  #!
        print(total / STEPS)
        """,
        good="""
        import torch

        STEPS = 4
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = torch.zeros((), device=device)
        for batch in torch.ones(STEPS, 2, 3, device=device):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(total.item() / STEPS)
        """,
    ),
]

CLEAN = [
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for step, batch in enumerate(torch.ones(4, 2, 3, device=device)):
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(step, loss.item())
        print(epoch, loss.item())
    with torch.no_grad():
        for batch in torch.ones(4, 2, 3, device=device):
            print(model(batch).sum().item())
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    for batch in torch.ones(4, 2, 3):
        loss = model(batch).pow(2).mean()
        loss.backward()
        print(loss.item())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The first unconditional read in each loop that trains, in files that use an accelerator."""
    if not mentions_device(model):
        return
    seen: set[ast.AST] = set()
    for owner, flow in training.bodies(model):
        for event in flow.of("host_read"):
            if event.depth or not event.loops or event.loops[-1] in seen or model.owner(event.node) is not owner:
                continue
            if trains(flow, event.loops[-1]) and in_every_step(model, event):
                seen.add(event.loops[-1])
                yield Hit(
                    event.node, "the device is waited for in every step; read values less often",
                    severity=Severity.ADVICE if decides(model, event.node) else None, confidence=Confidence.LIKELY)


def decides(model: FileModel, node: ast.AST) -> bool:
    """Whether the value read decides what happens next."""
    statement = model.statement(node)
    return isinstance(statement, (ast.If, ast.While, ast.Assert))


def trains(flow: Flow, loop: ast.AST) -> bool:
    """Whether each pass of the loop is one training step."""
    return any(e.what == "backward" and e.loops and e.loops[-1] is loop for e in flow.events)


def in_every_step(model: FileModel, event: Event) -> bool:
    """Whether a tensor is read on every way through the loop's body."""
    if not event.target.is_tensor:
        return False
    loop = event.loops[-1]
    inside = [node for node, _ in event.guards if any(parent is loop for parent in model.ancestors(node))]
    return not inside and not training.early_continue(model, event)
