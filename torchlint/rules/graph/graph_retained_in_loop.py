"""A value that outlives its iteration together with its graph.

A tensor made from parameters holds on to the node that made it, and through it to every node before. Added to
a running sum or put into a list, it keeps the graph of its iteration alive. `backward()` frees the saved
activations but not the nodes; a graph that is never backwarded keeps the activations too, so memory grows by
a whole forward pass for every step until it runs out.

Store `loss.detach()`, or `loss.item()` where one number per step may be waited for. Keeping the graph is right
when the sum or the list is itself backwarded later, or is made anew in every iteration.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import GraphGrows
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.detach import detach, detach_accumulated
from torchlint.model import FileModel, Grad, Kind, Value, keeping, uses
from torchlint.model.keeping import Store
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL201", "graph-retained-in-loop", Severity.ERROR, also=(Severity.WARNING, Severity.ADVICE),
            fix=Safety.SAFE)
CLAIM = GraphGrows()
SHORT = 10  # graphs kept at a time that are no leak; a long window is a memory, full of graphs

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        STEPS = 4


        def fit(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            running = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                running += loss  #!
            return running / len(loader)


        data = TensorDataset(torch.ones(STEPS, 3), torch.ones(STEPS, 1))
        fit(nn.Linear(3, 1), DataLoader(data))
        """,
        good="""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        STEPS = 4


        def fit(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            running = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                running += loss.detach()
            return running / len(loader)


        data = TensorDataset(torch.ones(STEPS, 3), torch.ones(STEPS, 1))
        fit(nn.Linear(3, 1), DataLoader(data))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                self.history = []

            def train_step(self, x):
                self.optimizer.zero_grad()
                loss = self.net(x).pow(2).mean()
                loss.backward()
                self.optimizer.step()
                self.history.append(loss)  #!


        trainer = Trainer(nn.Linear(3, 1))
        for _ in range(STEPS):
            trainer.train_step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                self.history = []

            def train_step(self, x):
                self.optimizer.zero_grad()
                loss = self.net(x).pow(2).mean()
                loss.backward()
                self.optimizer.step()
                self.history.append(loss.detach())


        trainer = Trainer(nn.Linear(3, 1))
        for _ in range(STEPS):
            trainer.train_step(torch.ones(2, 3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Linear(3, 1)
        total = 0.0
        for _ in range(STEPS):
            total = total + net(torch.ones(2, 3)).abs().mean()  #!
        print(f"{total / STEPS:.3f}")
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4
        net = nn.Linear(3, 1)
        total = 0.0
        for _ in range(STEPS):
            total = total + net(torch.ones(2, 3)).abs().mean().detach()
        print(f"{total / STEPS:.3f}")
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Meter:
            def __init__(self):
                self.sum = 0.0
                self.count = 0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n


        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        meter = Meter()
        for _ in range(STEPS):
            loss = net(torch.ones(2, 3)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(loss, 2)  #!
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Meter:
            def __init__(self):
                self.sum = 0.0
                self.count = 0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n


        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        meter = Meter()
        for _ in range(STEPS):
            loss = net(torch.ones(2, 3)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(loss.detach(), 2)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 1)


    class Recorder:
        def run(self, data):
            total = torch.zeros(())
            for x in data:
                total = total + net(x).sum()
            total.backward()
            self.last = total  # one graph, whatever the number of calls


    def parts(nets, x):
        outputs = []
        for i in range(len(nets)):
            outputs.append(nets[i](x))
        print(torch.stack(outputs).sum(0).shape)


    recorder = Recorder()
    for _ in range(3):
        recorder.run(torch.ones(2, 1, 2))
    parts([nn.Linear(2, 1), nn.Linear(2, 1)], torch.ones(1, 2))
    """,
    """
    import torch
    import torch.nn.functional as F


    def mini_batched(model, batches, with_backward=False):
        losses = []
        for batch in batches:
            loss = F.relu(model(batch)).sum()
            if with_backward:
                loss.backward()
                loss = loss.detach()
            losses.append(loss)
        return sum(losses)


    mini_batched(torch.nn.Linear(2, 1), torch.ones(3, 1, 2)).backward()
    mini_batched(torch.nn.Linear(2, 1), torch.ones(3, 1, 2), with_backward=True)
    """,
    # Summed over the terms of one step, then backwarded.
    """
    import torch
    from torch import nn

    net = nn.Linear(3, 1)
    running = 0.0
    for _ in range(4):
        loss = 0.0
        for scale in (1.0, 2.0):
            loss += net(torch.ones(2, 3) * scale).mean()
        loss.backward()
        running += loss.item()
    """,
    # Kept for one backward over all of them.
    """
    import torch
    from torch import nn


    class Agent:
        def __init__(self):
            self.policy = nn.Linear(3, 2)
            self.log_probs = []

        def act(self, steps):
            for _ in range(steps):
                probs = torch.softmax(self.policy(torch.ones(3)), 0)
                self.log_probs.append(torch.log(probs[0]))

        def learn(self):
            (-torch.stack(self.log_probs).sum()).backward()
            self.log_probs.clear()


    agent = Agent()
    agent.act(3)
    agent.learn()
    """,
    # Returned to whoever backwards it.
    """
    import torch
    from torch import nn


    def total_loss(heads, x):
        total = 0.0
        parts = []
        for head in heads:
            part = head(x).mean()
            parts.append(part)
            total = total + part
        return total, parts


    total_loss(nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)]), torch.ones(2, 3))[0].backward()
    """,
    # A few at a time.
    """
    import torch
    from torch import nn

    KEPT = 3
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def train(x):
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


    last, recent, joined = [], [], []
    for x in torch.ones(5, 2, 3):
        loss = train(x)
        last.append(loss)
        last = last[-3:]
        recent.append(loss)
        if len(recent) > KEPT:
            recent.pop(0)
        joined.append(loss)
        joined[:] = joined[-KEPT:]


    class Trainer:
        def __init__(self):
            self.last = []

        def step(self, x):
            self.last.append(train(x))
            self.last = self.last[-3:]


    trainer = Trainer()
    for x in torch.ones(5, 2, 3):
        trainer.step(x)
    """,
    # Under no_grad, or as numbers.
    """
    import torch
    from torch import nn

    net = nn.Linear(3, 1)
    seen, numbers = [], []
    with torch.no_grad():
        for _ in range(3):
            seen.append(net(torch.ones(1, 3)))
    for _ in range(3):
        loss = net(torch.ones(1, 3)).mean()
        loss.backward()
        numbers.append(float(loss.detach()))
    """,
    # Replaced in every iteration: one graph at a time.
    """
    import torch
    from torch import nn

    net = nn.Linear(3, 1)
    best = None
    last = {}
    for _ in range(3):
        loss = net(torch.ones(1, 3)).mean()
        loss.backward()
        last["loss"] = loss
        if best is None or loss < best:
            best = loss
    """,
    # Layer after layer.
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return type("Output", (), {"hidden": x})()


    Net()(torch.ones(1, 2))
    """,
    # The state of a recurrent net within one sequence.
    """
    import torch
    from torch import nn

    cell = nn.GRUCell(3, 4)
    for _ in range(2):
        h = torch.zeros(1, 4)
        outputs = []
        for t in range(5):
            h = cell(torch.ones(1, 3), h)
            outputs.append(h)
        torch.stack(outputs).sum().backward()
    """,
    """
    from collections import deque

    import torch

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    last = deque(maxlen=3)
    for x in torch.ones(5, 4, 2):
        optimizer.zero_grad()
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        last.append(loss)


    def smooth(data, window):
        recent, latest = deque(maxlen=window), []
        for x in data:
            optimizer.zero_grad()
            loss = net(x).mean()
            loss.backward()
            optimizer.step()
            recent.append(loss)
            latest.append(loss)
            if len(latest) > window:
                latest = latest[1:]
        return recent, latest


    def shorten(data):
        kept, left = [], []
        for x in data:
            optimizer.zero_grad()
            loss = net(x).mean()
            loss.backward()
            optimizer.step()
            kept.append(loss)
            left.append(loss)
            if len(kept) > 3:
                del kept[0]
            while len(left) > 3:
                left.pop(0)
        return kept, left
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Stores of attached values that outlive their iteration, or the call of a step."""
    seen: set[ast.AST | None] = set()
    found = [(function, store) for function in (model.tree, *(info.node for info in model.functions))
             for store in keeping.stores(model, function)]
    # A store in a method is reported there if the method itself shows the fault, else where it is called.
    for function, store in sorted(found, key=lambda pair: pair[1].event.depth if pair[1].event is not None else 0):
        inner = store.event.inner if store.event is not None else None
        if store.node in seen or inner in seen - {None}:
            continue
        hit = judged(model, function, store)
        if hit is not None:
            seen |= {store.node, inner}
            yield hit


def judged(model: FileModel, function: ast.AST, store: Store) -> Hit | None:
    """What a store keeps: nodes of a graph that is used up, or a graph that nobody will use."""
    kept = [value.const for value in map(model.value, keeping.limits(model, store)) if value.kind is not Kind.NONE]
    if any(isinstance(limit, int) and 0 <= limit <= SHORT for limit in kept):
        return None
    loops = keeping.growing_loops(model, store)
    grown: list[ast.AST | None] = [*loops]
    if not loops and lives_on(model, function, store):
        grown = [None]
    for loop in reversed(grown):
        used_up = [v for v in store.values if keeping.backwarded(model, function, v, loop, store.node)
                   and not (loop is not None and fed_back(model, function, store, loop))]
        if used_up and None in kept:
            return None  # some nodes, no more than the unknown number
        if used_up:
            window = loop is not None and any(keeping.resets(model, store, loop))
            return Hit(
                store.node, f"`{store.path}` keeps the graph nodes of every iteration; store a detached value",
                repair(model, store, used_up, safe=True),
                Severity.ADVICE if window else Severity.WARNING, min(v.sure for v in used_up))
    if loops and never_used(model, function, store, loops[-1]):
        held = [v for v in store.values if v.grad is Grad.YES]
        return Hit(
            store.node, f"`{store.path}` keeps the graph and activations of every iteration; store a detached value",
            repair(model, store, held, safe=False), confidence=min(v.sure for v in held))
    return None


def lives_on(model: FileModel, function: ast.AST, store: Store) -> bool:
    """Whether the target of a store outlives the function: an attribute, a global or a closure's variable."""
    if isinstance(function, ast.Module):
        return False
    info = model.function_info(function)
    root = store.path.partition(".")[0].partition("[")[0]
    if any(keeping.resets(model, store, function)):
        return False
    if root == info.self_name and "." in store.path:
        return info.name not in ("__init__", "forward")
    scope = model.scope_of(function)
    return root not in scope.bindings or root in scope.nonlocals


