"""A Parameter that is converted or computed with before it is assigned to a Module.

`.to(...)`, `.cuda()`, `.half()` and arithmetic give a new tensor with a graph, not a Parameter. Module only
registers Parameters, so the attribute is an ordinary tensor: missing from `parameters()` and `state_dict()`,
its `.grad` stays None.

Do it inside the call: `nn.Parameter(x.to(device))`. A conversion that changes nothing gives the Parameter
itself, so the fault may show on one machine only. Local values made from a parameter in `forward` are fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NotRegistered
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.factory import Absorbed, absorbed, is_idle
from torchlint.fixes.layout import layout
from torchlint.fixes.precedence import PRIMARY, level
from torchlint.model import ClassInfo, FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL407", "nonleaf-parameter", Severity.ERROR, fix=Safety.SAFE, triggers=("Parameter",))
CLAIM = NotRegistered()
# Done once to the initial value, these leave what was meant in no doubt.
CONVERSIONS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "type_as", "to_dense", "clone",
               "contiguous", "repeat", "mul", "div", "add", "T", "mT")
KEEPING = ("requires_grad_", "share_memory_", "detach_", "normal_", "uniform_", "zero_", "fill_", "retain_grad")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Calibrator(nn.Module):
            def __init__(self, start, dtype=torch.float64):
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(1, dtype=dtype))
                self.shift = nn.Parameter(start, requires_grad=True).to(dtype)  #!
                self.scale = nn.Parameter(torch.ones(4)) * 0.5  #!

            def forward(self, logits):
                return logits / self.temperature * self.scale + self.shift


        print([name for name, _ in Calibrator(torch.zeros(4)).named_parameters()])
        """,
        good="""
        import torch
        from torch import nn


        class Calibrator(nn.Module):
            def __init__(self, start, dtype=torch.float64):
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(1, dtype=dtype))
                self.shift = nn.Parameter(start.to(dtype), requires_grad=True)
                self.scale = nn.Parameter(torch.ones(4) * 0.5)

            def forward(self, logits):
                return logits / self.temperature * self.scale + self.shift


        print([name for name, _ in Calibrator(torch.zeros(4)).named_parameters()])
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Base(nn.Module):
            pass


        class Tokens(Base):
            def __init__(self, size=4):
                super().__init__()
                self.build(size)

            def build(self, size):
                self.cls = nn.Parameter(torch.randn(1, size)).half().unsqueeze(0)  #!
                self.end = -nn.Parameter(torch.ones(size))  #!
                setattr(self, "mid", nn.Parameter(torch.ones(size, 2)).T)  #!


        print([name for name, _ in Tokens().named_parameters()])
        """,
        good="""
        import torch
        from torch import nn


        class Base(nn.Module):
            pass


        class Tokens(Base):
            def __init__(self, size=4):
                super().__init__()
                self.build(size)

            def build(self, size):
                self.cls = nn.Parameter(torch.randn(1, size).half().unsqueeze(0))
                self.end = nn.Parameter(-torch.ones(size))
                setattr(self, "mid", nn.Parameter(torch.ones(size, 2).T))


        print([name for name, _ in Tokens().named_parameters()])
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, t):
                super().__init__()
                self.a = nn.Parameter(torch.zeros(4)).half()  #!
                self.b = nn.Parameter(torch.ones(4)).double().unsqueeze(0)  #!
                self.c = nn.Parameter(t, requires_grad=True).double()  #!


        print([name for name, _ in Scale(torch.ones(2)).named_parameters()])
        """,
        good="""
        import torch
        from torch import nn


        class Scale(nn.Module):
            def __init__(self, t):
                super().__init__()
                self.a = nn.Parameter(torch.zeros(4, dtype=torch.half))
                self.b = nn.Parameter(torch.ones(4, dtype=torch.double).unsqueeze(0))
                self.c = nn.Parameter(t.double(), requires_grad=True)


        print([name for name, _ in Scale(torch.ones(2)).named_parameters()])
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, size=2):
            super().__init__()
            self.inside = nn.Parameter(torch.zeros(size).double())
            self.here = nn.Parameter(torch.zeros(size)).to("cpu")
            self.same = nn.Parameter(torch.randn(size)).cpu().float()
            self.frozen = nn.Parameter(torch.zeros(size)).requires_grad_(False)
            self.start = nn.Parameter(torch.zeros(size)).detach()
            self.init = nn.Parameter(torch.zeros(size)).data.to(torch.float64)
            self.layer = nn.Linear(2, 2).to(torch.float32)
            weight = nn.Parameter(torch.zeros(size))
            self.weight = weight
            kept = nn.Parameter(torch.ones(size))
            self.kept, self.half = kept, None
            self.half = kept * 0.5
            self.masked = (nn.Parameter(torch.ones(size)) * 2).detach()
            self.number = nn.Parameter(torch.ones(1)).item() * 2
            self.rows = nn.Parameter(torch.ones(size, 2)).shape[0]
            self.register_buffer("start_again", nn.Parameter(torch.ones(size)).detach().clone())

        def forward(self, x):
            scale = self.inside.to(x.dtype)
            return self.layer(x) * scale


    print(Net()(torch.ones(2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Attributes of Modules whose value is computed from a Parameter that is built for it."""
    for cls in model.classes:
        if not cls.is_module:
            continue
        for name, stores in cls.stores.items():
            for method, stmt, expr in stores:
                if expr is None or method is None or method.name == "forward":
                    continue
                if isinstance(stmt, ast.Call) and model.name_of(stmt.func) != "builtins.setattr":
                    continue  # `register_buffer` and the like
                value = model.value(expr)
                made, first = parameter_inside(model, cls, expr)
                if made is not None and first is not None and value.attached and not value.role:
                    yield Hit(stmt, f"`self.{name}` is no Parameter after {said(first)}; do that inside "
                              "nn.Parameter(...)", move_inside(model, expr, made, first))


