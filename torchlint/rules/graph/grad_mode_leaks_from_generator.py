"""A generator that yields from inside a grad mode or autocast block.

The mode is a setting of the thread, not of the block's text. A generator that is stopped at a `yield` has
entered the block and not left it, so the code that consumes its values runs with gradients off: its losses
carry no graph, or memory is saved where it was not meant to be, until the generator is exhausted.

Decorate the generator instead (`@torch.no_grad()` restores the mode at every yield), or leave the block before
the yield. Functions made into context managers yield on purpose.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import ModeLeaks
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel, FunctionInfo
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL212", "grad-mode-leaks-from-generator", Severity.ERROR, fix=Safety.UNSAFE, triggers=("yield",))
CLAIM = ModeLeaks()
GRAD_MODES = {"torch.no_grad", "torch.inference_mode", "torch.enable_grad", "torch.set_grad_enabled"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        def targets(teacher, batches):
            with torch.no_grad():
                for x in batches:
                    yield x, teacher(x)  #!


        for x, y in targets(nn.Linear(2, 2), [torch.ones(1, 2)]):
            print(torch.is_grad_enabled())
        """,
        good="""
        import torch
        from torch import nn


        @torch.no_grad()
        def targets(teacher, batches):
            with torch.no_grad():
                for x in batches:
                    yield x, teacher(x)


        for x, y in targets(nn.Linear(2, 2), [torch.ones(1, 2)]):
            print(torch.is_grad_enabled())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Source:
            def __init__(self):
                self.net = nn.Linear(2, 2)

            def __iter__(self):
                with torch.no_grad():
                    out = self.net(torch.ones(1, 2))
                    yield out  #!
                    yield out + 1


        for value in Source():
            print(torch.is_grad_enabled())
        """,
        good="""
        import torch
        from torch import nn


        class Source:
            def __init__(self):
                self.net = nn.Linear(2, 2)

            @torch.no_grad()
            def __iter__(self):
                with torch.no_grad():
                    out = self.net(torch.ones(1, 2))
                    yield out
                    yield out + 1


        for value in Source():
            print(torch.is_grad_enabled())
        """,
    ),
]

CLEAN = [
    """
    import contextlib

    import torch


    @contextlib.contextmanager
    def evaluating(model):
        with torch.no_grad():
            yield model


    def batches(model, data):
        for x in data:
            with torch.no_grad():
                y = model(x)
            yield y


    @torch.no_grad()
    def outputs(model, data):
        for x in data:
            yield model(x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The first yield in each grad mode or autocast block of a generator."""
    for info in model.functions:
        if not info.yields or any(managed(name) for name in info.decorators):
            continue
        seen: set[ast.AST] = set()
        for node in info.yields:
            for item in model.place(node).withs:
                name = model.name_of(item.func) if isinstance(item, ast.Call) else ""
                leaks = name in GRAD_MODES or name.endswith(".autocast")
                if leaks and item not in seen and model.place(item).function is info.node:
                    seen.add(item)
                    word = name.rpartition(".")[2]
                    yield Hit(node, f"the code that consumes this yield runs under `{word}`; leave the block first",
                              decorated(model, info, name))


def managed(decorator: str) -> bool:
    """Whether a decorator makes the generator a context manager, or handles its grad mode."""
    return decorator.rpartition(".")[2] in {
        "contextmanager", "asynccontextmanager", "no_grad", "inference_mode", "enable_grad", "set_grad_enabled",
        "fixture", "yield_fixture"}


def decorated(model: FileModel, info: FunctionInfo, name: str) -> Repair | None:
    """The decorator restores the mode at every yield, whatever blocks the body has entered."""
    spelled = spell(model, name, at=info.node)
    node = info.node
    if name not in ("torch.no_grad", "torch.inference_mode") or spelled is None or not isinstance(
            node, ast.FunctionDef):
        return None
    return edits.repair(
        "Decorate the generator", edits.add_decorator(model, node, f"{spelled.text}()", inner=True),
        imports=spelled.imports)
