"""A Module subclass that defines `__call__`.

`nn.Module.__call__` is where torch runs forward and backward hooks and enters compiled code, and it is what
DDP, FSDP, torch.fx, quantisation and profilers rely on. A `__call__` of one's own hides it: hooks on that
module never run, and nothing says so.

Name the method `forward` and call the module as before. A `__call__` that does its own work and then ends in
`super().__call__(...)` is fine. Where a base class has given calls a meaning of its own, only that base class
is reported. A class without layers, parameters and `forward`, such as a loss or the base of a library, works as it is:
that is advice.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import HooksSkipped
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL401", "overridden-call", Severity.ERROR, also=(Severity.ADVICE,),
            fix=Safety.UNSAFE, triggers=("__call__",))
CLAIM = HooksSkipped()
MODULE = "torch.nn.Module"
IMPLEMENTATIONS = ("_call_impl", "_wrapped_call_impl", "__call__")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Scaled(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def __call__(self, x):  #!
                return self.layer(x) * 2


        model = Scaled()
        seen = []
        model.register_forward_hook(lambda module, args, out: seen.append(out))
        model(torch.ones(1, 4))
        print(len(seen))
        """,
        good="""
        import torch
        from torch import nn


        class Scaled(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return self.layer(x) * 2


        model = Scaled()
        seen = []
        model.register_forward_hook(lambda module, args, out: seen.append(out))
        model(torch.ones(1, 4))
        print(len(seen))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Backbone(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)


        class Encoder(Backbone):
            def forward(self, x, scale=1.0):
                return self.layer(x) * scale

            def __call__(self, x, scale=1.0):  #!
                return self.forward(x, scale=scale)

            def encode(self, x):
                return self(x)


        print(Encoder().encode(torch.ones(1, 4)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Backbone(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)


        class Encoder(Backbone):
            def forward(self, x, scale=1.0):
                return self.layer(x) * scale

            def encode(self, x):
                return self(x)


        print(Encoder().encode(torch.ones(1, 4)).shape)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.layer = nn.Linear(2, 2)

        def __call__(self, *args, **kwargs):
            self.calls += 1
            return super().__call__(*args, **kwargs)

        def forward(self, x):
            return self.layer(x)


    class Named(nn.Linear):
        def __call__(self, x):
            if x.ndim == 1:
                return nn.Module.__call__(self, x[None])[0]
            return self._call_impl(x)


    class Typed(nn.Module):
        __call__: "typing.Callable[..., torch.Tensor]"

        def forward(self, x):
            return x


    print(Counted()(torch.ones(2)), Named(2, 2)(torch.ones(2)), Typed()(1))
    """,
    """
    import torch


    class Module:
        pass


    class Transform(Module):
        def __call__(self, x):
            return torch.relu(x)


    Transform()(torch.ones(1))
    """,
    """
    import typing

    import torch
    from torch import nn


    class Head(nn.Module):
        if typing.TYPE_CHECKING:

            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                ...

        def forward(self, x):
            return x + 1


    class Outer(nn.Module):
        class Step:
            def __call__(self, x):
                return x

        def forward(self, x):
            return Outer.Step()(x)


    Outer()(Head()(torch.ones(1)))
    """,
    """
    import torch
    from torch import nn


    class Callable:
        def __call__(self, x):
            return self.forward(x)


    class Behind(nn.Module, Callable):
        def forward(self, x):
            return x


    class Logged(nn.Module):
        def __call__(self, *args):
            call = super().__call__
            return call(*args)

        def forward(self, x):
            return x


    Behind()(Logged()(torch.ones(1)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """`__call__` of Module subclasses that does not lead to the one of nn.Module."""
    for cls in model.classes:
        if not cls.is_module or any(own_meaning(base) for base in cls.mro[1:] if not mixed_in(cls, base)):
            continue
        method = cls.methods.get("__call__")
        if method is not None and (method.is_static or delegates(method) or only_declared(model, method)):
            continue
        spot = method.node if method is not None else assigned(cls) or inherited(cls)
        if spot is None:
            continue
        yield Hit(
            spot, f"`{cls.node.name}.__call__` hides Module's, so hooks never run; name it `forward`",
            as_forward(model, cls, method),
            severity=Severity.ERROR if holds_state(cls) or computes(cls) else Severity.ADVICE,
            confidence=Confidence.SURE if cls.fully_known else Confidence.LIKELY)


def computes(cls: ClassInfo) -> bool:
    """Whether the class has a forward of its own, and does not leave it to subclasses as the base of a library does."""
    forward = cls.method("forward")
    return forward is not None and not only_declared(forward.model, forward)


def mixed_in(cls: ClassInfo, base: ClassInfo | str) -> bool:
    """Whether a base is a plain class that stands beside the Module among the bases."""
    return isinstance(base, ClassInfo) and base in cls.bases and not base.is_module


def inherited(cls: ClassInfo) -> ast.AST | None:
    """The class itself, where a mixin before the Module among its bases has a `__call__`."""
    for base in cls.bases:
        if not isinstance(base, ClassInfo) or base.is_module:
            return None
        if own_meaning(base):
            return cls.node
    return None


def own_meaning(base: ClassInfo | str) -> bool:
    """Whether a base class has already redefined what calling means."""
    if isinstance(base, ClassInfo):
        method = base.methods.get("__call__")
        return method is not None and not delegates(method)
    known = knowledge.third_party_class(base) if base else None
    return known is not None and "own_call" in known.flags


def delegates(method: FunctionInfo) -> bool:
    """Whether it leads to Module's own: `super().__call__`, `Base.__call__(self)`, `self._call_impl`."""
    for node in method.own_nodes:
        match node:
            case ast.Attribute(value=receiver, attr=name) if name in IMPLEMENTATIONS:
                if name != "__call__" or isinstance(receiver, ast.Call):
                    return True
                if method.model.value(receiver).kind is Kind.CLASS:
                    return True
    return False


