"""A tensor and a numpy array over one memory, one kept while the other is changed in place.

`torch.from_numpy`, `torch.as_tensor` and `.numpy()` copy nothing on the CPU: both objects read one block of memory.
What is stored changes with every later in-place write to the other side (`+=`, `x[i] = ...`, `optimizer.step()`), so
that a history holds the last value many times.

Keep a copy: `.clone()` of the tensor, `.copy()` of the array. Sharing that is only read, or that is made to be
written through, is fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchlint.claims import Aliased
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind
from torchlint.model.autograd import changed_by
from torchlint.model.tree import chain
from torchlint.rule import Example, Hit, Meta

META = Meta("TL108", "numpy-alias", Severity.WARNING, fix=Safety.UNSAFE, triggers=("numpy",))
CLAIM = Aliased()
SHARING = {"torch.from_numpy", "torch.as_tensor", "torch.asarray", "torch.frombuffer"}
VIEWS = {"detach", "view", "unsqueeze", "squeeze", "permute", "transpose", "t", "cpu", "reshape", "flatten"}
FILLING = {"copy_", "zero_", "fill_", "normal_", "uniform_"}  # a fresh buffer is shared in order to be filled
FRESH = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like"}
KEEPING = {"append", "appendleft", "add", "insert", "put", "setdefault"}

EXAMPLES = [
    Example(
        bad="""
        import numpy as np
        import torch

        frame = np.zeros(3, dtype=np.float32)
        frames = []
        for step in range(3):
            frame += 1
            frames.append(torch.from_numpy(frame))  #!
        print(torch.stack(frames))
        """,
        good="""
        import numpy as np
        import torch

        frame = np.zeros(3, dtype=np.float32)
        frames = []
        for step in range(3):
            frame += 1
            frames.append(torch.from_numpy(frame).clone())
        print(torch.stack(frames))
        """,
    ),
    Example(
        bad="""
        import torch

        x = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        path = []
        for step in range(3):
            optimizer.zero_grad()
            (x ** 2).sum().backward()
            optimizer.step()
            path.append(x.detach().numpy())  #!
        print(path)
        """,
        good="""
        import torch

        x = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        path = []
        for step in range(3):
            optimizer.zero_grad()
            (x ** 2).sum().backward()
            optimizer.step()
            path.append(x.detach().numpy().copy())
        print(path)
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        before = net.weight.detach().numpy()  #!
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        print(np.abs(before - net.weight.detach().numpy()).max())
        """,
        good="""
        import numpy as np
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        before = net.weight.detach().numpy().copy()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        print(np.abs(before - net.weight.detach().numpy()).max())
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch

        image = np.arange(4.0)
        scaled = torch.from_numpy(image)  #!
        scaled /= 255
        print(image.max(), scaled.max())
        """,
        good="""
        import numpy as np
        import torch

        image = np.arange(4.0)
        scaled = torch.from_numpy(image).clone()
        scaled /= 255
        print(image.max(), scaled.max())
        """,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch
    from torch import nn

    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs, weights, rows = [], [], []
    for step in range(3):
        frame = np.zeros(3, dtype=np.float32)
        frame += step
        rows.append(torch.from_numpy(frame))
        out = net(torch.ones(1, 2))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out.detach().cpu().numpy())
        weights.append(net.weight.detach().numpy().copy())
        weights.append(np.array(net.weight.detach().numpy()))
        weights.append(net.weight.detach().numpy().mean())

    image = np.arange(4.0)
    scaled = torch.from_numpy(image).float()
    scaled /= 255
    other = torch.from_numpy(image.copy())
    other += 1
    print(image.max(), scaled.max())

    buffer = np.empty(4)
    torch.from_numpy(buffer).copy_(torch.ones(4))
    view = torch.from_numpy(buffer)
    view.fill_(2)
    print(buffer)

    boxes = np.ones(3)
    boxes = torch.from_numpy(boxes)
    boxes *= 2
    print(boxes)

    table = np.ones(3)
    table[0] = 2
    tensor = torch.from_numpy(table)
    print(tensor, table)
    table = np.ones(3)
    table[0] = 3
    """,
]


@dataclass(frozen=True)
class Alias:
    """One sharing call: the other side's name or path, and the place where the new side is kept."""

    call: ast.Call
    source: ast.expr
    back: bool  # array made from a tensor
    name: str = ""  # the local that it is bound to


def check(model: FileModel) -> Iterator[Hit]:
    """Sharing calls whose result is kept while the other side is written to."""
    for call in model.nodes(ast.Call):
        alias = alias_of(model, call)
        if alias is None:
            continue
        written = changed_in_loop(model, alias) if not alias.name else changed_later(model, alias)
        if written:
            copy = ".copy()" if alias.back else ".clone()"
            yield Hit(call, f"this shares memory with `{chain(alias.source)}`, which {written}; add `{copy}`",
                      edits.repair("Keep a copy", edits.append_method_call(model, call, copy)),
                      confidence=Confidence.LIKELY)


