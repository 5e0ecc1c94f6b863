"""A bootstrap target, reward plus discounted value, that keeps the graph of the net being trained.

`reward + gamma * net(next_state)` is meant as a number to move towards. With its graph, backward runs through the
net a second time and pulls the target towards the prediction as well: the loss falls, but the gradient is not
that of temporal-difference learning, and values converge slowly or to the wrong place.

Compute the target under `torch.no_grad()`, detach it, or take it from a frozen copy of the net. Consistency losses
that compare two predictions keep both graphs on purpose.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes.detach import detach
from torchlint.model import FileModel, Grad, Kind, Value, graphs
from torchlint.model.losses import loss_calls
from torchlint.rule import Example, Hit, Meta

META = Meta("TL216", "target-not-detached", Severity.ERROR, stable=False, fix=Safety.UNSAFE, triggers=("backward",))
CLAIM = WrongGradient()
LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(2):
            state, reward, after = torch.randn(8, 4), torch.randn(8), torch.randn(8, 4)
            action = torch.randint(2, (8, 1))
            value = net(state).gather(1, action).squeeze(1)
            target = reward + 0.99 * net(after).max(1).values  #!
            loss = F.mse_loss(value, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(2):
            state, reward, after = torch.randn(8, 4), torch.randn(8), torch.randn(8, 4)
            action = torch.randint(2, (8, 1))
            value = net(state).gather(1, action).squeeze(1)
            target = reward + 0.99 * net(after).max(1).values.detach()
            loss = F.mse_loss(value, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        torch.manual_seed(0)


        class Agent:
            def __init__(self):
                self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
                self.optimizer = torch.optim.Adam(self.critic.parameters())
                self.gamma = 0.9

            def learn(self, state, reward, following, done):
                value = self.critic(state)
                future = self.critic(following)
                target = reward + self.gamma * future * (1 - done)  #!
                loss = (target - value).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


        Agent().learn(torch.randn(5, 3), torch.randn(5, 1), torch.randn(5, 3), torch.zeros(5, 1))
        """,
        good="""
        import torch
        from torch import nn

        torch.manual_seed(0)


        class Agent:
            def __init__(self):
                self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
                self.optimizer = torch.optim.Adam(self.critic.parameters())
                self.gamma = 0.9

            def learn(self, state, reward, following, done):
                value = self.critic(state)
                future = self.critic(following)
                target = reward + self.gamma * future.detach() * (1 - done)
                loss = (target - value).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


        Agent().learn(torch.randn(5, 3), torch.randn(5, 1), torch.randn(5, 3), torch.zeros(5, 1))
        """,
    ),
]

CLEAN = [
    """
    import copy

    import torch
    import torch.nn.functional as F
    from torch import nn

    net = nn.Linear(4, 2)
    frozen = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        state, reward, after = torch.randn(8, 4), torch.randn(8), torch.randn(8, 4)
        value = net(state).max(1).values
        with torch.no_grad():
            first = reward + 0.99 * net(after).max(1).values
        second = reward + 0.99 * net(after).max(1).values.detach()
        third = reward + 0.99 * frozen(after).max(1).values
        fourth = (reward + 0.99 * net(after).max(1).values).detach()
        loss = F.mse_loss(value, first) + F.mse_loss(value, second) + F.mse_loss(value, third)
        loss = loss + (value - fourth).pow(2).mean()
        consistency = F.mse_loss(net(state), net(after)) + 0.1 * net(state).pow(2).mean()
        noisy = state + 0.1 * net(state).mean()
        total = loss + 0.5 * consistency + F.mse_loss(net(noisy), net(state))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Targets of regression losses, and what is subtracted from a prediction, that bootstrap with their graph."""
    seen: set[ast.AST] = set()
    for one, other in compared(model):
        for target, prediction in ((one, other), (other, one)):
            made = bootstrap(model, target)
            if made is None or made in seen or not same_net(model, made, prediction):
                continue
            seen.add(made)
            yield Hit(made, "backward runs through this target too and moves it; detach it",
                      detach(model, made), confidence=Confidence.LIKELY)


def compared(model: FileModel) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs that a loss compares: its input and target, or the sides of a difference that is squared or backwarded."""
    for found in loss_calls(model, *LOSSES):
        if found.target is not None:
            yield found.input, found.target
    for node in model.nodes(ast.BinOp):
        if isinstance(node.op, ast.Sub) and model.value(node).attached:
            yield node.left, node.right


def bootstrap(model: FileModel, target: ast.expr) -> ast.BinOp | None:
    """The sum that made a target: something without a graph plus a multiple of something with one."""
    value = model.value(target)
    site: ast.AST | None = target if isinstance(target, ast.BinOp) else value.site
    if not value.attached or not isinstance(site, ast.BinOp) or not isinstance(site.op, ast.Add):
        return None
    for plain, scaled in ((site.left, site.right), (site.right, site.left)):
        if is_multiple(model, scaled) and has_no_graph(model.value(plain)):
            return site
    return None


def is_multiple(model: FileModel, expr: ast.expr) -> bool:
    """`gamma * value`, perhaps under a name, where exactly one factor has a graph."""
    value = model.value(expr)
    site = expr if isinstance(expr, ast.BinOp) else value.site
    if not value.attached or not isinstance(site, ast.BinOp) or not isinstance(site.op, ast.Mult):
        return False
    factors = [model.value(site.left), model.value(site.right)]
    return sum(factor.attached for factor in factors) == 1


def has_no_graph(value: Value) -> bool:
    """A reward: a tensor without a graph, a number, or something from a batch that is not known."""
    if value.is_tensor:
        return value.grad is Grad.NO or (value.grad is Grad.UNKNOWN and isinstance(value.ident, ast.arg))
    return value.kind in (Kind.NUMBER, Kind.UNKNOWN, Kind.NDARRAY) and not value.graph


def same_net(model: FileModel, made: ast.BinOp, prediction: ast.expr) -> bool:
    """Whether a prediction comes from another call of a module that the target comes from, too."""
    target, value = model.value(made), model.value(prediction)
    if not value.attached or graphs.grows_from(value, made):
        return False
    calls = [e for e in model.flow(model.owner(made)).of("call") if e.depth == 0 and e.grad is not False]
    behind = {e.target.ident for e in calls if e.target.ident is not None and graphs.grows_from(target, e.node)
              and not graphs.grows_from(value, e.node)}
    return any(e.target.ident in behind and graphs.grows_from(value, e.node)
               and not graphs.grows_from(target, e.node) for e in calls)
