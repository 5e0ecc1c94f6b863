"""An element-wise loss between a column of predictions and a flat batch of targets.

`(N, 1)` and `(N,)` do not pair up: broadcasting compares every prediction with every target and gives an
`(N, N)` loss. The mean of that is smallest when all predictions are the mean of the targets, so the model learns
a constant. `mse_loss` and its like warn once; a difference written by hand says nothing.

Give both the same shape: `squeeze(-1)` the predictions, or `unsqueeze(-1)` the targets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.model.losses import loss_calls
from torchlint.model.shapes import COLUMN, FLAT, shape_of
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL521", "loss-broadcast", Severity.ERROR, stable=False, fix=Safety.SHOW,
    triggers=("Linear", "unsqueeze", "view", "reshape", "keepdim", "mse", "MSE", "l1_loss", "L1Loss", "uber"),
)
CLAIM = OutputsDiffer()
ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
AVERAGING = {"mean", "sum"}
POINTWISE = {"abs", "pow", "square"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        x, y = torch.randn(8, 3), torch.randn(8)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for features, target in DataLoader(TensorDataset(x, y), batch_size=4):
            loss = F.mse_loss(model(features), target)  #!
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        x, y = torch.randn(8, 3), torch.randn(8)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for features, target in DataLoader(TensorDataset(x, y), batch_size=4):
            loss = F.mse_loss(model(features).squeeze(-1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class QNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 8)
                self.head = nn.Linear(8, 2)

            def forward(self, state):
                return self.head(torch.relu(self.body(state)))


        def update(online, target, state, action, criterion):
            current = online(state).gather(1, action.unsqueeze(-1))
            best = target(state).max(1)[0].detach()
            expected = 0.9 * best
            return criterion(current, expected)  #!


        torch.manual_seed(0)
        loss = update(QNet(), QNet(), torch.randn(5, 4), torch.zeros(5, dtype=torch.long), nn.SmoothL1Loss())
        """,
        good="""
        import torch
        from torch import nn


        class QNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 8)
                self.head = nn.Linear(8, 2)

            def forward(self, state):
                return self.head(torch.relu(self.body(state)))


        def update(online, target, state, action, criterion):
            current = online(state).gather(1, action.unsqueeze(-1))
            best = target(state).max(1)[0].detach()
            expected = 0.9 * best
            return criterion(current.squeeze(-1), expected)


        torch.manual_seed(0)
        loss = update(QNet(), QNet(), torch.randn(5, 4), torch.zeros(5, dtype=torch.long), nn.SmoothL1Loss())
        """,
    ),
    Example(
        bad="""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        target = torch.randn(6)
        prediction = model(torch.randn(6, 3))
        loss = (prediction - target).pow(2).mean()  #!
        """,
        good="""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        target = torch.randn(6)
        prediction = model(torch.randn(6, 3))
        loss = (prediction.squeeze(-1) - target).pow(2).mean()
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(3, 1)
    x, y = torch.randn(8, 3), torch.randn(8)
    F.mse_loss(model(x).squeeze(1), y)
    F.mse_loss(model(x), y.unsqueeze(1))
    F.mse_loss(model(x), y[:, None])
    F.mse_loss(model(x).view(-1), y)
    F.l1_loss(model(x)[:, 0], y)
    F.mse_loss(model(x), torch.tensor([1.0]))
    distances = (y.unsqueeze(-1) - y).abs()
    print(distances.argmin(1), (model(x) * y).shape)


    def loss(prediction, target):
        return F.mse_loss(prediction, target)


    loss(model(x), torch.randn(8, 1))
    """,
    """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset


    class Data(Dataset):
        def __init__(self):
            self.y = torch.randn(8, 1)

        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.ones(3), self.y[i]


    model = nn.Linear(3, 1)
    for x, y in DataLoader(Data(), batch_size=4):
        nn.MSELoss()(model(x), y)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Element-wise losses whose two sides are a column and a flat batch."""
    pairs: list[tuple[ast.AST, ast.expr, ast.expr]] = [
        (loss.call, loss.input, loss.target) for loss in loss_calls(model, *ELEMENTWISE) if loss.target is not None
    ]
    pairs += [(node, node.left, node.right) for node in model.nodes(ast.BinOp) if is_averaged(model, node)]
    for node, left, right in pairs:
        shapes = {shape_of(model, left): left, shape_of(model, right): right}
        if set(shapes) == {COLUMN, FLAT} and (model.value(left).attached or model.value(right).attached):
            column = shapes[COLUMN]
            yield Hit(
                node,
                "(N, 1) against (N,) broadcasts to (N, N); give both the same shape",
                edits.repair("Drop the last dimension", edits.append_method_call(model, column, ".squeeze(-1)")),
                confidence=min(model.value(left).sure, model.value(right).sure, Confidence.LIKELY),
            )


def is_averaged(model: FileModel, node: ast.BinOp) -> bool:
    """`(a - b).pow(2).mean()`, `((a - b) ** 2).mean()`: a difference of which only the average is used."""
    if not isinstance(node.op, ast.Sub):
        return False
    inner: ast.AST = node
    while True:
        match model.parent(inner):
            case ast.BinOp(left=left, op=ast.Pow()) as outer if left is inner:
                inner = outer
            case ast.Attribute(attr=attr) as outer if attr in POINTWISE or attr in AVERAGING:
                call = model.parent(outer)
                if not isinstance(call, ast.Call) or call.func is not outer:
                    return False
                if attr in AVERAGING:
                    return not call.args and not call.keywords
                inner = call
            case ast.Call(args=[first, *rest]) as outer if first is inner:
                tail = model.name_of(outer.func).rpartition(".")[2]
                if tail in AVERAGING:
                    return not rest and not outer.keywords and model.name_of(outer.func).startswith("torch.")
                if tail not in POINTWISE:
                    return False
                inner = outer
            case _:
                return False
