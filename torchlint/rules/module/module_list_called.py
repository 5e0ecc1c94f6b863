"""A ModuleList or ModuleDict called like a Sequential.

`nn.ModuleList` only registers its members; it has no `forward`, because it cannot know how they are meant to
be joined. A call ends in "Module [ModuleList] is missing the required "forward" function".

Loop over the members, or use `nn.Sequential`, which calls one after the other.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL419", "module-list-called", Severity.ERROR, triggers=("ModuleList", "ModuleDict"))
CLAIM = Raises("NotImplementedError", 'missing the required "forward"')
LISTS = ("torch.nn.ModuleList", "torch.nn.ModuleDict")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size), nn.ReLU()])

            def forward(self, x):
                return self.layers(x)  #!


        print(Net()(torch.ones(1, 4)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(size, size), nn.ReLU()])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x


        print(Net()(torch.ones(1, 4)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        def make(size):
            layers = nn.ModuleList()
            for _ in range(2):
                layers.append(nn.Linear(size, size))
            return layers


        heads = nn.ModuleDict({"a": nn.Linear(4, 1)})
        body = make(4)
        print(heads(body(torch.ones(1, 4))).shape)  #!  #!
        """,
        good="""
        import torch
        import torch.nn as nn


        def make(size):
            layers = nn.Sequential()
            for _ in range(2):
                layers.append(nn.Linear(size, size))
            return layers


        heads = nn.ModuleDict({"a": nn.Linear(4, 1)})
        body = make(4)
        print(heads["a"](body(torch.ones(1, 4))).shape)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Stack(nn.ModuleList):
        def forward(self, x):
            for layer in self:
                x = layer(x)
            return x


    class Net(nn.Module):
        def __init__(self, flat=False):
            super().__init__()
            layers = [nn.Linear(2, 2), nn.ReLU()]
            self.layers = nn.ModuleList(layers)
            self.stack = Stack(layers)
            self.body = nn.Sequential(*layers) if flat else nn.ModuleList(layers)
            self.table = nn.ModuleDict({"a": nn.Linear(2, 2)})

        def forward(self, x):
            return self.table["a"](self.layers[0](self.stack(x)))


    print(Net()(torch.ones(1, 2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls whose callee is one of torch's own lists or dicts of modules."""
    for call in model.nodes(ast.Call):
        called = model.value(call.func)
        if called.kind is Kind.MODULE and called.cls is None and called.name in LISTS:
            name = called.name.rpartition(".")[2]
            yield Hit(call, f"a `{name}` has no forward; loop over it or use nn.Sequential", confidence=called.sure)
