"""One module repeated by multiplying a list, so that all entries share their weights.

`[layer] * n` copies references, not layers: every entry is the same object with the same parameters.
`nn.ModuleList` and `nn.Sequential` take them without a word, and `parameters()` reports each only once; the
network has a fraction of the weights that it seems to have.

Build one module per entry: `[nn.Linear(d, d) for _ in range(n)]`. Modules without parameters and buffers may
be repeated, and a comment that speaks of shared or tied weights keeps the rule silent.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Aliased
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind, Value
from torchlint.model.held import MODULE_CONTAINERS, comment_on, has_state, members
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL412", "shared-module-by-multiplication", Severity.WARNING, fix=Safety.UNSAFE)
CLAIM = Aliased()
ON_PURPOSE = ("shar", "tied", "tie ", "same weight", "same layer", "recurrent")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Sensors(nn.Module):
            def __init__(self, sensors=4, taps=5):
                super().__init__()
                self.filters = nn.ModuleList([nn.Conv1d(1, 1, taps)] * sensors)  #!

            def forward(self, x):
                return [f(part) for f, part in zip(self.filters, x.split(1, dim=1))]


        print(len(list(Sensors().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Sensors(nn.Module):
            def __init__(self, sensors=4, taps=5):
                super().__init__()
                self.filters = nn.ModuleList([nn.Conv1d(1, 1, taps) for _ in range(sensors)])

            def forward(self, x):
                return [f(part) for f, part in zip(self.filters, x.split(1, dim=1))]


        print(len(list(Sensors().parameters())))
        """,
    ),
    Example(
        bad="""
        import itertools

        import torch
        import torch.nn as nn


        class Block(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return x + self.layer(x)


        def make(size=4, depth=3):
            block = Block(size)
            body = nn.Sequential(*[block] * depth)  #!
            tail = nn.Sequential(*[block for _ in range(depth)])  #!
            heads = nn.ModuleDict(dict.fromkeys(("a", "b"), nn.Linear(size, 1)))  #!
            more = nn.ModuleList(itertools.repeat(nn.Linear(size, size), depth))  #!
            return nn.ModuleList([body, tail, heads, more])


        print(len(list(make().parameters())))
        """,
        good="""
        import itertools

        import torch
        import torch.nn as nn


        class Block(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return x + self.layer(x)


        def make(size=4, depth=3):
            body = nn.Sequential(*[Block(size) for _ in range(depth)])
            tail = nn.Sequential(*[Block(size) for _ in range(depth)])
            heads = nn.ModuleDict({name: nn.Linear(size, 1) for name in ("a", "b")})
            more = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
            return nn.ModuleList([body, tail, heads, more])


        print(len(list(make().parameters())))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import copy

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, n=3):
            super().__init__()
            sizes = [4] * n
            self.layers = nn.ModuleList([nn.Linear(size, size) for size in sizes])
            self.squash = nn.ModuleList([nn.Tanh()] * n)
            self.drop = nn.Sequential(*[nn.Dropout(0.1)] * n)
            self.one = nn.ModuleList([nn.Linear(2, 2)] * 1)
            # all steps share their weights, as in a recurrent network
            self.steps = nn.ModuleList([nn.Linear(2, 2)] * n)
            layer = nn.Linear(2, 2)
            self.copies = nn.ModuleList([copy.deepcopy(layer) for _ in range(n)])
            self.kinds = [nn.Linear] * n


    model = nn.Linear(2, 2)
    outputs = [net(torch.ones(2)) for net in [model] * 2]
    print(Net(), outputs)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Lists in which one module with weights is repeated."""
    for node in model.nodes(ast.BinOp, ast.ListComp, ast.GeneratorExp, ast.Call):
        repeated = repeats(model, node)
        if repeated is None:
            continue
        found = [part for part in members(model.value(repeated)) if part.kind is Kind.MODULE and has_state(part)]
        if found and in_network(model, node) and not comment_on(model, model.statement(node), ON_PURPOSE):
            yield Hit(node, "every entry is the same module, with one set of weights; make one for each",
                      one_each(model, node), confidence=min(part.sure for part in found))


def repeats(model: FileModel, node: ast.AST) -> ast.expr | None:
    """The module, or list of modules, that an expression repeats."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=ast.List() | ast.Tuple() as part, right=count) | ast.BinOp(
                op=ast.Mult(), left=count, right=ast.List() | ast.Tuple() as part):
            return None if once(model.value(count)) or nothing(part) else part
        case ast.ListComp(elt=ast.Name() as part, generators=[one]) | ast.GeneratorExp(
                elt=ast.Name() as part, generators=[one]):
            bound = {n.id for n in ast.walk(one.target) if isinstance(n, ast.Name)}
            return None if part.id in bound or one.ifs else part
        case ast.Call(func=func, args=[part, _]) if model.name_of(func) == "itertools.repeat":
            return part
        case ast.Call(func=ast.Attribute(attr="fromkeys"), args=[_, part]):
            return part
    return None


def in_network(model: FileModel, node: ast.AST) -> bool:
    """Whether the list becomes part of a Module: in a method of one, or inside one of torch's containers."""
    cls = model.class_of(node)
    if (cls is not None and cls.is_module) or in_container(model, node):
        return True
    match model.parent(node):
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(in_container(model, use) for use in model.uses(name, model.owner(node)))
    return False


def in_container(model: FileModel, node: ast.AST) -> bool:
    """Whether a node is in an argument of `nn.Sequential(...)` and the like."""
    for outer in model.ancestors(node):
        if isinstance(outer, ast.Call) and model.name_of(outer.func) in MODULE_CONTAINERS:
            return True
        if isinstance(outer, ast.stmt):
            return False
    return False


def nothing(part: ast.List | ast.Tuple) -> bool:
    """A list without anything that could be a module."""
    return not any(isinstance(elt, (ast.Call, ast.Name, ast.Attribute)) for elt in part.elts)


def once(count: Value) -> bool:
    """A factor of one or nought."""
    return isinstance(count.const, int) and count.const <= 1


def one_each(model: FileModel, node: ast.AST) -> Repair | None:
    """`[nn.Linear(2, 2)] * n` -> `[nn.Linear(2, 2) for _ in range(n)]`."""
    match node:
        case ast.BinOp(left=ast.List(elts=[ast.Call() as made]), right=count) | ast.BinOp(
                left=count, right=ast.List(elts=[ast.Call() as made])):
            text = f"[{edits.source_of(model, made)} for _ in range({edits.source_of(model, count)})]"
            assert isinstance(node, ast.BinOp)
            return edits.repair("Make one for each", edits.replace(model, node, text))
    return None
