"""A checkpoint that every rank writes to the same file.

All ranks of a job run the same script, so a save without a condition happens once per rank. The ranks write to one
path at the same time: the file is torn or belongs to whoever came last, and on shared storage the writes queue up.

Save on rank 0, with a barrier where others read the file next. A path that names the rank is fine, and so is
`torch.distributed.checkpoint`, which lets every rank write its own part.

No claim: it is a race, and a check that ran it would see it only sometimes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Value, training
from torchlint.model.processes import leaving_before, rank_test
from torchlint.rule import Example, Hit, Meta

META = Meta("TL707", "saved-on-every-rank", Severity.WARNING, triggers=("DistributedDataParallel",))
CLAIM = None
DDP = "torch.nn.parallel.DistributedDataParallel"
ONE_RANK = re.compile(r"rank|main|master|primary|process|leader|zero|gpu|local|save_on", re.IGNORECASE)

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def train(net, loader, epochs):
            model = DistributedDataParallel(net)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(epochs):
                for x, y in loader:
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                torch.save(model.module.state_dict(), "last.pt")  #!
        """,
        good="""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel


        def train(net, loader, epochs):
            model = DistributedDataParallel(net)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(epochs):
                for x, y in loader:
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                if dist.get_rank() == 0:
                    torch.save(model.module.state_dict(), "last.pt")
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP


        class Trainer:
            def __init__(self, net, rank):
                self.model = DDP(net.to(rank), device_ids=[rank])
                self.optimizer = torch.optim.AdamW(self.model.parameters())

            def save(self, epoch):
                state = {"model": self.model.state_dict(), "epoch": epoch}
                torch.save(state, f"epoch_{epoch}.pt")  #!

            def fit(self, loader, epochs):
                for epoch in range(epochs):
                    for x, y in loader:
                        loss = (self.model(x) - y).pow(2).mean()
                        self.optimizer.zero_grad()
                        loss.backward()
                        self.optimizer.step()
                    if epoch % 5 == 0:
                        self.save(epoch)
        """,
        good="""
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP


        class Trainer:
            def __init__(self, net, rank):
                self.rank = rank
                self.model = DDP(net.to(rank), device_ids=[rank])
                self.optimizer = torch.optim.AdamW(self.model.parameters())

            def save(self, epoch):
                state = {"model": self.model.state_dict(), "epoch": epoch}
                torch.save(state, f"epoch_{epoch}.pt")

            def fit(self, loader, epochs):
                for epoch in range(epochs):
                    for x, y in loader:
                        loss = (self.model(x) - y).pow(2).mean()
                        self.optimizer.zero_grad()
                        loss.backward()
                        self.optimizer.step()
                    if epoch % 5 == 0 and self.rank == 0:
                        self.save(epoch)
        """,
    ),
]

CLEAN = [
    """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def is_main_process():
        return dist.get_rank() == 0


    def train(net, loader, rank, epochs, folder):
        model = DDP(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(epochs):
            for x in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            torch.save(model.state_dict(), f"part_{rank}.pt")
            torch.save(model.state_dict(), os.path.join(folder, f"{dist.get_rank()}.pt"))
            if is_main_process():
                torch.save(model.module.state_dict(), "last.pt")
            if rank != 0:
                continue
            torch.save(model.state_dict(), "main.pt")


    def single(net, loader):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in loader:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        torch.save(net.state_dict(), "last.pt")
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Saves of a wrapped model in functions that train it, with no condition on the rank anywhere around them."""
    inner = {value.bound.ident for call in model.nodes(ast.Call) if model.name_of(call.func) == DDP
             if (value := model.value(call)).bound is not None and value.bound.ident is not None}
    seen = set()
    for owner, flow in training.bodies(model):
        if not flow.of("backward") or guarded_calls(model, owner):
            continue
        for event in flow.of("save"):
            place = training.place_of(model, event)
            if event.name != "torch.save" or place in seen:
                continue
            if not is_wrapped(event.target, inner) and not spelled_wrapper(model, event.inner or event.node):
                continue
            if one_rank(model, event) or names_rank(model, event):
                continue
            seen.add(place)
            yield Hit(
                place, "every rank writes this file, at the same time; save on rank 0 only",
                confidence=Confidence.LIKELY)


def is_wrapped(value: Value, inner: set[object]) -> bool:
    """Whether what is saved is the state of a model that is (or is in) a DDP wrapper, or holds it."""
    owner = value.bound
    if owner is not None and ("ddp" in owner.facts or (owner.ident is not None and owner.ident in inner)):
        return True
    if "ddp" in value.facts or (value.ident is not None and value.ident in inner):
        return True
    return any(is_wrapped(part, inner) for part in value.parts())


def spelled_wrapper(model: FileModel, call: ast.AST) -> bool:
    """Whether what is saved is written as `wrapper.module...`."""
    if not isinstance(call, ast.Call) or not call.args or not model.has(call):
        return False
    return any(
        isinstance(node, ast.Attribute) and node.attr == "module" and "ddp" in model.value(node.value).facts
        for node in ast.walk(call.args[0]))


def one_rank(model: FileModel, event: Event) -> bool:
    """Whether a condition around or in front of the save, or a decorator of its function, may pick one rank."""
    tests = [guard.test for guard, _ in event.guards if isinstance(guard, (ast.If, ast.While))]
    for node in {event.node, event.inner}:
        if node is not None and model.has(node):
            tests += [test.test for test, _ in leaving_before(model, node) if isinstance(test, ast.If)]
            function = model.function(node)
            if function is not None and any(ONE_RANK.search(name) for name in function.decorators):
                return True
            if any(isinstance(parent, ast.IfExp) for parent in model.ancestors(node)):
                return True
    return any(hints(model, test) for test in tests)


def hints(model: FileModel, test: ast.expr) -> bool:
    """Whether a test depends on the rank, or may."""
    if model.has(test) and rank_test(model, test) is not None:
        return True
    return any(ONE_RANK.search(word) for word in words(test))


def words(node: ast.AST) -> Iterator[str]:
    """Names and texts in an expression."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                yield word


def names_rank(model: FileModel, event: Event) -> bool:
    """Whether the path may differ between ranks."""
    call = event.inner if event.inner is not None else event.node
    if not isinstance(call, ast.Call):
        return False
    path = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "f"), None)
    if path is None:
        return True
    texts = [path]
    if isinstance(path, ast.Name) and model.has(path):
        for scope in model.scopes(path):
            if path.id in scope.bindings:
                texts += [node.value for node in scope.bindings[path.id] if isinstance(node, ast.Assign)]
                break
    return any("rank" in word.lower() or "gpu" in word.lower() for text in texts for word in words(text))


def guarded_calls(model: FileModel, owner: ast.AST) -> bool:
    """Whether the function is called on some ranks only."""
    if owner is model.tree:
        return False
    sites = model.function_info(owner).call_sites
    return any(
        hints(model, guard.test) for call in sites if model.has(call)
        for guard, _ in model.place(call).guards if isinstance(guard, ast.If)
        if not (isinstance(guard.test, ast.Compare) and "__name__" in words(guard.test)))
