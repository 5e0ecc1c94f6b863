"""A layer replaced after the optimizer took the parameters.

An optimizer holds the Parameter objects that `parameters()` gave it. A layer assigned to the model afterwards
brings new Parameters that are in no param group: they get gradients but never move, while the optimizer keeps
the old ones alive. `.to()`, `.cuda()` and `.double()` are no such case: they keep the Parameter objects.

Change the model first and make the optimizer last, or hand the new parameters to `add_param_group`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NotOptimized
from torchlint.findings import Severity
from torchlint.model import ClassInfo, Event, FileModel, Flow, Kind, Value, training
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


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 10)

            def forward(self, x):
                return self.head(self.body(x))


        class Tuner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
                self.net.head = nn.Linear(4, 2)  #!

            def learn(self, x):
                self.optimizer.zero_grad()
                self.net(x).sum().backward()
                self.optimizer.step()


        tuner = Tuner(Net())
        for _ in range(2):
            tuner.learn(torch.ones(3, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 10)

            def forward(self, x):
                return self.head(self.body(x))


        class Tuner:
            def __init__(self, net):
                self.net = net
                self.net.head = nn.Linear(4, 2)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def learn(self, x):
                self.optimizer.zero_grad()
                self.net(x).sum().backward()
                self.optimizer.step()


        tuner = Tuner(Net())
        for _ in range(2):
            tuner.learn(torch.ones(3, 4))
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
                self.body = nn.Linear(3, 4)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x).relu())


        class Learner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def adapt(self, classes):
                self.net.head = nn.Linear(4, classes)  #!

            def step(self, x):
                self.optimizer.zero_grad()
                self.net(x).pow(2).mean().backward()
                self.optimizer.step()


        learner = Learner(Net())
        learner.adapt(5)
        learner.step(torch.ones(2, 3))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(3, 4)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x).relu())


        class Learner:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def adapt(self, classes):
                self.net.head = nn.Linear(4, classes)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def step(self, x):
                self.optimizer.zero_grad()
                self.net(x).pow(2).mean().backward()
                self.optimizer.step()


        learner = Learner(Net())
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
        net[-1] = nn.Linear(4, 2)  #!
        net(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 10))
        net[-1] = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
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


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 10)

        def forward(self, x):
            return self.head(self.body(x))


    class Tuner:
        def __init__(self, net):
            self.net = net
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.net.head = nn.Linear(4, 2)

        def learn(self, x):
            self.optimizer.zero_grad()
            self.net(x).sum().backward()
            self.optimizer.step()

        def unfreeze(self):
            self.optimizer.add_param_group({"params": self.net.head.parameters()})


    tuner = Tuner(Net())
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
    done = {event.what for flow in flows for event in flow.of("step", "add_params")
            if training.same(event.target, made.target)}
    return "step" in done and "add_params" not in done


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
        yield from (e for e in events if sets_child(e) and e.depth == 0
                    and training.same(e.target, module) and brings_parameters(e.value))


def sets_child(event: Event) -> bool:
    """`net.head = layer`, `net[-1] = layer`."""
    return event.what == "store_attr" or (event.what == "store" and event.name == "__setitem__")


def written_elsewhere(model: FileModel, cls: ClassInfo, name: str) -> bool:
    """Whether an attribute is set anywhere but once in the class."""
    writes = [node for node in model.attributes_named(name) if isinstance(node.ctx, ast.Store)]
    return len(cls.stores.get(name, ())) != 1 or len(writes) != 1


def replaced(flow: Flow, made: Event, module: Value, stepped: bool) -> Iterator[Event]:
    """Stores of new layers into the module after its optimizer was made, if that optimizer steps later."""
    at = flow.events.index(made)
    for number, event in enumerate(flow.events[at + 1 :], at + 1):
        later = flow.events[number:]
        if event.excludes(made) or set(made.loops) != set(event.loops[: len(made.loops)]):
            continue
        if sets_child(event) and training.same(event.target, module):
            new = brings_parameters(event.value)
        else:
            new = event.what == "load_state" and training.same(event.target, module) and assigns(event.inner)
        steps = stepped or any(e.what == "step" and training.same(e.target, made.target) for e in later)
        told = any(
            (e.what == "add_params" and training.same(e.target, made.target))
            or (e.what == "make_optimizer" and training.same(owner(e), module))
            for e in later
        )
        if new and steps and not told:
            yield event


def owner(made: Event) -> Value:
    """The module whose parameters an optimizer takes."""
    params = made.args[0] if made.args else made.target
    return params.bound if params.bound is not None else made.target


def brings_parameters(value: Value) -> bool:
    """Whether a value is a Module made just now that owns parameters of its own."""
    if value.kind is not Kind.MODULE or not isinstance(value.site, ast.Call) or "wrapper" in value.facts:
        return False
    if value.cls is not None:
        return any(
            brings_parameters(value.cls.attr(name)) for cls in value.cls.project_mro for name in cls.stores
        )
    if value.elements is not None:
        return any(brings_parameters(part) for part in value.elements)
    info = knowledge.module_class(value.name)
    return info is not None and info.has_parameters and info.kind != "container"


def assigns(call: ast.AST | None) -> bool:
    """`load_state_dict(..., assign=True)` puts the loaded tensors in the place of the Parameters."""
    match call:
        case ast.Call(keywords=keywords):
            return any(k.arg == "assign" and isinstance(k.value, ast.Constant) and k.value.value is True
                       for k in keywords)
    return False
