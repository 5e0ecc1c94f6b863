"""Compilation repeated in every iteration or forward pass.

`torch.compile`, `torch.jit.script` and `torch.jit.trace` make a new compiled object at each call. What an earlier one
had learned and cached is thrown away, so the compiler works in every iteration, for far longer than the code it
compiles runs.

Compile once, before the loop or in `__init__`, and call the result. Compiling each of several modules in a loop, or
once under a condition, is right.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Slower
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL608", "compile-in-loop", Severity.WARNING, triggers=("compile", "script", "trace"))
CLAIM = Slower()
COMPILERS = {"torch.compile", "torch.jit.script", "torch.jit.trace"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        ROUNDS = 8
        net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        for batch in torch.ones(ROUNDS, 2, 4):
            fast = torch.jit.trace(net, batch)  #!
            fast(batch)
        """,
        good="""
        import torch

        ROUNDS = 8
        net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        fast = torch.jit.trace(net, torch.ones(2, 4))
        for batch in torch.ones(ROUNDS, 2, 4):
            fast(batch)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = nn.ModuleList(layers)
            self.fast = None
            for i, layer in enumerate(self.layers):
                self.layers[i] = torch.compile(layer)

        def forward(self, x):
            if self.fast is None:
                self.fast = torch.compile(self.layers[0])
            return self.fast(x)


    def bench(model, modes, names):
        for mode in modes:
            torch.compile(model, mode=mode)
        for x in (torch.ones(1, 4), torch.ones(2, 4)):
            torch.jit.trace(model, x)
        for name in names:
            block = getattr(model, name)
            setattr(model, name, torch.compile(block))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Compilations of one and the same thing in a loop, and those in every call of forward."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) not in COMPILERS or not call.args:
            continue
        place = model.place(call)
        if place.loops and repeats(model, call, place.loops[-1]):
            yield Hit(
                call, "this compiles anew in every iteration; compile once, before the loop",
                confidence=Confidence.LIKELY)
        elif not place.loops and not place.guards and not place.tries and in_forward(model, call):
            yield Hit(call, "this compiles anew in every call of forward; compile in `__init__`")


def repeats(model: FileModel, call: ast.Call, loop: ast.AST) -> bool:
    """Whether a loop compiles the same thing with the same options each time."""
    if any(node is not loop and loop in model.ancestors(node) for node, _ in model.place(call).guards):
        return False
    if isinstance(loop, ast.For) and isinstance(loop.iter, (ast.List, ast.Tuple)):
        return False  # a few cases tried one after the other
    changed = {
        node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    changed |= {node.name for node in ast.walk(loop) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    parts: list[ast.expr] = [call.args[0], *(k.value for k in call.keywords)]
    names = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    return not names & changed and isinstance(call.args[0], (ast.Name, ast.Attribute))


def in_forward(model: FileModel, call: ast.Call) -> bool:
    """Whether a call stands directly in the forward of a Module."""
    function = model.function(call)
    return (function is not None and function.name == "forward" and function.cls is not None
            and function.cls.is_module)
