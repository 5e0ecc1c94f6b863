"""Compiled code that goes back to Python in the middle.

`torch.compile` turns Python into one graph as long as it need not know what is in a tensor. `.item()`, `float(x)`,
a branch on a tensor's value and `print` end the graph: Python runs in between, and a new graph begins. Every break
is a wait for the device, and nothing is fused across it.

Keep values as tensors (`torch.where` instead of a branch), and print outside. With `fullgraph=True` torch raises
instead, which finds all breaks; an explicit `fullgraph=False` says that breaks are meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphBreaks
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, FunctionInfo, Kind
from torchlint.model.compiling import compiled
from torchlint.model.decisions import depends, is_tensor
from torchlint.rule import Example, Hit, Meta

META = Meta("TL803", "graph-break-in-compiled", Severity.ADVICE, stable=False, triggers=("compile",))
CLAIM = GraphBreaks()
READS = {"builtins.float", "builtins.int", "builtins.bool"}
SKIPPED = {"torch.compiler.disable", "torch._dynamo.disable", "torch.compiler.allow_in_graph", "torch.jit.ignore"}
DEPTH = 2

EXAMPLES = [
    Example(
        bad="""
        import torch


        @torch.compile(backend="eager")
        def scaled(x):
            norm = x.norm().item()  #!
            return x / (norm + 1.0)


        scaled(torch.ones(3))
        """,
        good="""
        import torch


        @torch.compile(backend="eager")
        def scaled(x):
            norm = x.norm()
            return x / (norm + 1.0)


        scaled(torch.ones(3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 3)

            def forward(self, x):
                y = self.layer(x)
                if y.mean() > 0:  #!
                    y = y * 2
                return y + 1


        net = torch.compile(Gate(), backend="eager")
        net(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 3)

            def forward(self, x):
                y = self.layer(x)
                y = torch.where(y.mean() > 0, y * 2, y)
                return y + 1


        net = torch.compile(Gate(), backend="eager")
        net(torch.ones(2, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.deep = True

        def forward(self, x, mask=None):
            if self.deep and x.shape[0] > 2:
                x = self.layer(x)
            if mask is not None:
                x = x * mask
            return x


    net = torch.compile(Net())
    loss = net(torch.ones(2, 3)).sum()
    print(loss.item())


    @torch.compile(fullgraph=False)
    def on_purpose(x):
        print(x.sum().item())
        return x


    def plain(x):
        return x * x.sum().item()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Reads, prints and branches on values in functions and modules that this file compiles."""
    seen: set[ast.AST] = set()
    for function in compiled(model, open_too=False):
        for owner, node in breaks(function, 0):
            if model.has(node) and node not in seen:
                seen.add(node)
                name = owner.name
                yield Hit(
                    node, f"the compiled graph ends here, and `{name}` goes on in Python; keep it a tensor",
                    confidence=Confidence.LIKELY)


def breaks(function: FunctionInfo, depth: int) -> Iterator[tuple[FunctionInfo, ast.AST]]:
    """What ends a graph in a function and in what it calls."""
    model = function.model
    if any(decorator in SKIPPED for decorator in function.decorators):
        return
    for node in function.own_nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr="item"), args=[]) if is_tensor(model, base):
                yield function, node
            case ast.Call(func=func, args=[arg]) if model.name_of(func) in READS and is_tensor(model, arg):
                yield function, node
            case ast.Call(func=func, args=[*_]) if model.name_of(func) == "builtins.print":
                yield function, node
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if depends(model, test, sizes=False) and not reads_inside(model, test):
                    yield function, node
    for call in function.calls if depth < DEPTH else ():
        value = model.value(call.func)
        inner = value.cls.method("forward") if value.kind is Kind.MODULE and value.cls is not None else value.func
        if inner is not None and inner is not function:
            yield from breaks(inner, depth + 1)


def reads_inside(model: FileModel, test: ast.expr) -> bool:
    """Whether a test holds a read that is reported itself."""
    return any(
        isinstance(node, ast.Call) and (model.name_of(node.func) in READS or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "item")) for node in ast.walk(test))