def fed_back(model: FileModel, function: ast.AST, store: Store, loop: ast.AST) -> bool:
    """Whether what is kept is itself part of a later iteration's backward: another fault than keeping it."""
    replaced = store.event is None or store.event.what == "store_attr"
    return replaced and any(loop in event.loops and loop in event.target.carried
                            for event in model.flow(function).of("backward"))


def never_used(model: FileModel, function: ast.AST, store: Store, loop: ast.AST) -> bool:
    """Whether graphs that no backward in the loop uses are read as numbers only, or not at all."""
    if not any(value.grad is Grad.YES for value in store.values) or not measures(model, function, store, loop):
        return False
    root, _, rest = store.path.partition(".")
    cls = model.class_of(store.node)
    if cls is not None and cls.is_module:
        return False  # layers after layers
    if rest:
        reads = [node for node in model.attributes_named(rest.rpartition(".")[2]) if isinstance(node.ctx, ast.Load)]
        return all(uses.fates(model, node) <= {uses.READ} for node in reads)
    owner = model.place(store.node).function or model.tree
    if root not in model.scope_of(owner).bindings or root in model.scope_of(owner).nonlocals:
        return False
    loads = [load for load in model.uses(root, owner) if store.node is not model.statement(load)]
    found = set().union(*(uses.fates(model, load) for load in loads if not within(model, load, store.node)))
    return found <= {uses.READ}  # an evaluation that returns them is missing-no-grad


