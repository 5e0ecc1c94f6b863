"""A loss whose only way to the parameters goes through an operation without a derivative.

argmax, comparisons and casts to integers have results without a graph: backward raises "does not require grad".
round, floor and sign have one, but their derivative is zero everywhere: backward runs, and no parameter moves.
An accuracy is such a value: it says how good the model is, and not in which direction it gets better.

Use a smooth loss, such as cross entropy instead of the error rate, or a straight-through estimator
(`x + (x.round() - x).detach()`).
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NoGradient
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Grad
from torchlint.rule import Example, Hit, Meta

META = Meta("TL207", "nondifferentiable-loss", Severity.ERROR, triggers=("backward",))
CLAIM = NoGradient()
CUTTING = {"argmax", "argmin", "argsort", "eq", "ne", "gt", "lt", "ge", "le", "long", "int", "bool", "isclose",
           "logical_and", "logical_or", "count_nonzero"}
DEPTH = 6

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        y = torch.tensor([0, 2])
        predicted = net(torch.ones(2, 2)).argmax(dim=1)  #!
        loss = 1 - (predicted == y).float().mean()
        loss.requires_grad_(True)
        loss.backward()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Linear(2, 3)
        y = torch.tensor([0, 2])
        loss = nn.functional.cross_entropy(net(torch.ones(2, 2)), y)
        loss.backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def step(net, x, y):
            out = torch.sigmoid(net(x))
            loss = (out.round() - y).abs().mean()  #!
            loss.backward()


        step(nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1))
        """,
        good="""
        import torch
        from torch import nn


        def step(net, x, y):
            out = torch.sigmoid(net(x))
            loss = (out - y).abs().mean()
            loss.backward()


        step(nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        net = nn.Linear(2, 2)


        def train(x, y):
            guess = net(x).round()  #!
            loss = F.mse_loss(guess, y)
            loss.backward()


        train(*torch.ones(2, 2, 2).unbind())
        """,
        good="""
        import torch
        import torch.nn.functional as F
        from torch import nn

        net = nn.Linear(2, 2)


        def train(x, y):
            guess = net(x)
            loss = F.mse_loss(guess, y)
            loss.backward()


        train(*torch.ones(2, 2, 2).unbind())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def error_rate(net, x, y):
            predicted = net(x).argmax(dim=1)  #!
            return (predicted != y).float().mean()


        net = nn.Linear(2, 3)
        loss = error_rate(net, torch.ones(2, 2), torch.tensor([0, 2]))
        loss.requires_grad_(True)
        loss.backward()
        """,
        good="""
        import torch
        from torch import nn


        def error_rate(net, x, y):
            return nn.functional.cross_entropy(net(x), y)


        net = nn.Linear(2, 3)
        loss = error_rate(net, torch.ones(2, 2), torch.tensor([0, 2]))
        loss.backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    def accuracy(out, y):
        return (out.argmax(1) == y).float().mean()


    def total(net, x, y):
        out = net(x)
        return nn.functional.cross_entropy(out, y) + accuracy(out, y)


    net = nn.Linear(2, 3)
    x, y = torch.ones(2, 2), torch.tensor([0, 2])
    print(accuracy(net(x), y))
    loss = total(net, x, y)
    loss.backward()
    """,
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    net = nn.Linear(2, 2)


    def distil(x, teacher_logits, weight):
        guess = net(x)
        hard = F.mse_loss(guess.round(), teacher_logits)
        loss = F.mse_loss(guess, teacher_logits) + weight * hard
        loss.backward()


    def commit(encoded):
        loss = (encoded.round() - encoded).pow(2).mean()
        loss.backward()


    distil(torch.ones(2, 2), torch.ones(2, 2), 0.1)
    commit(net(torch.ones(2, 2)))
    """,
    """
    import torch
    from torch import nn

    net = nn.Linear(2, 3)
    x, y = torch.ones(2, 2), torch.tensor([0, 2])
    out = net(x)
    accuracy = (out.argmax(1) == y).float().mean()
    loss = nn.functional.cross_entropy(out, y) + (out.round() - out).detach().sum()
    loss.backward()
    out = net(x)
    straight = out + (out.round() - out).detach()
    straight.sum().backward()
    out = net(x)
    out.gather(1, out.argmax(1, keepdim=True)).sum().backward()
    out = net(x)
    out[out > 0].sum().backward()
    out = net(x)
    (out * (out > 0).float()).sum().backward()
    total = torch.zeros((), requires_grad=True)
    total.backward()
    mask = (x > 0).float()
    total = (mask * net(x).sum()).sum()
    total.backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backward targets without a graph, or with zero gradients only, and the operation that is to blame."""
    for function in (model.tree, *(info.node for info in model.functions)):
        for event in model.flow(function).of("backward"):
            target = target_of(event) if event.depth == 0 else None
            if target is None or not event.target.is_tensor:
                continue
            if event.target.grad is Grad.NO or (event.target.role == "leaf" and not event.target.graph) or (
                    no_graph(model, target, 0)):
                place = cut_in(model, target, 0)
                message = "this has no derivative, so backward reaches no parameter; use a smooth loss"
            else:
                place = flattened(model, target) if event.target.attached else None
                message = "the derivative of this is zero everywhere, so nothing learns; use a smooth loss"
            if place is not None:
                yield Hit(place, message, confidence=Confidence.LIKELY)


def target_of(event: Event) -> ast.expr | None:
    """The expression that backward is called on."""
    match event.node:
        case ast.Call(func=ast.Attribute(value=target), args=[]) | ast.Call(args=[target, *_]):
            return target
    return None


def origin(model: FileModel, expr: ast.expr) -> ast.expr | None:
    """The expression that made the value of a name, here or in a function that returned it; others are their own."""
    if not isinstance(expr, ast.Name):
        return expr
    site = model.value(expr).site
    return site if isinstance(site, ast.expr) and model.has(site) else None


def operands(node: ast.expr) -> list[ast.expr]:
    """What an arithmetic expression or a call computes from."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=inner):
            return [inner]
        case ast.Compare(left=left, comparators=comparators):
            return [left, *comparators]
        case ast.Call(func=ast.Attribute(value=receiver), args=args):
            return [receiver, *args]
        case ast.Call(args=args):
            return list(args)
    return []


