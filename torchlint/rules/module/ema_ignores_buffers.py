"""An averaged copy of a model whose buffers are never updated.

`parameters()` leaves buffers out. An average kept over parameters alone keeps the BatchNorm statistics that the
copy was made with, so the averaged weights run with a running mean and variance from the start of training, and
the copy evaluates far worse than the model.

Copy the buffers too (`for a, b in zip(ema.buffers(), model.buffers()): a.copy_(b)`), or average over
`state_dict()`. Nothing is reported where no BatchNorm is in sight.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL424", "ema-ignores-buffers", Severity.WARNING, stable=False, triggers=("Norm",))
CLAIM = OutputsDiffer()
MIXING = {"lerp_", "lerp", "add_", "mul_", "copy_"}
NORMS = {f"torch.nn.{name}" for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")}

EXAMPLES = [
    Example(
        bad="""
        import copy
        import torch
        from torch import nn

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        ema = copy.deepcopy(net)
        for _ in range(8):
            net(torch.randn(16, 3) + 2.0)
            with torch.no_grad():
                for a, p in zip(ema.parameters(), net.parameters()):  #!
                    a.mul_(0.5).add_(p, alpha=0.5)
        ema.eval()
        out = ema(torch.ones(2, 3))
        """,
        good="""
        import copy
        import torch
        from torch import nn

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        ema = copy.deepcopy(net)
        for _ in range(8):
            net(torch.randn(16, 3) + 2.0)
            with torch.no_grad():
                for a, p in zip(ema.parameters(), net.parameters()):
                    a.mul_(0.5).add_(p, alpha=0.5)
                for a, b in zip(ema.buffers(), net.buffers()):
                    a.copy_(b)
        ema.eval()
        out = ema(torch.ones(2, 3))
        """,
    ),
]

CLEAN = [
    """
    import copy
    import torch
    from torch import nn


    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


    class Ema:
        def __init__(self, model):
            self.shadow = copy.deepcopy(model)

        def update(self, model):
            for s, p in zip(self.shadow.parameters(), model.parameters()):
                s.data.lerp_(p.data, 0.1)
            self.rest(model)

        def rest(self, model):
            for s, b in zip(self.shadow.buffers(), model.buffers()):
                s.copy_(b)


    def distance(a, b):
        total = 0
        for p, q in zip(a.parameters(), b.parameters()):
            total += (p - q).norm()
        return total
    """,
    """
    import copy
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    ema = copy.deepcopy(net)
    for a, p in zip(ema.parameters(), net.parameters()):
        a.data.mul_(0.5).add_(p.data, alpha=0.5)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loops over two models' parameters that mix one into the other, where nothing touches buffers."""
    if not has_batch_norm(model):
        return
    for loop in model.nodes(ast.For):
        if pairs_parameters(model, loop.iter) and mixes(loop) and not buffers_nearby(model, loop):
            yield Hit(
                loop.iter, "BatchNorm statistics of the average are never updated; copy the buffers too",
                confidence=Confidence.LIKELY)


def has_batch_norm(model: FileModel) -> bool:
    """Whether the file makes a BatchNorm layer."""
    return any(model.name_of(call.func) in NORMS for call in model.nodes(ast.Call))


def pairs_parameters(model: FileModel, expr: ast.expr) -> bool:
    """`zip(a.parameters(), b.parameters())` of two modules."""
    if not isinstance(expr, ast.Call) or model.name_of(expr.func) != "builtins.zip" or len(expr.args) != 2:
        return False
    values = [model.value(arg) for arg in expr.args]
    return all(v.kind is Kind.PARAMETERS and "buffers" not in v.name for v in values) and (
        values[0].bound is None or values[1].bound is None or values[0].bound.ident != values[1].bound.ident)


def mixes(loop: ast.For) -> bool:
    """Whether the body blends the second parameter into the first (a plain copy does not)."""
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else None
    if not isinstance(target, ast.Name):
        return False
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr=attr), args=args) if attr in MIXING and args:
                if root(base) == target.id and (attr != "copy_" or isinstance(args[0], ast.BinOp)):
                    return True
            case ast.Assign(targets=[ast.Attribute(value=base, attr="data")], value=ast.BinOp()):
                if root(base) == target.id:
                    return True
    return False


def root(expr: ast.expr) -> str:
    """The name that a chain of attributes and calls starts from."""
    while isinstance(expr, (ast.Attribute, ast.Call, ast.Subscript)):
        expr = expr.func if isinstance(expr, ast.Call) else expr.value
    return expr.id if isinstance(expr, ast.Name) else ""


def buffers_nearby(model: FileModel, loop: ast.For) -> bool:
    """Whether the same class (or function, or file for a script) handles buffers or whole states."""
    cls = model.class_of(loop)
    here: ast.AST = cls.node if cls is not None else model.owner(loop)
    names = {"buffers", "named_buffers", "state_dict", "load_state_dict", "running_mean"}
    return any(isinstance(n, ast.Attribute) and n.attr in names for n in ast.walk(here))
