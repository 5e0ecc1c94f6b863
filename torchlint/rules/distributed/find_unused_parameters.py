"""A search for unused parameters where all are used.

With `find_unused_parameters=True` DistributedDataParallel walks the whole autograd graph after every forward pass, to
find parameters that will get no gradient. If every parameter always takes part, that walk is for nothing; torch says
so once, in a warning that is easily lost.

Leave the argument out. It is needed where `forward` skips layers, as with branches or frozen parts that vary.

No claim: what it costs depends on the size of the graph; the results are the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL711", "find-unused-parameters", Severity.ADVICE, default=False, fix=Safety.SHOW,
    triggers=("find_unused_parameters",))
CLAIM = None
DDP = "torch.nn.parallel.DistributedDataParallel"

EXAMPLES = [
    Example(
        bad="""
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x).relu())


        def wrap():
            return DistributedDataParallel(Net(), find_unused_parameters=True)  #!
        """,
        good="""
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x).relu())


        def wrap():
            return DistributedDataParallel(Net())
        """,
    ),
]

CLEAN = [
    """
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.extra = nn.Linear(4, 4)

        def forward(self, x, deep):
            x = self.body(x)
            if deep:
                x = self.extra(x)
            return x


    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.spare = nn.Linear(4, 4)

        def forward(self, x):
            return self.body(x)


    def wrap(other, flag):
        first = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
        second = DistributedDataParallel(Unused(), find_unused_parameters=True)
        third = DistributedDataParallel(other, find_unused_parameters=True)
        return first, second, third, DistributedDataParallel(Unused(), find_unused_parameters=flag)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Wrappers that search, around modules whose forward surely uses every layer."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != DDP or not call.args:
            continue
        flag = next((k for k in call.keywords if k.arg == "find_unused_parameters"), None)
        value = model.value(call.args[0])
        if flag is not None and model.value(flag.value).const is True and value.cls is not None and uses_all(value.cls):
            yield Hit(
                call, "every parameter is used, so the search in each step is for nothing; leave it out",
                edits.repair("Do not search", edits.remove_argument(model, call, flag)),
                confidence=Confidence.LIKELY)


def uses_all(cls: ClassInfo) -> bool:
    """Whether `forward` is straight code that calls every layer that `__init__` makes."""
    forward, init = cls.methods.get("forward"), cls.methods.get("__init__")
    if forward is None or init is None or cls.bases != ("torch.nn.Module",):
        return False
    if any(isinstance(node, (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.With)) for node in forward.own_nodes):
        return False
    called = {
        call.func.attr for call in forward.calls
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        and call.func.value.id == forward.self_name}
    layers = {name for name in cls.stores if cls.attr(name).kind is Kind.MODULE}
    others = [name for name in cls.stores if cls.attr(name).kind is Kind.TENSOR]
    plain = all(cls.attr(name).cls is None and not cls.attr(name).elements for name in layers)
    return bool(layers) and plain and not others and layers <= called