def only_declared(model: FileModel, method: FunctionInfo) -> bool:
    """A signature for type checkers, or one that only raises."""
    assert isinstance(method.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if model.place(method.node).type_checking or any("abstract" in name for name in method.decorators):
        return True
    return all(
        isinstance(stmt, (ast.Raise, ast.Pass))
        or (isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant))
        for stmt in method.node.body)


def assigned(cls: ClassInfo) -> ast.AST | None:
    """`__call__ = forward` in the class body."""
    for method, stmt, value in cls.stores.get("__call__", ()):
        if method is None and isinstance(value, ast.Name) and value.id in cls.methods:
            return stmt
    return None


def holds_state(cls: ClassInfo) -> bool:
    """Whether instances have submodules or parameters: somebody may want hooks, DDP or compilation."""
    for base in cls.project_mro:
        for name in base.stores:
            value = cls.attr(name)
            if value.kind is Kind.MODULE or value.role in ("parameter", "buffer"):
                return True
    return any(name != MODULE and (known := knowledge.module_class(name)) is not None and known.kind != "loss"
               for name in cls.outside)


def as_forward(model: FileModel, cls: ClassInfo, method: FunctionInfo | None) -> Repair | None:
    """Rename to `forward` where the class has none; drop a `__call__` that only calls `self.forward`."""
    if method is None or not isinstance(method.node, ast.FunctionDef):
        return None
    if cls.method("forward") is None:
        if not cls.fully_known or any(knowledge.module_class(name) for name in cls.outside if name != MODULE):
            return None
        return edits.repair("Rename to forward", edits.rename_definition(model, method.node, "forward"))
    if "forward" in cls.methods and passes_on(method):
        return edits.repair("Remove __call__", edits.remove(model, method.node))
    return None


def passes_on(method: FunctionInfo) -> bool:
    """`return self.forward(...)` with all parameters, and nothing else."""
    node = method.node
    assert isinstance(node, ast.FunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return) or node.decorator_list:
        return False
    match body[0].value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="forward")) as call:
            given = [unstarred(arg) for arg in call.args] + [keyword.value for keyword in call.keywords]
            names = [arg.id for arg in given if isinstance(arg, ast.Name)]
            wanted = [arg.arg for arg in (*method.params[1:], *node.args.kwonlyargs)]
            wanted += [arg.arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
            return owner == method.self_name and len(names) == len(given) and sorted(names) == sorted(wanted)
    return False


def unstarred(arg: ast.expr) -> ast.expr:
    """`x` of `*x`."""
    return arg.value if isinstance(arg, ast.Starred) else arg
