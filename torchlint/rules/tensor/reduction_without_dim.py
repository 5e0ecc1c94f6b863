"""A reduction in forward that does not say over which dimension.

Without `dim` these operations run over the whole tensor, the batch included: `argmax` gives a position in the
flattened tensor, `std` and `norm` one number for all samples, so that what a model computes for a sample depends on
the others in its batch. `flatten()` merges the batch with everything else.

Pass `dim`, for `flatten` the first dimension to merge. Losses and one-dimensional tensors need none.

No claim: over a batch of one, and for statistics that are meant to be global, the result is the intended one.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, FunctionInfo, ranks
from torchlint.rule import Example, Hit, Meta

META = Meta("TL115", "reduction-without-dim", Severity.ADVICE, default=False, triggers=("forward",))
CLAIM = None
# Operations that reduce every dimension by default, with what is passed before the dimension. (`mode` and `median`
# are not among them: `mode` takes the last dimension, `median()` of all is rarely meant per sample.)
BEFORE = {"argmax": 0, "argmin": 0, "std": 0, "var": 0, "norm": 1, "nanmean": 0, "nansum": 0, "quantile": 1,
          "nanquantile": 1, "flatten": 0, "logsumexp": 0}
NAMED = {"dim", "axis", "start_dim", "end_dim"}
SCALARS = ("loss", "criterion", "metric", "penalty", "regular", "divergence", "score")
DEPTH = 6

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Classify(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(3, 4)

            def forward(self, x):
                scores = self.out(x)
                return torch.argmax(scores)  #!


        print(Classify()(torch.ones(2, 3)))
        """,
        good="""
        import torch
        from torch import nn


        class Classify(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(3, 4)

            def forward(self, x):
                scores = self.out(x)
                return torch.argmax(scores, dim=-1)


        print(Classify()(torch.ones(2, 3)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Normalise(nn.Module):
            def forward(self, x):
                x = x / x.norm()  #!
                x = (x - x.mean(1, keepdim=True)) / x.std()  #!
                return x.flatten()  #!


        print(Normalise()(torch.rand(2, 3)))
        """,
        good="""
        import torch
        from torch import nn


        class Normalise(nn.Module):
            def forward(self, x):
                x = x / x.norm(dim=1, keepdim=True)
                x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
                return x.flatten(1)


        print(Normalise()(torch.rand(2, 3)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))

        def forward(self, x, names=()):
            scale = self.weight.norm() + self.weight.std()
            best = x[0].argmax(0)
            flat = x.flatten(1).norm(2, 1)
            row = x.reshape(-1)
            best = best + x.flatten()[best].flatten().reshape(best.shape)
            return x.std(dim=0) * scale, best, flat, row.argmax(), x.view(-1).norm()


    class SmoothLoss(nn.Module):
        def forward(self, x, y):
            return (x - y).norm()


    def measure(x):
        return x.norm(), x.argmax()


    Net()(torch.rand(2, 3))
    SmoothLoss()(torch.rand(2), torch.rand(2))
    measure(torch.rand(2))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Reductions without a dimension, of what a forward was given or has computed from it."""
    for call in model.nodes(ast.Call):
        name = (model.name_of(call.func) or getattr(call.func, "attr", "")).rpartition(".")[2]
        info = model.function(call) if name in BEFORE else None
        if info is None or not is_forward(info):
            continue
        subject = reduced(model, call, BEFORE[name])
        if subject is None or one_dimensional(model, subject) or not of_input(model, subject):
            continue
        if name == "flatten" and indexed(model, call):
            continue
        told = f"`{name}` without a dimension runs over the whole batch at once; pass `dim`"
        if name == "flatten":
            told = "`flatten()` merges the batch with everything else; pass the first dimension to merge"
        yield Hit(call, told, confidence=Confidence.LIKELY)


def is_forward(info: FunctionInfo) -> bool:
    """Whether it is the forward of a Module that does not compute a loss."""
    if info.cls is None or info.name != "forward" or not info.cls.is_module:
        return False
    return not any(word in info.cls.node.name.lower() for word in SCALARS)


def reduced(model: FileModel, call: ast.Call, before: int) -> ast.expr | None:
    """The tensor that a call reduces over all dimensions; None if it names one, or reduces no tensor."""
    if any(keyword.arg is None or keyword.arg in NAMED for keyword in call.keywords):
        return None
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    name = model.name_of(call.func)
    match call:
        case ast.Call(args=[subject, *rest]) if name.startswith("torch.") and not name.startswith("torch.Tensor."):
            return subject if len(rest) <= before else None
        case ast.Call(func=ast.Attribute(value=receiver), args=args) if not name and len(args) <= before:
            return receiver if model.value(receiver).is_tensor else None
    return None


def one_dimensional(model: FileModel, subject: ast.expr) -> bool:
    """Whether the tensor surely has one dimension: its length is all there is to reduce."""
    if ranks.rank(model, subject) == 1:
        return True
    site = model.value(subject).site
    for node in (subject, site):
        match node:
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[ast.UnaryOp()]):
                return True
            case ast.Call(func=ast.Attribute(attr="flatten"), args=[]):
                return True
    return isinstance(subject, ast.Subscript)


def indexed(model: FileModel, call: ast.Call) -> bool:
    """Whether the flat tensor is only looked up in, or given a shape again at once."""
    match model.parent(call):
        case ast.Subscript(value=value):
            return value is call
        case ast.Attribute(attr=attr):
            return attr in ("view", "reshape", "gather", "index_select", "unflatten", "tolist", "numpy", "shape")
    return False


def of_input(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether a value is made of what forward was given, or of what a layer returned."""
    like = {name for call in ast.walk(expr) if isinstance(call, ast.Call) and lends_only(call)
            for arg in (*call.args, *(k.value for k in call.keywords)) for name in ast.walk(arg)}
    for node in ast.walk(expr):
        if not isinstance(node, ast.Name) or node in like:
            continue
        value = model.value(node)
        if value.role == "input" or value.source is not None:
            return True
        site = value.site
        if depth < DEPTH and isinstance(site, ast.expr) and model.holds(site) and site is not node and (
                model.owner(site) is model.owner(node)) and of_input(model, site, depth + 1):
            return True
    return False


def lends_only(call: ast.Call) -> bool:
    """Whether the arguments of a call lend shape, dtype or device, but no values."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.endswith(("_like", "_as")) or name.startswith("new_") or name == "to"
