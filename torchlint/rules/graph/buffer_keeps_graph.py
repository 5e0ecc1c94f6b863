"""A buffer or attribute of a Module that takes over its own history in forward.

`self.memory = self.memory + k @ v` stores a value with a graph, and the next forward builds on it. Every call
adds its graph to the last one's: memory grows, and the second `backward()` walks into freed nodes and raises.

Detach what is written (`update.detach()`), or update under `torch.no_grad()`. Values that are replaced by each
forward without reading the old one keep one graph only and are fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphGrows
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Grad, Kind, Value
from torchlint.model.evaluate import path_of
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL203", "buffer-keeps-graph", Severity.ERROR, fix=Safety.UNSAFE, triggers=("Module",))
CLAIM = GraphGrows()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Memory(nn.Module):
            def __init__(self):
                super().__init__()
                self.key = nn.Linear(2, 2)
                self.register_buffer("memory", torch.zeros(2, 2))

            def forward(self, x):
                k = self.key(x)
                out = k @ self.memory
                self.memory = self.memory + k.t() @ k  #!
                return out


        net = Memory()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Memory(nn.Module):
            def __init__(self):
                super().__init__()
                self.key = nn.Linear(2, 2)
                self.register_buffer("memory", torch.zeros(2, 2))

            def forward(self, x):
                k = self.key(x)
                out = k @ self.memory
                self.memory = (self.memory + k.t() @ k).detach()
                return out


        net = Memory()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))
                self.register_buffer("mean", torch.zeros(2))

            def forward(self, x):
                x = x * self.scale
                self.mean = self.mean.lerp(x.mean(0), 0.1)  #!
                return x - self.mean


        net = Norm()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))
                self.register_buffer("mean", torch.zeros(2))

            def forward(self, x):
                x = x * self.scale
                self.mean = self.mean.lerp(x.mean(0), 0.1).detach()
                return x - self.mean


        net = Norm()
        for _ in range(STEPS):
            net(torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Tracker(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(2, 3)
                self.state = None

            def forward(self, x):
                if self.state is None:
                    self.state = torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)
                out, self.state = self.rnn(x, self.state)  #!
                return out


        net, head = Tracker(), nn.Linear(3, 1)
        for _ in range(STEPS):
            features = net(torch.ones(1, 1, 2)).detach()
            head(features).sum().backward()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Tracker(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(2, 3)
                self.state = None

            def forward(self, x):
                if self.state is None:
                    self.state = torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)
                out, self.state = self.rnn(x, self.state)
                self.state = tuple(part.detach() for part in self.state)
                return out


        net, head = Tracker(), nn.Linear(3, 1)
        for _ in range(STEPS):
            features = net(torch.ones(1, 1, 2)).detach()
            head(features).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Controller(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.LSTMCell(2, 2)
                self.h, self.c = torch.zeros(1, 2), torch.zeros(1, 2)

            def forward(self, x):
                h, c = self.cell(x, (self.h, self.c))
                self.h, self.c = h, c  #!
                return h


        net, head = Controller(), nn.Linear(2, 1)
        for _ in range(STEPS):
            features = net(torch.ones(1, 2)).detach()
            head(features).sum().backward()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Controller(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.LSTMCell(2, 2)
                self.h, self.c = torch.zeros(1, 2), torch.zeros(1, 2)

            def forward(self, x):
                h, c = self.cell(x, (self.h, self.c))
                self.h, self.c = h, c
                self.h = self.h.detach()
                self.c = self.c.detach()
                return h


        net, head = Controller(), nn.Linear(2, 1)
        for _ in range(STEPS):
            features = net(torch.ones(1, 2)).detach()
            head(features).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Fresh(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 2)
            self.state = None

        def forward(self, x):
            self.state = torch.zeros(1, x.size(1), 2)
            out, self.state = self.rnn(x, self.state)
            return out


    class Restarted(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 2)
            self.state = None

        def forward(self, x):
            out, self.state = self.rnn(x, self.state)
            return out


    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 2)
            self.state = None

        def forward(self, x, first=False):
            if first:
                self.state = None
            out, self.state = self.rnn(x, self.state)
            return out


    class Repacked(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 2)
            self.state = None

        def forward(self, x):
            out, self.state = self.rnn(x, self.state)
            self.state = tuple(part.detach() for part in self.state)
            return out


    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 2)
            self.state = None

        def forward(self, x):
            if self.state is not None:
                self.state = tuple(part.detach() for part in self.state)
            out, self.state = self.rnn(x, self.state)
            return out


    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 2)
            self.state = None

        def forward(self, x):
            self.state = repackage(self.state)
            out, self.state = self.rnn(x, self.state)
            return out


    def repackage(h):
        if isinstance(h, torch.Tensor):
            return h.detach()
        return tuple(repackage(v) for v in h) if h is not None else None


    net = Restarted()
    for sequence in torch.ones(2, 3, 1, 1, 2):
        net.state = None
        for x in sequence:
            net(x)
    Fresh()(torch.ones(1, 1, 2))
    Cut()(torch.ones(1, 1, 2), first=True)
    Repacked()(torch.ones(1, 1, 2))
    Before()(torch.ones(1, 1, 2)).sum().backward()
    Packed()(torch.ones(1, 1, 2)).sum().backward()
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("count", torch.zeros(()))
            self.features = None

        def forward(self, x):
            out = self.layer(x)
            self.features = out
            self.mean = self.mean.to(x)
            self.count = self.count + 1
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * out.mean(0)
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            return out - self.mean


    Net()(torch.ones(1, 2)).sum().backward()
    """,
    """
    import torch
    from torch import nn


    class Detaching(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 2)
            self._h = None

        @property
        def h(self):
            return self._h

        @h.setter
        def h(self, value):
            self._h = value.detach()

        def forward(self, x):
            out, self.h = self.rnn(x, self.h)
            return out


    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 2)
            self.state = None

        def forward(self, x, first=False):
            out, self.state = self.rnn(x, None if first else self.state)
            return out


    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 2)
            self.last = None

        def forward(self, x, first=False):
            if first:
                h = torch.zeros(1, 1, 2)
            else:
                h = self.last
            out, h = self.rnn(x, h)
            self.last = h
            return out


    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))
            self.freeze()

        def freeze(self):
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(False)

        def forward(self, x):
            x = self.net(x)
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean


    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.scale.requires_grad = False
            self.mean = torch.zeros(2)

        def forward(self, x):
            self.mean = self.mean + x * self.scale
            return x


    for net in (Detaching(), First(), Other()):
        net(torch.ones(2, 1, 2)).sum().backward()
    Frozen()(Still()(torch.ones(1, 2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Assignments to attributes of Modules whose new value holds the old one in its graph."""
    assigns: list[ast.Assign | ast.AugAssign] = [*model.nodes(ast.Assign), *model.nodes(ast.AugAssign)]
    for assign in assigns:
        info = model.function(assign)
        if info is None or info.cls is None or not model.grad_at(assign):
            continue
        kept = [(target, value) for target, value in stored(model, assign)
                if value.attached_parts() and updates(info, target) and stays(model, info.cls, target.attr)
                and builds_on(model, assign, target, info) and not cut(model, path_of(target))
                and not cut_later(model, assign, info, target.attr)]
        if kept:
            paths = " and ".join(f"`{path_of(target)}`" for target, _ in kept)
            take = "takes" if len(kept) == 1 else "take"
            yield Hit(assign, f"{paths} {take} every earlier call's graph along; detach what is kept",
                      detached(model, assign, kept), confidence=min(value.sure for _, value in kept))


