"""Gradient synchronisation switched off around the backward pass only.

DistributedDataParallel decides in `forward` whether this iteration's gradients will be reduced: that is where it
prepares the reducer. `no_sync()` only sets a flag that `forward` reads. Around `backward()` alone it changes
nothing, so every micro-batch still exchanges all gradients.

Put the forward pass inside the `with` block too; where backward runs does not matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL704", "no-sync-misplaced", Severity.ERROR, triggers=("no_sync",))
CLAIM = NoEffect()
BACKWARD = {"backward", "scale", "div", "mul", "sum", "mean", "item", "float", "to"}

EXAMPLES = [
    Example(
        bad="""
        import os
        import tempfile

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        store = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        for batch in torch.ones(2, 4, 3):
            loss = model(batch).sum()
            with model.no_sync():  #!
                loss.backward()
        dist.destroy_process_group()
        """,
        good="""
        import os
        import tempfile

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        store = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        for batch in torch.ones(2, 4, 3):
            with model.no_sync():
                loss = model(batch).sum()
                loss.backward()
        dist.destroy_process_group()
        """,
    ),
]

CLEAN = [
    """
    from brains import Brain


    class Learner(Brain):
        def fit_batch(self, batch):
            loss = self.objective(batch)
            with self.no_sync(False):
                self.scaler.scale(loss).backward()
            self.optimizer.step()
    """,
    """
    import contextlib


    def forward(model, x, last):
        with contextlib.nullcontext() if last else model.no_sync():
            return model(x).sum()


    def step(model, criterion, batches, trainer):
        for x, y in batches:
            with model.no_sync():
                loss = criterion(model(x), y)
                loss.backward()
            with model.no_sync():
                trainer.run(x).backward()
        with model.no_sync():
            loss = trainer.loss(x)
            loss.backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`with` blocks over no_sync that hold a backward and nothing that could be a forward."""
    for block in model.nodes(ast.With, ast.AsyncWith):
        if not isinstance(block, (ast.With, ast.AsyncWith)):
            continue
        for item in block.items:
            if enters_no_sync(model, item.context_expr) and only_backward(model, block):
                yield Hit(
                    item.context_expr, "`no_sync` acts on forward, which runs outside; move forward inside",
                    confidence=Confidence.LIKELY)


def enters_no_sync(model: FileModel, expr: ast.expr) -> bool:
    """Whether a context expression is (or may be) `ddp.no_sync()`, directly or through a name.

    That takes no arguments: a method of this name that does belongs to something else.
    """
    if isinstance(expr, ast.Name):
        for scope in model.scopes(expr):
            if expr.id in scope.bindings:
                values = [b.value for b in scope.bindings[expr.id] if isinstance(b, ast.Assign)]
                return any(enters_no_sync(model, value) for value in values if not isinstance(value, ast.Name))
        return False
    if model.value(expr).kind is Kind.CONTEXT and model.value(expr).name == "no_sync":
        return True
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync"
        and not node.args and not node.keywords for node in ast.walk(expr)
    )


def only_backward(model: FileModel, block: ast.With | ast.AsyncWith) -> bool:
    """Whether the block backwards and every call in it belongs to that."""
    found = False
    for node in (n for statement in block.body for n in ast.walk(statement)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in BACKWARD or model.value(node.func).kind is Kind.MODULE:
                return False
            found = found or name == "backward"
    return found
