"""A Module constructor that does not run `Module.__init__`, or runs it too late.

`Module.__init__` makes the dictionaries in which `Module.__setattr__` registers parameters, buffers and
submodules. Before it has run, assigning a layer or a Parameter raises AttributeError; a Module without
layers can even be made, and fails at its first call.

Call `super().__init__()` first in the constructor. Plain values and tensors may be set before it, and a
class without a constructor of its own inherits one that is fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath

from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.super_init import add_super_init
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind
from torchlint.model.classes import runs_module_init, super_init_calls
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL403", "missing-super-init", Severity.ERROR, also=(Severity.ADVICE,),
            fix=Safety.SAFE, triggers=("__init__",))
CLAIM = Raises("AttributeError", r"before Module\.__init__\(\) call|has no attribute '_")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def width(self):
                return self.n_out


        class Gated(Head):
            def __init__(self, n_in=3, n_out=2):  #!
                self.n_out = n_out
                self.gate = nn.Linear(n_in, n_out)

            def forward(self, x):
                return self.gate(x).sigmoid()


        print(Gated()(torch.ones(1, 3)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Head(nn.Module):
            def width(self):
                return self.n_out


        class Gated(Head):
            def __init__(self, n_in=3, n_out=2):
                super().__init__()
                self.n_out = n_out
                self.gate = nn.Linear(n_in, n_out)

            def forward(self, x):
                return self.gate(x).sigmoid()


        print(Gated()(torch.ones(1, 3)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            \"\"\"Two layers.\"\"\"

            def __init__(self, size=4):
                \"\"\"Make the layers.\"\"\"
                self.size = size
                self.first = nn.Linear(size, size)  #!
                super(Net, self).__init__()
                self.second = nn.Linear(size, 1)

            def forward(self, x):
                return self.second(self.first(x).relu())


        print(Net()(torch.ones(1, 4)).shape)
        """,
        good="""
        import torch
        import torch.nn as nn


        class Net(nn.Module):
            \"\"\"Two layers.\"\"\"

            def __init__(self, size=4):
                \"\"\"Make the layers.\"\"\"
                self.size = size
                super(Net, self).__init__()
                self.first = nn.Linear(size, size)
                self.second = nn.Linear(size, 1)

            def forward(self, x):
                return self.second(self.first(x).relu())


        print(Net()(torch.ones(1, 4)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.nn import Module, Parameter


        class Bias(Module):
            def __init__(self, size=4):
                super().__init__  #!
                self.bias = Parameter(torch.zeros(size))

            def forward(self, x):
                return x + self.bias


        print(Bias()(torch.ones(4)).shape)
        """,
        good="""
        import torch
        from torch.nn import Module, Parameter


        class Bias(Module):
            def __init__(self, size=4):
                super().__init__()
                self.bias = Parameter(torch.zeros(size))

            def forward(self, x):
                return x + self.bias


        print(Bias()(torch.ones(4)).shape)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Config:
            def __init__(self, size=4):
                self.size = size


        class Net(Config, nn.Module):
            def __init__(self):  #!
                super().__init__(size=8)
                self.layer = nn.Linear(self.size, 1)

            def forward(self, x):
                return self.layer(x)


        print(Net()(torch.ones(1, 8)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Config:
            def __init__(self, size=4):
                super().__init__()
                self.size = size


        class Net(Config, nn.Module):
            def __init__(self):
                super().__init__(size=8)
                self.layer = nn.Linear(self.size, 1)

            def forward(self, x):
                return self.layer(x)


        print(Net()(torch.ones(1, 8)).shape)
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Base(nn.Module):
        def __init__(self, size):
            self.size = size
            self.table = torch.zeros(size)
            self.kinds = [nn.Linear, nn.ReLU]
            nn.Module.__init__(self)
            self.layer = nn.Linear(size, size)

        def forward(self, x):
            return self.layer(x)


    class Child(Base):
        pass


    class Other(Base):
        def __init__(self):
            Base.__init__(self, 4)
            self.extra = nn.Linear(4, 4)


    class Third(Base):
        def __init__(self):
            super(type(self), self).__init__(4)
            self.extra = nn.Linear(4, 4)


    for cls in (Other, Third):
        print(cls()(torch.ones(1, 4)).shape)
    print(Child(4)(torch.ones(1, 4)).shape)
    """,
    """
    import torch
    from torch import nn


    class Named:
        def __init__(self, name="x", **rest):
            super().__init__(**rest)
            self.name = name


    class Built(Named, nn.Module):
        def __init__(self):
            super().__init__(name="built")
            self.layer = nn.Linear(2, 2)


    class Plain:
        def __init__(self):
            self.layer = nn.Linear(2, 2)


    class Both(Plain, nn.Module):
        def __init__(self):
            nn.Module.__init__(self)
            Plain.__init__(self)


    class Setup(nn.Module):
        def __init__(self, size=2):
            self.setup(size)

        def setup(self, size):
            super().__init__()
            self.layer = nn.Linear(size, size)


    class Copy(nn.Module):
        def __init__(self, other):
            self.__dict__ = other.__dict__.copy()


    class Missing(nn.Module):
        def __init__(self, *args):
            raise ImportError("needs another package")


    print(Built().layer, Both().layer, Plain().layer, Copy(Setup()).layer)
    """,
    """
    import torch
    from torch import nn


    class Sampler(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return x * self.scale


    class Pairwise(Sampler):
        def __init__(self, pairs):
            self.pairs = pairs

        def forward(self, x):
            return super().forward(x) + self.pairs


    class Both(Pairwise, Sampler):
        def __init__(self):
            Pairwise.__init__(self, 3)
            Sampler.__init__(self, 2)


    print(Both()(torch.ones(1)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Constructors of Module subclasses without `Module.__init__`, and what they register before it."""
    if PurePath(model.source.path).name.startswith("modular_"):
        return  # templates, in which `super().__init__()` stands for the parent's whole body
    for cls in model.classes:
        init = cls.methods.get("__init__")
        if init is None or not cls.is_module or not init.self_name or "__setattr__" in cls.methods:
            continue
        if not runs_module_init(cls, init):
            yield from missing(model, cls, init)
        else:
            yield from too_late(model, cls, init)


