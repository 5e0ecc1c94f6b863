"""A step that goes past its GradScaler, or a scaler that is used in part only.

`scaler.scale(loss).backward()` multiplies every gradient by the loss scale. Only `scaler.step(optimizer)`
divides them again and skips the step when one overflowed; `optimizer.step()` applies gradients that are
65536 times too large. The other way round, `scaler.step` without any `scale` before it raises, for it has nothing
to divide by. Without `scaler.update()` the next step raises, and the scale never adapts.

Use `scaler.step(optimizer)` and `scaler.update()` with scaled losses. After `scaler.unscale_(optimizer)` the
gradients have their true size, and a plain step is only unprotected against overflow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Either, Raises, WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Flow, Kind, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL510", "step-bypasses-scaler", Severity.ERROR, fix=Safety.UNSAFE, triggers=("scale", "GradScaler"))
CLAIM = Either((WrongGradient(), Raises("RuntimeError|AssertionError", "since the last update|_scale is None")))

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(torch.ones(2, 3)).mean()).backward()
        optimizer.step()  #!
        scaler.update()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(torch.ones(2, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    ),
    Example(
        bad="""
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=1.0)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def train(self, x):
                self.opt.zero_grad()
                loss = self.scaler.scale(self.net(x).mean())
                loss.backward()
                self.opt.step()  #!
                self.scaler.update()


        Trainer(torch.nn.Linear(3, 1)).train(torch.ones(2, 3))
        """,
        good="""
        import torch


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=1.0)
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def train(self, x):
                self.opt.zero_grad()
                loss = self.scaler.scale(self.net(x).mean())
                loss.backward()
                self.scaler.step(self.opt)
                self.scaler.update()


        Trainer(torch.nn.Linear(3, 1)).train(torch.ones(2, 3))
        """,
    ),
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        for x in torch.ones(3, 2, 3):
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)  #!
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        for x in torch.ones(3, 2, 3):
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        model(torch.ones(2, 3)).mean().backward()
        scaler.step(optimizer)  #!
        scaler.update()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(2, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch


    def step(model, scaler, optimizer, loss, use_amp):
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if use_amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    """,
    """
    import torch

    net_g, net_d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_g, opt_d = torch.optim.SGD(net_g.parameters(), 0.1), torch.optim.SGD(net_d.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net_d(torch.ones(1, 2)).mean()).backward()
    net_g(torch.ones(1, 2)).mean().backward()
    opt_g.step()
    scaler.step(opt_d)
    scaler.update()
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 3)).mean()).backward()
    scaler.unscale_(optimizer)
    optimizer.step()
    """,
    """
    import torch


    class Scaler:
        def __init__(self):
            self.scaler = torch.amp.GradScaler("cpu")

        def __call__(self, loss, optimizer):
            self.scaler.scale(loss).backward()
            self.scaler.step(optimizer)
            self.finish(self.scaler)

        def finish(self, scaler):
            scaler.update()


    model = torch.nn.Linear(3, 1)
    Scaler()(model(torch.ones(2, 3)).mean(), torch.optim.SGD(model.parameters(), lr=1.0))
    off = torch.amp.GradScaler("cpu", enabled=False)
    off.step(torch.optim.SGD(model.parameters(), lr=1.0))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Plain steps whose nearest backward was scaled; steps through a scaler that never scales or never updates."""
    yield from training.once(model, plain_steps(model))
    yield from training.once(model, half_used(model))