def alias_of(model: FileModel, call: ast.Call) -> Alias | None:
    """A call that shares memory and whose result is stored in a container or bound to a name."""
    match call:
        case ast.Call(func=ast.Attribute(value=inner, attr="numpy"), args=[], keywords=[]):
            source, back = root(inner), True
            known = source is not None and (model.value(source).is_tensor or (
                is_weight(source) and inner is not source and not model.value(source).known))
        case ast.Call(args=[inner, *_], keywords=[]) if model.name_of(call.func) in SHARING:
            source, back = root(inner), False
            known = source is not None and (
                model.value(source).kind is Kind.NDARRAY or model.name_of(call.func) == "torch.from_numpy")
        case _:
            return None
    if source is None or not known or not chain(source):
        return None
    kept: ast.AST = call
    parent = model.parent(kept)
    while isinstance(parent, ast.Attribute) and parent.attr in VIEWS and isinstance(
            outer := model.parent(parent), ast.Call) and outer.func is parent:
        kept, parent = outer, model.parent(outer)
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)]) if name != chain(source):
            return Alias(call, source, back, name)
        case ast.Call(func=ast.Attribute(attr=method)) if method in KEEPING and kept in parent.args:
            return Alias(call, source, back)
    return None


def is_weight(expr: ast.expr) -> bool:
    """`net.fc.weight`: what layers call their parameters, where nothing else is known of the value."""
    return isinstance(expr, ast.Attribute) and expr.attr in ("weight", "bias")


def root(expr: ast.expr) -> ast.expr | None:
    """The name or attribute path whose memory an expression is a view of."""
    match expr:
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in VIEWS:
            return root(inner)
        case ast.Attribute(value=inner, attr="data" | "T"):
            return root(inner)
        case ast.Name() | ast.Attribute():
            return expr
    return None


def changed_in_loop(model: FileModel, alias: Alias) -> str:
    """How the source changes in the innermost loop around a store, if it is made before the loop; else ""."""
    loops = model.place(alias.call).loops
    if not loops or not model.holds(loops[-1]):
        return ""
    loop = loops[-1]
    if bound_in(loop, alias.source):
        return ""
    if any(changes(model, node, alias.source) for node in ast.walk(loop)):
        return "changes in every iteration"
    return "the optimizer changes in every step" if stepped(model, alias, loop) else ""


def bound_in(tree: ast.AST, source: ast.expr) -> bool:
    """Whether a name (or the root of a path, or the path itself) is bound inside a loop."""
    first = chain(source).split(".")[0]
    changed = [n.target for n in ast.walk(tree) if isinstance(n, ast.AugAssign)]
    stores = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)]
    return any(chain(n) in (first, chain(source)) for n in stores if n not in changed)


def changes(model: FileModel, node: ast.AST, source: ast.expr) -> bool:
    """Whether a statement or call changes the source in place."""
    path = chain(source)
    for target in changed_by(model, node):
        if chain(root(target) or target) == path:
            return True
        if isinstance(target, ast.Subscript) and chain(target.value) == path:
            return True
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr="fill" | "sort" | "partition")):
            return chain(receiver) == path and model.value(receiver).kind is Kind.NDARRAY
        case ast.Call(args=[first, *_]) if model.name_of(node.func) in ("numpy.copyto", "numpy.random.shuffle"):
            return chain(first) == path
        case ast.Call(keywords=keywords):
            return any(k.arg == "out" and chain(k.value) == path for k in keywords)
    return False


def stepped(model: FileModel, alias: Alias, within: ast.AST) -> ast.AST | None:
    """The optimizer step inside a tree that changes a parameter or leaf."""
    value = model.value(alias.source)
    weight = not value.known and is_weight(alias.source)
    if not alias.back or not (weight or value.role in ("parameter", "leaf")):
        return None
    inside = set(map(id, ast.walk(within)))
    for event in model.flow(model.owner(alias.call)).of("step"):
        if id(event.node) in inside and event.target.kind is Kind.OPTIMIZER:
            return event.node
    return None


def changed_later(model: FileModel, alias: Alias) -> str:
    """How one side changes after a name was bound, if the other side is read after that; else ""."""
    owner = model.owner(alias.call)
    here = model.position(alias.call)
    mine = ast.Name(id=alias.name, ctx=ast.Load())
    nodes = [n for n in ast.walk(owner) if model.has(n) and model.position(n) > here and model.owner(n) is owner]
    step = stepped(model, alias, owner)
    if step is not None and model.position(step) > here and read_after(model, nodes, mine, step, alias):
        return "the optimizer changes"
    fresh = model.value(alias.source).name.rpartition(".")[2] in FRESH
    for node in nodes:
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if changes(model, node, alias.source) and read_after(model, nodes, mine, node, alias):
            return f"line {node.lineno} changes"  # type: ignore[attr-defined]
        if changes(model, node, mine) and method not in FILLING and not fresh and (
                read_after(model, nodes, alias.source, node, alias)):
            return f"line {node.lineno} changes, too"  # type: ignore[attr-defined]
    return ""


def read_after(model: FileModel, nodes: list[ast.AST], side: ast.expr, change: ast.AST, alias: Alias) -> bool:
    """Whether a side is read after a change, neither of the two having been bound anew in between."""
    place = model.position(model.statement(change))
    stop = [model.position(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute))
            and isinstance(n.ctx, ast.Store) and chain(n) in (chain(alias.source), alias.name)
            and not isinstance(model.parent(n), ast.AugAssign)]
    if any(position < place for position in stop):
        return False
    end = min(stop, default=float("inf"))
    inside = set(map(id, ast.walk(model.statement(change))))
    return any(isinstance(n, type(side)) and chain(n) == chain(side) and id(n) not in inside
               and isinstance(getattr(n, "ctx", None), ast.Load) and place < model.position(n) < end for n in nodes)
