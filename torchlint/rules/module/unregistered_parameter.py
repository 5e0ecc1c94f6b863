"""A tensor that requires grad, kept as a plain attribute of a Module.

`Module.__setattr__` registers an attribute only if it is an `nn.Parameter` (or a Module). Any other tensor,
trainable or not, is missing from `parameters()`, `state_dict()` and `.to(...)`: an optimizer made from
`model.parameters()` never updates it, although backward fills its `.grad`.

Wrap it in `nn.Parameter(...)`. A value that is handed to an optimizer by hand is trained, but still neither
saved nor moved with the module: that is a warning. Inputs made to require grad in `forward` are fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NotRegistered
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes.parameters import tensor_to_parameter
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Grad, Kind, Value
from torchlint.model.held import building_methods, comment_says, plain_containers, registers_by_name
from torchlint.rule import Example, Hit, Meta

META = Meta("TL404", "unregistered-parameter", Severity.ERROR, also=(Severity.WARNING,),
            fix=Safety.UNSAFE, triggers=("requires_grad",))
CLAIM = NotRegistered()
ON_PURPOSE = ("not a parameter", "not regist", "unregister", "on purpose", "state_dict", "avoid")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)
                self.scale = torch.ones(size, requires_grad=True)  #!
                if size > 1:
                    self.shift = torch.zeros(size).requires_grad_()  #!
                else:
                    self.shift = None

            def forward(self, x):
                return self.layer(x) * self.scale + self.shift


        print(len(list(Scale().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.layer = nn.Linear(size, size)
                self.scale = nn.Parameter(torch.ones(size))
                if size > 1:
                    self.shift = nn.Parameter(torch.zeros(size))
                else:
                    self.shift = None

            def forward(self, x):
                return self.layer(x) * self.scale + self.shift


        print(len(list(Scale().parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn
        from torch.autograd import Variable


        class Base(nn.Module):
            pass


        class Prompt(Base):
            def __init__(self, length=3, size=4):
                super().__init__()
                self.build(length, size)

            def build(self, length, size):
                self.prompt = Variable(torch.randn(length, size), requires_grad=True)  #!

            def forward(self, x):
                return torch.cat([self.prompt, x])


        print(len(list(Prompt().parameters())))
        """,
        good="""
        import torch
        import torch.nn as nn


        class Base(nn.Module):
            pass


        class Prompt(Base):
            def __init__(self, length=3, size=4):
                super().__init__()
                self.build(length, size)

            def build(self, length, size):
                self.prompt = nn.Parameter(torch.randn(length, size))

            def forward(self, x):
                return torch.cat([self.prompt, x])


        print(len(list(Prompt().parameters())))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Mixture(nn.Module):
            def __init__(self, parts=3):
                super().__init__()
                self.means = [torch.randn(2, requires_grad=True) for _ in range(parts)]  #!
                self.logs = {}  #!
                for name in ("a", "b"):
                    self.logs[name] = torch.zeros(2, requires_grad=True)

            def forward(self, x):
                return sum((x - mean).square().sum() for mean in self.means) + self.logs["a"].sum()


        print(len(list(Mixture().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Mixture(nn.Module):
            def __init__(self, parts=3):
                super().__init__()
                self.means = nn.ParameterList([torch.randn(2) for _ in range(parts)])
                self.logs = nn.ParameterDict()
                for name in ("a", "b"):
                    self.logs[name] = nn.Parameter(torch.zeros(2))

            def forward(self, x):
                return sum((x - mean).square().sum() for mean in self.means) + self.logs["a"].sum()


        print(len(list(Mixture().parameters())))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Agent(nn.Module):
            def __init__(self, device="cpu"):
                super().__init__()
                self.actor = nn.Linear(2, 2)
                self.log_alpha = torch.zeros(1, requires_grad=True)  #!
                self.optimizer = torch.optim.Adam([self.log_alpha], lr=1e-3)
                self.log_alpha = self.log_alpha.to(device)  #!

            def forward(self, x):
                return self.log_alpha.exp() * self.actor(x)


        print(len(list(Agent().parameters())))
        """,
        good="""
        import torch
        from torch import nn


        class Agent(nn.Module):
            def __init__(self, device="cpu"):
                super().__init__()
                self.actor = nn.Linear(2, 2)
                self.log_alpha = nn.Parameter(torch.zeros(1, device=device))
                self.optimizer = torch.optim.Adam([self.log_alpha], lr=1e-3)

            def forward(self, x):
                return self.log_alpha.exp() * self.actor(x)


        print(len(list(Agent().parameters())))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, size=2):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size, requires_grad=True))
            self.register_parameter("bias", nn.Parameter(torch.zeros(size)))
            self.mask = torch.ones(size)
            self.off = torch.ones(size, requires_grad=False)
            self.frozen = torch.ones(size, requires_grad=True).requires_grad_(False)
            self.later = torch.ones(size, requires_grad=True)
            self.later = nn.Parameter(self.later)
            self.conv = nn.Conv1d(1, 1, 1).requires_grad_(True)
            start = torch.zeros(size, requires_grad=True)
            self.value = start.detach()

        def forward(self, x):
            self.x = x.detach().requires_grad_()
            self.noise = torch.zeros(2, requires_grad=True)
            return self.weight * self.x + self.bias + self.noise


    class Attack:
        def __init__(self):
            self.delta = torch.zeros(2, requires_grad=True)


    print(Net()(torch.ones(2)), Attack().delta)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Attributes of Modules that hold trainable tensors which are no Parameters."""
    for cls in model.classes:
        if not cls.is_module or {"parameters", "named_parameters", "_apply", "__setattr__"} & cls.methods.keys():
            continue
        building = building_methods(cls)
        for name, stores in cls.stores.items():
            yield from attributes(model, cls, name, stores, building)
        for held in plain_containers(cls):
            trainable = [part for part in held.members if is_trainable(part)]
            if trainable and (held.method is None or held.method.name in building) and not (
                    held.method is not None and registers_by_name(held.method)):
                yield hit(model, held.stmt, held.name, trainable[0].sure, None)


