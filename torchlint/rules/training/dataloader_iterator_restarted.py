"""A DataLoader's iterator made anew for every batch.

`iter(loader)` starts an epoch: it draws a new order, starts the worker processes and lets them fetch ahead.
`next(iter(loader))` in a loop does that for a single batch and throws the rest away. Without shuffling every
iteration sees the same first batch; with it, samples are drawn with repetition and workers restart each time.

Make the iterator once, before the loop, or loop over the loader itself. One look at a batch before training, or
once per epoch, is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, FunctionInfo, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL526", "dataloader-iterator-restarted", Severity.WARNING, triggers=("iter(",))
CLAIM = OutputsDiffer()
LOOPS = (ast.For, ast.AsyncFor, ast.While)

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader(torch.arange(12.0), batch_size=4)
        total = torch.zeros(())
        for _ in range(3):
            batch = next(iter(loader))  #!
            total += batch.sum()
        print(total.item())
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader(torch.arange(12.0), batch_size=4)
        total = torch.zeros(())
        batches = iter(loader)
        for _ in range(3):
            batch = next(batches)
            total += batch.sum()
        print(total.item())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader, TensorDataset


        class Trainer:
            def __init__(self, labelled, unlabelled):
                self.labelled = DataLoader(labelled, batch_size=2)
                self.unlabelled = DataLoader(unlabelled, batch_size=2)
                self.seen = []

            def fit(self):
                for x, y in self.labelled:
                    iterator = iter(self.unlabelled)  #!
                    (extra,) = next(iterator)
                    self.seen.append(extra.mean().item() + x.mean().item())


        trainer = Trainer(
            TensorDataset(torch.ones(6, 2), torch.ones(6)), TensorDataset(torch.arange(12.0).reshape(6, 2))
        )
        trainer.fit()
        print(trainer.seen)
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader, TensorDataset


        class Trainer:
            def __init__(self, labelled, unlabelled):
                self.labelled = DataLoader(labelled, batch_size=2)
                self.unlabelled = DataLoader(unlabelled, batch_size=2)
                self.seen = []

            def fit(self):
                iterator = iter(self.unlabelled)
                for x, y in self.labelled:
                    (extra,) = next(iterator)
                    self.seen.append(extra.mean().item() + x.mean().item())


        trainer = Trainer(
            TensorDataset(torch.ones(6, 2), torch.ones(6)), TensorDataset(torch.arange(12.0).reshape(6, 2))
        )
        trainer.fit()
        print(trainer.seen)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader(torch.arange(12.0), batch_size=4)


        def sample():
            return next(iter(loader))  #!


        total = 0.0
        for _ in range(3):
            total += sample().sum().item()
        print(total)
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader(torch.arange(12.0), batch_size=4)
        batches = iter(loader)


        def sample():
            return next(batches)


        total = 0.0
        for _ in range(3):
            total += sample().sum().item()
        print(total)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(torch.arange(12.0), batch_size=4)
    example = next(iter(loader))
    batches = iter(loader)
    for step in range(8):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        if step % 4 == 0:
            print(next(iter(loader)))
    for epoch in range(2):
        print(next(iter(loader)).sum())
        for batch in loader:
            print(batch.sum())
    for epoch in range(2):
        batches = iter(loader)
        for _ in range(3):
            print(next(batches))
    """,
    """
    import torch
    from torch.utils.data import DataLoader

    for size in (2, 4):
        loader = DataLoader(torch.arange(12.0), batch_size=size)
        print(next(iter(loader)).shape)
    loaders = [DataLoader(torch.arange(12.0)), DataLoader(torch.arange(6.0))]
    for one in loaders:
        print(next(iter(one)).shape)
    for _ in range(3):
        print(next(iter({"a": 1})))
    """,
    """
    from torch.utils.data import DataLoader

    import engine


    def show(loader):
        for batch in loader:
            print(batch)


    loader = DataLoader([1.0, 2.0], batch_size=1)
    for epoch in range(2):
        show(loader)
        print(next(iter(loader)))
    for epoch in range(2):
        engine.train_one_epoch(loader)
        print(next(iter(loader)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`iter(loader)` in a loop whose iteration takes one batch from it, with a loader made before."""
    for call in model.calls_named("iter"):
        if model.name_of(call.func) != "builtins.iter" or len(call.args) != 1:
            continue
        loader = model.value(call.args[0])
        if loader.kind is not Kind.LOADER or not takes_one(model, call):
            continue
        sure = restarted(model, call, call.args[0], loader)
        if sure is not None:
            yield Hit(
                call,
                "a new epoch is started for every batch; make the iterator once, before the loop",
                confidence=min(sure, loader.sure),
            )


