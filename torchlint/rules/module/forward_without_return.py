"""A forward that computes a result and does not return it.

`Module.__call__` hands on exactly what `forward` returns, to forward hooks and to the caller. A forward that ends
without `return`, on all paths or on one of them, gives None: the next layer or the loss fails on a NoneType far from
here, and what was computed last is thrown away.

Return the result at the end, outside of the `if` or loop. A forward that only raises, stores its result on the module,
or changes its arguments in place is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath

from torchlint.claims import Raises
from torchlint.findings import Severity
from torchlint.model import FileModel, FunctionInfo, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL420", "forward-without-return", Severity.ERROR, triggers=("def forward",))
CLAIM = Raises("TypeError|AttributeError", "NoneType")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.out = nn.Linear(size, 1)

            def forward(self, x):
                x = torch.relu(self.hidden(x))
                x = self.out(x)  #!


        print(Net()(torch.ones(2, 4)).mean())
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.out = nn.Linear(size, 1)

            def forward(self, x):
                x = torch.relu(self.hidden(x))
                x = self.out(x)
                return x


        print(Net()(torch.ones(2, 4)).mean())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Conv(nn.Module):
            def __init__(self, size=4, skip_transpose=True):
                super().__init__()
                self.conv = nn.Conv1d(size, size, 1)
                self.skip_transpose = skip_transpose

            def forward(self, x):
                if not self.skip_transpose:
                    x = x.transpose(1, 2)
                out = self.conv(x)
                if not self.skip_transpose:  #!
                    out = out.transpose(1, 2)
                    return out


        print(Conv()(torch.ones(2, 4, 3)).mean())
        """,
        good="""
        import torch
        from torch import nn


        class Conv(nn.Module):
            def __init__(self, size=4, skip_transpose=True):
                super().__init__()
                self.conv = nn.Conv1d(size, size, 1)
                self.skip_transpose = skip_transpose

            def forward(self, x):
                if not self.skip_transpose:
                    x = x.transpose(1, 2)
                out = self.conv(x)
                if not self.skip_transpose:
                    out = out.transpose(1, 2)
                return out


        print(Conv()(torch.ones(2, 4, 3)).mean())
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Block(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)

            def forward(self, x):
                F.relu(self.fc(x))  #!


        class Stack(nn.Module):
            def __init__(self, depth=2, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(depth)])

            def forward(self, x):
                for layer in self.layers:  #!
                    x = layer(x)


        class Net(nn.Module):
            def __init__(self, size=4, residual=False):
                super().__init__()
                self.block, self.fc = Block(size), nn.Linear(size, size)
                self.residual = residual

            def forward(self, x):
                if self.residual:
                    return self.fc(x) + x
                else:
                    x = self.fc(x) * 2  #!


        net = Net()
        try:
            print(net.block(torch.ones(1, 4)) + 1)
        except TypeError:
            print(net(torch.ones(1, 4)) + 1)
        """,
        good="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Block(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)

            def forward(self, x):
                return F.relu(self.fc(x))


        class Stack(nn.Module):
            def __init__(self, depth=2, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(depth)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x


        class Net(nn.Module):
            def __init__(self, size=4, residual=False):
                super().__init__()
                self.block, self.fc = Block(size), nn.Linear(size, size)
                self.residual = residual

            def forward(self, x):
                if self.residual:
                    return self.fc(x) + x
                else:
                    x = self.fc(x) * 2
                return x


        net = Net()
        print(net.block(torch.ones(1, 4)) + 1)
        print(net(torch.ones(1, 4)) + 1)
        """,
    ),
]

CLEAN = [
    """
    import abc

    import torch
    from torch import nn


    class Base(nn.Module):
        def forward(self, x):
            raise NotImplementedError


    class Abstract(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x):
            x = x + 1


    class Stats(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))
            self.layer = nn.Linear(2, 2)
            self.watch = nn.Identity()
            self.seen = []

        def forward(self, x):
            y = self.layer(x)
            self.seen.append(y)
            self.total += y.detach().sum()


    class Fill(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, batch):
            out = self.layer(batch["x"])
            batch["y"] = out


    class Kinds(nn.Module):
        def __init__(self, kind="a"):
            super().__init__()
            self.kind = kind
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            h = self.layer(x)
            if self.kind == "a":
                return h.relu()
            elif self.kind == "b":
                return h.tanh()


    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, mode="x"):
            h = self.layer(x)
            if mode == "x":
                return h
            if mode == "y":
                return h + 1

        def log(self, x):
            x = self.layer(x)


    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            while True:
                x = self.layer(x)
                if x.sum() < 1e9:
                    return x


    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, xs):
            for x in xs:
                y = self.layer(x)
                yield y


    x = torch.ones(2)
    print(Stats()(x), Fill()({"x": x}), Kinds()(x), Chosen()(x), list(Steps()([x])), Abstract)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Forward methods of Modules with an end that returns nothing though a result was computed."""
    if PurePath(model.source.path).name.startswith("modular_"):
        return  # templates, in which the body of a parent's method stands for itself
    for cls in model.classes:
        forward = cls.methods.get("forward") if cls.is_module else None
        if forward is None or forward.is_generator or not isinstance(forward.node, ast.FunctionDef):
            continue
        if any(name.endswith(("abstractmethod", "property")) for name in forward.decorators):
            continue
        for stmt in open_ends(forward.node.body):
            lost = lost_value(model, forward, stmt)
            if lost is not None:
                yield Hit(stmt, "forward ends here without `return`, so calling the module gives None",
                          confidence=lost.sure)


def open_ends(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The last statements of paths that run off the end of a body; an `if` or loop that may be passed over counts."""
    match body[-1]:
        case ast.Return() | ast.Raise() | ast.Try() | ast.Continue() | ast.Break():
            return
        case ast.If(body=yes, orelse=no) as last:
            yield from open_ends(yes)
            if no:
                yield from open_ends(no)
            else:
                yield last
        case ast.With(body=inner):
            yield from open_ends(inner)
        case ast.While(test=ast.Constant(value=True)):
            return
        case last:
            yield last