def attributes(
    model: FileModel, cls: ClassInfo, name: str,
    stores: list[tuple[FunctionInfo | None, ast.AST, ast.expr | None]], building: set[str],
) -> Iterator[Hit]:
    """The stores of one attribute that leave a trainable tensor in it."""
    written = [(method, stmt, expr, model.value(expr)) for method, stmt, expr in stores
               if expr is not None and not (isinstance(expr, ast.Constant) and expr.value is None)]
    if any(value.role in ("parameter", "buffer") or value.kind is Kind.MODULE for *_, value in written):
        return
    values = [(method, stmt, expr, kept(model, name, method, value)) for method, stmt, expr, value in written]
    wrap = all(becomes_parameter(model, expr, value) for *_, expr, value in values)
    for method, stmt, expr, value in values:
        if isinstance(stmt, ast.Call) or comment_says(cls, stmt, ON_PURPOSE):
            continue
        if not is_trainable(value) and not is_trainable(model.value(unconverted(expr))):
            continue
        if method is None or method.name in building:
            yield hit(model, stmt, name, value.sure, expr, wrap=wrap)


def kept(model: FileModel, name: str, method: FunctionInfo | None, value: Value) -> Value:
    """What is stored, or what the method has made of it at its end if only that is trainable."""
    if method is None or is_trainable(value):
        return value
    end = model.flow(method.node).end.get(f"{method.self_name}.{name}", value)
    return end if is_trainable(end) else value


def becomes_parameter(model: FileModel, expr: ast.expr, value: Value) -> bool:
    """Whether an attribute may still be stored like this once it is registered as a Parameter.

    A module refuses any other tensor under that name. `Parameter(self.x.to(device))` is one more Parameter, which
    an optimizer that got the first does not know.
    """
    made = unconverted(expr)
    return isinstance(made, ast.Call) and (is_trainable(value) or is_trainable(model.value(made)))


def hit(
    model: FileModel, stmt: ast.AST, name: str, sure: Confidence, value: ast.expr | None, *, wrap: bool = False,
) -> Hit:
    """The finding for one attribute (`value` is the stored tensor); weaker if an optimizer gets it by hand."""
    by_hand = given_to_optimizer(model, name)
    cost = "saved or moved" if by_hand else "registered, so not trained"
    use = "nn.Parameter" if value is not None else "nn.ParameterList or ParameterDict"
    told = f"trainable `self.{name}` is not {cost}; use {use}"
    return Hit(stmt, told, tensor_to_parameter(model, value) if wrap and value is not None else None,
               severity=Severity.WARNING if by_hand else Severity.ERROR, confidence=sure)


def is_trainable(value: Value) -> bool:
    """A leaf that requires grad and is no Parameter."""
    return value.is_tensor and value.grad is Grad.YES and value.role == "leaf"


CONVERSIONS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type")


def unconverted(expr: ast.expr) -> ast.expr:
    """What is moved or cast: `x` of `x.to(device).double()`."""
    match expr:
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in CONVERSIONS:
            return unconverted(inner)
    return expr


def given_to_optimizer(model: FileModel, name: str) -> bool:
    """Whether an attribute of that name is among the arguments of an optimizer that the file makes."""
    for node in model.attributes_named(name):
        for outer in model.ancestors(node):
            if isinstance(outer, ast.stmt):
                break
            if isinstance(outer, ast.Call) and knowledge.optimizer_class(model.name_of(outer.func)) is not None:
                return True
    return False