def takes_one(model: FileModel, call: ast.Call) -> bool:
    """Whether one `next` follows, at once or on the name that the iterator is given, in the same iteration."""
    match model.parent(call):
        case ast.Call(args=[first, *_]) as outer if first is call:
            return model.name_of(outer.func) == "builtins.next"
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as stmt if value is call:
            owner = model.place(stmt).function or model.tree
            uses = [use for use in model.uses(name, owner) if model.place(use).loops == model.place(stmt).loops]
            if len(uses) != len(model.uses(name, owner)) or len(uses) != 1:
                return False
            match model.parent(uses[0]):
                case ast.Call(func=ast.Name(id="next")):
                    return model.position(uses[0]) > model.position(stmt)
    return False


def restarted(model: FileModel, call: ast.Call, source: ast.expr, loader: Value) -> Confidence | None:
    """How sure it is that this runs once per batch of a loop; None if it does not."""
    place = model.place(call)
    if any(inner_guard(model, node, call) for node, _ in place.guards):
        return None
    if place.loops:
        return Confidence.SURE if per_batch(model, place.loops[-1], source, loader) else None
    function = model.function(call)
    if function is None or not returns_it(model, function, call):
        return None
    sites = function.call_sites
    repeated = [site for site in sites if model.place(site).loops and not model.place(site).guards]
    if any(per_batch(model, model.place(site).loops[-1], source, loader) for site in repeated):
        return Confidence.LIKELY
    return None


def inner_guard(model: FileModel, guard: ast.AST, call: ast.Call) -> bool:
    """Whether a condition stands inside the loop, so that the iterator is not made in every iteration."""
    loops = model.place(call).loops
    return not loops or any(parent is loops[-1] for parent in model.ancestors(guard))


def per_batch(model: FileModel, loop: ast.AST, source: ast.expr, loader: Value) -> bool:
    """Whether a loop has no batch loop inside, and neither makes nor chooses the loader."""
    if not isinstance(loop, LOOPS):
        return False
    names = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, LOOPS) and node is not loop:
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            return False
        if node is loader.site or (isinstance(node, ast.Call) and loops_itself(model, node)):
            return False
    return not any(goes_over_data(event, loop) for event in model.flow(model.owner(loop)).in_loop(loop))


def loops_itself(model: FileModel, call: ast.Call) -> bool:
    """Whether a call leads to a function of the project that has a loop."""
    function = model.value(call.func).func
    return function is not None and any(isinstance(node, LOOPS) for node in function.own_nodes)


def goes_over_data(event: Event, loop: ast.AST) -> bool:
    """Whether a helper that the loop calls has a loop of its own, or is given a loader and cannot be seen."""
    if event.loops[-1] is not loop:
        return True
    return event.what in ("unknown_call", "train", "construct") and any(arg.kind is Kind.LOADER for arg in event.args)


def returns_it(model: FileModel, function: FunctionInfo, call: ast.Call) -> bool:
    """Whether a helper does nothing but fetch: no loop of its own, and the batch is what it returns."""
    nodes = function.own_nodes
    return not any(isinstance(node, LOOPS) for node in nodes) and any(isinstance(node, ast.Return) for node in nodes)
