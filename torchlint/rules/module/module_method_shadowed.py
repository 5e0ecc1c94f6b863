"""A method or attribute of a Module that takes the place of one that torch calls.

torch works through a Module's own methods: `.eval()` calls `self.train(False)`, `train` and `_apply` go through
`self.children()`, `zero_grad` through `self.parameters()`, a parent's `state_dict()` passes `destination=` on to each
child. A method of that name with other parameters, or a value stored under it, makes those calls raise a TypeError. A
layer stored under such a name is registered, but reading the attribute still gives the method.

Choose another name (`fit`, `train_step`, `layers`, `hparams`). An override that takes what torch passes and calls
`super()` is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.model.environment import mode_like
from torchlint.model.values import CONTAINERS
from torchlint.rule import Example, Hit, Meta

# (number of positional arguments, names of keyword arguments) of each call that torch or its users make.
Call = tuple[int, tuple[str, ...]]
CONTRACTS: dict[str, tuple[tuple[Call, ...], str]] = {
    "train": (((1, ()), (0, ())), "`.eval()` calls `train(False)`"),
    "eval": (((0, ()),), "`.eval()` is called with no argument"),
    "parameters": (((0, ()),), "`zero_grad()` calls `parameters()`"),
    "named_parameters": (((0, ("recurse",)),), "`parameters()` calls `named_parameters(recurse=...)`"),
    "modules": (((0, ()),), "`modules()` is called with no argument"),
    "named_modules": (((3, ()),), "a parent passes `named_modules` three values"),
    "children": (((0, ()),), "`train()` and `.to()` call `children()`"),
    "named_children": (((0, ()),), "`children()` calls `named_children()`"),
    "state_dict": (((0, ("destination", "prefix", "keep_vars")), (0, ())),
                   "a parent calls `state_dict(destination=...)`"),
    "apply": (((1, ()),), "a parent calls `apply(fn)` of each child"),
    "_apply": (((1, ()),), "`.to()` calls `_apply(fn)` of each child"),
    "zero_grad": (((0, ()),), "`zero_grad()` is called with no argument"),
}
LATER = {"state_dict", "eval", "zero_grad", "modules"}  # nothing in torch's own work on a single module calls them
TABLES = ("_modules", "_parameters", "_buffers")
# All public methods of Module, for layers that are stored under such a name.
METHODS = {
    "add_module", "apply", "bfloat16", "buffers", "children", "compile", "cpu", "cuda", "double", "eval", "float",
    "get_buffer", "get_parameter", "get_submodule", "half", "load_state_dict", "modules", "named_buffers",
    "named_children", "named_modules", "named_parameters", "parameters", "register_buffer", "register_module",
    "register_parameter", "requires_grad_", "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train",
    "type", "zero_grad",
}

META = Meta("TL414", "module-method-shadowed", Severity.ERROR, also=(Severity.WARNING,),
            triggers=(*(f"def {name}" for name in CONTRACTS), "def training", *(f"{name} =" for name in METHODS),
                      *(f"{name} =" for name in TABLES), "training ="))
CLAIM = Raises("TypeError|AttributeError", "argument|callable|method|iterable|items|setter")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, 1)

            def forward(self, x):
                return self.fc(x)

            def train(self, batches, lr=0.1):  #!
                optimizer = torch.optim.SGD(self.parameters(), lr=lr)
                for batch in batches:
                    optimizer.zero_grad()
                    self(batch).pow(2).mean().backward()
                    optimizer.step()


        net = Net()
        net.train([torch.ones(2, 4)] * 3)
        print(net.eval()(torch.ones(1, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, 1)

            def forward(self, x):
                return self.fc(x)

            def fit(self, batches, lr=0.1):
                optimizer = torch.optim.SGD(self.parameters(), lr=lr)
                for batch in batches:
                    optimizer.zero_grad()
                    self(batch).pow(2).mean().backward()
                    optimizer.step()


        net = Net()
        net.fit([torch.ones(2, 4)] * 3)
        print(net.eval()(torch.ones(1, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4, depth=2):
                super().__init__()
                self.modules = nn.ModuleList([nn.Linear(size, size) for _ in range(depth)])  #!

            def forward(self, x):
                for layer in self.modules:
                    x = layer(x)
                return x


        print(Net()(torch.ones(1, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4, depth=2):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(depth)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x


        print(Net()(torch.ones(1, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.parameters = {"size": size, "lr": 0.1}  #!
                self.fc = nn.Linear(size, size)

            def forward(self, x):
                return self.fc(x)


        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        """,
        good="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hparams = {"size": size, "lr": 0.1}
                self.fc = nn.Linear(size, size)

            def forward(self, x):
                return self.fc(x)


        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)

            def apply(self, x, scale):  #!
                return self.fc(x) * scale

            def forward(self, x):
                return self.apply(x, 2.0)


        model = nn.Sequential(nn.Linear(4, 4), Head())
        model.apply(lambda m: None)
        """,
        good="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.fc = nn.Linear(size, size)

            def scaled(self, x, scale):
                return self.fc(x) * scale

            def forward(self, x):
                return self.scaled(x, 2.0)


        model = nn.Sequential(nn.Linear(4, 4), Head())
        model.apply(lambda m: None)
        """,
    ),
]

