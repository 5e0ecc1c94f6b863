"""A DistributedSampler that is never told the epoch.

The sampler shuffles with a generator seeded by `seed + epoch`, so that all ranks agree on one order. The epoch is
what `set_epoch` was last given; without it, it stays 0, and every epoch goes through the data in the same order.

Call `sampler.set_epoch(epoch)` at the start of each epoch. Lightning and Accelerate do it themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.model.forms import loader_call
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL701", "sampler-epoch-not-set", Severity.ERROR, fix=Safety.UNSAFE, triggers=("DistributedSampler",))
CLAIM = OutputsDiffer()
SAMPLER = "torch.utils.data.distributed.DistributedSampler"
ENGINES = ("lightning", "pytorch_lightning", "accelerate", "ignite", "transformers", "catalyst", "fastai")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        data = torch.arange(16.0)
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        seen = []
        for epoch in range(3):
            for batch in loader:  #!
                seen.append(batch.tolist())
        print(seen)
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        data = torch.arange(16.0)
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        seen = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in loader:
                seen.append(batch.tolist())
        print(seen)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def evaluate(net, loader):
            with torch.no_grad():
                return sum(net(batch).sum() for batch in loader)


        def train(net, loader, epochs):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(epochs):
                for batch in loader:  #!
                    optimizer.zero_grad()
                    net(batch).sum().backward()
                    optimizer.step()
                for batch in loader:
                    print(net(batch).sum().item(), evaluate(net, loader).item())


        data = torch.arange(16.0).view(16, 1)
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        train(nn.Linear(1, 1), DataLoader(data, batch_size=4, sampler=sampler), 2)
        """,
        good="""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def evaluate(net, loader):
            with torch.no_grad():
                return sum(net(batch).sum() for batch in loader)


        def train(net, loader, epochs):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(epochs):
                loader.sampler.set_epoch(epoch)
                for batch in loader:
                    optimizer.zero_grad()
                    net(batch).sum().backward()
                    optimizer.step()
                for batch in loader:
                    print(net(batch).sum().item(), evaluate(net, loader).item())


        data = torch.arange(16.0).view(16, 1)
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        train(nn.Linear(1, 1), DataLoader(data, batch_size=4, sampler=sampler), 2)
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch.utils.data import DataLoader, DistributedSampler


    def evaluate(net, data):
        loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
        with torch.no_grad():
            return sum(net(batch).item() for batch in loader)


    def validate(net, data):
        loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
        total = 0.0
        with torch.no_grad():
            for batch in loader:
                total += net(batch.view(1, 1)).item()
        return total


    for _ in range(2):
        evaluate(torch.sigmoid, torch.arange(4.0)), validate(torch.nn.Linear(1, 1), torch.arange(4.0))
    """,
    """
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    data = torch.arange(16.0)
    ordered = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
    once = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    for epoch in range(2):
        for batch in ordered:
            print(batch)
    for batch in once:
        print(batch)
    """,
    """
    import torch
    from torch.utils.data import DataLoader, DistributedSampler


    def fit(data, epochs):
        loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                print(batch)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loops over a distributed loader inside another loop, in files that never call set_epoch."""
    if model.attributes_named("set_epoch") or uses_engine(model):
        return
    reported: set[ast.Call] = set()
    for loop in sorted(loops(model), key=lambda loop: not trains(loop)):
        if model.grad_at(loop) is False:
            continue  # the order of an evaluation does not matter
        made = loader_call(model, loop.iter)
        sampler = distributed_sampler(model, made) if made is not None else None
        outer = model.place(loop).loops
        if sampler is not None and sampler not in reported and (outer or called_in_loop(model, loop)):
            reported.add(sampler)
            yield Hit(
                loop, "every epoch has the same order; call `set_epoch(epoch)` on the sampler",
                told_first(model, loop, made), confidence=Confidence.LIKELY)


def loops(model: FileModel) -> list[ast.For]:
    """The `for` loops of a file in order."""
    return [node for node in model.nodes(ast.For) if isinstance(node, ast.For)]


def trains(loop: ast.For) -> bool:
    """Whether a loop itself calls backward: of several loops over one sampler, that one is meant."""
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(loop))


def uses_engine(model: FileModel) -> bool:
    """Whether the file imports a framework whose loops set the epoch."""
    names = [alias.name for node in model.nodes(ast.Import) for alias in node.names]
    names += [node.module or "" for node in model.nodes(ast.ImportFrom)]
    return any(name.partition(".")[0] in ENGINES for name in names)


def distributed_sampler(model: FileModel, made: ast.Call) -> ast.Call | None:
    """The call that made the shuffling DistributedSampler of a loader."""
    given = next((k.value for k in made.keywords if k.arg == "sampler"), None)
    if given is None:
        return None
    site = model.value(given).site
    if not isinstance(site, ast.Call) or not model.has(site):
        return None
    if model.name_of(site.func) not in (SAMPLER, "torch.utils.data.DistributedSampler"):
        return None
    shuffle = next((k.value for k in site.keywords if k.arg == "shuffle"), None)
    ordered = shuffle is not None and model.value(shuffle).const is not True
    return None if ordered or any(k.arg is None for k in site.keywords) else site


def called_in_loop(model: FileModel, loop: ast.For) -> bool:
    """Whether the function that holds the loop is called in a loop of this file."""
    function = model.function(loop)
    return function is not None and any(model.place(call).loops for call in function.call_sites)


def told_first(model: FileModel, loop: ast.For, made: ast.Call | None) -> Repair | None:
    """set_epoch in front of the loop, where the outer loop counts epochs and the sampler has a name."""
    outer = model.place(loop).loops
    sampler = next((k.value for k in made.keywords if k.arg == "sampler"), None) if made is not None else None
    if len(outer) != 1 or not isinstance(outer[0], ast.For) or not isinstance(outer[0].target, ast.Name):
        return None
    if not isinstance(sampler, ast.Name) or made is None or model.owner(made) is not model.owner(loop):
        return None
    return edits.repair(
        "Tell the sampler the epoch",
        edits.insert_before(model, loop, f"{sampler.id}.set_epoch({outer[0].target.id})"))
