"""Asynchronous communication that nobody waits for.

`isend`, `irecv` and collectives with `async_op=True` return at once with a work object, while the transfer goes on.
Until `wait()` has returned, the received values may be old, new or mixed, and a tensor that is being sent may not
be changed. If the work object is dropped, nothing can wait for it.

Keep the work and call `wait()` before the tensor is used, or leave `async_op` out.

No claim: it is a race, and a check that ran it would see it only sometimes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL708", "async-work-not-awaited", Severity.ERROR, fix=Safety.UNSAFE, triggers=("isend", "irecv", "async_op"))
CLAIM = None
ALWAYS = {"torch.distributed.isend", "torch.distributed.irecv"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.distributed as dist


        def average(model, world):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, async_op=True)  #!
                parameter.grad /= world
        """,
        good="""
        import torch
        import torch.distributed as dist


        def average(model, world):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, async_op=True).wait()
                parameter.grad /= world
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.distributed as dist


        def exchange(rank, x):
            y = torch.empty_like(x)
            if rank == 0:
                dist.isend(x, dst=1)  #!
            else:
                work = dist.irecv(y, src=0)  #!
            return y
        """,
        good="""
        import torch
        import torch.distributed as dist


        def exchange(rank, x):
            y = torch.empty_like(x)
            if rank == 0:
                dist.isend(x, dst=1).wait()
            else:
                work = dist.irecv(y, src=0)
                work.wait()
            return y
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    import torch.distributed as dist


    def fine(x, y, jobs, flag):
        work = dist.all_reduce(x, async_op=True)
        jobs.append(dist.isend(x, dst=1))
        dist.irecv(y, src=0).wait()
        dist.all_reduce(y, async_op=False)
        dist.all_reduce(y, async_op=flag)
        dist.all_reduce(y)
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 0)])
        self_work = [dist.broadcast(x, 0, async_op=True)]
        work.wait()
        return self_work, dist.all_gather([x], y, async_op=True)


    class Node:
        def isend(self, x):
            self.work = dist.isend(x, dst=1)


    Node().isend(torch.ones(1))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Asynchronous calls whose work object is not used."""
    for call in model.nodes(ast.Call):
        if not is_async(model, call):
            continue
        parent = model.parent(call)
        dropped = isinstance(parent, ast.Expr)
        if dropped or is_unused(model, parent):
            fix = edits.repair("Wait for it", edits.append_method_call(model, call, ".wait()")) if dropped else None
            yield Hit(
                call, "nothing waits for this transfer; call `wait()` before the tensor is used", fix,
                confidence=Confidence.LIKELY)


def is_async(model: FileModel, call: ast.Call) -> bool:
    """Whether a call of torch.distributed returns before its work is done."""
    flag = next((k.value for k in call.keywords if k.arg == "async_op"), None)
    name = model.name_of(call.func)
    if name in ALWAYS:
        return True
    return flag is not None and name.startswith("torch.distributed.") and model.value(flag).const is True


def is_unused(model: FileModel, parent: ast.AST | None) -> bool:
    """Whether an assignment gives the work a name that is never read."""
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)]):
            owner = model.place(parent).function
            return owner is not None and not model.uses(name, owner)
    return False