def stored(model: FileModel, assign: ast.Assign | ast.AugAssign) -> Iterator[tuple[ast.Attribute, Value]]:
    """The attributes that a statement assigns to, and what each gets: `out, self.state = rnn(x, self.state)`."""
    value = model.value(assign.value)
    match assign.targets[0] if isinstance(assign, ast.Assign) else assign.target:
        case ast.Attribute() as target:
            yield target, value
        case ast.Tuple(elts=elts) if len(elts) == len(value.elements or ()):
            yield from ((elt, part) for elt, part in zip(elts, value.elements or (), strict=True)
                        if isinstance(elt, ast.Attribute))


def detached(
    model: FileModel, assign: ast.Assign | ast.AugAssign, kept: list[tuple[ast.Attribute, Value]]
) -> Repair | None:
    """Detach what is kept: in the assignment, or behind it if the statement assigns several results."""
    made = []
    for target, value in kept:
        path = path_of(target)
        alone = isinstance(assign, ast.AugAssign) or assign.targets[0] is target
        if alone and value.is_tensor:
            made.append(edits.append_method_call(model, assign.value, ".detach()"))
        elif value.is_tensor:
            made.append(edits.insert_after(model, assign, f"{path} = {path}.detach()"))
        elif isinstance(assign, ast.Assign) and value.kind is Kind.TUPLE and all(p.is_tensor for p in value.parts()):
            text = f"{path} = tuple(part.detach() for part in {path})"
            made.append(edits.insert_after(model, assign, text))
        else:
            return None
    return edits.repair("Detach what is kept", *made)


def updates(info: FunctionInfo, target: ast.Attribute) -> bool:
    """Whether a method of a Module, other than `__init__`, assigns to an attribute of the instance."""
    return (info.cls is not None and info.cls.is_module and info.name not in ("__init__", "setup")
            and info.cls.method(target.attr) is None  # a property's setter may detach
            and path_of(target) == f"{info.self_name}.{target.attr}")


