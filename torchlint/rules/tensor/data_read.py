"""Reading a tensor's values through `.data`.

`.data` gives the values without the graph, as `.detach()` does, but without the check that goes with it: if the
values are changed in place later, autograd does not notice and computes wrong gradients. For reading both give
the same, so there is nothing to lose.

Write `.detach()`; `.item()` needs neither.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL103", "data-read", Severity.ADVICE, fix=Safety.SAFE, triggers=("data",))
CLAIM = Equivalent()
# Methods whose result is a number or new memory, whatever the device.
READING = {"item", "tolist", "clone", "mean", "sum", "norm", "std", "var", "argmax", "argmin", "abs", "pow", "sqrt",
           "exp", "log", "size", "numel", "dim", "eq", "ne", "gt", "lt", "ge", "le", "any", "all", "sigmoid", "softmax"}
SHARING = {"cpu", "numpy", "float", "view", "squeeze", "reshape", "flatten"}  # read if what follows reads
SHOWING = {"builtins.print", "builtins.float", "builtins.int", "builtins.str", "builtins.len"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        print("loss", loss.data)  #!
        total = 0.0
        total += loss.data.cpu().numpy().item()  #!
        print(net.weight.data.abs().mean())  #!
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        loss = net(torch.ones(4, 2)).pow(2).mean()
        print("loss", loss.detach())
        total = 0.0
        total += loss.detach().cpu().numpy().item()
        print(net.weight.detach().abs().mean())
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Box:
        def __init__(self):
            self.data = [1.0]


    net = nn.Linear(2, 1)
    print(Box().data, torch.utils.data)
    w = net.weight.data
    w.mul_(2)
    net.weight.data.zero_()
    net.weight.data = torch.ones(1, 2)
    array = net.weight.data.numpy()
    net.weight.data[0] = 1
    net.weight.data.copy_(0.9 * net.weight.data + 0.1 * w.data)
    net.weight.data = net.weight.data.abs()
    net.weight.data -= 0.1 * net.weight.data
    net.weight.data[net.weight.data > 1] = 1


    def show(batch):
        print(batch.data.mean())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`.data` of attached tensors, where the values are read on the spot."""
    for node in model.attributes_named("data"):
        if not isinstance(node.ctx, ast.Load):
            continue
        base = model.value(node.value)
        if base.attached and base.role != "grad" and reads(model, node) and not writes(model.statement(node)):
            text = edits.operand(model, node.value) + ("" if needs_no_detach(model, node) else ".detach()")
            yield Hit(node, "`.data` hides later changes from autograd; read values with `.detach()`",
                      edits.repair("Use .detach()", edits.replace(model, node, text),
                                   safety=Safety.UNSAFE if kept_and_changed(model, node, base) else None),
                      confidence=base.sure)


def kept_and_changed(model: FileModel, node: ast.expr, base: Value) -> bool:
    """Whether a graph keeps what is read, and the tensor is changed in place later: `.detach()` lets backward know."""
    here, loops = model.position(node), model.place(node).loops
    outer = model.parent(node)
    while isinstance(outer, (ast.Call, ast.Subscript)) or (isinstance(outer, ast.Attribute) and outer.attr in SHARING):
        outer = model.parent(outer)
    if not isinstance(outer, ast.BinOp) or not model.value(outer).attached:
        return False
    return any(
        (event.what == "step" or event.target.storage == base.storage)
        and (model.position(event.node) > here or set(event.loops) & set(loops))
        for event in model.flow(model.owner(node)).of("inplace", "step"))


def writes(statement: ast.stmt) -> bool:
    """Whether a statement changes a tensor through `.data`: to rewrite what it reads alone mends half of it."""
    match statement:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            return any(isinstance(node, ast.Attribute) and node.attr == "data" for node in ast.walk(target))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed, attr=method))) if method.endswith("_"):
            return any(isinstance(node, ast.Attribute) and node.attr == "data" for node in ast.walk(changed))
    return False


def needs_no_detach(model: FileModel, node: ast.expr) -> bool:
    """Whether `.item()`, `.detach()` or `.clone().detach()` stands behind an expression."""
    match parent := model.parent(node):
        case ast.Attribute(attr="clone") if isinstance(call := model.parent(parent), ast.Call):
            return isinstance(outer := model.parent(call), ast.Attribute) and outer.attr == "detach"
        case ast.Attribute(attr="detach" | "item"):
            return True
    return False


def reads(model: FileModel, node: ast.expr) -> bool:
    """Whether what an expression gives is only read where it stands."""
    parent = model.parent(node)
    match parent:
        case ast.Attribute(attr=attr) if isinstance(call := model.parent(parent), ast.Call) and call.func is parent:
            return attr in READING or (attr in SHARING and reads(model, call))
        case ast.Call(func=func):
            return func is not node and model.name_of(func) in SHOWING
        case ast.FormattedValue() | ast.Compare() | ast.BinOp() | ast.UnaryOp():
            return True
        case ast.Subscript(value=value, ctx=ast.Load()) if value is node:
            return reads(model, parent)
    return False