CLEAN = [
    """
    import typing

    import torch
    from torch import nn


    class Frozen(nn.Module):
        def __init__(self, size=2, kind="a", training=False):
            super().__init__()
            self.fc = nn.Linear(size, size)
            self.type = kind
            self.half = size // 2
            self.training = training
            self.forward = self.run if kind == "a" else self.walk

        def train(self, mode=True):
            super().train(mode)
            self.fc.eval()
            return self

        def parameters(self, recurse=True):
            return (p for p in super().parameters(recurse) if p.requires_grad)

        def state_dict(self, *args, **kwargs):
            return {k: v for k, v in super().state_dict(*args, **kwargs).items() if "fc" not in k}

        def apply(self, fn):
            return super().apply(fn)

        def to(self, device):
            return super().to(device)

        def run(self, x):
            return self.fc(x)

        def walk(self, x):
            return self.fc(x) + 1


    class Quiet(Frozen):
        def train(self, flag: bool = True):
            return super().train(flag)

        def eval(self):
            return self.train(False)

        @typing.overload
        def apply(self, fn, more): ...

        def apply(self, fn, *rest):
            return super().apply(fn)


    class Loud(Frozen):
        def train(self, status=True):
            print("train", status)
            return super().train(status)


    class Trainer:
        def __init__(self, model):
            self.parameters = {"lr": 0.1}
            self.modules = [model]

        def train(self, loader, epochs):
            for batch in loader:
                self.modules[0](batch)


    nn.Sequential(Frozen(), Quiet()).eval().state_dict()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Methods of Modules that cannot take what torch passes, and values stored under the names of methods."""
    for cls in model.classes:
        if not cls.is_module:
            continue
        for name, method in cls.methods.items():
            if not any(name in base.methods for base in cls.project_mro if base is not cls):
                yield from method_hits(cls, name, method)
        for name, stores in cls.stores.items():
            if cls.methods.get(name) is None and (name in METHODS or name in TABLES or name == "training"):
                for _, stmt, expr in stores:
                    if expr is not None and not isinstance(stmt, ast.Call):
                        yield from attribute_hits(cls, name, stmt, cls.model.value(expr))


def method_hits(cls: ClassInfo, name: str, method: FunctionInfo) -> Iterator[Hit]:
    """A method whose parameters, or meaning, are not those of Module's."""
    if name == "training":
        why = "`Module.__init__` sets a flag of this name over it" if not method.is_property else (
            "`Module.__init__` cannot set its flag of this name")
        yield Hit(method.node, f"{why}; choose another name")
        return
    if name not in CONTRACTS:
        return
    calls, why = CONTRACTS[name]
    if name == "train" and "eval" in cls.methods:
        why = "a parent calls `train(mode)` of each child"
    if method.is_property:
        yield Hit(method.node, f"{why}; a property cannot be called; rename it")
        return
    failed = [call for call in calls if not binds(method, call)]
    if name == "train" and failed == [(0, ())]:
        failed = []  # the mode without a default
    if name in ("train", "apply") and not failed and other_meaning(method):
        yield Hit(method.node, f"{why}, which means something else here; rename it",
                  confidence=Confidence.LIKELY)
    elif failed:
        alone = name in LATER or (name == "train" and "eval" in cls.methods and binds(method, (0, ())))
        yield Hit(method.node, f"{why}, which this cannot take; rename it",
                  severity=Severity.WARNING if alone else None)


def binds(method: FunctionInfo, call: Call) -> bool:
    """Whether a method can be called on an instance with so many positional and these keyword arguments."""
    args, (count, keywords) = method.args, call
    params = [arg.arg for arg in method.params][0 if method.is_static else 1:]
    optional = len(args.defaults)
    required = params[:len(params) - optional] if optional else params
    if (count > len(params) and args.vararg is None) or any(name not in keywords for name in required[count:]):
        return False
    free = {*params[count:], *(arg.arg for arg in args.kwonlyargs)}
    if any(name not in free for name in keywords) and args.kwarg is None:
        return False
    return all(default is not None or arg.arg in keywords
               for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True))


