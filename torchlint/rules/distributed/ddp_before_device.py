"""DistributedDataParallel around a model that is still on the CPU.

The constructor takes the parameters as they are: it compares and broadcasts them over the process group, makes its
communication buffers on their device, and checks `device_ids` against it. With NCCL, or with `device_ids`, a model on
the CPU is an error at that point; with gloo the buffers stay on the CPU when the model moves away from them later.

Move the model first, then wrap it, then make the optimizer.

No claim: what goes wrong needs an accelerator, and examples have to run on every machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL705", "ddp-before-device", Severity.WARNING, fix=Safety.UNSAFE, triggers=("DistributedDataParallel",))
CLAIM = None
DDP = "torch.nn.parallel.DistributedDataParallel"
MOVES = {"to", "cuda", "xpu", "to_empty"}
DEVICE_WORDS = ("device", "rank", "gpu", "cuda")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP


        def build(rank):
            net = nn.Linear(4, 2)
            model = DDP(net, device_ids=[rank])  #!
            model.to(rank)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        """,
        good="""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP


        def build(rank):
            net = nn.Linear(4, 2)
            model = DDP(net.to(rank), device_ids=[rank])
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def build(device):
            return nn.parallel.DistributedDataParallel(nn.Linear(4, 2)).to(device)  #!
        """,
        good="""
        import torch
        from torch import nn


        def build(device):
            return nn.parallel.DistributedDataParallel(nn.Linear(4, 2).to(device))
        """,
    ),
    Example(
        bad="""
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        def build(rank):
            net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
            return DistributedDataParallel(net, device_ids=[rank])  #!
        """,
        good="""
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        def build(rank):
            net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
            return DistributedDataParallel(net.to(rank), device_ids=[rank])
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP


    def moved(rank, device, prepare):
        first = DDP(nn.Linear(2, 2).to(rank), device_ids=[rank])
        net = nn.Linear(2, 2)
        net.cuda()
        second = DDP(net, device_ids=[rank])
        other = prepare(nn.Linear(2, 2))
        third = DDP(other, device_ids=[rank])
        on_cpu = DDP(nn.Linear(2, 2))
        on_cpu.to(torch.float64)
        torch.cuda.set_device(rank)
        with torch.device(device):
            made = nn.Linear(2, 2)
        return first, second, third, DDP(made, device_ids=[rank])


    class Trainer:
        def __init__(self, model, rank):
            self.model = DDP(model, device_ids=[rank])

        def batch(self, x, device):
            return self.model(x.to(device))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Wrapped models that move later, or that were surely not moved although devices are named."""
    for wrap in model.nodes(ast.Call):
        if model.name_of(wrap.func) != DDP or not wrap.args or moved_before(model, wrap):
            continue
        move = moved_after(model, wrap)
        ids = device_ids(wrap)
        if move is not None or (ids is not None and surely_on_cpu(model, wrap)):
            yield Hit(
                wrap, "DDP takes the parameters where they are, on the CPU; move the model before wrapping it",
                reordered(model, wrap, move, ids), confidence=Confidence.LIKELY)


def is_move(model: FileModel, call: ast.AST) -> bool:
    """Whether a method call moves its receiver to a device, not only to a dtype."""
    match call:
        case ast.Call(func=ast.Attribute(attr="to"), args=[target]):
            if model.value(target).kind in (Kind.DEVICE, Kind.STRING, Kind.NUMBER):
                return True
            words = [n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(target)
                     if isinstance(n, (ast.Name, ast.Attribute))]
            return any(part in word.lower() for word in words for part in DEVICE_WORDS)
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in MOVES and attr != "to"
    return False


def moved_before(model: FileModel, wrap: ast.Call) -> bool:
    """Whether the model, or anything that may be it, moves before it is wrapped, or is made on a device."""
    if any(isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVES
           for node in ast.walk(wrap.args[0])):
        return True
    owner = model.owner(wrap)
    for call in model.nodes(ast.Call):
        if model.position(call) < model.position(wrap) and model.owner(call) is owner and (
                isinstance(call.func, ast.Attribute) and call.func.attr in MOVES | {"set_default_device"}):
            elsewhere = call.func.attr == "set_default_device" or not model.value(call.func.value).is_tensor
            if call.func.value is not wrap and elsewhere:
                return True
    return any(model.name_of(getattr(item, "func", None)) == "torch.device" for item in model.place(wrap).withs)


def moved_after(model: FileModel, wrap: ast.Call) -> ast.Call | None:
    """The call that moves the wrapper, or what it wraps, later in the same function."""
    attribute = model.parent(wrap)
    chained = model.parent(attribute) if isinstance(attribute, ast.Attribute) else None
    if isinstance(chained, ast.Call) and is_move(model, chained):
        return chained
    statement = model.parent(wrap)
    names = {n.id for n in wrap.args[:1] if isinstance(n, ast.Name)}
    if isinstance(statement, ast.Assign):
        names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    for name in MOVES:
        for call in model.calls_named(name):
            if model.owner(call) is model.owner(wrap) and model.position(call) > model.position(wrap):
                match call.func:
                    case ast.Attribute(value=ast.Name(id=receiver)) if receiver in names and is_move(model, call):
                        return call
    return None


def device_ids(wrap: ast.Call) -> ast.expr | None:
    """The one device that the call names as `[device]`."""
    second = wrap.args[1] if len(wrap.args) > 1 else None
    given = next((k.value for k in wrap.keywords if k.arg == "device_ids"), second)
    return given.elts[0] if isinstance(given, ast.List) and len(given.elts) == 1 else None


def surely_on_cpu(model: FileModel, wrap: ast.Call) -> bool:
    """Whether the model is made of torch's own layers in this function, and nothing else gets it before."""
    inner = wrap.args[0]
    value = model.value(inner)
    if value.kind is not Kind.MODULE or not made_plainly(model, value.site):
        return False
    if model.owner(wrap) is not model.owner(value.site or wrap):
        return False
    for call in model.nodes(ast.Call):
        if model.position(call) < model.position(wrap) and model.owner(call) is model.owner(wrap):
            handed = [*call.args, *(k.value for k in call.keywords)]
            if any(isinstance(arg, ast.Name) and isinstance(inner, ast.Name) and arg.id == inner.id for arg in handed):
                return False
    return True


def made_plainly(model: FileModel, site: ast.AST | None) -> bool:
    """Whether a call makes a module without saying where: no device argument, and no code that might move it."""
    if not isinstance(site, ast.Call) or not model.has(site) or model.place(site).withs:
        return False
    if any(keyword.arg in ("device", None) for keyword in site.keywords):
        return False
    cls = model.class_named(site.func)
    if cls is not None:
        attributes = {n.attr for base in cls.project_mro for n in ast.walk(base.node) if isinstance(n, ast.Attribute)}
        return not attributes & MOVES and "set_default_device" not in model.source.text
    inner = [*site.args, *(k.value for k in site.keywords)]
    return model.name_of(site.func).startswith("torch.nn.") and all(
        made_plainly(model, arg) for arg in inner if isinstance(arg, ast.Call))


def reordered(model: FileModel, wrap: ast.Call, move: ast.Call | None, ids: ast.expr | None) -> Repair | None:
    """The model moved inside the call, and the later move away."""
    inner = wrap.args[0]
    if move is None:
        if ids is None:
            return None
        return edits.repair(
            "Move the model first", edits.append_method_call(model, inner, f".to({edits.source_of(model, ids)})"))
    assert isinstance(move.func, ast.Attribute)
    given = ", ".join(edits.source_of(model, arg) for arg in move.args)
    moved = edits.append_method_call(model, inner, f".{move.func.attr}({given})")
    parent = model.parent(move)
    if move.func.value is wrap:
        return edits.repair("Move the model first", moved, edits.drop_method_call(model, move))
    if isinstance(parent, ast.Expr):
        return edits.repair("Move the model first", moved, edits.remove(model, parent))
    return None
