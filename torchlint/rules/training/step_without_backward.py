"""An optimizer that steps where nothing computes gradients, or gradients that nothing steps on.

`step()` skips every parameter whose `.grad` is None and says nothing about it. Without a `backward()` the loop
runs, prints losses and learns nothing. The same is true of a loop that calls `backward()` and `zero_grad()` but
never `step()`.

Call `loss.backward()` before `optimizer.step()`, and `step()` after it. Gradients that are set by hand count as
a backward; code that cannot be seen might do either, so the rule is silent where it is given the model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, Kind, Value, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL505", "step-without-backward", Severity.ERROR, triggers=("step", "backward", "optim"))
CLAIM = NoEffect()
NEVER_BACKWARD = "no gradient is ever computed for this step; call `backward()` on the loss before it"
NEVER_STEPPED = "nothing steps on these gradients; call `optimizer.step()` after `backward()`"

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = nn.MSELoss()
        for x in torch.randn(3, 4, 3):
            optimizer.zero_grad()
            loss = criterion(model(x), torch.ones(4, 1))
            optimizer.step()  #!
            print(loss.item())
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = nn.MSELoss()
        for x in torch.randn(3, 4, 3):
            optimizer.zero_grad()
            loss = criterion(model(x), torch.ones(4, 1))
            loss.backward()
            optimizer.step()
            print(loss.item())
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F


        def step(model, optimizer, x):
            loss = F.mse_loss(model(x), torch.ones(4, 1))
            optimizer.zero_grad()
            optimizer.step()  #!
            return loss.detach()


        def main():
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.Adam(model.parameters())
            for x in torch.randn(3, 4, 3):
                step(model, optimizer, x)


        if __name__ == "__main__":
            main()
        """,
        good="""
        import torch
        import torch.nn.functional as F


        def step(model, optimizer, x):
            loss = F.mse_loss(model(x), torch.ones(4, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()


        def main():
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.Adam(model.parameters())
            for x in torch.randn(3, 4, 3):
                step(model, optimizer, x)


        if __name__ == "__main__":
            main()
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn.functional as F


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.Adam(net.parameters())

            def loss(self, x):
                return F.mse_loss(self.net(x), torch.ones(4, 1))

            def fit(self, batches):
                for x in batches:
                    self.optimizer.zero_grad()
                    loss = self.loss(x)
                    self.optimizer.step()  #!
                    print(loss.item())


        Trainer(torch.nn.Linear(3, 1)).fit(torch.randn(3, 4, 3))
        """,
        good="""
        import torch
        import torch.nn.functional as F


        class Trainer:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.Adam(net.parameters())

            def loss(self, x):
                return F.mse_loss(self.net(x), torch.ones(4, 1))

            def fit(self, batches):
                for x in batches:
                    self.optimizer.zero_grad()
                    loss = self.loss(x)
                    loss.backward()
                    self.optimizer.step()
                    print(loss.item())


        Trainer(torch.nn.Linear(3, 1)).fit(torch.randn(3, 4, 3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        def train(model, batches):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches:
                loss = model(batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()  #!


        train(nn.Linear(3, 1), torch.ones(3, 2, 3))
        """,
        good="""
        import torch
        from torch import nn


        def train(model, batches):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches:
                loss = model(batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


        train(nn.Linear(3, 1), torch.ones(3, 2, 3))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from base import Trainer


    class Mine(Trainer):
        def __init__(self, net):
            super().__init__()
            self.net = net
            self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def fit(self, batches):
            for x in batches:
                self.optimizer.zero_grad()
                self.accumulate(self.net(x).sum())
                self.optimizer.step()


    def train(net, optimizer: torch.optim.Optimizer, criterion, batches):
        for x in batches:
            optimizer.zero_grad()
            criterion(net, x)
            optimizer.step()
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rates = []
    for _ in range(3):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr())
    for x in torch.ones(3, 2, 3):
        model(x)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    """,
    """
    import torch
    import losses

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.ones(3, 2, 3):
        optimizer.zero_grad()
        losses.compute(model, x)
        optimizer.step()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.ones(3, 2, 3):
        other.zero_grad()
        model(x).sum().backward()
        losses.finish(other)
    """,
    """
    import torch


    class Trainer:
        def __init__(self, net):
            self.net = net
            self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def update(self, x):
            loss = self.net(x).sum()
            self.optimizer.step()
            return loss

        def accumulate(self, x):
            self.optimizer.zero_grad()
            self.net(x).sum().backward()


    def fisher(net, batches):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        total = 0.0
        for x in batches:
            optimizer.zero_grad()
            net(x).sum().backward()
            total += sum(p.grad.pow(2).sum().item() for p in net.parameters())
        return total
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())


    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss


    for _ in range(3):
        model(torch.ones(2, 3))
        optimizer.step(closure)
    """,
    """
    import torch

    maker, judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    for_maker = torch.optim.Adam(maker.parameters())
    for_judge = torch.optim.Adam(judge.parameters())
    for x in torch.ones(3, 4, 2):
        for_maker.zero_grad()
        judge(maker(x)).mean().backward()
        for_judge.zero_grad()
        for_maker.step()
    """,
    """
    import functools

    import torch

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    advance = functools.partial(optimizer.step)
    for x in torch.ones(3, 4, 2):
        optimizer.zero_grad()
        net(x).mean().backward()
        advance()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Steps without any backward in the whole of what makes the optimizer, and the reverse."""
    handed_on = any(isinstance(node.ctx, ast.Load) and not is_callee(model, node)
                    for name in ("step", "backward") for node in model.attributes_named(name))
    if not handed_on:  # `partial(optimizer.step)`: called later, by whoever has it
        yield from training.once(model, incomplete(model))


