"""A backward from a tensor of many elements.

`backward()` starts from one number, whose derivative by itself is 1. A tensor of several elements has no such
start, and autograd raises "grad can be implicitly created only for scalar outputs". A loss made with
`reduction="none"` has one element for each sample.

Reduce it first (`loss.mean().backward()`), or pass the gradient to start from.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.model.losses import loss_calls
from torchlint.rule import Example, Hit, Meta

META = Meta("TL222", "backward-on-nonscalar", Severity.ERROR, triggers=("backward",))
CLAIM = Raises("RuntimeError", match="scalar outputs")
LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
          "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
FACTORIES = {"torch.ones", "torch.zeros", "torch.randn", "torch.rand"}
ELEMENTWISE = {"add", "sub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "square", "sigmoid", "tanh",
               "relu", "softmax", "log_softmax", "clamp", "to", "float", "double", "half", "clone", "log1p", "sin",
               "cos", "softplus", "true_divide", "contiguous"}
DEPTH = 8

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        criterion = nn.CrossEntropyLoss(reduction="none")
        weights = torch.tensor([0.5, 1.0])
        loss = criterion(net(torch.ones(2, 2)), torch.tensor([0, 2])) * weights
        loss.backward()  #!
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        criterion = nn.CrossEntropyLoss(reduction="none")
        weights = torch.tensor([0.5, 1.0])
        loss = criterion(net(torch.ones(2, 2)), torch.tensor([0, 2])) * weights
        loss.mean().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net

            def step(self, x, y):
                loss = F.mse_loss(self.net(x), y, reduction="none")
                loss.backward()  #!


        Trainer(nn.Linear(2, 1)).step(torch.ones(4, 2), torch.zeros(4, 1))
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn


        class Trainer:
            def __init__(self, net):
                self.net = net

            def step(self, x, y):
                loss = F.mse_loss(self.net(x), y)
                loss.backward()


        Trainer(nn.Linear(2, 1)).step(torch.ones(4, 2), torch.zeros(4, 1))
        """,
    ),
    Example(
        bad="""
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x ** 2
        y.backward()  #!
        """,
        good="""
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x ** 2
        y.sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn.functional as F
    from torch import nn


    def step(net, x, y, mask, reduction):
        loss = F.mse_loss(net(x), y, reduction="none")
        loss.backward(torch.ones_like(loss))
        loss = F.mse_loss(net(x), y, reduction="none")
        loss = (loss * mask).sum() / mask.sum()
        loss.backward()
        loss = F.mse_loss(net(x), y, reduction=reduction)
        loss.backward()
        F.mse_loss(net(x), y, reduction="none")[0].mean().backward()
        for each in F.cross_entropy(net(x), y, reduction="none"):
            each.backward(retain_graph=True)


    def pull(x):
        return x.sum() / len(x)


    (pull(nn.Linear(2, 4)(torch.ones(1, 2))) * 2).backward()
    torch.ones(1, requires_grad=True).exp().backward()
    torch.ones((), requires_grad=True).exp().backward()
    w = torch.ones(3, requires_grad=True)
    (w @ torch.ones(3)).backward()
    nn.Linear(2, 1)(torch.ones(2)).backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards without a gradient to start from, on values with more than one element."""
    calls = [call for call in model.calls_named("backward") if starts_alone(call)]
    if not calls:
        return
    unreduced = {loss.call for loss in loss_calls(model, *LOSSES)
                 if (reduction := loss.options.get("reduction")) is not None and reduction.const == "none"}
    for call in calls:
        if isinstance(call.func, ast.Attribute) and many(model, call.func.value, unreduced):
            yield Hit(call, "this value has one element per sample and backward needs a scalar; reduce it first",
                      confidence=Confidence.LIKELY)


def starts_alone(call: ast.Call) -> bool:
    """Whether a call of backward passes no gradient."""
    return not call.args and all(k.arg in ("retain_graph", "create_graph", "inputs") for k in call.keywords)


def many(model: FileModel, expr: ast.expr, unreduced: set[ast.Call], depth: int = 0) -> bool:
    """Whether an expression is a tensor of several elements."""
    value = model.value(expr)
    if not value.is_tensor or depth > DEPTH or value.optional or value.name.endswith("__getitem__"):
        return False
    match expr:
        case ast.Name() | ast.Attribute():
            site = value.site
            return (isinstance(site, ast.expr) and site is not expr and model.holds(site)
                    and not isinstance(site, (ast.Name, ast.Attribute)) and many(model, site, unreduced, depth + 1))
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return many(model, left, unreduced, depth + 1) or many(model, right, unreduced, depth + 1)
        case ast.UnaryOp(operand=operand):
            return many(model, operand, unreduced, depth + 1)
        case ast.Call() if expr in unreduced:
            return True
        case ast.Call(func=func, args=args) if model.name_of(func) in FACTORIES:
            return elements(args) > 1
        case ast.Call(func=ast.Name(id=tail) | ast.Attribute(attr=tail)) if tail in ELEMENTWISE and (
                value.name.rpartition(".")[2] == tail):
            return operand_is_many(model, expr, unreduced, depth)
        case ast.Call(func=func):
            return wide_layer(model, func)
    return False


def operand_is_many(model: FileModel, call: ast.Call, unreduced: set[ast.Call], depth: int) -> bool:
    """Whether an elementwise operation is given many elements."""
    given = list(call.args)
    if isinstance(call.func, ast.Attribute):
        given.append(call.func.value)
    return any(many(model, each, unreduced, depth + 1) for each in given)


def elements(args: list[ast.expr]) -> int:
    """The number of elements of a factory's literal size; 0 if it is not literal."""
    sizes = args[0].elts if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)) else args
    count = 1 if sizes else 0
    for size in sizes:
        count *= size.value if isinstance(size, ast.Constant) and isinstance(size.value, int) else 0
    return count


def wide_layer(model: FileModel, func: ast.expr) -> bool:
    """Whether a callee is a Linear with several outputs."""
    layer = model.value(func)
    if layer.kind is not Kind.MODULE or layer.name != "torch.nn.Linear" or layer.cls is not None:
        return False
    match layer.site:
        case ast.Call(args=[_, ast.Constant(value=int(outputs)), *_]):
            return outputs > 1
    return False
