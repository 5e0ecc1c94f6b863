"""A custom operator that does something else than its schema says.

`torch.library.custom_op` registers a function with a schema: which arguments it changes, and that its results are new
tensors. The dispatcher, autograd and the compiler believe it. An undeclared change is lost or done twice in compiled
code and unseen by autograd's version check; a result that is an input is an error at the call.

Declare changed arguments in `mutates_args`, return new tensors (`clone()`), and check with `torch.library.opcheck`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, FunctionInfo
from torchlint.model.compiling import compiled
from torchlint.rule import Example, Hit, Meta

META = Meta("TL806", "custom-op-contract", Severity.ERROR, stable=False, fix=Safety.UNSAFE, triggers=("custom_op",))
CLAIM = Raises(
    "RuntimeError|OpCheckError|TorchRuntimeError",
    "must not also be an input|may not alias|but was mutated|fake impl|fake tensor call")
FAKES = ("register_fake", "impl_abstract")
MAKER = "torch.library.custom_op"
VIEWS = {"view", "t", "transpose", "detach", "squeeze", "unsqueeze", "expand", "permute", "view_as", "narrow", "select"}

EXAMPLES = [
    Example(
        bad="""
        import torch


        @torch.library.custom_op("demo::keep", mutates_args=())
        def keep(x: torch.Tensor) -> torch.Tensor:
            return x  #!


        keep(torch.ones(3))
        """,
        good="""
        import torch


        @torch.library.custom_op("demo::keep", mutates_args=())
        def keep(x: torch.Tensor) -> torch.Tensor:
            return x.clone()


        keep(torch.ones(3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.library import custom_op


        @custom_op("demo::scale", mutates_args=())
        def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
            x.mul_(factor)  #!
            return x + 1


        @scale.register_fake
        def _(x, factor):
            return torch.empty_like(x)


        torch.library.opcheck(scale, (torch.ones(3), 2.0))
        """,
        good="""
        import torch
        from torch.library import custom_op


        @custom_op("demo::scale", mutates_args={"x"})
        def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
            x.mul_(factor)
            return x + 1


        @scale.register_fake
        def _(x, factor):
            return torch.empty_like(x)


        torch.library.opcheck(scale, (torch.ones(3), 2.0))
        """,
    ),
    Example(
        bad="""
        import torch


        @torch.library.custom_op("demo::double", mutates_args=())  #!
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2


        @torch.compile(backend="eager")
        def step(x):
            return double(x) + 1


        step(torch.ones(3))
        """,
        good="""
        import torch


        @torch.library.custom_op("demo::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2


        @double.register_fake
        def _(x):
            return torch.empty_like(x)


        @torch.compile(backend="eager")
        def step(x):
            return double(x) + 1


        step(torch.ones(3))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch.library import custom_op


    @custom_op("demo::fine", mutates_args=("out",))
    def fine(x: torch.Tensor, out: torch.Tensor) -> None:
        y = x.clone()
        y.add_(1)
        out.copy_(y)


    @custom_op("demo::open", mutates_args="unknown")
    def unknown(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


    def plain(x):
        x.add_(1)
        return x
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Operators that change or return an argument against their schema, or that compiled code cannot look through."""
    yield from without_fake(model)
    for function in model.functions:
        maker = made_by(model, function)
        declared = mutated(maker) if maker is not None else None
        if maker is None or declared is None:
            continue
        inputs = {arg.arg for arg in function.params}
        for node in function.own_nodes:
            returned = node.value if isinstance(node, ast.Return) else None
            if returned is not None and is_input(model, function, returned, inputs):
                yield Hit(
                    node, "the result of a custom operator may not be an input or a view of one; clone it",
                    edits.repair("Clone it", edits.append_method_call(model, returned, ".clone()")),
                    confidence=Confidence.LIKELY)
        yield from changes(model, function, maker, inputs - declared)


def without_fake(model: FileModel) -> Iterator[Hit]:
    """Operators that compiled functions of this file call, and that have no fake kernel here."""
    if any(model.attributes_named(name) or model.calls_named(name) for name in FAKES):
        return
    seen = set()
    for function in compiled(model):
        for call in function.calls:
            operator = function.model.function_named(call.func)
            maker = made_by(model, operator) if operator is not None and operator.model is model else None
            if maker is not None and maker not in seen:
                seen.add(maker)
                yield Hit(
                    maker, "compiled code calls this operator, which has no fake kernel; register one",
                    confidence=Confidence.LIKELY)


def made_by(model: FileModel, function: FunctionInfo) -> ast.Call | None:
    """The `custom_op(...)` that decorates a function."""
    for decorator in getattr(function.node, "decorator_list", []):
        if isinstance(decorator, ast.Call) and model.name_of(decorator.func) == MAKER:
            return decorator
    return None


def mutated(maker: ast.Call) -> set[str] | None:
    """The arguments declared as changed; None if that is left open or cannot be read."""
    given = next((k.value for k in maker.keywords if k.arg == "mutates_args"), None)
    match given:
        case ast.Tuple(elts=elts) | ast.List(elts=elts) | ast.Set(elts=elts):
            names = {elt.value for elt in elts if isinstance(elt, ast.Constant) and isinstance(elt.value, str)}
            return names if len(names) == len(elts) else None
        case ast.Dict(keys=[]):
            return set()
    return None


def assigned(function: FunctionInfo, name: str) -> bool:
    """Whether a parameter is given another value in the body."""
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in function.own_nodes)


def is_input(model: FileModel, function: FunctionInfo, expr: ast.expr, inputs: set[str]) -> bool:
    """Whether an expression is a parameter, or a view of one."""
    if isinstance(expr, ast.Name):
        return expr.id in inputs and model.value(expr).is_tensor and not assigned(function, expr.id)
    match expr:
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in VIEWS:
            return is_input(model, function, base, inputs)
    return False


def changes(model: FileModel, function: FunctionInfo, maker: ast.Call, inputs: set[str]) -> Iterator[Hit]:
    """Changes of arguments in place that `mutates_args` does not name."""
    storages = {}
    for arg in function.params:
        value = function.entry_value(arg)
        if arg.arg in inputs and value.is_tensor and value.storage is not None:
            storages[value.storage] = arg.arg
    for event in model.flow(function.node).of("inplace"):
        name = storages.get(event.target.storage)
        if name is not None and event.depth == 0:
            given = next(k.value for k in maker.keywords if k.arg == "mutates_args")
            text = '{"' + '", "'.join([*sorted(mutated(maker) or set()), name]) + '"}'
            yield Hit(
                event.node, f"`{name}` is changed, which `mutates_args` does not say; declare it",
                edits.repair("Declare it", edits.replace(model, given, text)), confidence=Confidence.LIKELY)
