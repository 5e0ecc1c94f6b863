"""A layer replaced after the optimizer took the parameters.

An optimizer holds the Parameter objects that `parameters()` gave it. A layer assigned to the model afterwards
brings new Parameters that are in no param group: they get gradients but never move, while the optimizer keeps
the old ones alive. `.to()`, `.cuda()` and `.double()` are no such case: they keep the Parameter objects.

Change the model first and make the optimizer last, or hand the new parameters to `add_param_group`.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from torchlint.claims import NotOptimized
from torchlint.findings import Severity
from torchlint.model import ClassInfo, Event, FileModel, Flow, Kind, Value, training
from torchlint.model.held import makes_weights
from torchlint.rule import Example, Hit, Meta

META = Meta("TL512", "optimizer-before-layer-replaced", Severity.ERROR, triggers=("optim", "Optim"))
CLAIM = NotOptimized()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential()
        model.body = nn.Linear(4, 4)
        model.head = nn.Linear(4, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(4, 2)  #!
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential()
        model.body = nn.Linear(4, 4)
        model.head = nn.Linear(4, 10)
        model.head = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 10)

            def new_head(self, classes):
                self.head = nn.Linear(4, classes)

            def forward(self, x):
                return self.head(self.body(x))


        def finetune(x):
            net = Net()
            optimizer = torch.optim.Adam(net.parameters())
            net.new_head(2)  #!
            net(x).sum().backward()
            optimizer.step()


        finetune(torch.ones(3, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 10)

            def new_head(self, classes):
                self.head = nn.Linear(4, classes)

            def forward(self, x):
                return self.head(self.body(x))


        def finetune(x):
            net = Net()
            net.new_head(2)
            optimizer = torch.optim.Adam(net.parameters())
            net(x).sum().backward()
            optimizer.step()


        finetune(torch.ones(3, 4))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Tuner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
                self.net[1] = nn.Linear(4, 2)  #!

            def learn(self, x):
                self.optimizer.zero_grad()
                self.net(x).sum().backward()
                self.optimizer.step()


        tuner = Tuner(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10)))
        for _ in range(2):
            tuner.learn(torch.ones(3, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Tuner:
            def __init__(self, net):
                self.net = net
                self.net[1] = nn.Linear(4, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def learn(self, x):
                self.optimizer.zero_grad()
                self.net(x).sum().backward()
                self.optimizer.step()


        tuner = Tuner(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10)))
        for _ in range(2):
            tuner.learn(torch.ones(3, 4))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Learner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def adapt(self, classes):
                self.net[-1] = nn.Linear(4, classes)  #!

            def step(self, x):
                self.optimizer.zero_grad()
                self.net(x).pow(2).mean().backward()
                self.optimizer.step()


        learner = Learner(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        learner.adapt(5)
        learner.step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Learner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def adapt(self, classes):
                self.net[-1] = nn.Linear(4, classes)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def step(self, x):
                self.optimizer.zero_grad()
                self.net(x).pow(2).mean().backward()
                self.optimizer.step()


        learner = Learner(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        learner.adapt(5)
        learner.step(torch.ones(2, 3))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net[-1] = nn.Sequential(nn.Linear(4, 2), net[1])  #!
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        net(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 10))
        net[-1] = nn.Sequential(nn.Linear(4, 2), net[1])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        net(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.double()
    model.act = nn.ReLU()
    model.extra = nn.Linear(4, 4)
    optimizer.add_param_group({"params": model.extra.parameters()})
    model(torch.ones(3, 4, dtype=torch.double)).sum().backward()
    optimizer.step()
    """,
    """
    import torch
    from torch import nn


    class Trainer:
        def __init__(self, net):
            self.net = net
            self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            self.model = nn.DataParallel(net)
            self.criterion = nn.CrossEntropyLoss()

        def step(self, x):
            self.model(x).sum().backward()
            self.optimizer.step()


    Trainer(nn.Linear(2, 2))
    """,
    """
    import torch
    from torch import nn


    class Tuner:
        def __init__(self, net):
            self.net = net
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.net[-1] = nn.Linear(4, 2)

        def learn(self, x):
            self.optimizer.zero_grad()
            self.net(x).sum().backward()
            self.optimizer.step()

        def unfreeze(self):
            self.optimizer.add_param_group({"params": self.net[-1].parameters()})


    tuner = Tuner(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10)))
    for _ in range(2):
        tuner.learn(torch.ones(3, 4))
    """,
    """
    import torch
    from torch import nn


    class Learner:
        def __init__(self, net):
            self.net = net
            self.build()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def build(self):
            self.net.head = nn.Linear(4, 2)

        def swap(self):
            self.net.act = nn.Tanh()

        def extend(self):
            self.net.extra = nn.Linear(4, 2)
            self.optimizer.add_param_group({"params": self.net.extra.parameters()})

        def step(self, x):
            self.optimizer.zero_grad()
            self.net(x).pow(2).mean().backward()
            self.optimizer.step()


    Learner(nn.Linear(2, 2))
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            return self.head(self.body(x))


    class Adapter(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).relu()


    def step(net, optimizer):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()


    def takes_over_weights(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        new = nn.Linear(4, 4)
        new.weight, new.bias = net.head.weight, net.head.bias
        net.head = new
        old, net.body = net.body, nn.Linear(4, 4)
        net.body.weight = old.weight
        net.body.bias = old.bias
        step(net, optimizer)


    def wraps(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.head = nn.Sequential(net.head, nn.ReLU())
        net.body = Adapter(net.body)
        step(net, optimizer)


    def swaps(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        head, net.head = net.head, nn.Identity()
        net(torch.ones(2, 4))
        net.head = head
        net.head, net.body = net.body, net.head
        step(net, optimizer)


    def tells(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.head = nn.Linear(4, 4)
        refresh(optimizer, net)
        step(net, optimizer)


    def tells_by_group(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.head = nn.Linear(4, 4)
        for group in optimizer.param_groups:
            group["params"] = list(net.parameters())
        step(net, optimizer)


    def extends(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.head = nn.Linear(4, 4)
        optimizer.param_groups[0]["params"].extend(net.head.parameters())
        step(net, optimizer)


    def refresh(optimizer, net):
        optimizer.param_groups[0]["params"] = list(net.parameters())


    for case in (takes_over_weights, wraps, swaps, tells, tells_by_group, extends):
        case(Net())
    """,
    """
    import torch
    from torch import nn


    class Learner:
        def __init__(self):
            self.net = nn.Sequential(nn.Linear(4, 4))
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def adapt(self):
            self.net[0] = nn.Linear(4, 4)
            self.refresh()

        def refresh(self):
            self.optimizer.param_groups[0]["params"] = list(self.net.parameters())

        def step(self, x):
            self.optimizer.zero_grad()
            self.net(x).sum().backward()
            self.optimizer.step()


    learner = Learner()
    learner.adapt()
    learner.step(torch.ones(2, 4))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Attributes of a module set to new layers between the making of its optimizer and a step."""
    seen = set()
    for function, flow in training.bodies(model):
        for made in flow.of("make_optimizer"):
            module = made.args[0].bound if made.args and made.args[0].kind is Kind.PARAMETERS else None
            if made.depth or module is None or module.ident is None:
                continue
            stepped = stepped_by_methods(model, function, made)
            later = replaced_by_methods(model, function, made, module) if stepped else iter(())
            for event in (*replaced(flow, made, module, stepped), *later):
                if event.node not in seen:
                    seen.add(event.node)
                    yield Hit(
                        event.node,
                        "the optimizer does not know this new layer; make the optimizer afterwards",
                        confidence=min(module.sure, made.target.sure),
                    )


