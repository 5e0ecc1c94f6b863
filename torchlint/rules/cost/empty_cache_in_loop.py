"""The cache of device memory emptied for every batch.

The caching allocator keeps freed blocks so that the next iteration gets them without asking the driver.
`empty_cache()` gives them all back: it waits for the device, calls `cudaFree`, and every allocation of the next
batch becomes a slow `cudaMalloc` again. It frees nothing that is still referenced, so it prevents no
out-of-memory error either.

Remove it. Once between program phases, or in the handler of an out-of-memory error, it is right.

No claim: only an accelerator has this cache; on a CPU the call does nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, Flow, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL601", "empty-cache-in-loop", Severity.WARNING, fix=Safety.UNSAFE, triggers=("empty_cache",))
CLAIM = None
MANY = 2
WORK = ("call", "backward", "step")
CALLS = {
    "torch.cuda.empty_cache", "torch.xpu.empty_cache", "torch.mps.empty_cache", "torch.accelerator.empty_cache",
    "torch.cuda.memory.empty_cache", "torch.accelerator.memory.empty_cache",
}

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        for batch in torch.ones(4, 2, 3):
            model(batch).sum().backward()
            torch.cuda.empty_cache()  #!
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        for batch in torch.ones(4, 2, 3):
            model(batch).sum().backward()
        """,
    ),
    Example(
        bad="""
        import gc
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net

            def clean(self):
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()  #!

            def fit(self, batches):
                for epoch in range(1):
                    for batch in batches:
                        self.net(batch).sum().backward()
                        self.clean()


        Trainer(torch.nn.Linear(3, 1)).fit(torch.ones(4, 2, 3))
        """,
        good="""
        import gc
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net

            def clean(self):
                gc.collect()

            def fit(self, batches):
                for epoch in range(1):
                    for batch in batches:
                        self.net(batch).sum().backward()
                        self.clean()


        Trainer(torch.nn.Linear(3, 1)).fit(torch.ones(4, 2, 3))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    for epoch in range(2):
        for i, batch in enumerate(torch.ones(4, 2, 3)):
            try:
                model(batch).sum().backward()
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            if i % 100 == 0:
                torch.cuda.empty_cache()
        torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    for name in ("a", "b"):
        torch.cuda.empty_cache()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls in loops that work on batches, outside handlers and rare branches."""
    seen = set()
    for _, flow in training.bodies(model):
        for event in flow.of("unknown_call"):
            place = training.place_of(model, event)
            if event.name in CALLS and place not in seen and every_batch(model, flow, event):
                seen.add(place)
                yield Hit(
                    place, "this gives all cached memory back for every batch; remove it",
                    without(model, place))


def every_batch(model: FileModel, flow: Flow, event: Event) -> bool:
    """Whether the call runs in every iteration of a loop in which a model or optimizer works."""
    if not event.loops or not model.has(event.loops[-1]):
        return False
    loop = event.loops[-1]
    if any(isinstance(node, ast.ExceptHandler) for node, _ in event.guards):
        return False
    for node, _ in event.guards:
        inside = not model.has(node) or any(parent is loop for parent in model.ancestors(node))
        if inside and not (isinstance(node, ast.If) and asks_for_device(model, node.test)):
            return False
    others = [e for e in flow.events if e.name in CALLS and e.loops and e.loops[-1] is loop]
    if len(others) > MANY:
        return False  # between the phases of one long step, not after a batch
    return any(e.what in WORK and e.loops and e.loops[-1] is loop for e in flow.events)


def asks_for_device(model: FileModel, test: ast.expr) -> bool:
    """Whether a test only asks whether there is an accelerator."""
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and node.attr == "is_available":
            return True
        if isinstance(node, ast.Constant) and node.value in ("cuda", "xpu", "mps"):
            return True
    return False


def without(model: FileModel, place: ast.AST) -> Repair | None:
    """The statement removed, if it is one of several in its block."""
    statement = model.statement(place)
    block = next(
        (b for b in (getattr(model.parent(statement), n, None) for n in ("body", "orelse", "finalbody"))
         if isinstance(b, list) and statement in b), [])
    if not isinstance(statement, ast.Expr) or statement.value is not place or len(block) < 2:
        return None
    return edits.repair("Remove the call", edits.remove(model, statement))