def missing(model: FileModel, cls: ClassInfo, init: FunctionInfo) -> Iterator[Hit]:
    """The constructor that never gets to `Module.__init__`."""
    assert isinstance(init.node, ast.FunctionDef)
    if replaces_dict(init) or all(isinstance(stmt, ast.Raise) for stmt in without_docstring(init.node)):
        return
    bare = uncalled(init)
    if bare is not None:
        yield Hit(bare, "`super().__init__` is not called, so nothing can be registered; add `()`",
                  edits.repair("Call it", edits.replace(model, bare, f"{edits.source_of(model, bare)}()")))
        return
    registers = next(registered(model, cls, init), None) is not None
    if not registers and is_part(model, cls):
        return
    needed = cls.method("forward") is not None or registers
    blocker = not super_init_calls(init)
    yield Hit(
        init.node, f"`{cls.node.name}` never runs `Module.__init__`; call `super().__init__()` first",
        call_super(model, cls, init.node) if blocker else None,
        severity=Severity.ERROR if needed else Severity.ADVICE)


def is_part(model: FileModel, cls: ClassInfo) -> bool:
    """Whether all subclasses in the file run `Module.__init__` by another base: `Other.__init__(self)`."""
    constructors = [(sub, sub.methods.get("__init__")) for sub in model.replaced.subclasses(cls)]
    return bool(constructors) and all(init is not None and runs_module_init(sub, init) for sub, init in constructors)


def too_late(model: FileModel, cls: ClassInfo, init: FunctionInfo) -> Iterator[Hit]:
    """The first layer or parameter that is assigned before `super().__init__()`."""
    calls = super_init_calls(init)
    if not calls:
        return
    first = min(calls, key=model.position)
    for node, what, sure in registered(model, cls, init):
        if model.position(node) < model.position(first) and not model.place(first).guards:
            stmt = model.statement(node)
            yield Hit(
                stmt, f"a {what} cannot be registered before `super().__init__()`; call that first",
                move_up(model, init, first, stmt), confidence=sure)
            return


def registered(model: FileModel, cls: ClassInfo, init: FunctionInfo) -> Iterator[tuple[ast.AST, str, Confidence]]:
    """What the constructor registers: (place, kind, how sure), in order."""
    me = init.params[0]
    for event in model.flow(init.node).of("store_attr", "register"):
        if event.target.ident is not me and not own_helper(init, event.node):
            continue
        if event.target.cls is not cls or event.node not in init.own_nodes:
            continue
        value = event.value if event.what == "store_attr" else event.target
        if event.what == "register":
            yield event.node, "value", value.sure
        elif value.kind is Kind.MODULE and value.ident is not me:
            yield event.node, "module", value.sure
        elif value.role == "parameter" and value.name == "torch.nn.Parameter":
            yield event.node, "parameter", value.sure


def own_helper(init: FunctionInfo, node: ast.AST) -> bool:
    """Whether a node is `self.method(...)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner))):
            return owner == init.self_name
    return False


def replaces_dict(init: FunctionInfo) -> bool:
    """Whether the instance takes over another one's `__dict__`."""
    return any(isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__setstate__") for node in init.own_nodes)


def without_docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a body that do something."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def uncalled(init: FunctionInfo) -> ast.expr | None:
    """`super().__init__` as a statement."""
    for node in init.own_nodes:
        match node:
            case ast.Expr(value=ast.Attribute(attr="__init__") as value):
                return value
    return None


def call_super(model: FileModel, cls: ClassInfo, node: ast.FunctionDef) -> Repair | None:
    """Insert `super().__init__()`, where the parent's constructor needs no arguments."""
    for base in cls.project_mro:
        parent = base.methods.get("__init__") if base is not cls else None
        if parent is not None and len(parent.params) - 1 > len(parent.args.defaults):
            return None
    if not cls.fully_known or not all(name in BARE for name in cls.outside):
        return None
    return add_super_init(model, node, cls.node)


BARE = ("torch.nn.Module", "abc.ABC", "builtins.object", "typing.Generic", "typing.Protocol", "torch.nn.Sequential",
        "torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.modules.loss._Loss")


def move_up(model: FileModel, init: FunctionInfo, call: ast.Call, stmt: ast.stmt) -> Repair | None:
    """Move the `super().__init__(...)` statement before the first registration."""
    whole = model.statement(call)
    assert isinstance(init.node, ast.FunctionDef)
    if whole not in init.node.body or stmt not in init.node.body or not isinstance(whole, ast.Expr):
        return None
    used = {node.id for arg in (*call.args, *call.keywords) for node in ast.walk(arg) if isinstance(node, ast.Name)}
    between = init.node.body[init.node.body.index(stmt):init.node.body.index(whole)]
    bound = {node.id for part in between for node in ast.walk(part)
             if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if used & (bound | {init.self_name}):
        return None
    return edits.repair("Call super().__init__() before", edits.move_statement(model, whole, before=stmt))
