"""A dataclass that is a Module and does not work as one.

The `__init__` that `@dataclass` writes assigns the fields and never calls `Module.__init__`; `__post_init__` runs after
that, too late for fields that are layers or Parameters: `Module.__setattr__` refuses them. `eq=True`, the default, sets
`__hash__` to None, and `parameters()` keeps the modules that it has visited in a set: unhashable type. A hash made of
the fields lets two equal layers count as one.

Write `@dataclass(eq=False)`, call `super().__init__()` first in `__post_init__` and build the layers there; or write
the constructor by hand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind
from torchlint.model.classes import runs_module_init, super_init_calls
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL418", "dataclass-module", Severity.ERROR, fix=Safety.UNSAFE, triggers=("dataclass", "attr"))
CLAIM = Raises("TypeError|AttributeError", "unhashable|before Module|has no attribute")
DATACLASSES = ("dataclasses.dataclass", "pydantic.dataclasses.dataclass")
ATTRS = ("attr.s", "attr.attrs", "attr.define", "attr.mutable", "attrs.define", "attrs.mutable", "attr.dataclass")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from dataclasses import dataclass
        from torch import nn


        @dataclass
        class Net(nn.Module):  #!
            size: int = 4

            def __post_init__(self):
                super().__init__()
                self.fc = nn.Linear(self.size, 1)

            def forward(self, x):
                return self.fc(x)


        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        """,
        good="""
        import torch
        from dataclasses import dataclass
        from torch import nn


        @dataclass(eq=False)
        class Net(nn.Module):
            size: int = 4

            def __post_init__(self):
                super().__init__()
                self.fc = nn.Linear(self.size, 1)

            def forward(self, x):
                return self.fc(x)


        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        """,
    ),
    Example(
        bad="""
        import dataclasses

        import torch
        from torch import nn


        @dataclasses.dataclass(eq=False)
        class Residual(nn.Module):  #!
            body: nn.Module
            scale: float = 1.0

            def __post_init__(self):
                super().__init__()

            def forward(self, x):
                return x + self.scale * self.body(x)


        print(Residual(nn.Linear(4, 4))(torch.ones(1, 4)))
        """,
        good="""
        import dataclasses

        import torch
        from torch import nn


        class Residual(nn.Module):
            def __init__(self, body: nn.Module, scale: float = 1.0):
                super().__init__()
                self.body = body
                self.scale = scale

            def forward(self, x):
                return x + self.scale * self.body(x)


        print(Residual(nn.Linear(4, 4))(torch.ones(1, 4)))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import dataclasses

        import torch
        import torch.nn as nn


        @dataclasses.dataclass(repr=False)
        class Loss(nn.Module):  #!
            weight: float = 0.5
            margin: float = 1.0

            def forward(self, a, b):
                return self.weight * (a - b + self.margin).relu().mean()


        print(Loss()(torch.ones(2), torch.zeros(2)))
        """,
        good="""
        import dataclasses

        import torch
        import torch.nn as nn


        @dataclasses.dataclass(repr=False, eq=False)
        class Loss(nn.Module):
            weight: float = 0.5
            margin: float = 1.0

            def __post_init__(self):
                super().__init__()

            def forward(self, a, b):
                return self.weight * (a - b + self.margin).relu().mean()


        print(Loss()(torch.ones(2), torch.zeros(2)))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import dataclasses
    from dataclasses import dataclass, field

    import torch
    from torch import nn


    @dataclass
    class Config:
        size: int = 4


    @dataclass(eq=False)
    class Net(nn.Module):
        config: Config = field(default_factory=Config)

        def __post_init__(self):
            super().__init__()
            self.fc = nn.Linear(self.config.size, 1)


    @dataclass(eq=False)
    class Early(nn.Module):
        body: nn.Module

        def __new__(cls, *args, **kwargs):
            made = super().__new__(cls)
            nn.Module.__init__(made)
            return made


    @dataclass
    class Hashed(nn.Module):
        size: int = 4

        def __post_init__(self):
            nn.Module.__init__(self)

        def __hash__(self):
            return id(self)


    @dataclass(eq=False, init=False)
    class ByHand(nn.Module):
        size: int

        def __init__(self, size):
            super().__init__()
            self.size = size


    @dataclass(eq=False)
    class Set(nn.Module):
        size: int = 4
        body: nn.Module = field(init=False)

        def __post_init__(self):
            super().__init__()
            self.body = nn.Linear(self.size, 1)


    @dataclass(eq=False)
    class Larger(Net):
        extra: int = 1

        def __post_init__(self):
            super().__post_init__()
            self.more = nn.Linear(self.extra, 1)


    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor


    nets = [Net(), Early(nn.Linear(2, 2)), Hashed(), ByHand(3), Set()]
    print(sum(p.numel() for net in nets for p in net.parameters()), Output(torch.ones(1)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Modules whose constructor or hash a dataclass decorator writes."""
    for cls in model.classes:
        decorator = dataclass_decorator(model, cls)
        if decorator is None or not cls.is_module:
            continue
        options = constants(decorator)
        trouble = constructor_trouble(cls, options)
        if trouble:
            yield Hit(cls.node, trouble)
        elif options.get("eq") is not False and not {"__hash__", "__eq__"} & cls.methods.keys():
            if options.get("unsafe_hash") is True or options.get("frozen") is True:
                yield Hit(cls.node, "equal instances count as one module, so parameters get lost; use `eq=False`",
                          without_eq(model, decorator))
            else:
                yield Hit(cls.node, "`eq=True` makes this Module unhashable, so `parameters()` raises; use `eq=False`",
                          without_eq(model, decorator))


def dataclass_decorator(model: FileModel, cls: ClassInfo) -> ast.expr | None:
    """The decorator that writes the class' methods."""
    for decorator in cls.node.decorator_list:
        name = model.name_of(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name in DATACLASSES or name in ATTRS:
            return decorator
    return None


def constants(decorator: ast.expr) -> dict[str, object]:
    """The keywords of a decorator that are constants; any other value counts as False."""
    if not isinstance(decorator, ast.Call):
        return {}
    return {keyword.arg: keyword.value.value if isinstance(keyword.value, ast.Constant) else False
            for keyword in decorator.keywords if keyword.arg is not None}


def constructor_trouble(cls: ClassInfo, options: dict[str, object]) -> str:
    """What is wrong with the way to `Module.__init__`; "" if nothing is."""
    if options.get("init") is False or "__init__" in cls.methods:
        return ""
    early = [cls.method(name) for name in ("__new__", "__attrs_pre_init__")]
    if any(method is not None for method in early):
        return ""
    late = cls.method("__post_init__") or cls.method("__attrs_post_init__")
    if late is None or not gets_to_module(cls, late):
        return "the generated `__init__` never runs `Module.__init__`; call it in `__post_init__`"
    field = next(early_fields(cls), "")
    if field:
        return f"field `{field}` is assigned before `Module.__init__` has run; write the constructor by hand"
    if registers_first(cls, late):
        return "`__post_init__` assigns a layer before `super().__init__()`; call that first"
    return ""


def gets_to_module(cls: ClassInfo, late: FunctionInfo) -> bool:
    """Whether a method runs `Module.__init__`, itself or through the same method of a base class."""
    if runs_module_init(cls, late):
        return True
    for call in late.calls:
        match call.func:
            case ast.Attribute(attr=name) if name == late.name and late.cls is not None:
                above = [base.methods[name] for base in late.cls.project_mro
                         if base is not late.cls and name in base.methods]
                return not above or gets_to_module(cls, above[0])
    return False


def early_fields(cls: ClassInfo) -> Iterator[str]:
    """Fields that hold layers or Parameters and are set by the generated constructor."""
    for node in cls.node.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default):
                if without_init(default):
                    continue
                value = cls.model.annotation_value(annotation, node)
                if value.kind is Kind.MODULE or value.role == "parameter":
                    yield name


def without_init(default: ast.expr | None) -> bool:
    """Whether a field's default says `init=False` and gives no value."""
    if not isinstance(default, ast.Call):
        return False
    given = {keyword.arg: keyword.value for keyword in default.keywords}
    flag = given.get("init")
    return isinstance(flag, ast.Constant) and flag.value is False and not {"default", "default_factory"} & set(given)


def registers_first(cls: ClassInfo, late: FunctionInfo) -> bool:
    """Whether the method after the generated constructor assigns a module ahead of `super().__init__()`."""
    calls = super_init_calls(late)
    if not calls:
        return False
    first = min(late.model.position(call) for call in calls)
    return any(
        expr is not None and late.model.position(stmt) < first and late.model.value(expr).kind is Kind.MODULE
        for stores in cls.stores.values() for method, stmt, expr in stores if method is late
    )


def without_eq(model: FileModel, decorator: ast.expr) -> Repair | None:
    """`@dataclass` -> `@dataclass(eq=False)`."""
    if isinstance(decorator, ast.Call):
        if any(keyword.arg in ("eq", "unsafe_hash", "frozen", "order") for keyword in decorator.keywords):
            return None
        return edits.repair("Compare by identity", edits.add_keyword_argument(model, decorator, "eq=False"))
    text = f"{edits.source_of(model, decorator)}(eq=False)"
    return edits.repair("Compare by identity", edits.replace(model, decorator, text))