def other_meaning(method: FunctionInfo) -> bool:
    """Whether a `train` or `apply` with fitting parameters does something else than Module's."""
    first = method.params[1] if len(method.params) > 1 else None
    if first is None or method.is_static:
        return False
    if any(isinstance(node, ast.Attribute) and node.attr in ("children", "training", "modules", "_modules")
           for node in method.own_nodes):
        return False
    passed = [
        call for call in method.calls if any(isinstance(arg, ast.Name) and arg.id == first.arg for arg in call.args)
    ]
    if any(isinstance(call.func, ast.Attribute) and call.func.attr == method.name for call in passed):
        return False
    if method.name == "train":
        return not mode_like(first)
    called = any(isinstance(call.func, ast.Name) and call.func.id == first.arg for call in method.calls)
    return not called and not (passed and first.arg.startswith("f"))


def attribute_hits(cls: ClassInfo, name: str, stmt: ast.AST, value: Value) -> Iterator[Hit]:
    """A value stored under a name that Module uses."""
    if name == "training":
        if value.kind in (Kind.STRING, *CONTAINERS, Kind.LOADER, Kind.DATASET):
            yield Hit(stmt, "`train()` and `eval()` overwrite `self.training`; choose another name",
                      severity=Severity.WARNING, confidence=value.sure)
    elif name in TABLES:
        if value.kind in (Kind.LIST, Kind.TUPLE, Kind.SET, Kind.NUMBER, Kind.STRING) or (
                value.kind is Kind.DICT and any(part.kind in (Kind.NUMBER, Kind.STRING) for part in value.parts())):
            yield Hit(stmt, f"`self.{name}` is Module's own table; storing this breaks it; choose another name",
                      confidence=value.sure)
    elif value.kind is Kind.MODULE and value.sure is not Confidence.GUESS:
        yield Hit(stmt, f"`self.{name}` still gives the method of Module, not this layer; choose another name",
                  confidence=value.sure)
    elif name in CONTRACTS or name == "to":
        plain = value.kind is Kind.INSTANCE and value.cls is not None and value.cls.method("__call__") is None
        if plain or value.kind in (Kind.NUMBER, Kind.STRING, Kind.TENSOR, Kind.NDARRAY, Kind.LOADER, Kind.DATASET,
                                   *CONTAINERS):
            yield Hit(stmt, f"this hides the method `{name}()`, which torch calls; choose another name",
                      confidence=value.sure)