def is_callee(model: FileModel, node: ast.Attribute) -> bool:
    """Whether an attribute is called at once, or a statement of its own, which is another fault."""
    parent = model.parent(node)
    return isinstance(parent, ast.Expr) or (isinstance(parent, ast.Call) and parent.func is node)


def incomplete(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The steps and backwards of every function that lack the other one."""
    for owner, flow in training.functions_first(model):
        for made in flow.of("make_optimizer"):
            if made.depth or not whole(flow):
                continue
            for event, message in lonely(model, flow, made):
                if keeps_to_itself(model, flow, made, owner):
                    place = training.place_of(model, event)
                    yield event, Hit(place, message, confidence=min(event.target.sure, made.target.sure))
        for event, message in forgotten(model, flow):
            place = training.place_of(model, event)
            yield event, Hit(place, message, confidence=min(event.target.sure, Confidence.LIKELY))


def forgotten(model: FileModel, flow: Flow) -> Iterator[tuple[Event, str]]:
    """The same for optimizers that are made elsewhere, in files that never write one of the two calls at all.

    What another file does, its own text answers for.
    """
    events = [event for event in flow.events if event.loops]
    if any(event.what in ("step", "backward") and not model.has(event.inner or event.node) for event in flow.events):
        return
    if any(hides(model, event) for event in events) or not whole(flow):
        return
    if not any(model.calls_named(name) for name in ("backward", "manual_backward", "grad")) and not any(
        training.fills(event) for event in flow.events
    ):
        for step in events:
            called = [e for e in events if e.what == "call" and e.grad and e.loops[-1] is step.loops[-1]]
            if step.what == "step" and training.is_stepped(step) and called:
                yield step, NEVER_BACKWARD
    elif not any(word in model.source.text for word in ("step(", ".step", ".grad")):
        clears = [e for e in events if e.what == "zero_grad" and e.target.kind is Kind.OPTIMIZER]
        for event in events:
            if event.what == "backward" and any(clear.loops[-1] is event.loops[-1] for clear in clears):
                yield event, NEVER_STEPPED
                return


def hides(model: FileModel, event: Event) -> bool:
    """Whether an event is a call of an inherited or dynamic method, which may do anything with its object."""
    match event.inner:
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)) if event.what == "unknown_call" and (
            model.has(receiver)
        ):
            value = model.value(receiver)
            if value.cls is not None:
                return not any(attr in cls.stores for cls in value.cls.project_mro)
            return value.kind in (Kind.MODULE, Kind.OPTIMIZER, Kind.INSTANCE)
        case ast.Call() as call if event.what == "unknown_call" and model.has(call):
            return isinstance(model.parent(call), ast.Expr) and any(not arg.known or arg.attached for arg in event.args)
    return False


def lonely(model: FileModel, flow: Flow, made: Event) -> Iterator[tuple[Event, str]]:
    """Steps of an optimizer without backwards, or backwards in a loop that clears but never steps."""
    steps = [e for e in flow.of("step") if training.same(e.target, made.target)]
    if not any(training.fills(event) for event in flow.events):
        for step in steps:
            if training.is_stepped(step) and any(e.what == "call" and e.grad and e.loops[:1] == step.loops[:1]
                                                 for e in flow.events if step.loops or not e.loops):
                yield step, NEVER_BACKWARD
    elif not steps and not (reads_gradients(model, flow, made) or flow.of("clip", "register_hook")):
        clears = [e for e in flow.of("zero_grad") if training.same(e.target, made.target) and e.loops]
        for event in flow.of("backward"):
            if event.loops and any(clear.loops[-1] is event.loops[-1] for clear in clears):
                if not stepped_next(flow, event):
                    yield event, NEVER_STEPPED
                    return


def stepped_next(flow: Flow, backward: Event) -> bool:
    """Whether another optimizer steps behind a backward, before the next one: the gradients may be meant for it."""
    for event in flow.events[flow.events.index(backward) + 1 :]:
        if event.what in ("backward", "step", "unknown_step"):
            return event.what != "backward"
    return False


def reads_gradients(model: FileModel, flow: Flow, made: Event) -> bool:
    """Whether the code looks at `.grad` itself, as penalties and saliency do."""
    nodes = [made.node, *(event.inner for event in flow.events if event.inner is not None and model.has(event.inner))]
    owners = {model.owner(node) for node in nodes}
    return any(model.owner(attribute) in owners for attribute in model.attributes_named("grad"))


def whole(flow: Flow) -> bool:
    """Whether everything that may compute gradients or step can be seen in a flow."""
    return not any(
        event.what == "unknown_step" or (event.what in ("unknown_call", "construct", "train", "eval", "apply")
                                         and any(matters(arg) for arg in event.args))
        for event in flow.events
    )


def matters(arg: Value, depth: int = 0) -> bool:
    """Whether unseen code that is given this may run a backward or a step."""
    if arg.kind in (Kind.MODULE, Kind.OPTIMIZER, Kind.PARAMETERS, Kind.INSTANCE, Kind.FUNCTION, Kind.SCALER):
        return True
    return depth < 2 and any(matters(part, depth + 1) for part in arg.parts())


def keeps_to_itself(model: FileModel, flow: Flow, made: Event, owner: ast.AST) -> bool:
    """Whether the optimizer is a local that is neither returned nor stored, and no result of a call is dropped."""
    held = [value for _, value in flow.return_values] + [e.value for e in flow.of("store", "store_attr", "setattr")]
    if any(training.same(part, made.target) for value in held for part in (value, *value.parts())):
        return False
    for event in flow.of("unknown_call"):
        node = event.inner if event.inner is not None else event.node
        given = any(not arg.known or arg.attached for arg in event.args)
        if given and model.has(node) and isinstance(model.parent(node), (ast.Expr, ast.Await)):
            return False
    return not any(isinstance(stmt, ast.Global) for stmt in ast.walk(owner))
