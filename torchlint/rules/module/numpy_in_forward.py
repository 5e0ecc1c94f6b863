"""Arrays of numpy on the differentiable path of forward.

numpy knows nothing of autograd. `.numpy()` of a tensor that requires grad raises, `.detach().numpy()` cuts the
graph: what is computed from it and turned back into a tensor is a constant, and the layers before it get no
gradient. On a GPU each such step also copies to the host and waits.

Use torch's own functions. Shapes, constants and values under `no_grad` may go through numpy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoGradient
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, FunctionInfo, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL427", "numpy-in-forward", Severity.WARNING, triggers=("numpy",))
CLAIM = NoGradient()
BACK = {"torch.from_numpy", "torch.as_tensor", "torch.tensor", "torch.Tensor", "torch.FloatTensor", "torch.asarray"}

EXAMPLES = [
    Example(
        bad="""
        import numpy as np
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 3)

            def forward(self, x):
                h = self.fc(x)
                scaled = np.tanh(h.detach().numpy())  #!
                return torch.from_numpy(scaled)


        net = Net()
        loss = net(torch.ones(2, 3)).sum() + 0 * net.fc.bias.sum()
        loss.backward()
        """,
        good="""
        import numpy as np
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 3)

            def forward(self, x):
                h = self.fc(x)
                scaled = torch.tanh(h)
                return scaled


        net = Net()
        loss = net(torch.ones(2, 3)).sum() + 0 * net.fc.bias.sum()
        loss.backward()
        """,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.seen = []

        def forward(self, x):
            size = np.prod(x.shape)
            window = torch.from_numpy(np.hanning(3).astype(np.float32))
            h = self.fc(x) * window / size
            self.seen.append(h.detach().numpy())
            with torch.no_grad():
                indices = torch.from_numpy(np.argsort(h.numpy()))
            return h, indices
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Reads of attached tensors as arrays in forward, where an array becomes a tensor again."""
    for function in model.functions:
        if function.name != "forward" or function.cls is None or not function.cls.is_module:
            continue
        if not comes_back(model, function):
            continue
        for event in model.flow(function.node).of("host_read"):
            array = event.name == "numpy" or event.name.startswith("numpy.")
            if array and not event.depth and event.grad is not False and had_graph(model, event.node, event.target):
                yield Hit(
                    event.node, "numpy cuts the graph here: layers before it get no gradient; use torch",
                    confidence=min(Confidence.LIKELY, event.target.sure))
                break


def comes_back(model: FileModel, function: FunctionInfo) -> bool:
    """Whether forward makes a tensor of an array that was computed from a tensor."""
    for call in function.calls:
        if model.name_of(call.func) in BACK and call.args and model.grad_at(call) is not False:
            value = model.value(call.args[0])
            if value.kind is Kind.NDARRAY and reads_tensor(model, call.args[0]):
                return True
    return False


def reads_tensor(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether an array expression is computed from a tensor, through names."""
    for node in ast.walk(expr):
        if isinstance(node, ast.expr) and model.value(node).is_tensor and model.grad_at(node) is not False:
            return True
        if isinstance(node, ast.Name) and depth < 3:
            for scope in model.scopes(node):
                bound = scope.bindings.get(node.id)
                if bound:
                    values = [b.value for b in bound if isinstance(b, ast.Assign)]
                    if any(value is not expr and reads_tensor(model, value, depth + 1) for value in values):
                        return True
                    break
    return False


def had_graph(model: FileModel, node: ast.AST, target: Value) -> bool:
    """Whether the tensor that is read (before its `.detach()`) carries a graph."""
    if target.attached:
        return True
    match node:
        case ast.Call(func=ast.Attribute(value=receiver)):
            while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
                receiver = receiver.func.value
                if model.value(receiver).attached:
                    return True
    return False
