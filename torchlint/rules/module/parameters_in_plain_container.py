"""Parameters kept in a plain list, tuple or dict on a Module.

`Module.__setattr__` registers a Parameter only when it is the attribute itself; it does not look into Python
containers. What is in a plain list is missing from `parameters()`, `state_dict()` and `.to(...)`, so an
optimizer made from `model.parameters()` never updates it.

Use `nn.ParameterList` or `nn.ParameterDict`. The rule is silent when each Parameter is registered as well, by
`register_parameter` or as an attribute of its own.
"""
from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import NotRegistered
from torchlint.findings import Safety, Severity
from torchlint.fixes.containers import to_registered
from torchlint.model import ClassInfo, FileModel, Kind, Value
from torchlint.model.held import (
    Held,
    comment_says,
    handed_to_container,
    plain_containers,
    reads_of,
    registered_idents,
    registers_by_name,
)
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL406", "parameters-in-plain-container", Severity.ERROR, fix=Safety.UNSAFE, triggers=("Parameter",))
CLAIM = NotRegistered()
ON_PURPOSE = ("hid", "regist", "on purpose", "state_dict", "avoid")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Mixture(nn.Module):
            def __init__(self, parts=3, size=2):
                super().__init__()
                self.means = [nn.Parameter(torch.randn(size)) for _ in range(parts)]  #!
                self.scales = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))}  #!

            def forward(self, x):
                total = sum((x - mean).square().sum() for mean in self.means)
                return total * self.scales["a"].sum()


        print(len(list(Mixture().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Mixture(nn.Module):
            def __init__(self, parts=3, size=2):
                super().__init__()
                self.means = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(parts)])
                self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))})

            def forward(self, x):
                total = sum((x - mean).square().sum() for mean in self.means)
                return total * self.scales["a"].sum()


        print(len(list(Mixture().parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn import Module, Parameter


        class Base(Module):
            pass


        class Prompts(Base):
            def __init__(self, layers=2, size=4):
                super().__init__()
                self.prompts = []  #!
                for _ in range(layers):
                    prompt = Parameter(torch.randn(size))
                    self.prompts.append(prompt)

            def forward(self, x):
                for prompt in self.prompts:
                    x = x + prompt
                return x


        print(len(list(Prompts().parameters())))
        """,
        good="""
        import torch
        from torch.nn import Module, Parameter, ParameterList


        class Base(Module):
            pass


        class Prompts(Base):
            def __init__(self, layers=2, size=4):
                super().__init__()
                self.prompts = ParameterList()
                for _ in range(layers):
                    prompt = Parameter(torch.randn(size))
                    self.prompts.append(prompt)

            def forward(self, x):
                for prompt in self.prompts:
                    x = x + prompt
                return x


        print(len(list(Prompts().parameters())))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, n=2):
            super().__init__()
            self.weights = []
            for i in range(n):
                weight = nn.Parameter(torch.ones(1))
                self.register_parameter(f"weight_{i}", weight)
                self.weights.append(weight)
            self.first = nn.Parameter(torch.ones(1))
            self.second = nn.Parameter(torch.ones(1))
            self.all = [self.first, self.second]
            start = [nn.Parameter(torch.ones(1)) for _ in range(n)]
            self.listed = nn.ParameterList(start)
            self.layer = nn.Linear(1, 1)
            self.trained = list(self.layer.parameters())
            self.decay = [p for p in self.layer.parameters() if p.ndim > 1]


    class Optimizer:
        def __init__(self):
            self.params = [nn.Parameter(torch.ones(1))]


    print(Net(), Optimizer())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Containers on Modules that hold Parameters made for them and registered nowhere."""
    for cls in model.classes:
        if not cls.is_module or {"parameters", "named_parameters", "_apply", "__setattr__"} & cls.methods.keys():
            continue
        known = registered_idents(cls)
        for held in plain_containers(cls):
            found = [part for part in held.members if is_new(part) and part.ident not in known]
            if found and not on_purpose(cls, held):
                yield Hit(held.stmt, f"Parameters in plain `self.{held.name}` are not registered; use nn.ParameterList",
                          registered(model, cls, held), confidence=min(part.sure for part in found))


def is_new(value: Value) -> bool:
    """A Parameter whose making can be seen."""
    return value.is_tensor and value.role == "parameter" and value.name == "torch.nn.Parameter" and (
        value.ident is None or value.site is not None)


def on_purpose(cls: ClassInfo, held: Held) -> bool:
    """Whether the Parameters are registered by other means."""
    if held.method is not None and registers_by_name(held.method):
        return True
    return handed_to_container(cls, held.name) or comment_says(cls, held.stmt, ON_PURPOSE)


def registered(model: FileModel, cls: ClassInfo, held: Held) -> Repair | None:
    """Wrap the stored expression, where only Parameters are in it."""
    if held.value is None or held.method is None or len(cls.stores[held.name]) > 1:
        return None
    if any(part.kind is not Kind.TENSOR for part in held.members):
        return None
    return to_registered(model, held.value, reads_of(cls, held.name), element="Parameter")
