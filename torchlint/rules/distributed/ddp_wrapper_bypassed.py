"""A training step that goes around the DistributedDataParallel wrapper.

DDP averages gradients over the ranks because its own `forward` prepares for that. If the wrapped model is called
instead, through `model.module` or the name that it had before, backward fills the gradients of this rank only.
Nothing raises: every rank trains a model of its own, on its own part of the data, and one of them is saved.

Call the wrapper. Reading attributes, saving, and evaluation through `.module` are fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import Event, FileModel, Flow, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL703", "ddp-wrapper-bypassed", Severity.ERROR, fix=Safety.UNSAFE, triggers=("DistributedDataParallel",))
CLAIM = WrongGradient()
DDP = "torch.nn.parallel.DistributedDataParallel"
MOVES = {"to", "cuda", "cpu", "train", "float", "half", "double"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            model = DistributedDataParallel(torch.nn.Linear(3, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                x = torch.full((4, 3), float(rank + 1))
                loss = model.module(x).pow(2).mean()  #!
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        """,
        good="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            model = DistributedDataParallel(torch.nn.Linear(3, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                x = torch.full((4, 3), float(rank + 1))
                loss = model(x).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            net = torch.nn.Linear(3, 1)
            ddp_net = DDP(net)
            optimizer = torch.optim.SGD(ddp_net.parameters(), lr=0.1)
            for step in range(2):
                outputs = net(torch.full((4, 3), float(rank + 1)))  #!
                loss = torch.nn.functional.mse_loss(outputs, torch.zeros(4, 1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        """,
        good="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            net = torch.nn.Linear(3, 1)
            ddp_net = DDP(net)
            optimizer = torch.optim.SGD(ddp_net.parameters(), lr=0.1)
            for step in range(2):
                outputs = ddp_net(torch.full((4, 3), float(rank + 1)))
                loss = torch.nn.functional.mse_loss(outputs, torch.zeros(4, 1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x)


    def train(net, loader, rank):
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y) + model.module.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            print(model.module(x), net(x))
        if rank == 0:
            torch.save(model.module.state_dict(), "model.pt")
            evaluate(model.module, loader)


    @torch.no_grad()
    def evaluate(model, loader):
        return [model(x) for x, _ in loader]


    def plain(net, x, y):
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of a wrapped model in functions that backpropagate and leave the wrapper out."""
    wraps = [call for call in model.nodes(ast.Call) if model.name_of(call.func) == DDP]
    for owner, flow in training.bodies(model):
        backward = [event for event in flow.of("backward") if event.grad is not False]
        if not backward:
            continue
        for call in (c for c in model.nodes(ast.Call) if model.owner(c) is owner):
            wrapper = bypassed(model, call, wraps)
            if wrapper is not None and is_trained(model, flow, call, backward):
                yield Hit(
                    call, "this call goes around DDP, which then averages no gradients; call the wrapper",
                    through_wrapper(model, call, wrapper), confidence=Confidence.LIKELY)


def bypassed(model: FileModel, call: ast.Call, wraps: list[ast.Call]) -> ast.expr | None:
    """The wrapper that a call goes around, as this file spells it; None if it does not."""
    func = call.func
    if isinstance(func, ast.Attribute) and (func.attr == "forward" or is_module(model, func.value)):
        func = func.value
    match func:
        case ast.Attribute(value=receiver) if is_module(model, func):
            return receiver
        case ast.Name(id=name):
            for node in assigned(model, func):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
                    return node.value.value if is_module(model, node.value) else None
            for wrap in wraps:
                target = model.parent(wrap)
                if isinstance(target, ast.Assign) and is_inner(model, func, wrap):
                    first = target.targets[0]
                    if not (isinstance(first, ast.Name) and first.id == name):
                        return first
    return None


def assigned(model: FileModel, name: ast.Name) -> list[ast.AST]:
    """What binds a name where it is used."""
    return next((scope.bindings[name.id] for scope in model.scopes(name) if name.id in scope.bindings), [])


def is_module(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression is `wrapper.module`."""
    match expr:
        case ast.Attribute(value=receiver, attr="module"):
            return "ddp" in model.value(receiver).facts
    return False


def is_inner(model: FileModel, name: ast.Name, wrap: ast.Call) -> bool:
    """Whether a name that is called, behind the wrapping in the same function, is what was wrapped."""
    inner = wrap.args[0] if wrap.args else next((k.value for k in wrap.keywords if k.arg == "module"), None)
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in MOVES:
        inner = inner.func.value
    if not isinstance(inner, ast.Name) or model.owner(wrap) is not model.owner(name):
        return False
    if model.position(wrap) > model.position(name) or model.place(wrap).guards != model.place(name).guards[
            :len(model.place(wrap).guards)]:
        return False
    if not (bound := assigned(model, name)) or model.position(bound[-1]) > model.position(wrap):
        return False
    known = model.value(inner).ident
    return name.id == inner.id or (known is not None and known == model.value(name).ident)


def is_trained(model: FileModel, flow: Flow, call: ast.Call, backward: list[Event]) -> bool:
    """Whether a backward follows in the same loop, with gradients on, and the wrapper is not called there."""
    if model.grad_at(call) is False:
        return False
    loops = model.place(call).loops
    here = loops[-1] if loops else None
    later = [event for event in backward if model.position(event.node) > model.position(call)
             and (here is None or here in event.loops)]
    wrapped = [event for event in flow.of("call") if "ddp" in event.target.facts
               and (here is None or here in event.loops)]
    return bool(later) and not wrapped and reaches(model, call, later)


def reaches(model: FileModel, call: ast.Call, later: list[Event]) -> bool:
    """Whether what the call returned may be part of what is backwarded: by name, or inside the expression."""
    statement = model.statement(call)
    if any(event.node in set(ast.walk(statement)) for event in later):
        return True
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if not names:
        return False
    owner = model.owner(call)
    used: set[str] = set()
    for event in later:
        used |= {n.id for n in ast.walk(event.node) if isinstance(n, ast.Name)}
    for _ in range(6):  # names that the backwarded names were made from
        more = {
            n.id for node in model.nodes(ast.Assign, ast.AugAssign) if model.owner(node) is owner
            if {t.id for t in ast.walk(node) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)} & used
            for n in ast.walk(node) if isinstance(n, ast.Name)
        }
        if more <= used:
            break
        used |= more
    return bool(names & used)


def through_wrapper(model: FileModel, call: ast.Call, wrapper: ast.expr) -> Repair | None:
    """The same call of the wrapper; other methods than forward have to become part of it first."""
    if isinstance(call.func, ast.Attribute) and call.func.attr not in ("module", "forward"):
        return None
    return edits.repair("Call the wrapper", edits.replace_callee(model, call, edits.source_of(model, wrapper)))
