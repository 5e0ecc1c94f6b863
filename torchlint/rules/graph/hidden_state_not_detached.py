"""State of one iteration that the next iteration's backward goes through again.

The state that a recurrent net returns carries the graph of the step that made it. Fed into the next forward,
it joins that graph to the new one, and the next `backward()` walks into nodes whose saved tensors are freed:
"Trying to backward through the graph a second time". With `retain_graph=True` it works, and every step is
slower and larger than the one before.

Detach the state between iterations (`h = h.detach()`, every k steps for truncated backpropagation). State that
is passed on within one sequence, with one backward behind the loop, is right as it is.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Either, GraphGrows, Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, Grad, Value
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL202", "hidden-state-not-detached", Severity.ERROR, fix=Safety.UNSAFE, triggers=("backward",))
CLAIM = Either((
    Raises("RuntimeError", "backward through the graph a second time|modified by an inplace operation"), GraphGrows()))

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 3
        cell = nn.GRUCell(2, 3)
        h = torch.zeros(1, 3)
        for _ in range(STEPS):
            h = cell(torch.ones(1, 2), h)  #!
            h.sum().backward()
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 3
        cell = nn.GRUCell(2, 3)
        h = torch.zeros(1, 3)
        for _ in range(STEPS):
            h = cell(torch.ones(1, 2), h.detach())
            h.sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(2, 3, batch_first=True)

            def forward(self, x, state=None):
                out, state = self.rnn(x, state)
                return out.sum(), state


        def train(net, chunks):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            state = None
            for x in chunks:
                loss, state = net(x, state)  #!
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


        train(Net(), torch.ones(5, 1, 4, 2))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(2, 3, batch_first=True)

            def forward(self, x, state=None):
                out, state = self.rnn(x, state)
                return out.sum(), state


        def train(net, chunks):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            state = None
            for x in chunks:
                loss, state = net(x, state)
                state = tuple(s.detach() for s in state)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


        train(Net(), torch.ones(5, 1, 4, 2))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    cell = nn.GRUCell(2, 3)
    for _ in range(2):
        h = torch.zeros(1, 3)
        for t in range(3):
            h = cell(torch.ones(1, 2), h)
        h.sum().backward()
    state = torch.zeros(1, 3)
    for step in range(4):
        if step % 2 == 0:
            state = state.detach()
            loss = 0
        state = cell(torch.ones(1, 2), state)
        loss = loss + state.sum()
        if step % 2 == 1:
            loss.backward()
    """,
    """
    import torch
    from torch import nn


    def cut(state):
        return None if state is None else tuple(s.detach() for s in state)


    rnn = nn.LSTM(2, 3)
    state = None
    for _ in range(3):
        state = cut(state)
        out, state = rnn(torch.ones(1, 1, 2), state)
        out.sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards in a loop whose graph reaches into the iteration before."""
    seen: set[ast.AST] = set()
    for function in (model.tree, *(info.node for info in model.functions)):
        for event in model.flow(function).of("backward"):
            for loop in event.target.carried & set(event.loops):
                place = entry(model, function, event, loop) if event.depth == 0 else None
                if place is not None and place[0] not in seen and not cut_here(model, loop, place[1]):
                    seen.add(place[0])
                    yield Hit(
                        place[0], "backward goes on into the graph of the iteration before; detach what is passed on",
                        detached(model, place[1]), confidence=min(event.target.sure, Confidence.LIKELY))


def entry(model: FileModel, function: ast.AST, event: Event, loop: ast.AST) -> tuple[ast.Call, ast.expr] | None:
    """The first call in the loop that takes a value of the iteration before, and that argument."""
    calls = (call for call in model.nodes(ast.Call)
             if loop in model.place(call).loops and model.owner(call) is function)
    for call in calls:
        for arg in (*call.args, *(k.value for k in call.keywords)):
            if isinstance(arg, (ast.Name, ast.Attribute, ast.Subscript)) and carries(model.value(arg), loop):
                return (call, arg) if model.position(call) < model.position(event.node) else None
    return None


def carries(value: Value, loop: ast.AST) -> bool:
    """Whether a value, or a member of it, has a graph that an earlier iteration made."""
    return any(loop in part.carried and part.grad is not Grad.NO for part in (value, *value.parts()) if part.is_tensor)


def cut_here(model: FileModel, loop: ast.AST, arg: ast.expr) -> bool:
    """Whether the loop detaches that name somewhere, perhaps only every few steps."""
    names = {node.id for node in ast.walk(arg) if isinstance(node, ast.Name)}
    for word in ("detach", "detach_", "data"):
        for node in model.attributes_named(word):
            inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if names & inside and any(parent is loop for parent in model.ancestors(node)):
                return True
    return False


def detached(model: FileModel, arg: ast.expr) -> Repair | None:
    """Detach a single tensor where it enters the iteration."""
    value = model.value(arg)
    if not value.is_tensor or value.optional:
        return None
    return edits.repair("Detach the state", edits.append_method_call(model, arg, ".detach()"))
