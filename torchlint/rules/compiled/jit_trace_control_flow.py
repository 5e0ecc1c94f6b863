"""Tracing a module whose forward pass depends on the values or sizes of its input.

A trace is the list of operations that one example went through. A branch that looked at a tensor is gone: whichever
way the example took is what every later input gets. A loop over a size becomes as many copies of its body as the
example had, and a size that Python computed with is a constant. torch warns about some of these places only.

Express the choice with tensors (`torch.where`), or use `torch.compile`, `torch.export` or a scripted function for
the part that decides. Branches on configuration, on `self.training` or on the kind of an argument can be traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, FunctionInfo, Kind, Value
from torchlint.model.decisions import depends, is_tensor
from torchlint.rule import Example, Hit, Meta

META = Meta("TL801", "jit-trace-control-flow", Severity.ERROR, triggers=("trace",))
CLAIM = OutputsDiffer()
TRACERS = {"torch.jit.trace", "torch.jit.trace_module"}
DEPTH = 3
SCRIPTED = ("script", "script_if_tracing", "ignore", "unused")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def forward(self, x):
                if x.sum() > 0:
                    return x * 2
                return x - 5


        traced = torch.jit.trace(Gate(), torch.ones(3))  #!
        print(traced(torch.ones(3)), traced(-torch.ones(3)))
        """,
        good="""
        import torch
        from torch import nn


        class Gate(nn.Module):
            def forward(self, x):
                return torch.where(x.sum() > 0, x * 2, x - 5)


        traced = torch.jit.trace(Gate(), torch.ones(3))
        print(traced(torch.ones(3)), traced(-torch.ones(3)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))

            def step(self, state, x):
                return state * 0.5 + x * self.scale

            def forward(self, xs):
                state = torch.zeros(2)
                for t in range(xs.size(0)):
                    state = self.step(state, xs[t])
                return state


        net = Recurrent()
        net.eval()
        traced = torch.jit.trace(net, torch.ones(3, 2))  #!
        print(traced(torch.ones(5, 2)))
        """,
        good="""
        import torch
        from torch import nn


        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))

            def step(self, state, x):
                return state * 0.5 + x * self.scale

            def forward(self, xs):
                state = torch.zeros(2)
                for t in range(xs.size(0)):
                    state = self.step(state, xs[t])
                return state


        net = Recurrent()
        net.eval()
        print(net(torch.ones(5, 2)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    @torch.jit.script
    def clip(x):
        if bool(x.sum() > 0):
            return x
        return -x


    class Plain(nn.Module):
        def __init__(self, deep):
            super().__init__()
            self.deep = deep
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])

        def forward(self, x, mask=None):
            if x.dim() != 2:
                raise ValueError("two dimensions")
            if x.shape[1] != 3:
                raise ValueError("three features")
            if mask is not None:
                x = x * mask
            if self.deep and not self.training:
                x = self.layers[1](x)
            for layer in self.layers:
                x = layer(x)
            for i in range(len(self.layers)):
                x = self.layers[i](x)
            if x.is_cuda or x.dtype == torch.float16:
                x = x.float()
            return clip(x)


    torch.jit.trace(Plain(True), torch.ones(2, 3))


    class Loops(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x


    torch.jit.script(Loops())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Traced modules and functions of the project that decide by tensors on their way."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) not in TRACERS or not call.args:
            continue
        function = traced(model.value(call.args[0]))
        found = decision(function, 0) if function is not None else None
        if found is not None:
            owner, node = found
            line = owner.model.span(node).line
            yield Hit(
                call, f"`{owner.name}` decides by tensor values or sizes (line {line}); a trace keeps one way only",
                confidence=Confidence.LIKELY)


def traced(value: Value) -> FunctionInfo | None:
    """The function that a trace runs first."""
    if value.kind is Kind.MODULE and value.cls is not None:
        return value.cls.method("forward")
    return value.func if value.kind is Kind.FUNCTION else None


def decision(function: FunctionInfo, depth: int) -> tuple[FunctionInfo, ast.AST] | None:
    """The first branch or loop that depends on a tensor, in a function or in what it calls."""
    if any(decorator.rpartition(".")[2] in SCRIPTED for decorator in function.decorators):
        return None
    model = function.model
    for node in function.own_nodes:
        match node:
            case ast.If(test=test) if not only_checks(node) and depends(model, test):
                return function, node
            case ast.While(test=test) | ast.IfExp(test=test) if depends(model, test):
                return function, node
            case ast.Subscript(slice=ast.Name() | ast.Call() as index) if reads_value(model, index):
                return function, node
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=args)) if any(
                    depends(model, arg) for arg in args):
                return function, node
    for call in function.calls if depth < DEPTH else ():
        callee = model.value(call.func)
        inner = traced(callee)
        found = decision(inner, depth + 1) if inner is not None and inner is not function else None
        if found is not None:
            return found
    return None


def reads_value(model: FileModel, index: ast.expr, depth: int = 0) -> bool:
    """Whether an index is a number that was read out of a tensor."""
    match index:
        case ast.Call(func=ast.Attribute(value=base, attr="item")) | ast.Call(func=ast.Name(id="int"), args=[base]):
            return is_tensor(model, base)
        case ast.Name(id=name) if depth == 0:
            for scope in model.scopes(index):
                if name in scope.bindings:
                    return any(isinstance(node, ast.Assign) and reads_value(model, node.value, 1)
                               for node in scope.bindings[name])
    return False


def only_checks(node: ast.If) -> bool:
    """Whether a branch only raises, warns or passes."""
    return not node.orelse and all(
        isinstance(one, (ast.Raise, ast.Pass, ast.Assert)) or (
            isinstance(one, ast.Expr) and isinstance(one.value, (ast.Constant, ast.Call))) for one in node.body)
