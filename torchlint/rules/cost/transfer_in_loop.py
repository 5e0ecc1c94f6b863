"""A tensor that stays the same, moved to the device in every pass of a loop.

A transfer from ordinary host memory makes Python wait until the copy is done, and everything queued on the device
before it, too. If the tensor does not change in the loop, every copy after the first one is made for nothing.

Move it once, in front of the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WaitsEveryStep
from torchlint.findings import Confidence, Severity
from torchlint.fixes.factory import FIXED, RANDOM
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL607", "transfer-in-loop", Severity.WARNING, triggers=(".to(", ".cuda("))
CLAIM = WaitsEveryStep()
HOST = {f"torch.{name}" for name in FIXED | RANDOM} | {"torch.from_numpy", "torch.as_tensor", "torch.FloatTensor"}
SMALL = 3  # passes of a loop that is not worth a word
DEFAULTS = ("set_default_device", "set_default_tensor_type")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn.functional as F

        STEPS = 4
        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        weights = torch.tensor([1.0, 2.0])
        for batch in torch.ones(STEPS, 4, 3):
            target = torch.zeros(4, dtype=torch.long, device=device)
            loss = F.cross_entropy(net(batch), target, weight=weights.to(device))  #!
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        good="""
        import torch
        import torch.nn.functional as F

        STEPS = 4
        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        weights = torch.tensor([1.0, 2.0], device=device)
        for batch in torch.ones(STEPS, 4, 3):
            target = torch.zeros(4, dtype=torch.long, device=device)
            loss = F.cross_entropy(net(batch), target, weight=weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch

        STEPS = 4


        def evaluate(net, batches, device):
            classes = torch.arange(10).float().unsqueeze(0)
            total = 0.0
            with torch.no_grad():
                for x in batches:
                    expected = (net(x) * classes.to(device)).sum()  #!
                    total += expected
            return total


        evaluate(torch.nn.Linear(3, 10), torch.ones(STEPS, 2, 3), torch.device("cpu"))
        """,
        good="""
        import torch

        STEPS = 4


        def evaluate(net, batches, device):
            classes = torch.arange(10).float().unsqueeze(0).to(device)
            total = 0.0
            with torch.no_grad():
                for x in batches:
                    expected = (net(x) * classes).sum()
                    total += expected
            return total


        evaluate(torch.nn.Linear(3, 10), torch.ones(STEPS, 2, 3), torch.device("cpu"))
        """,
    ),
]

CLEAN = [
    """
    import torch


    def fine(net, batches, device, devices):
        mask = torch.ones(3)
        bias = torch.zeros(3)
        noise = torch.zeros(3)
        placed = torch.zeros(3, device=device)
        for x in batches:
            x = x.to(device)
            mask = mask.to(device)
            noise.normal_()
            y = net(x) * mask + noise.to(device) + placed.to(device)
            fresh = torch.ones(3).to(device)
            print(y + fresh)
        copies = [bias.to(each) for each in devices]
        for each in devices:
            copies.append(bias.to(each))
        for kind in (torch.float32, torch.float64):
            copies.append(bias.to(kind))
        return copies
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Moves of tensors that were made on the host before a loop that leaves them as they are."""
    if any(model.calls_named(name) for name in DEFAULTS):
        return
    for name in ("to", "cuda"):
        for call in model.calls_named(name):
            loops = model.place(call).loops
            if not loops or not isinstance(call.func, ast.Attribute):
                continue
            moved = call.func.value
            if isinstance(moved, ast.Attribute) and stored_once(model, moved):
                loop: ast.AST | None = loops[0]
            elif isinstance(moved, ast.Name):
                loop = widest(model, moved, loops)
            else:
                continue
            if loop is None or few_passes(loop) or not is_device(model, call, loop):
                continue
            if on_host(model, moved) and not changed(model, moved, loop):
                yield Hit(
                    call, f"`{ast.unparse(moved)}` is moved to the device again in every pass; move it before the loop",
                    confidence=Confidence.LIKELY)


def stored_once(model: FileModel, expr: ast.Attribute) -> bool:
    """Whether an expression is an attribute of self that only `__init__` sets."""
    cls, function = model.class_of(expr), model.function(expr)
    if cls is None or function is None or not isinstance(expr.value, ast.Name):
        return False
    stores = cls.stores.get(expr.attr, [])
    return expr.value.id == function.self_name and len(stores) == 1 and (
        stores[0][0] is not None and stores[0][0].name == "__init__")


def widest(model: FileModel, name: ast.Name, loops: tuple[ast.AST, ...]) -> ast.AST | None:
    """The outermost loop around a use in which the name is not bound."""
    bound = [node for scope in model.scopes(name) if name.id in scope.bindings for node in scope.bindings[name.id]]
    for loop in loops:
        inside = set(ast.walk(loop))
        if bound and not any(node in inside for node in bound):
            return loop
    return None


def few_passes(loop: ast.AST) -> bool:
    """Whether a loop is over a short literal."""
    match loop:
        case ast.For(iter=ast.Tuple(elts=elts) | ast.List(elts=elts)):
            return len(elts) <= SMALL
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))])):
            return count <= SMALL
    return False


def is_device(model: FileModel, call: ast.Call, loop: ast.AST) -> bool:
    """Whether a move goes to a device, the same one in every pass."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg in ("device", None))]
    if not given:
        return isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"
    target = given[0]
    changing = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = [n for n in ast.walk(target) if isinstance(n, ast.Name)]
    value = model.value(target)
    if isinstance(target, ast.Attribute) and target.attr == "device":
        return True  # the device of what the loop works on
    if any(name.id in changing for name in used) or value.kind is Kind.DTYPE or value.const == "cpu":
        return False
    if value.kind in (Kind.DEVICE, Kind.STRING):
        return True
    word = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
    return any(part in word.lower() for part in ("device", "dev", "rank", "gpu", "cuda"))


def on_host(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether a tensor was surely made in host memory: by a factory without a device, and methods of its result."""
    if depth > 6:
        return False
    if isinstance(expr, (ast.Name, ast.Attribute)):
        value = model.value(expr)
        site = value.site
        if not value.is_tensor or site is None or not model.has(site) or not isinstance(site, ast.expr):
            return False
        return site is not expr and on_host(model, site, depth + 1)
    match expr:
        case ast.Call(func=func, keywords=keywords) if model.name_of(func) in HOST:
            tensors = any(model.value(arg).is_tensor for arg in expr.args)
            around = model.place(expr).withs
            return not tensors and not around and not any(k.arg in ("device", None) for k in keywords)
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr), args=args):
            return attr not in ("to", "cuda", "type", "type_as") and not any(
                model.value(arg).is_tensor for arg in args) and on_host(model, receiver, depth + 1)
        case ast.BinOp(left=left, right=right):
            sides = [side for side in (left, right) if model.value(side).kind is not Kind.NUMBER]
            return bool(sides) and all(on_host(model, side, depth + 1) for side in sides)
    return False


def changed(model: FileModel, expr: ast.Name | ast.Attribute, loop: ast.AST) -> bool:
    """Whether the tensor may change inside the loop: in place, by item, or in code that is handed it."""
    mine = model.value(expr)
    owner = model.owner(loop)
    for event in model.flow(owner).in_loop(loop):
        same = event.target.ident == mine.ident or (mine.storage is not None and event.target.storage == mine.storage)
        if event.what in ("inplace", "data_write", "setitem") and same:
            return True
    text = ast.unparse(expr)
    for node in ast.walk(loop):
        match node:
            case ast.Subscript(value=base, ctx=ast.Store()) | ast.AugAssign(target=base):
                if ast.unparse(base) == text:
                    return True
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr.endswith("_") and not attr.endswith("__"):
                if ast.unparse(base) == text:
                    return True
    return False