def half_used(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """Steps through scalers of this file of which the file shows every use, and `update` or `scale` is none of them."""
    missing = [name for name in ("scale", "update") if not may_be_called(model, name)]
    if not missing or any(leaves(model, call) for call in model.nodes(ast.Call)):
        return
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            made = step.via.site
            if step.via.kind is not Kind.SCALER or made is None or not model.has(made) or "disabled" in step.via.facts:
                continue
            if not stays_here(model, made):
                continue
            place = training.place_of(model, step)
            if "scale" in missing:
                yield step, Hit(place, "the loss was never scaled, so this raises; use `scaler.scale(loss).backward()`",
                                confidence=min(step.via.sure, Confidence.LIKELY))
            else:
                yield step, Hit(place, "without `scaler.update()` the next step raises; call it after the step",
                                updated(model, place), confidence=min(step.via.sure, Confidence.LIKELY))


def stays_here(model: FileModel, made: ast.AST) -> bool:
    """Whether other files are not likely to use a scaler: a local one, one of a script, not one that is inherited."""
    cls = model.class_of(made)
    if cls is not None and any(base != "builtins.object" for base in cls.bases):
        return False
    local = cls is None and model.function(made) is not None
    return local or is_script(model)


def is_script(model: FileModel) -> bool:
    """Whether the file is run as a program: it asks for its name, or its own code trains."""
    asks = any(isinstance(node, ast.Name) and node.id == "__name__" for node in model.nodes(ast.Name))
    return asks or bool(model.flow().of("backward"))


def leaves(model: FileModel, call: ast.Call) -> bool:
    """Whether a call hands a scaler to code that this file does not show."""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    if not any(model.value(arg).kind is Kind.SCALER for arg in given):
        return False
    function = model.value(call.func).func
    return function is None or function.model is not model


def may_be_called(model: FileModel, name: str) -> bool:
    """Whether the file calls a method of that name on a scaler, or on something unknown, or hands it on."""
    uses = [node for node in model.attributes_named(name)
            if model.value(node.value).kind in (Kind.SCALER, Kind.UNKNOWN, Kind.INSTANCE)]
    return bool(uses) or bool(model.calls_named("getattr"))


def updated(model: FileModel, place: ast.AST) -> Repair | None:
    """`scaler.update()` on a line of its own behind the step."""
    match place:
        case ast.Call(func=ast.Attribute(value=scaler)) if isinstance(model.parent(place), ast.Expr):
            text = f"{edits.operand(model, scaler)}.update()"
            return edits.repair("Update the scaler", edits.insert_after(model, model.statement(place), text))
    return None


def plain_steps(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The plain steps of every function on scaled gradients."""
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            if step.via.known or not training.is_stepped(step) or not is_scaled(flow, step):
                continue
            yield step, Hit(
                training.place_of(model, step),
                "the gradients are scaled by the GradScaler; use `scaler.step(optimizer)`",
                through_scaler(model, flow, step),
                confidence=step.target.sure,
            )


def is_scaled(flow: Flow, step: Event) -> bool:
    """Whether the last backward before the step was scaled, and nothing unscaled since."""
    at = flow.events.index(step)
    tests = {training.test_of(node) for node, _ in step.guards}
    for event in reversed(flow.events[:at]):
        if event.excludes(step) or event.loops[: len(step.loops)] != step.loops[: len(event.loops)]:
            continue
        if event.what == "unscale" or (event.what == "step" and event.via.known):
            return False
        if event.what == "backward":
            scaled = "scaled" in event.target.facts
            # The two may hang on the same flag although they stand in different `if` statements.
            flagged = any(training.test_of(node) in tests for node, _ in event.guards)
            if not scaled or event.target.bound is None or "disabled" in event.target.bound.facts:
                return False
            return not event.guards or flagged or set(event.guards) <= set(step.guards)
    return False


def through_scaler(model: FileModel, flow: Flow, step: Event) -> Repair | None:
    """`scaler.step(optimizer)` instead."""
    place = training.place_of(model, step)
    names = set()
    for name in ("scale", "update", "step"):
        for call in model.calls_named(name):
            if isinstance(call.func, ast.Attribute) and model.owner(call) is model.owner(place):
                if model.value(call.func.value).kind is Kind.SCALER:
                    names.add(edits.operand(model, call.func.value))
    match place:
        case ast.Call(func=ast.Attribute(value=optimizer), args=[], keywords=[]) if len(names) == 1:
            text = f"{names.pop()}.step({source_of(model, optimizer)})"
            return edits.repair("Step through the scaler", edits.replace(model, place, text))
    return None