def cut_in(model: FileModel, expr: ast.expr, depth: int) -> ast.expr | None:
    """An operation without a derivative of an attached value, among what a value without a graph was made from."""
    node = origin(model, expr)
    if node is None or depth > DEPTH:
        return None
    given = operands(node)
    named = model.value(node).name.rpartition(".")[2]
    word = called(node)
    if (isinstance(node, ast.Compare) or (word in CUTTING and named in (word, "eq"))) and any(
            may_hold_graph(model, each) for each in given):
        return node
    for each in given:
        if not model.value(each).attached and (found := cut_in(model, each, depth + 1)) is not None:
            return found
    return None


def no_graph(model: FileModel, expr: ast.expr, depth: int) -> bool:
    """Whether a value is made of values without a graph and of the function's own labels alone."""
    value = model.value(expr)
    if value.grad is Grad.NO or isinstance(expr, ast.Constant) or is_label(model, expr):
        return True
    node = origin(model, expr)
    if node is None or depth > DEPTH or not value.is_tensor or value.grad is Grad.YES or value.role:
        return False
    if isinstance(node, ast.Call) and not value.name.startswith("torch."):
        return False
    given = [each for each in operands(node) if not model.name_of(each).startswith("torch.")]
    return bool(given) and all(no_graph(model, each, depth + 1) for each in given)


def is_label(model: FileModel, expr: ast.expr) -> bool:
    """A parameter that nothing is known of, in a function that calls the model itself: data, not a prediction."""
    value = model.value(expr)
    if not isinstance(expr, ast.Name) or value.known or not isinstance(value.ident, ast.arg):
        return False
    return any(call.depth == 0 for call in model.flow(model.owner(expr)).of("call"))


def may_hold_graph(model: FileModel, expr: ast.expr) -> bool:
    """Whether a value has a graph, or is the unknown result of a call, such as a model's."""
    value = model.value(expr)
    node = origin(model, expr) if value.known else None
    return value.attached or (value.grad is not Grad.NO and isinstance(expr, (ast.Name, ast.Call)) and (
        not value.known or isinstance(node, ast.Call)) and not isinstance(value.const, (int, float)))


def called(node: ast.expr) -> str:
    """The last name of a callee."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def flattened(model: FileModel, target: ast.expr) -> ast.expr | None:
    """An operation with a zero derivative that every way from a loss to attached values goes through."""
    found: list[ast.expr] = []
    return found[0] if dead(model, target, found, 0) and found else None


def dead(model: FileModel, expr: ast.expr, found: list[ast.expr], depth: int) -> bool:
    """Whether no gradient passes an expression; notes the operations that stop one."""
    value = model.value(expr)
    if is_label(model, expr):
        return True
    if value.grad is Grad.NO or (not (value.is_tensor or value.grad is Grad.YES) and isinstance(expr, ast.Constant)):
        return True
    node = origin(model, expr)
    if node is None or depth > DEPTH or not value.attached or value.role:
        return False
    if zero_gradient(model, node):
        found.append(node)
        return True
    if isinstance(node, ast.Call):
        same = called(node) == value.name.rpartition(".")[2] or model.name_of(node.func) == value.name
        if not value.name.startswith("torch.") or not same:
            return False
    given = [each for each in operands(node) if not isinstance(each, ast.Constant)
             and not model.name_of(each).startswith("torch.")]
    return bool(given) and all(dead(model, each, found, depth + 1) for each in given)


def zero_gradient(model: FileModel, node: ast.expr) -> bool:
    """Whether a call is of round, floor, sign and the like."""
    if not isinstance(node, ast.Call):
        return False
    name, word = model.name_of(node.func), called(node)
    entry = knowledge.function(name) if name.startswith("torch.") else knowledge.method(word)
    made = model.value(node).name
    return entry is not None and entry.overloads[0].zero_grad and made.rpartition(".")[2] == word and len(node.args) < 2
