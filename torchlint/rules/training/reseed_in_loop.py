"""A random generator set back to the same seed in every step or epoch of training.

A seed is the start of a sequence. Set again in each iteration, every iteration draws the same numbers: the
same dropout masks, the same noise, the same augmentation and, for a seed per epoch, the same order of batches.
What should average out over training becomes a fixed pattern that the model learns.

Seed once, before the loop. A seed that depends on the epoch is fine, and so are loops over runs, folds or
settings that each make their own model, and seeds inside `torch.random.fork_rng()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.fixes.reorder import given_by, overlap, spelled, used_by
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL528", "reseed-in-loop", Severity.WARNING, triggers=("seed",))
CLAIM = OutputsDiffer()
SEEDS = {
    "torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
    "torch.cuda.random.manual_seed", "torch.cuda.random.manual_seed_all", "numpy.random.seed", "random.seed",
    "lightning.seed_everything", "lightning.pytorch.seed_everything", "pytorch_lightning.seed_everything",
    "lightning.fabric.seed_everything", "accelerate.utils.set_seed", "transformers.set_seed",
}
SAVING = ("get_rng_state", "set_rng_state", "getstate", "get_state")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        nn.init.ones_(model[0].weight)
        nn.init.ones_(model[2].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            torch.manual_seed(0)  #!
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(losses)
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        nn.init.ones_(model[0].weight)
        nn.init.ones_(model[2].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(losses)
        """,
    ),
    Example(
        bad="""
        import random

        import numpy as np
        import torch


        def set_seed(seed):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)


        def train_epoch(model, optimizer):
            order = torch.randperm(4)
            for i in order:
                optimizer.zero_grad()
                model(torch.full((2, 3), float(i))).pow(2).mean().backward()
                optimizer.step()
            return order.tolist()


        def main(seed=42):
            set_seed(seed)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for epoch in range(3):
                set_seed(seed)  #!
                print(epoch, train_epoch(model, optimizer))


        main()
        """,
        good="""
        import random

        import numpy as np
        import torch


        def set_seed(seed):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)


        def train_epoch(model, optimizer):
            order = torch.randperm(4)
            for i in order:
                optimizer.zero_grad()
                model(torch.full((2, 3), float(i))).pow(2).mean().backward()
                optimizer.step()
            return order.tolist()


        def main(seed=42):
            set_seed(seed)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for epoch in range(3):
                print(epoch, train_epoch(model, optimizer))


        main()
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch


        def update(model, optimizer):
            np.random.seed(1)  #!
            noise = torch.from_numpy(np.random.randn(4, 3)).float()
            optimizer.zero_grad()
            loss = model(noise).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        model = torch.nn.Linear(3, 1)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print([update(model, optimizer)])
        for step in range(3):
            print(update(model, optimizer))
        """,
        good="""
        import numpy as np
        import torch


        def update(model, optimizer):
            noise = torch.from_numpy(np.random.randn(4, 3)).float()
            optimizer.zero_grad()
            loss = model(noise).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()


        np.random.seed(1)
        model = torch.nn.Linear(3, 1)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print([update(model, optimizer)])
        for step in range(3):
            print(update(model, optimizer))
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    for epoch in range(3):
        torch.manual_seed(epoch)
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            print(model(torch.randn(2, 3)).sum().item())
    """,
    """
    import torch

    for lr in (0.1, 0.01):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()


    def run(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()


    for _ in range(3):
        run(0)
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seed = 0
    for step in range(4):
        seed += 1
        torch.manual_seed(seed)
        if step == 0:
            torch.manual_seed(0)
        torch.manual_seed(torch.seed() % 1000)
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    for _ in range(2):
        torch.manual_seed(0)
        model(torch.randn(2, 3)).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Seeds that do not change in a loop that trains one model."""
    seen: set[int] = set()
    for call in model.nodes(ast.Call):
        if not seeds(model, call) or restores(model, call):
            continue
        sure = reseeded(model, call)
        line = model.statement(call).lineno
        if sure is None or any(line - step in seen for step in range(4)):
            seen |= {line} if sure is not None else set()
            continue
        seen.add(line)
        yield Hit(call, "every iteration draws the same random numbers; seed once, before the loop", confidence=sure)


def seeds(model: FileModel, call: ast.Call) -> bool:
    """Whether a call seeds a global generator, itself or through a helper that is given the seed."""
    if model.name_of(call.func) in SEEDS:
        return bool(call.args or call.keywords)
    helper = model.function_named(call.func)
    if helper is None or helper.is_generator or len(helper.calls) > 30 or helper.cls is not None:
        return False
    params = {arg.arg for arg in (*helper.params, *helper.args.kwonlyargs)}
    for inner in helper.calls:
        if helper.model.name_of(inner.func) in SEEDS and not helper.model.place(inner).loops:
            match inner.args:
                case [ast.Name(id=name)] if name in params:
                    return True
                case [ast.Constant()]:
                    return not helper.model.flow(helper.node).of("step")
    return False


def restores(model: FileModel, call: ast.Call) -> bool:
    """Whether the code around keeps the generator's state and sets it back."""
    owner = model.place(call).function or model.tree
    around = (part for item in model.place(call).withs for part in ast.walk(item))
    if any(spelled(part).endswith("fork_rng") for part in around if isinstance(part, ast.expr)):
        return True
    used = (node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute))
    return any(name in SAVING for name in used)


def reseeded(model: FileModel, call: ast.Call) -> Confidence | None:
    """How sure it is that a seeding call runs in every iteration of a training loop with one and the same seed."""
    place = model.place(call)
    seed = call.args[0] if call.args else call.keywords[0].value if call.keywords else ast.Constant(None)
    if any(isinstance(node, ast.Call) for node in ast.walk(seed)):
        return None
    if place.loops:
        loop = place.loops[-1]
        changes = overlap(given_by(model.statement(loop)), used_by(model.statement(call)))
        return Confidence.SURE if not changes and free(model, call, loop) and trains(model, loop) else None
    function = model.function(call)
    if function is None or place.guards or not isinstance(seed, ast.Constant) or not steps_here(model, function.node):
        return None
    for site in function.call_sites:
        loops = model.place(site).loops
        if loops and free(model, site, loops[-1]) and trains(model, loops[-1]):
            return Confidence.LIKELY
    return None


def free(model: FileModel, call: ast.Call, loop: ast.AST) -> bool:
    """Whether nothing but the loop decides whether the call runs, and no `def` stands between."""
    guards = (node for node, _ in model.place(call).guards)
    inner = any(any(parent is loop for parent in model.ancestors(guard)) for guard in guards)
    return not inner and isinstance(loop, (ast.For, ast.While, ast.AsyncFor))


def trains(model: FileModel, loop: ast.AST) -> bool:
    """Whether a loop steps an optimizer that it does not make itself."""
    events = model.flow(model.owner(loop)).in_loop(loop)
    if any(e.what == "make_optimizer" for e in events):
        return False
    return any(e.what == "step" and e.target.kind is Kind.OPTIMIZER for e in events)


def steps_here(model: FileModel, function: ast.AST) -> bool:
    """Whether a function makes a training step with an optimizer that it is given."""
    flow = model.flow(function)
    return bool(flow.of("step")) and not flow.of("make_optimizer")