def lost_value(model: FileModel, forward: FunctionInfo, stmt: ast.stmt) -> Value | None:
    """The result that a last statement computes, or passes over, and that nothing reads."""
    match stmt:
        case ast.Assign(targets=[target], value=value) if not reads_later(model, forward, target, stmt):
            return computed(model.value(value))
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
            return None if reads_later(model, forward, target, stmt) else computed(model.value(value))
        case ast.AugAssign(target=ast.Name() as target) if not reads_later(model, forward, target, stmt):
            return None if is_parameter(forward, target.id) else computed(model.value(target))
        case ast.Expr(value=ast.Call() as call) if pure(model, call):
            return computed(model.value(call))
        case ast.For(body=body, orelse=[]):
            names = {node.id for node in ast.walk(stmt) if isinstance(node, ast.Name)}
            match body[-1]:
                case ast.Assign(targets=[ast.Name(id=name) as target], value=value) if name in names:
                    return None if reads_later(model, forward, target, stmt) else computed(model.value(value))
        case ast.If() if returns_only_in(forward, stmt):
            return computed_before(model, forward, stmt)
    return None


def computed(value: Value) -> Value | None:
    """A tensor, or a tuple that has one."""
    if value.is_tensor or any(part.is_tensor for part in value.elements or ()):
        return value
    return None


def is_parameter(forward: FunctionInfo, name: str) -> bool:
    """Whether a name is an argument of forward, which `+=` may change for the caller."""
    return any(arg.arg == name for arg in (*forward.params, *forward.args.kwonlyargs))


def reads_later(model: FileModel, forward: FunctionInfo, target: ast.expr, stmt: ast.stmt) -> bool:
    """Whether what a statement binds is more than local names that nothing reads behind the statement."""
    targets = list(names_in(target))
    here = model.position(stmt)
    end = max(model.position(node) for node in ast.walk(stmt) if model.holds(node))
    for one in targets:
        if not isinstance(one, ast.Name) or one.id in model.scope_of(forward.node).nonlocals:
            return True
        for use in model.uses(one.id, forward.node):
            inside = here <= model.position(use) <= end or model.place(use).excludes(model.place(stmt))
            if not inside and (model.position(use) > end or model.owner(use) is not forward.node):
                return True
    return all(isinstance(one, ast.Name) and one.id == "_" for one in targets)


def names_in(target: ast.expr) -> Iterator[ast.expr]:
    """The parts of a target, tuples opened."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from names_in(part)
    else:
        yield target


def pure(model: FileModel, call: ast.Call) -> bool:
    """Whether a call is of a function of torch, or of a layer, that does nothing but compute."""
    name = model.name_of(call.func)
    if name.startswith("torch."):
        return not name.endswith("_") and not any(k.arg in ("out", "inplace") for k in call.keywords)
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="forward"):
            return True
    value = model.value(call.func)
    return value.kind is Kind.MODULE and (value.cls is not None or value.name.startswith("torch.nn."))


def returns_only_in(forward: FunctionInfo, test: ast.If) -> bool:
    """Whether all values that forward returns are returned in one arm of a last `if` without `else`."""
    if test.orelse:
        return False
    inside = {id(node) for node in ast.walk(test)}
    returned = [node for node in forward.own_nodes if isinstance(node, ast.Return)]
    return bool(returned) and all(id(node) in inside and not none(node.value) for node in returned)


def none(value: ast.expr | None) -> bool:
    """`return` or `return None`."""
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def computed_before(model: FileModel, forward: FunctionInfo, test: ast.If) -> Value | None:
    """A tensor that forward computes ahead of the `if`, on every path, for use in its arm only."""
    read = {node.id for stmt in test.body for node in ast.walk(stmt) if isinstance(node, ast.Name)}
    outer = model.place(test).guards
    for name in sorted(read):
        bound = [
            node for node in model.scope_of(forward.node).bindings.get(name, ())
            if isinstance(node, ast.Assign) and model.position(node) < model.position(test)
        ]
        arms = [dict(model.place(node).guards[len(outer):]) for node in bound]
        always = any(not arm for arm in arms) or any(
            len(one) == 1 and any(len(other) == 1 and other == {node: not taken for node, taken in one.items()}
                                  for other in arms) for one in arms)
        values = [model.value(node.value) for node in bound]
        found = next((value for value in values if computed(value) is not None), None)
        if always and found is not None:
            return found
    return None
