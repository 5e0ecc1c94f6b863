"""A collective operation that only some ranks reach.

A collective completes when every rank of its group has called it. If one rank calls `barrier` and the others go
on, it waits until the timeout (half an hour by default), or pairs up with the next collective of the others and
exchanges the wrong data.

Let every rank make the call, and put only the rank's own work under the condition. Two branches that make the
same calls match each other, and sub-groups and point-to-point operations are meant for some ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Deadlocks
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, training
from torchlint.model.processes import leaving_before, rank_test
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL702", "collective-under-rank-condition", Severity.ERROR,
    triggers=("barrier", "all_", "broadcast", "reduce", "gather", "scatter"),
)
CLAIM = Deadlocks()
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.distributed as dist


        def save(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            total = torch.ones(1)
            if rank == 0:
                print("saving")
                dist.barrier()  #!
            dist.all_reduce(total)
            dist.destroy_process_group()
        """,
        good="""
        import torch
        import torch.distributed as dist


        def save(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            total = torch.ones(1)
            if rank == 0:
                print("saving")
            dist.barrier()
            dist.all_reduce(total)
            dist.destroy_process_group()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.distributed as dist


        def report(value):
            if dist.get_rank() != 0:
                return
            dist.all_reduce(value)  #!
            print(value)


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            report(torch.ones(1))
            dist.barrier()
            dist.destroy_process_group()
        """,
        good="""
        import torch
        import torch.distributed as dist


        def report(value):
            dist.all_reduce(value)
            if dist.get_rank() != 0:
                return
            print(value)


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            report(torch.ones(1))
            dist.barrier()
            dist.destroy_process_group()
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.distributed as dist


    def load(rank, make, group, load_on_all_ranks, world_size, data):
        if rank != 0:
            dist.barrier()
        model = make()
        if rank == 0:
            dist.barrier()
        if rank == 0:
            dist.broadcast(data, src=0)
        else:
            dist.broadcast(data, src=0)
        if rank == 1:
            dist.send(data, dst=0)
        elif rank == 0:
            dist.recv(data, src=1)
        if world_size > 1:
            dist.all_reduce(data)
        if load_on_all_ranks:
            dist.barrier()
        if rank in (0, 1):
            dist.all_reduce(data, group=group)
        return model


    def flush(values, shared, rank):
        if not shared and rank != 0:
            return
        if shared:
            dist.all_reduce(values)
        print(values)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Collectives under a rank condition whose other side does not make the same calls."""
    seen = set()
    for owner, flow in training.bodies(model):
        if owner is not model.tree and model.function_info(owner).is_generator:
            continue  # what the other ranks do stands where the generator is used
        for event in flow.of("collective"):
            condition = rank_condition(model, owner, event)
            if condition is None or event.node in seen or sub_group(event) or matched(model, owner, flow, event):
                continue
            seen.add(event.node)
            yield Hit(
                event.node, "only some ranks get here, so this waits forever; let every rank call it",
                confidence=Confidence.LIKELY)


def rank_condition(model: FileModel, owner: ast.AST, event: Event) -> tuple[str, bool] | None:
    """(what is compared, which side) of the rank-dependent condition in this function that leads to an event."""
    if event.name.rpartition(".")[2] in POINT_TO_POINT:
        return None
    for test, arm in (*event.guards, *leaving_before(model, event.node)):
        if isinstance(test, ast.If) and model.has(test) and model.owner(test) is owner:
            if ruled_out(test, arm, event):
                continue
            found = rank_test(model, test.test)
            if found is not None:
                return found[0], found[1] is arm
    return None


def ruled_out(test: ast.If, arm: bool, event: Event) -> bool:
    """Whether no rank has left where an event is: `if not shared and rank != 0: return`, then `if shared: ...`."""
    match test.test:
        case ast.BoolOp(op=ast.And(), values=parts) if not arm:
            needed = {stated(part, True) for part in parts}
            return any(isinstance(guard, ast.If) and guard is not test and stated(guard.test, not side) in needed
                       for guard, side in event.guards)
    return False


def stated(test: ast.expr, holds: bool) -> tuple[str, bool]:
    """A condition without its `not`, and whether it holds."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    return ast.dump(test), holds


def sub_group(event: Event) -> bool:
    """Whether the call names a process group, which may hold just these ranks."""
    call = event.inner
    return isinstance(call, ast.Call) and any(k.arg == "group" for k in call.keywords)


def matched(model: FileModel, owner: ast.AST, flow: Flow, event: Event) -> bool:
    """Whether the other ranks make as many calls of the same kind in this function under the opposite condition."""
    mine = rank_condition(model, owner, event)
    here = there = 0
    for other in flow.of("collective"):
        condition = rank_condition(model, owner, other)
        if condition is not None and other.name == event.name and mine is not None and condition[0] == mine[0]:
            here, there = here + (condition[1] is mine[1]), there + (condition[1] is not mine[1])
    return here == there
