"""A graph that every step of a loop retains and nothing uses again.

`retain_graph=True` keeps everything that operations saved for backward until the last reference to the loss is
gone, which in a loop is one forward later: two steps' activations are in memory at the same time. It is often
added to silence an error, and then hides that some value carries its graph from step to step.

Drop it. It is needed where a second backward goes through the same graph, and only in the first of them.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import MemoryHeld
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, Flow, graphs, training
from torchlint.model.forms import says_true
from torchlint.rule import Example, Hit, Meta

META = Meta("TL204", "retain-graph-in-loop", Severity.WARNING, fix=Safety.UNSAFE, triggers=("retain_graph",))
CLAIM = MemoryHeld()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in torch.ones(3, 4, 2):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward(retain_graph=True)  #!
            optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in torch.ones(3, 4, 2):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        def train(model, loader, optimizer):
            model.train()
            for x, y in loader:
                out = model(x)
                loss = F.cross_entropy(out, y)
                optimizer.zero_grad()
                loss.backward(retain_graph=True)  #!
                optimizer.step()
                print(loss.item())


        net = nn.Linear(2, 3)
        train(net, [(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))], torch.optim.SGD(net.parameters(), lr=0.1))
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        def train(model, loader, optimizer):
            model.train()
            for x, y in loader:
                out = model(x)
                loss = F.cross_entropy(out, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item())


        net = nn.Linear(2, 3)
        train(net, [(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))], torch.optim.SGD(net.parameters(), lr=0.1))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.net = nn.Linear(2, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def loss(self, x):
                return self.net(x).pow(2).mean()

            def update(self, loss):
                self.optimizer.zero_grad()
                loss.backward(retain_graph=True)  #!
                self.optimizer.step()

            def fit(self, loader):
                for x in loader:
                    loss = self.loss(x)
                    self.update(loss)


        Trainer().fit(torch.ones(3, 4, 2))
        """,
        good="""
        import torch
        from torch import nn


        class Trainer:
            def __init__(self):
                self.net = nn.Linear(2, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def loss(self, x):
                return self.net(x).pow(2).mean()

            def update(self, loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

            def fit(self, loader):
                for x in loader:
                    loss = self.loss(x)
                    self.update(loss)


        Trainer().fit(torch.ones(3, 4, 2))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Recurrent:
        def __init__(self):
            self.net = nn.Linear(2, 2)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)
            self.hidden = torch.zeros(2)

        def loss(self, x):
            self.hidden = torch.tanh(self.net(x) + self.hidden)
            return self.hidden.mean()

        def update(self, loss, again=None):
            loss.backward(retain_graph=True)
            if again is not None:
                again.backward()
            self.optimizer.step()

        def fit(self, loader):
            for x in loader:
                loss = self.loss(x)
                loss.backward(retain_graph=True)
            for x in loader:
                out = self.net(x)
                self.update(out.pow(2).mean(), out.exp().mean())


    Recurrent().fit(torch.ones(3, 4, 2))
    """,
    """
    import torch
    from torch import nn

    net, head = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = []
    state = torch.zeros(4, 2)
    fixed = net(torch.ones(4, 2))
    for x in torch.ones(3, 4, 2):
        optimizer.zero_grad()
        out = net(x)
        near, far = out.pow(2).mean(), head(out).mean()
        near.backward(retain_graph=True)
        far.backward()
        optimizer.step()
    for x in torch.ones(3, 4, 2):
        (net(x) * fixed).mean().backward(retain_graph=True)
        optimizer.step()
    for x in torch.ones(3, 4, 2):
        state = torch.tanh(net(x) + state)
        state.mean().backward(retain_graph=True)
        optimizer.step()
    for x in torch.ones(3, 4, 2):
        out = net(x)
        out.mean().backward(retain_graph=True)
        kept.append(out)
        optimizer.step()


    def once(x):
        loss = net(x).mean()
        loss.backward(retain_graph=True)
        return loss
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Retaining backwards in a loop with a step, whose graph belongs to one iteration and has no other use."""
    for function, flow in training.bodies(model):
        for event in flow.of("backward"):
            call = backward_of(model, event)
            keyword = says_true(call, "retain_graph")
            if call is None or keyword is None or not event.loops or not model.holds(event.loops[-1]):
                continue
            if made_in_round(model, flow, event) and not used_again(model, function, flow, event):
                yield Hit(call, "nothing uses this graph again, yet it is kept through the next forward; drop it",
                          edits.repair("Drop retain_graph", edits.remove_argument(model, call, keyword)),
                          confidence=Confidence.LIKELY)


def backward_of(model: FileModel, event: Event) -> ast.Call | None:
    """The backward itself: of this function, or of a helper that nothing else calls."""
    if event.depth == 0:
        return event.node if isinstance(event.node, ast.Call) else None
    if not isinstance(event.inner, ast.Call) or not model.holds(event.inner):
        return None
    helper = model.function(event.inner)
    if helper is None or len(helper.call_sites) != 1:
        return None
    backwards = [call for call in helper.calls if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"]
    return event.inner if backwards == [event.inner] else None


def made_in_round(model: FileModel, flow: Flow, event: Event) -> bool:
    """Whether every operation of the target's graph is known to be of this iteration, in a loop that steps."""
    loop, target = event.loops[-1], event.target
    if not any(step.loops == event.loops for step in flow.of("step")) or target.carried or not target.attached:
        return False
    inside = set(ast.walk(loop))
    nodes = [key if isinstance(key, ast.AST) else graphs.outermost(key) for key in target.graph
             if not (isinstance(key, tuple) and key[0] == "leaf")]
    return bool(nodes) and all(isinstance(node, ast.AST) and node in inside for node in nodes)


def used_again(model: FileModel, function: ast.AST, flow: Flow, event: Event) -> bool:
    """Whether another backward, a return, a store or unseen code may use the graph after this backward."""
    here = model.position(event.node)
    others = [e for e in flow.of("backward", "autograd_grad") if e.node is not event.node]
    if any(loop in e.loops for e in others for loop in event.loops[-1:]):
        return True
    for node in ast.walk(event.loops[-1]):
        match node:
            case ast.Call(func=ast.Attribute(attr="backward" | "append" | "extend" | "appendleft" | "manual_backward")
                          ) if node not in (event.node, event.inner):
                return True
    for each in flow.of("store", "store_attr", "accumulate", "unknown_call", "setattr"):
        given = (each.value, *each.args)
        if event.loops[-1] in each.loops and any(part.attached for value in given for part in (value, *value.parts())):
            if each.what != "unknown_call" or model.position(each.node) > here:
                return True
    return any(graphs.graph_of(value) & event.target.graph for _, value in flow.return_values)