def parameter_inside(model: FileModel, cls: ClassInfo, expr: ast.expr) -> tuple[ast.Call | None, ast.AST | None]:
    """(the first `nn.Parameter(...)` call in an expression, the first operation on it: what gives another tensor)."""
    for node in ast.walk(expr):
        match node:
            case ast.Call() if model.name_of(node.func) == "torch.nn.Parameter":
                made: ast.Call | None = node
            case ast.Name(id=name, ctx=ast.Load()):
                made = made_for(model, cls, node, name)
            case _:
                continue
        first = operation(model, made, node, expr) if made is not None else None
        if first is not None:
            return made, first
    return None, None


def made_for(model: FileModel, cls: ClassInfo, expr: ast.expr, name: str) -> ast.Call | None:
    """The Parameter that a local name stands for, if it is bound once and not kept by itself as well."""
    for scope in model.scopes(expr):
        match scope.bindings.get(name, []):
            case []:
                continue
            case [ast.Assign(value=ast.Call() as made)] if model.name_of(made.func) == "torch.nn.Parameter":
                kept = any(isinstance(value, ast.Name) and value.id == name and model.owner(value) is model.owner(made)
                           for stores in cls.stores.values() for _, _, value in stores if value is not None)
                return None if kept else made
        break
    return None


def operation(model: FileModel, made: ast.Call, node: ast.AST, top: ast.expr) -> ast.AST | None:
    """The first thing around a Parameter that does not give the Parameter itself."""
    while node is not top:
        outer = model.parent(node)
        match outer, model.parent(outer) if outer is not None else None:
            case None, _:
                break
            case ast.Attribute(attr=name), ast.Call() as call if call.func is outer and (
                name in KEEPING or idle(model, made, call)
            ):
                node = call
            case ast.IfExp(), _:
                node = outer
            case _:
                return outer
    return None


def said(operation: ast.AST) -> str:
    """What is done, in a message."""
    match operation:
        case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return f"`.{name}`" if isinstance(operation, ast.Attribute) else f"`{name}`"
        case ast.Subscript():
            return "indexing"
    return "arithmetic"


def idle(model: FileModel, made: ast.Call, call: ast.Call) -> bool:
    """Whether a conversion gives the Parameter itself."""
    return bool(made.args) and isinstance(made.args[0], ast.Call) and is_idle(model, made.args[0], call)


def move_inside(model: FileModel, expr: ast.expr, made: ast.Call, first: ast.AST) -> Repair | None:
    """`nn.Parameter(x, ...).to(d)` -> `nn.Parameter(x.to(d), ...)`; a factory is told at once.

    Not safe for a function that may be meant to be applied in every forward.
    """
    if not made.args or model.statement(made) is not model.statement(expr) or isinstance(expr, ast.IfExp):
        return None
    plain = isinstance(first, (ast.BinOp, ast.UnaryOp, ast.Subscript)) or converts(first)
    data = made.args[0]
    call = edits.source_of(model, made)
    if edits.source_of(model, expr).count(call) != 1:
        return None
    if isinstance(data, ast.Starred) or level(data) < PRIMARY:
        return None
    place = layout(model.source)
    outer: ast.Call = made  # what the new value of the data takes the place of
    inner, imports = edits.source_of(model, data), tuple[str, ...]()
    safety = None if plain else Safety.UNSAFE
    told = told_factory(model, made, data)
    if told is not None:
        outer, imports = told.calls[-1], told.imports
        inner = spliced(inner, place.range(data)[0], [(*place.offsets(e.span), e.text) for e in told.added])
        safety = told.safety if told.safety is not META.fix else safety
    changed = spliced(edits.source_of(model, expr), place.range(expr)[0], [(*place.range(outer), inner)])
    text = spliced(call, place.range(made)[0], [(*place.range(data), changed)])
    return edits.repair("Do it inside nn.Parameter", edits.replace(model, expr, text), imports=imports, safety=safety)


def converts(operation: ast.AST) -> bool:
    """Whether a method only converts, copies or views what it is called on."""
    if not isinstance(operation, ast.Attribute):
        return False
    entry = knowledge.method(operation.attr)
    return operation.attr in CONVERSIONS or (entry is not None and entry.view)


def told_factory(model: FileModel, made: ast.Call, data: ast.expr) -> Absorbed | None:
    """What the factory that makes the data can be told of the conversions behind the Parameter."""
    match model.parent(made):
        case ast.Attribute() as attribute:
            first = model.parent(attribute)
            if isinstance(first, ast.Call) and first.func is attribute and isinstance(data, ast.Call):
                return absorbed(model, data, first)
    return None


def spliced(text: str, start: int, changes: list[tuple[int, int, str]]) -> str:
    """A text that begins at an offset of the file, with parts between offsets of the file replaced."""
    for first, last, new in sorted(changes, reverse=True):
        text = text[: first - start] + new + text[last - start :]
    return text