def builds_on(model: FileModel, assign: ast.Assign | ast.AugAssign, kept: ast.Attribute, info: FunctionInfo) -> bool:
    """Whether the new value is computed from the old one, directly or by way of a local name."""
    if isinstance(assign, ast.AugAssign):
        return True
    return any(holds_graph(model.value(source)) for source in readers(model, assign, path_of(kept), info))


def readers(model: FileModel, assign: ast.Assign, path: str, info: FunctionInfo) -> Iterator[ast.expr]:
    """What is assigned, and what its local names were assigned before, as far as that reads an attribute."""
    names = {n.id for n in ast.walk(assign.value) if isinstance(n, ast.Name)}
    earlier = [other.value for other in info.own_nodes if isinstance(other, ast.Assign) and names & locals_of(other)
               and model.position(other) < model.position(assign)]
    for source in (assign.value, *earlier):
        if any(path_of(node) == path and not on_condition(model, node, path, assign)
               for node in ast.walk(source) if isinstance(node, ast.Attribute)):
            yield source


def locals_of(assign: ast.Assign) -> set[str]:
    """The local names that an assignment binds: `h, c = self.cell(x, state)`."""
    target = assign.targets[0]
    return {elt.id for elt in getattr(target, "elts", [target]) if isinstance(elt, ast.Name)}


def on_condition(model: FileModel, node: ast.AST, path: str, assign: ast.AST) -> bool:
    """Whether one arm alone reads an attribute, whatever it holds, on the way to an assignment.

    `None if first else self.state`, or the same as a statement: the other arm starts anew.
    """
    around = set(model.ancestors(assign))
    for up in model.ancestors(node):
        if isinstance(up, (ast.If, ast.IfExp)) and up not in around:
            arms = [part if isinstance(part, list) else [part] for part in (up.test, up.body, up.orelse)]
            if sum(any(path_of(n) == path for part in arm for n in ast.walk(part)) for arm in arms) == 1:
                return True
    return False


def holds_graph(value: Value) -> bool:
    """Whether what reads the old value may go on with its graph."""
    return any(part.is_tensor and part.grad is not Grad.NO for part in (value, *value.parts()))


def stays(model: FileModel, cls: ClassInfo, name: str) -> bool:
    """A buffer, or an attribute that forward alone goes on writing, so that nothing ever starts it anew."""
    if any(isinstance(node.ctx, ast.Store) and not belongs(model, node) for node in model.attributes_named(name)):
        return False  # `net.state = None` between two sequences
    stores = [(method, statement) for method, statement, _ in cls.stores.get(name, ()) if method is not None]
    makers = {method.name for method, _ in stores} - {"__init__"}
    if cls.registered_as(name) != "buffer" and (makers != {"forward"} or not model.calls_named("backward")):
        return False  # what trains the model, in another file, may start the state anew
    return not any(restarts(model, method, statement, name) for method, statement in stores
                   if method.name == "forward" and model.holds(statement))


def belongs(model: FileModel, node: ast.Attribute) -> bool:
    """Whether an attribute is one of the instance whose method it stands in."""
    info = model.function(node)
    return info is not None and isinstance(node.value, ast.Name) and node.value.id == info.self_name


def restarts(model: FileModel, method: FunctionInfo, statement: ast.AST, name: str) -> bool:
    """Whether a statement of forward sets an attribute to something that does not hold its old value's graph.

    Where the attribute is tested for None, that happens in the first call alone.
    """
    path = f"{method.self_name}.{name}"
    if isinstance(statement, ast.AugAssign):
        return False
    if isinstance(statement, ast.Assign) and any(readers(model, statement, path, method)):
        # `self.state = tuple(part.detach() for part in self.state)`, or a helper that does it
        return not model.value(statement.value).attached_parts()
    tests = [guard.test for guard, _ in model.place(statement).guards if isinstance(guard, ast.If)]
    return not any(isinstance(node, ast.Compare) and path_of(node.left) == path and isinstance(node.ops[0], ast.Is)
                   for test in tests for node in ast.walk(test))


def cut(model: FileModel, path: str) -> bool:
    """Whether the file detaches the attribute itself somewhere."""
    words = ("detach", "detach_", "data")
    return any(path_of(node.value) == path for word in words for node in model.attributes_named(word))


def cut_later(model: FileModel, assign: ast.AST, info: FunctionInfo, name: str) -> bool:
    """Whether a later statement of the method sets the attribute to what surely or perhaps has no graph."""
    stores = info.cls.stores.get(name, ()) if info.cls is not None else ()
    return any(method is info and value is not None and model.position(statement) > model.position(assign)
               and not model.value(value).attached_parts() for method, statement, value in stores)