def within(model: FileModel, node: ast.AST, outer: ast.AST) -> bool:
    """Whether a node is part of another."""
    return any(parent is outer for parent in model.ancestors(node))


def measures(model: FileModel, function: ast.AST, store: Store, loop: ast.AST) -> bool:
    """Whether the values come from a module that is called in the loop, not from the loop over its parts."""
    calls = [e for e in model.flow(function).of("call")
             if loop in e.loops and e.grad is not False and not one_of_many(e.node, loop)]
    return bool(calls) and not any(loop in e.loops for e in model.flow(function).of("backward")
                                   if any(keeping.shares(e.target, value) for value in store.values))


def one_of_many(call: ast.AST, loop: ast.AST) -> bool:
    """Whether each pass calls another module: `nets[i](x)`."""
    match call, loop:
        case ast.Call(func=ast.Subscript(slice=ast.Name(id=index))), ast.For(target=ast.Name(id=name)):
            return index == name
    return False


def repair(model: FileModel, store: Store, held: list[Value], *, safe: bool) -> Repair | None:
    """Detach what is stored, where it is stored."""
    statement = model.statement(store.node)
    made: Repair | None = None
    if store.event is not None and store.event.depth:
        made = detach_argument(model, store.node, held)
    else:
        match statement:
            case ast.Expr(value=ast.Call(args=[ast.Tuple(elts=elts) | ast.List(elts=elts)])):
                parts = [edits.append_method_call(model, e, ".detach()") for e in elts if model.value(e).attached]
                made = edits.repair("Keep the values without their graphs", *parts)
            case ast.Expr(value=ast.Call(args=[*_, last])) if model.value(last).kind is not Kind.LIST:
                made = detach(model, last)
            case _:
                made = detach_accumulated(model, statement)
    if made is None or safe:
        return made
    return Repair(made.title, made.edits, made.imports, Safety.UNSAFE)


def detach_argument(model: FileModel, call: ast.AST, held: list[Value]) -> Repair | None:
    """Detach the arguments of a method that keeps them."""
    if not isinstance(call, ast.Call):
        return None
    args = [arg for arg in (*call.args, *(k.value for k in call.keywords)) if model.value(arg).attached]
    return detach(model, args[0]) if len(args) == 1 else None
