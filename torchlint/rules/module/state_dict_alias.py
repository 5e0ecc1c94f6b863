"""A state_dict kept as the best one while training goes on.

`state_dict()` returns the live tensors, not a copy: the dictionary is new, but its tensors share storage with the
parameters. `copy()`, `dict(...)` and a comprehension copy only the dictionary. Every later optimizer step changes
the "best" weights too, and loading them at the end does nothing.

Keep `copy.deepcopy(model.state_dict())`, or write it to a file at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Aliased
from torchlint.findings import Safety, Severity
from torchlint.fixes.copies import deepcopied
from torchlint.model import FileModel, Flow, Kind, Value
from torchlint.model.evaluate import path_of
from torchlint.model.uses import reads_of_path
from torchlint.rule import Example, Hit, Meta

META = Meta("TL423", "state-dict-alias", Severity.ERROR, fix=Safety.UNSAFE, triggers=("state_dict",))
CLAIM = Aliased()

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best, best_state = float("inf"), None
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best:
                best = loss.item()
                best_state = model.state_dict()  #!
        model.load_state_dict(best_state)
        """,
        good="""
        import copy
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best, best_state = float("inf"), None
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best:
                best = loss.item()
                best_state = copy.deepcopy(model.state_dict())
        model.load_state_dict(best_state)
        """,
    ),
    Example(
        bad="""
        import copy
        import torch


        def reset_after(model, batches):
            steps, start = 0, {k: v for k, v in model.state_dict().items()}  #!
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches:
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.load_state_dict(start)


        reset_after(torch.nn.Linear(2, 1), [torch.ones(4, 2)] * 2)
        """,
        good="""
        import copy
        import torch


        def reset_after(model, batches):
            steps, start = 0, copy.deepcopy({k: v for k, v in model.state_dict().items()})
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches:
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.load_state_dict(start)


        reset_after(torch.nn.Linear(2, 1), [torch.ones(4, 2)] * 2)
        """,
    ),
    Example(
        bad="""
        import copy
        import torch


        class EarlyStopping:
            def __init__(self, model):
                self.model = model
                self.best = None
                self.best_state = None

            def check(self, loss):
                if self.best is None or loss < self.best:
                    self.best = loss
                    self.best_state = self.model.state_dict()  #!

            def restore(self):
                self.model.load_state_dict(self.best_state)


        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stopper = EarlyStopping(model)
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stopper.check(loss.item())
        stopper.restore()
        """,
        good="""
        import copy
        import torch


        class EarlyStopping:
            def __init__(self, model):
                self.model = model
                self.best = None
                self.best_state = None

            def check(self, loss):
                if self.best is None or loss < self.best:
                    self.best = loss
                    self.best_state = copy.deepcopy(self.model.state_dict())

            def restore(self):
                self.model.load_state_dict(self.best_state)


        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stopper = EarlyStopping(model)
        for _ in range(3):
            loss = model(torch.ones(4, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stopper.check(loss.item())
        stopper.restore()
        """,
    ),
]

CLEAN = [
    """
    import copy
    import torch

    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keys = model.state_dict()
    assert "weight" in keys
    best_state = None
    for step in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            best_state = copy.deepcopy(model.state_dict())
            cloned = {k: v.clone() for k, v in model.state_dict().items()}
            current = model.state_dict()
            torch.save(current, "x.pt")
            optimizer_state = optimizer.state_dict()
        weights = model.state_dict()
        other.load_state_dict(weights)
    model.load_state_dict(best_state)
    model.load_state_dict(cloned)
    final = model.state_dict()
    other.load_state_dict(final)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Live states that are stored, outlived by training, and loaded back."""
    for assign in model.nodes(ast.Assign):
        for target, source in pairs(assign):
            value = model.value(source)
            module = live_module(value)
            if module is None or not path_of(target):
                continue
            if is_loaded_later(model, assign, target) and trains_between(model, assign, target):
                yield Hit(
                    assign,
                    "this is no copy: later steps change these weights too; use `copy.deepcopy`",
                    deepcopied(model, source, "Copy the state"),
                    confidence=min(value.sure, module.sure),
                )


def pairs(assign: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with the expressions that they get, tuples opened."""
    match assign:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            yield from zip(targets, values, strict=True)
        case ast.Assign(targets=[target], value=value):
            yield target, value


def live_module(value: Value) -> Value | None:
    """The module whose live state a value holds."""
    if "deepcopy" in value.facts:
        return None
    if value.kind is Kind.STATE_DICT and value.bound is not None and value.bound.kind is Kind.MODULE:
        return value.bound
    if value.kind is Kind.DICT and value.item is not None and value.item.is_tensor:
        match value.item.storage:
            case (_, "state"):
                return value.item
    return None


def is_loaded_later(model: FileModel, assign: ast.Assign, target: ast.expr) -> bool:
    """Whether the stored state is loaded or returned outside of the block that stores it."""
    block = model.parent(assign)
    for use in reads_of_path(model, target):
        parent = model.parent(use)
        loads = (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Attribute)
            and (parent.func.attr == "load_state_dict")
        )
        after = model.owner(use) is not model.owner(assign) or model.position(use) > model.position(assign)
        near = (
            block is not None
            and not isinstance(block, ast.Module)
            and isinstance(block, (ast.If, ast.For, ast.While))
            and any(up is block for up in model.ancestors(use))
        )
        if after and not near and (loads or isinstance(parent, ast.Return)):
            return True
    return False


def trains_between(model: FileModel, assign: ast.Assign, target: ast.expr) -> bool:
    """Whether an optimizer steps after the state is stored, before it is used."""
    owner = model.owner(assign)
    flow = model.flow(owner)
    if steps_after(model, flow, assign, target):
        return True
    if model.function(assign) is None or "." not in path_of(target):
        return False
    # A method that is called once per evaluation: its guard is the comparison with the best value so far.
    return any(
        isinstance(test, ast.If) and any(isinstance(n, ast.Compare) for n in ast.walk(test.test))
        for test, _ in model.place(assign).guards
    )


def steps_after(model: FileModel, flow: Flow, assign: ast.Assign, target: ast.expr) -> bool:
    """Whether a step follows in the flow, or shares a loop with the statement."""
    loops = set(model.place(assign).loops)
    uses = [
        u
        for u in reads_of_path(model, target)
        if model.owner(u) is model.owner(assign) and model.position(u) > model.position(assign)
    ]
    last = max((model.position(u) for u in uses), default=None)
    for event in flow.of("step"):
        if loops & set(event.loops):
            return True
        if model.has(event.node) and model.position(event.node) > model.position(assign):
            if last is None or model.position(event.node) < last:
                return True
    return False
