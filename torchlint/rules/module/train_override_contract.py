"""A train() or eval() that does not do what Module's own do.

`Module.eval()` is `self.train(False)`, and `train(mode)` sets `self.training` and calls `train(mode)` of every child.
An override that leaves out the mode or `super()` keeps Dropout and BatchNorm in training mode after `eval()`; one that
returns nothing makes `net = net.eval()` None. A layer put into `eval()` by the constructor goes back to training mode
with the first `train()` of the module or of a parent.

Write `def train(self, mode=True): super().train(mode); ...; return self`, and freeze layers there, after `super()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import ModeLeaks
from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, Event, FileModel, Flow, FunctionInfo, Kind, Value, training
from torchlint.model.environment import mode_like, switches
from torchlint.model.evaluate import path_of
from torchlint.model.held import building_methods
from torchlint.rule import Example, Hit, Meta

META = Meta("TL415", "train-override-contract", Severity.WARNING, also=(Severity.ADVICE,),
            triggers=("def train", "def eval", ".eval()"))
CLAIM = ModeLeaks()
SWITCHING = ("training", "children", "named_children", "modules", "named_modules", "_modules", "__dict__")
# Model zoos whose networks have BatchNorm; the others may have none.
NORMED = ("resnet", "resnext", "densenet", "mobilenet", "efficientnet", "inception", "googlenet", "mnasnet",
          "shufflenet", "regnet", "_bn")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.backbone = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
                self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(size, 1))

            def forward(self, x):
                return self.head(self.backbone(x))

            def train(self, mode=True):  #!
                super().train()
                self.backbone.eval()
                return self


        net = Net()
        net.eval()
        print(net(torch.ones(2, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.backbone = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
                self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(size, 1))

            def forward(self, x):
                return self.head(self.backbone(x))

            def train(self, mode=True):
                super().train(mode)
                self.backbone.eval()
                return self


        net = Net()
        net.eval()
        print(net(torch.ones(2, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.ReLU())
                self.head = nn.Linear(size, 1)
                self.body.eval()  #!
                for p in self.body.parameters():
                    p.requires_grad_(False)

            def forward(self, x):
                return self.head(self.body(x))


        net = Net()
        net.train()
        net(torch.randn(8, 4)).sum().backward()
        """,
        good="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.ReLU())
                self.head = nn.Linear(size, 1)
                self.body.eval()
                for p in self.body.parameters():
                    p.requires_grad_(False)

            def forward(self, x):
                return self.head(self.body(x))

            def train(self, mode=True):
                super().train(mode)
                self.body.eval()
                return self


        net = Net()
        net.train()
        net(torch.randn(8, 4)).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Cached(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.cache = {}

            def forward(self, x):
                return self.fc(x)

            def train(self, mode: bool = True):  #!
                super().train(mode)
                self.cache = {}


        class Wrapper(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Cached()
                self.drop = nn.Dropout(0.5)

            def forward(self, x):
                return self.drop(self.net(x))

            def eval(self):  #!
                self.net.eval()


        model = Wrapper()
        model.eval()
        print(model(torch.ones(2, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Cached(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)
                self.cache = {}

            def forward(self, x):
                return self.fc(x)

            def train(self, mode: bool = True):
                super().train(mode)
                self.cache = {}
                return self


        class Wrapper(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Cached()
                self.drop = nn.Dropout(0.5)

            def forward(self, x):
                return self.drop(self.net(x))

            def eval(self):
                return super().eval()


        model = Wrapper()
        model.eval()
        print(model(torch.ones(2, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()  #!
        for epoch in range(2):
            model.train()
            for batch in torch.randn(3, 8, 4):
                optimizer.zero_grad()
                model(batch).pow(2).mean().backward()
                optimizer.step()
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            model.train()
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
            for batch in torch.randn(3, 8, 4):
                optimizer.zero_grad()
                model(batch).pow(2).mean().backward()
                optimizer.step()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Frozen(nn.Module):
        def __init__(self, size=2):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
            self.plain = nn.Linear(size, size)
            self.body.eval()

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def eval(self):
            self.plain.requires_grad_(False)
            return super().eval()


    class Never(Frozen):
        def train(self, mode=True):
            return super().train(False)


    class Explicit(Frozen):
        def train(self, mode=True):
            return nn.Module.train(self, mode=mode)


    class Split(Frozen):
        def train(self, mode=True):
            if mode:
                super().train()
            else:
                super().train(False)
            return self

        def eval(self):
            return self.train(False)


    class Own(Frozen):
        def train(self, mode=True):
            self.training = mode
            for module in self.children():
                module.train(mode)
            self.body.train(False)
            return self


    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.fc.eval()
            self.norm = nn.BatchNorm1d(2)
            with torch.no_grad():
                self.norm.eval()
                self.norm(torch.ones(2, 2))
                self.norm.train()
            self.teacher = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()

        def forward(self, x):
            self.teacher.eval()
            return self.fc(self.teacher(x))


    def finetune(model: nn.Module, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches:
            model.train()
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


    class Trainer:
        def __init__(self, model):
            self.model = model
            self.model.eval()

        def train(self, mode=True):
            self.model.train()

        def eval(self):
            pass


    for cls in (Frozen, Never, Explicit, Split, Own, Plain):
        print(cls().eval() is not None)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Overrides that break the contract, and layers frozen by a constructor without an override."""
    for cls in model.classes:
        if not cls.is_module:
            continue
        for name in ("train", "eval"):
            method = cls.methods.get(name)
            if method is not None and isinstance(method.node, ast.FunctionDef) and takes_mode(method):
                yield from override_hits(cls, method)
        if cls.method("train") is None and cls.fully_known:
            yield from thawed(cls)
    for _, flow in training.bodies(model):
        yield from thawed_in_loop(model, flow)


def takes_mode(method: FunctionInfo) -> bool:
    """Whether a method has the parameters of Module's: `module-method-shadowed` is about the others."""
    if method.is_static or method.is_classmethod or method.args.vararg is not None:
        return False
    required = len(method.params) - 1 - len(method.args.defaults)
    if method.name == "eval":
        return required <= 0
    if len(method.params) < 2 or required > 1:
        return False
    first = method.params[1]
    return mode_like(first)


def override_hits(cls: ClassInfo, method: FunctionInfo) -> Iterator[Hit]:
    """What is wrong with one override."""
    passed = delegations(cls, method)
    if any(isinstance(node, ast.Raise) for node in method.own_nodes) and not passed:
        return
    if not passed and not does_it_all(method):
        passed_on = "mode" if method.name == "train" else ""
        yield Hit(method.node, "`self.training` and other parts keep their mode; "
                               f"call `super().{method.name}({passed_on})`")
    elif method.name == "train" and passed and not any(gives_mode(method, call) for call in passed):
        yield Hit(method.node, "the mode is not passed on, so `eval()` does not work; "
                               "call `super().train(mode)`")
    elif not any(isinstance(node, (ast.Return, ast.Yield)) and getattr(node, "value", None) is not None
                 for node in method.own_nodes):
        yield Hit(method.node, f"returns nothing, so `net = net.{'eval' if method.name == 'eval' else 'train'}()` "
                               "is None; add `return self`", severity=Severity.ADVICE)


def delegations(cls: ClassInfo, method: FunctionInfo) -> list[ast.Call]:
    """Calls of a parent's `train` or `eval`, or of the class' own on the same object."""
    found = []
    for call in method.calls:
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="train" | "eval"):
                found.append(call)
            case ast.Attribute(value=ast.Name(id=owner), attr="train" | "eval" as attr) if owner == method.self_name:
                if attr != method.name:
                    found.append(call)
            case ast.Attribute(value=(ast.Name() | ast.Attribute()), attr="train" | "eval") if call.args and (
                    isinstance(call.args[0], ast.Name) and call.args[0].id == method.self_name):
                found.append(call)
    return found


def does_it_all(method: FunctionInfo) -> bool:
    """Whether a method sets the flag, or goes through its children, itself."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in SWITCHING)
        or (isinstance(node, ast.Name) and node.id in ("setattr", "getattr"))
        for node in method.own_nodes
    )


def gives_mode(method: FunctionInfo, call: ast.Call) -> bool:
    """Whether a call passes the mode on, says False, or is in a branch that asks for the mode."""
    mode = method.params[1].arg
    first = call.args[0] if call.args else None
    explicit = isinstance(first, ast.Name) and first.id == method.self_name  # `Module.train(self, mode)`
    values = [*call.args[1 if explicit else 0:], *(keyword.value for keyword in call.keywords)]
    if any(not (isinstance(value, ast.Constant) and value.value is True) for value in values):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "eval":
        return True
    return any(isinstance(node, ast.Name) and node.id == mode for test, _ in method.model.place(call).guards
               for node in ast.walk(test) if isinstance(test, ast.If))


def thawed(cls: ClassInfo) -> Iterator[Hit]:
    """Layers with BatchNorm or Dropout that the constructor puts into evaluation mode, and nothing keeps there."""
    building = building_methods(cls)
    for method in cls.methods.values():
        if method.name not in building or not method.self_name:
            continue
        for call in method.calls:
            match call.func:
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id=owner), attr=name), attr="eval"):
                    if owner == method.self_name and not call.args and not switched_again(cls, name, call):
                        value = cls.model.value(call.func.value)
                        if acts_by_mode(value):
                            yield Hit(call, f"`train()` puts `self.{name}` back into training mode; "
                                            "freeze it in `train`",
                                      confidence=min(Confidence.LIKELY, value.sure))
                case ast.Attribute(value=ast.Name(id=name) as part, attr="eval") if over_own(method, call, name):
                    if acts_by_mode(cls.model.value(part)) and not call.args:
                        yield Hit(call, "`train()` puts these layers back into training mode; "
                                        "freeze them in `train`", confidence=Confidence.LIKELY)


def over_own(method: FunctionInfo, call: ast.Call, name: str) -> bool:
    """Whether a name is the variable of a loop over parts of the instance."""
    for loop in method.model.place(call).loops:
        match loop:
            case ast.For(target=target, iter=source):
                names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
                roots = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)}
                if name in names and method.self_name in roots:
                    return True
    return False


def thawed_in_loop(model: FileModel, flow: Flow) -> Iterator[Hit]:
    """Parts of a model that a script freezes before it calls `train()` on the whole, with training steps behind."""
    events = flow.of("eval", "train", "step")
    for number, event in enumerate(events):
        if event.what != "eval" or event.depth or not acts_by_mode(event.target):
            continue
        after = events[number + 1:]
        for place, other in enumerate(after):
            if other.what != "train" or not part_of(model, event, other):
                continue
            again = any(e.what == "eval" and e.node is not event.node and same_part(event, e) for e in after[place:])
            if not again and any(e.what == "step" for e in after[place:]):
                yield Hit(event.node, "`train()` below puts this part back into training mode; freeze it after that",
                          confidence=min(Confidence.LIKELY, event.target.sure))
                break


def part_of(model: FileModel, frozen: Event, switched: Event) -> bool:
    """Whether what the one statement froze belongs to what the other one puts into training mode."""
    whole = switched.target.ident
    if whole is None or frozen.target.ident == whole:
        return False
    match frozen.target.ident:
        case (root, "modules" | "children" | "named_modules" | "named_children"):
            return bool(root == whole)
    match frozen.node, switched.node:
        case ast.Call(func=ast.Attribute(value=part)), ast.Call(func=ast.Attribute(value=rest)) if not switched.depth:
            return bool(path_of(rest)) and path_of(part).startswith(f"{path_of(rest)}.")
    return False


def same_part(one: Event, other: Event) -> bool:
    """Whether two statements freeze the same part."""
    if one.target.ident == other.target.ident:
        return True
    match one.node, other.node:
        case ast.Call(func=ast.Attribute(value=left)), ast.Call(func=ast.Attribute(value=right)):
            return bool(path_of(left)) and path_of(left) == path_of(right)
    return False


def switched_again(cls: ClassInfo, name: str, call: ast.Call) -> bool:
    """Whether any other statement of the class sets the mode of the attribute."""
    for base in cls.project_mro:
        for method in base.methods.values():
            for other in method.calls:
                match other.func:
                    case ast.Attribute(value=ast.Attribute(attr=attr), attr="train" | "eval") if attr == name:
                        if other is not call:
                            return True
    return False


def acts_by_mode(value: Value) -> bool:
    """Whether a module surely has BatchNorm or Dropout in it."""
    zoo = value.kind is Kind.MODULE and value.name.startswith("torchvision.models.")
    return switches(value) or (zoo and any(word in value.name for word in NORMED))
