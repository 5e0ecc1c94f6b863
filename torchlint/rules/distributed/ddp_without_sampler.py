"""Distributed training in which every rank goes through the whole data.

DistributedDataParallel averages gradients and leaves the data alone. A DataLoader without a sampler reads everything
on every rank: an epoch is the number of ranks times longer than meant, and ranks that shuffle with the same seed
compute the same gradient several times over.

Give the loader a `DistributedSampler` (and tell it the epoch), or a dataset that holds this rank's part. Loaders for
evaluation on one rank need none, and iterable datasets split themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind, training
from torchlint.model.forms import loader_call
from torchlint.rule import Example, Hit, Meta

META = Meta("TL706", "ddp-without-sampler", Severity.WARNING, triggers=("DistributedDataParallel",))
CLAIM = OutputsDiffer()
CHOOSING = {"sampler", "batch_sampler"}
WORDS = ("rank", "world", "shard", "split", "partition", "num_replicas", "worker")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            data = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.zeros(8, 1))
            loader = DataLoader(data, batch_size=2, shuffle=True)  #!
            model = DistributedDataParallel(torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for x, y in loader:
                loss = torch.nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        """,
        good="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


        def worker(rank, world, store):
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            data = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.zeros(8, 1))
            loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
            model = DistributedDataParallel(torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for x, y in loader:
                loss = torch.nn.functional.mse_loss(model(x), y)
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
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset


    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.ones(2)


    def train(net, data, rank, world, val_data):
        model = DDP(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mine = Subset(data, list(range(rank, len(data), world)))
        sampler = DistributedSampler(data) if world > 1 else None
        for loader in (DataLoader(mine), DataLoader(Stream()), DataLoader(data, sampler=sampler)):
            for x in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        for x in DataLoader(Stream()):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        for x in DataLoader(mine):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for x in DataLoader(val_data):
                model(x)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loaders without a sampler, in loops that train a wrapped model."""
    seen = set()
    for _, flow in training.bodies(model):
        for event in flow.of("backward"):
            loops = [one for one in event.loops if isinstance(one, (ast.For, ast.AsyncFor)) and model.has(one)]
            if not any(
                    "ddp" in call.target.facts for one in loops for call in flow.in_loop(one) if call.what == "call"):
                continue
            for one in loops:
                made = loader_call(model, one.iter)
                if made is not None and made not in seen and reads_everything(model, made):
                    seen.add(made)
                    yield Hit(
                        made, "every rank reads all of the data; give the loader a `DistributedSampler`",
                        confidence=Confidence.LIKELY)


def reads_everything(model: FileModel, made: ast.Call) -> bool:
    """Whether a loader has no sampler, and a dataset in which nothing hints at a part for each rank."""
    for keyword in made.keywords:
        if keyword.arg is None:
            return False
        if keyword.arg in CHOOSING and model.value(keyword.value).kind is not Kind.NONE:
            return False
    data = made.args[0] if made.args else next((k.value for k in made.keywords if k.arg == "dataset"), None)
    if data is None or len(made.args) > 3:
        return False
    value = model.value(data)
    if value.cls is not None and (
            value.cls.is_a("torch.utils.data.IterableDataset") or value.cls.method("__getitem__") is None):
        return False
    texts = [data, *([value.site] if value.site is not None and model.has(value.site) else [])]
    if isinstance(data, ast.Name):
        for scope in model.scopes(data):
            if data.id in scope.bindings:
                texts += [node.value for node in scope.bindings[data.id] if isinstance(node, ast.Assign)]
                break
    return not any(word in name.lower() for text in texts for name in words(text) for word in WORDS)


def words(node: ast.AST) -> Iterator[str]:
    """The names in an expression."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