def stepped_by_methods(model: FileModel, function: ast.AST, made: Event) -> bool:
    """Whether the optimizer that a constructor makes is stepped by other methods of its class."""
    cls = model.function_info(function).cls if function is not model.tree else None
    if cls is None or cls.methods.get("__init__") is not model.function_info(function):
        return False
    flows = [model.flow(method.node) for method in cls.methods.values()]
    stepped = any(training.same(event.target, made.target) for flow in flows for event in flow.of("step"))
    told = any(is_told(event, made.target) for flow in flows for event in flow.events)
    return stepped and not told


def replaced_by_methods(model: FileModel, function: ast.AST, made: Event, module: Value) -> Iterator[Event]:
    """Stores of new layers by other methods, if the optimizer that the constructor makes is never made anew."""
    constructor = model.function_info(function)
    cls = constructor.cls
    keeps = [event.path.rpartition(".")[2] for event in model.flow(function).of("store_attr")
             if training.same(event.value, made.target)]
    if cls is None or len(keeps) != 1 or written_elsewhere(model, cls, keeps[0]):
        return
    early = {call.func.attr for call in constructor.calls if isinstance(call.func, ast.Attribute)}
    for method in cls.methods.values():
        events = model.flow(method.node).events
        if method is constructor or method.name in early or any(e.what == "make_optimizer" for e in events):
            continue
        yield from (e for e in events if sets_child(e) and e.depth == 0 and training.same(e.target, module)
                    and makes_weights(e.value, earlier_parts(module)) and not takes_over(events, e.value))


