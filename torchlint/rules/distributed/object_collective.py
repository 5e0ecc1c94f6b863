"""Objects that travel between ranks as pickles.

`all_gather_object`, `broadcast_object_list` and their like pickle on one rank and unpickle on the others. Unpickling
runs whatever the sender put in, so every rank must be trusted as much as the code itself; and every call copies
through host memory, with two collectives, one of them only for the sizes.

Send tensors where it can be done. Within one job of one owner the objects are fine, which is why this is off unless
it is asked for.

No claim: it takes a rank that means harm.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

NAMES = ("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "send_object_list",
         "recv_object_list")
META = Meta("TL709", "object-collective", Severity.ADVICE, default=False, triggers=NAMES)
CLAIM = None
CALLS = {f"torch.distributed.{name}" for name in NAMES}

EXAMPLES = [
    Example(
        bad="""
        import torch.distributed as dist


        def share(hits, world):
            found = [None] * world
            dist.all_gather_object(found, hits)  #!
            return sum(found)
        """,
        good="""
        import torch
        import torch.distributed as dist


        def share(hits, world):
            found = torch.tensor(hits)
            dist.all_reduce(found)
            return found.item()
        """,
    ),
    Example(
        bad="""
        from torch.distributed import broadcast_object_list


        def agree(config):
            box = [config]
            broadcast_object_list(box, src=0)  #!
            return box[0]
        """,
        good="""
        import torch
        import torch.distributed as dist


        def agree(numbers):
            box = torch.tensor(numbers)
            dist.broadcast(box, src=0)
            return box.tolist()
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.distributed as dist


    def share(x, world, comm):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        comm.all_gather_object(parts, x)
        return parts
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of collectives that pickle."""
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name in CALLS:
            yield Hit(call, f"`{name.rpartition('.')[2]}` unpickles what other ranks send; send tensors")
