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

from torchlint.claims import NotRegistered
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.factory import Absorbed, absorbed, is_idle
from torchlint.fixes.layout import layout
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL407", "nonleaf-parameter", Severity.ERROR, fix=Safety.SAFE, triggers=("Parameter",))
CLAIM = NotRegistered()
CONVERSIONS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "type_as", "to_dense", "clone",
               "contiguous", "t", "transpose", "view", "reshape", "unsqueeze", "expand", "squeeze", "mul", "div", "add")
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

        def forward(self, x):
            scale = self.inside.to(x.dtype)
            return self.layer(x) * scale


    print(Net()(torch.ones(2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Attributes of Modules whose value is made from a Parameter built in the same expression."""
    for cls in model.classes:
        if not cls.is_module:
            continue
        for name, stores in cls.stores.items():
            for method, stmt, expr in stores:
                if expr is None or isinstance(stmt, ast.Call) or method is None or method.name == "forward":
                    continue
                made, chain = parameter_inside(model, expr)
                if made is not None and chain:
                    yield Hit(stmt, f"`self.{name}` is no Parameter after {chain}; do that inside nn.Parameter(...)",
                              move_inside(model, expr, made))


def parameter_inside(model: FileModel, expr: ast.expr) -> tuple[ast.Call | None, str]:
    """(the `nn.Parameter(...)` call that an expression starts from, the first operation on it)."""
    match expr:
        case ast.Call() if model.name_of(expr.func) == "torch.nn.Parameter":
            return expr, ""
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) as call if name in (*CONVERSIONS, *KEEPING):
            made, first = parameter_inside(model, inner)
            if made is None or first or name in KEEPING or idle(model, made, call):
                return made, first
            return made, f"`.{name}`"
        case ast.BinOp(left=left, right=right):
            for side in (left, right):
                made, first = parameter_inside(model, side)
                if made is not None:
                    return made, first or "arithmetic"
        case ast.Name(id=name):
            return renamed(model, expr, name)
    return None, ""


def renamed(model: FileModel, expr: ast.expr, name: str) -> tuple[ast.Call | None, str]:
    """The same through a local name that is bound once."""
    for scope in model.scopes(expr):
        bound = scope.bindings.get(name, [])
        if len(bound) == 1 and isinstance(bound[0], ast.Assign) and not isinstance(bound[0].value, ast.Name):
            return parameter_inside(model, bound[0].value)
        if bound:
            break
    return None, ""


def idle(model: FileModel, made: ast.Call, call: ast.Call) -> bool:
    """Whether a conversion gives the Parameter itself."""
    return bool(made.args) and isinstance(made.args[0], ast.Call) and is_idle(model, made.args[0], call)


def move_inside(model: FileModel, expr: ast.expr, made: ast.Call) -> Repair | None:
    """`nn.Parameter(x, ...).to(d)` -> `nn.Parameter(x.to(d), ...)`; a factory is told at once."""
    if not made.args or model.statement(made) is not model.statement(expr):
        return None
    data = made.args[0]
    call = edits.source_of(model, made)
    if edits.source_of(model, expr).count(call) != 1:
        return None
    if isinstance(data, (ast.BinOp, ast.Starred, ast.IfExp, ast.UnaryOp)):
        return None
    place = layout(model.source)
    outer: ast.Call = made  # what the new value of the data takes the place of
    inner, imports, safety = edits.source_of(model, data), tuple[str, ...](), None
    told = told_factory(model, made, data)
    if told is not None:
        outer, imports = told.calls[-1], told.imports
        inner = spliced(inner, place.range(data)[0], [(*place.offsets(e.span), e.text) for e in told.added])
        safety = told.safety if told.safety is not META.fix else None
    changed = spliced(edits.source_of(model, expr), place.range(expr)[0], [(*place.range(outer), inner)])
    text = spliced(call, place.range(made)[0], [(*place.range(data), changed)])
    return edits.repair("Do it inside nn.Parameter", edits.replace(model, expr, text), imports=imports, safety=safety)


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
