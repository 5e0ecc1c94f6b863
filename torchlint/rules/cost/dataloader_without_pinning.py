"""Batches that are to be copied while Python goes on, from memory that does not allow it.

A copy to a device with `non_blocking=True` returns at once only if its source is page-locked ("pinned") memory. From
ordinary memory the driver copies through a buffer of its own, and the call waits as if nothing had been said.

Set `pin_memory=True` on the loader. On machines that share memory with their device there is nothing to gain.

No claim: there is nothing to see without an accelerator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.model.forms import loader_call
from torchlint.project import target_names
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL619", "dataloader-without-pinning", Severity.ADVICE, default=False, fix=Safety.SAFE, triggers=("non_blocking",))
CLAIM = None
PINNED = 6  # position of pin_memory

EXAMPLES = [
    Example(
        bad="""
        from torch.utils.data import DataLoader


        def train(model, data, device):
            loader = DataLoader(data, batch_size=32, shuffle=True)  #!
            for x, y in loader:
                x = x.to(device, non_blocking=True)
                y = y.to(device, non_blocking=True)
                model.step(x, y)
        """,
        good="""
        from torch.utils.data import DataLoader


        def train(model, data, device):
            loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory=True)
            for x, y in loader:
                x = x.to(device, non_blocking=True)
                y = y.to(device, non_blocking=True)
                model.step(x, y)
        """,
    ),
]

CLEAN = [
    """
    from torch.utils.data import DataLoader


    def train(model, data, device, pin, options):
        for x, y in DataLoader(data, pin_memory=True):
            model.step(x.to(device, non_blocking=True), y)
        for x, y in DataLoader(data, pin_memory=pin):
            model.step(x.to(device, non_blocking=True), y)
        for x, y in DataLoader(data, **options):
            model.step(x.to(device, non_blocking=True), y)
        for x, y in DataLoader(data):
            model.step(x.to(device), y.pin_memory().to(device, non_blocking=True))
        for x, y in DataLoader(data):
            model.step(x.to(device, non_blocking=False), y)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loaders without pinned memory, in loops that move their batches without blocking."""
    for loop in model.nodes(ast.For):
        made = loader_call(model, loop.iter)
        if made is None or len(made.args) > PINNED or any(k.arg in ("pin_memory", None) for k in made.keywords):
            continue
        names = set(target_names(loop.target))
        if any(moves(model, call, names) for call in ast.walk(loop) if isinstance(call, ast.Call)):
            yield Hit(
                made, "`non_blocking` has no effect from ordinary memory; set `pin_memory=True`",
                edits.repair("Pin memory", edits.add_keyword_argument(model, made, "pin_memory=True")),
                confidence=Confidence.LIKELY)


def moves(model: FileModel, call: ast.Call, names: set[str]) -> bool:
    """Whether a call moves something of the batch with `non_blocking=True`."""
    match call:
        case ast.Call(func=ast.Attribute(value=receiver, attr="to" | "cuda"), keywords=keywords):
            base = receiver
            while isinstance(base, (ast.Subscript, ast.Attribute)):
                base = base.value
            wanted = any(k.arg == "non_blocking" and model.value(k.value).const is True for k in keywords)
            return wanted and isinstance(base, ast.Name) and base.id in names
    return False
