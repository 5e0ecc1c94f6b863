"""Tensors wrapped in Variable.

Since torch 0.4 every tensor can record a graph, and `Variable(x)` is a leftover that returns another tensor on the
same storage. That tensor is detached: wrapping something that was computed cuts it out of its graph, without a
word. `volatile=True` has no effect at all any more, so code that relies on it records graphs in evaluation.

Use the tensor itself, `x.detach()` where the cut is meant, `requires_grad_()` for a leaf, and
`with torch.no_grad():` in place of `volatile=True`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Grad, Kind
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL905", "autograd-variable", Severity.ADVICE, also=(Severity.WARNING,),
            fix=Safety.SAFE, triggers=("Variable",))
CLAIM = Equivalent()
KEYWORDS = {"data", "requires_grad", "volatile"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.autograd import Variable

        x = Variable(torch.ones(2, 3))  #!
        print(x.sum())
        """,
        good="""
        import torch

        x = torch.ones(2, 3)
        print(x.sum())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Variable

        w = Variable(torch.ones(3, 1), requires_grad=True)  #!
        w.sum().backward()
        print(w.grad)
        """,
        good="""
        import torch

        w = torch.ones(3, 1).requires_grad_()
        w.sum().backward()
        print(w.grad)
        """,
    ),
    Example(
        bad="""
        import torch

        net = torch.nn.Linear(3, 3)
        critic = torch.nn.Linear(3, 1)
        fake = net(torch.ones(2, 3))
        critic(torch.autograd.Variable(fake)).sum().backward()  #!
        """,
        good="""
        import torch

        net = torch.nn.Linear(3, 3)
        critic = torch.nn.Linear(3, 1)
        fake = net(torch.ones(2, 3))
        critic(fake.detach()).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Variable as Old


    class Variable:
        def __init__(self, name):
            self.name = name


    one = Variable("x")
    print(isinstance(torch.ones(1), Old))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of torch.autograd.Variable."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != "torch.autograd.Variable":
            continue
        options = {k.arg: k.value for k in call.keywords}
        data = call.args[0] if len(call.args) == 1 else options.get("data") if not call.args else None
        volatile = options.get("volatile")
        if volatile is not None and model.value(volatile).const is not False:
            yield Hit(
                call, "`volatile` does nothing any more; use `with torch.no_grad():`", severity=Severity.WARNING)
        elif data is not None and model.value(data).attached and "requires_grad" not in options:
            yield Hit(
                call, "`Variable` cuts this out of its graph; write `.detach()` if meant", plain(model, call, data))
        else:
            fix = plain(model, call, data) if data is not None and options.keys() <= KEYWORDS else None
            yield Hit(call, "`Variable` is a leftover of torch 0.3; use the tensor itself", fix)


def plain(model: FileModel, call: ast.Call, data: ast.expr) -> Repair | None:
    """The tensor itself, detached or made a leaf where that is what Variable did."""
    if isinstance(data, ast.Starred):
        return None
    value = model.value(data)
    flag = next((model.value(k.value).const for k in call.keywords if k.arg == "requires_grad"), False)
    methods = []
    if value.attached or (flag is True and not is_fresh(model, data)):
        methods.append(".detach()")
    if flag is True:
        methods.append(".requires_grad_()")
    elif flag is not False:
        return None
    known = value.kind is Kind.TENSOR and (value.grad is Grad.NO or bool(methods))
    text = edits.source_of(model, data)
    if methods and not isinstance(data, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        text = f"({text})"
    alone = bool(methods) or is_fresh(model, data) or not is_changed(model, call)
    safety = Safety.SAFE if known and alone else Safety.UNSAFE
    return edits.repair(
        "Use the tensor itself", edits.replace(model, call, text + "".join(methods)), safety=safety)


def is_changed(model: FileModel, call: ast.Call) -> bool:
    """Whether what Variable gave is changed itself where it is used: the tensor that went in stays as it was then."""
    match model.parent(call):
        case ast.Assign(targets=targets):
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            paths = {target.attr for target in targets if isinstance(target, ast.Attribute)}
            uses: list[ast.expr] = [
                node for node in ast.walk(model.owner(call)) if isinstance(node, ast.Name) and node.id in names]
            uses += [node for path in paths for node in model.attributes_named(path)]
            return any(changes(model, node) for node in uses)
        case _:
            return changes(model, call)


def changes(model: FileModel, node: ast.expr) -> bool:
    """Whether a tensor is changed, or told something, where it stands: `x.requires_grad_()`, `x += 1`, `x.grad = y`."""
    match parent := model.parent(node):
        case ast.AugAssign(target=target):
            return target is node
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return value is node
        case ast.Attribute(attr=attr):
            return isinstance(parent.ctx, ast.Store) or (attr.endswith("_") and not attr.endswith("__"))
    return False


def is_fresh(model: FileModel, data: ast.expr) -> bool:
    """Whether an expression makes a tensor that nothing else refers to."""
    if not isinstance(data, ast.Call):
        return False
    if isinstance(data.func, ast.Attribute) and data.func.attr == "clone":
        return not model.value(data).attached
    made = knowledge.function(model.name_of(data.func))
    return made is not None and made.factory
