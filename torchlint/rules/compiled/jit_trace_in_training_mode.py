"""A module traced or exported while in training mode.

Tracing records what one call did. In training mode that is dropout that draws and batch norm that uses the batch's
own statistics; both are then fixed in the graph, and calling `eval()` on the traced module later does not bring the
other behaviour back.

Call `eval()` on the module first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind, Value, training
from torchlint.model.environment import switches
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL802", "jit-trace-in-training-mode", Severity.WARNING, fix=Safety.UNSAFE, triggers=("trace", "export"))
CLAIM = OutputsDiffer()
TRACERS = {"torch.jit.trace", "torch.jit.trace_module", "torch.export.export"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        x = torch.ones(4, 8)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        traced = torch.jit.trace(net, x, check_trace=False)  #!
        traced.eval()
        print(traced(x))
        """,
        good="""
        import torch
        from torch import nn

        x = torch.ones(4, 8)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        net.eval()
        traced = torch.jit.trace(net, x, check_trace=False)
        traced.eval()
        print(traced(x))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    x = torch.ones(4, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    torch.jit.trace(net.eval(), x)
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    torch.jit.trace(plain, x)
    other = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    other.train(False)
    torch.jit.trace(other, x)


    def export(model, x):
        return torch.jit.trace(model, x)


    torch.onnx.export(nn.Dropout(0.5), (x,), "x.onnx")
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Traced modules that were made here and never put into eval mode."""
    for call in model.nodes(ast.Call):
        if not call.args or model.name_of(call.func) not in TRACERS:
            continue
        target = model.value(call.args[0])
        if is_made_here(model, call, target) and switches(target) and not may_be_eval(model, call, target):
            yield Hit(
                call, "training mode is fixed in the graph; call `eval()` on the module first",
                eval_first(model, call), confidence=target.sure)


def is_made_here(model: FileModel, call: ast.Call, target: Value) -> bool:
    """Whether the module was built in the same function, so that its mode is known."""
    site = target.site
    return (target.kind is Kind.MODULE and site is not None and model.has(site)
            and model.owner(site) is model.owner(call))


def may_be_eval(model: FileModel, call: ast.Call, target: Value) -> bool:
    """Whether something before the call, or in its statement, may have put the module into eval mode."""
    here = model.statement(call)
    for event in model.flow(model.owner(call)).events:
        if event.what not in ("eval", "set_mode", "unknown_call") or not model.has(event.node):
            continue
        before = model.position(event.node) < model.position(call) or model.statement(event.node) is here
        if event.what == "unknown_call":
            if before and event.node is not call and any(training.same(arg, target) for arg in event.args):
                return True
        elif before and not training.different(event.target, target):
            return True
    return False


def eval_first(model: FileModel, call: ast.Call) -> Repair | None:
    """eval() in front of the statement."""
    if not isinstance(call.args[0], ast.Name):
        return None
    return edits.repair(
        "Call eval() first", edits.insert_before(model, model.statement(call), f"{call.args[0].id}.eval()"))