def sets_child(event: Event) -> bool:
    """`net.head = layer`, `net[-1] = layer`."""
    return event.what == "store_attr" or (event.what == "store" and event.name == "__setitem__")


def written_elsewhere(model: FileModel, cls: ClassInfo, name: str) -> bool:
    """Whether an attribute is set anywhere but once in the class."""
    writes = [node for node in model.attributes_named(name) if isinstance(node.ctx, ast.Store)]
    return len(cls.stores.get(name, ())) != 1 or len(writes) != 1


def replaced(flow: Flow, made: Event, module: Value, stepped: bool) -> Iterator[Event]:
    """Stores of new layers into the module after its optimizer was made, if that optimizer steps later."""
    at, old = flow.events.index(made), earlier_parts(module)
    old |= {event.value.ident for event in flow.events[:at] if event.what == "store_attr"}
    for number, event in enumerate(flow.events[at + 1 :], at + 1):
        later = flow.events[number:]
        if event.excludes(made) or set(made.loops) != set(event.loops[: len(made.loops)]):
            continue
        if sets_child(event) and training.same(event.target, module):
            new = makes_weights(event.value, old) and not takes_over(flow.events, event.value)
        else:
            new = event.what == "load_state" and training.same(event.target, module) and assigns(event.inner)
        steps = stepped or any(e.what == "step" and training.same(e.target, made.target) for e in later)
        told = any(
            is_told(e, made.target) or (e.what == "make_optimizer" and training.same(owner(e), module)) for e in later
        )
        if new and steps and not told:
            yield event


def owner(made: Event) -> Value:
    """The module whose parameters an optimizer takes."""
    params = made.args[0] if made.args else made.target
    return params.bound if params.bound is not None else made.target


def is_told(event: Event, optimizer: Value) -> bool:
    """Whether an event gives an optimizer other parameters: `add_param_group`, or a change of `param_groups`."""
    match event.what, event.inner or event.node:
        case "add_params", _:
            return training.same(event.target, optimizer)
        case "store", ast.Subscript(slice=ast.Constant(value=str(key))) if key != "params":
            return False  # `group["lr"] = 0.1`
        case "store" | "clear", _:
            return event.target.bound is not None and training.same(event.target.bound, optimizer)
        case "store_attr", _:
            return event.name == "param_groups" and training.same(event.target, optimizer)
    return False


def earlier_parts(module: Value, depth: int = 3) -> set[Hashable]:
    """What tells apart the layers that a module is made with, which its optimizer knows wherever they are put."""
    parts = list(module.elements or ())
    if module.cls is not None:
        parts += [cls.attr(name) for cls in module.cls.project_mro for name in cls.stores]
    layers = [part for part in parts if part.kind is Kind.MODULE and depth]
    return {part.ident for part in layers}.union(*(earlier_parts(part, depth - 1) for part in layers))


def takes_over(events: list[Event], layer: Value) -> bool:
    """Whether a layer is given parameters that are there already: `new.weight = old.weight`."""
    for event in events:
        if event.what == "store_attr" and training.same(event.target, layer):
            kept, made = event.value.ident, isinstance(event.value.site, ast.Call)
            if event.value.role == "parameter" and not made:
                return True
            if not event.value.known and isinstance(kept, tuple) and kept[-1] == event.name:
                return True
    return False


def assigns(call: ast.AST | None) -> bool:
    """`load_state_dict(..., assign=True)` puts the loaded tensors in the place of the Parameters."""
    match call:
        case ast.Call(keywords=keywords):
            return any(k.arg == "assign" and isinstance(k.value, ast.Constant) and k.value.value is True
                       for k in keywords)
    return False
