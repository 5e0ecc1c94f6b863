"""Functions of Python, torch and other libraries whose meaning is more than their signature."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchlint.findings import Confidence
from torchlint.model import calls, distributions, tensors
from torchlint.model.contexts import literal_bool
from torchlint.model.values import (
    NONE,
    NUMBER,
    OPTIMIZERS,
    STRING,
    UNKNOWN,
    Grad,
    Kind,
    Value,
    join_all,
    members_anew,
    number_from,
)

if TYPE_CHECKING:
    from torchlint.model.interp import Run

Keywords = dict[str, Value]
Handler = Callable[["Run", ast.Call, str, list[Value], Keywords], "Value | None"]
COLLECTIVES = {
    "barrier",
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "monitored_barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
}


def call(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """The result of a call of a known library function; None if it is none of these."""
    handler = HANDLERS.get(name)
    if handler is not None:
        return handler(run, node, name, args, keywords)
    if name.startswith("torch.distributed.") and name.rpartition(".")[2] in COLLECTIVES:
        run.event("collective", node, args[0] if args else UNKNOWN, args=tuple(args), name=name)
        return Value(Kind.WORK, ident=node, site=node, optional=True)
    if name.startswith("torch.nn.init.") and name.endswith("_") and args and args[0].is_tensor:
        return initialise(run, node, name, args[0])
    if name.startswith(distributions.PACKAGE):
        return distributions.call(run, node, name, args, keywords)
    if makes_model(name):
        return Value(Kind.MODULE, name=name, ident=node, site=node)
    if name.startswith("numpy."):
        return numpy(run, node, name, args)
    if name.startswith("math."):
        for value in args:
            if value.is_tensor:
                run.event("host_read", node, value, name=name)
        return NUMBER
    return None


def makes_model(name: str) -> bool:
    """Functions of model zoos that return a Module: `torchvision.models.resnet18`, `timm.create_model`."""
    if name in (
        "timm.create_model",
        "timm.models.create_model",
        "torchvision.models.get_model",
        "open_clip.create_model",
    ):
        return True
    tail = name.rpartition(".")[2]
    return (
        name.startswith("torchvision.models.")
        and tail[:1].islower()
        and not tail.startswith(("get_", "list_"))
        and (tail not in NO_MODELS)
    )


# Other functions and subpackages below torchvision.models.
NO_MODELS = {
    "register_model",
    "handle_legacy_interface",
    "detection",
    "segmentation",
    "video",
    "quantization",
    "optical_flow",
    "feature_extraction",
    "create_feature_extractor",
    "misc",
    "boxes",
}


# -- Python -----------------------------------------------------------------------------------


def number(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`float(x)`, `int(x)`: reads a tensor's value."""
    if args and args[0].is_tensor:
        run.event("host_read", node, args[0], name=name)
    const = args[0].const if args else None
    if isinstance(const, (int, float)) and name in ("builtins.int", "builtins.float"):
        return Value(
            Kind.NUMBER, const=int(const) if name.endswith("int") and const == const and abs(const) < 1e300 else const
        )
    return NUMBER


def text(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`str(x)`, `print(x)`."""
    for value in args:
        if value.is_tensor:
            run.event("host_read", node, value, name=name)
    return NONE if name == "builtins.print" else STRING


def length(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`len`, `isinstance`, `hasattr`, `id`, `hash`."""
    return NUMBER


def iterate(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`enumerate`, `zip`, `reversed`, `sorted`, `iter`, `tqdm`: what their items are."""
    from torchlint.model.evaluate import item_of

    tail = name.rpartition(".")[2]
    nodes = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
    items = [item_of(run, value, at) for value, at in zip(args, nodes, strict=False)]
    over = (
        frozenset({"over_loader"})
        if any(v.kind is Kind.LOADER or "over_loader" in v.facts for v in args)
        else frozenset()
    )
    match tail:
        case "enumerate":
            item = Value(Kind.TUPLE, elements=(NUMBER, items[0] if items else UNKNOWN))
        case "zip" | "zip_longest":
            item = Value(Kind.TUPLE, elements=tuple(items)) if len(items) == len(node.args) else UNKNOWN
        case "range" | "trange":
            item = NUMBER
        case "cycle" | "islice" | "iter" | "reversed" | "sorted" | "tqdm" | "track" | "chain":
            item = items[0] if items else UNKNOWN
        case _:
            item = UNKNOWN
    if args and args[0].kind is Kind.PARAMETERS and tail in ("iter", "chain", "tqdm", "islice"):
        return args[0].but(ident=node, site=node)
    generator = frozenset() if tail in ("range", "sorted") else frozenset({"generator"})
    return Value(Kind.LIST, item=item, ident=node, site=node, facts=over | generator, bound=args[0] if args else None)


def mapping(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`map(f, xs)` and `filter(f, xs)`."""
    from torchlint.model.evaluate import item_of

    if len(args) < 2:
        return UNKNOWN
    item = item_of(run, args[1], node.args[1])
    if name == "builtins.filter":
        if args[1].kind is Kind.PARAMETERS:
            return args[1].but(ident=node, site=node)
        return Value(Kind.LIST, item=item, ident=node, site=node, facts=frozenset({"generator"}))
    result = UNKNOWN
    if args[0].kind is Kind.FUNCTION and args[0].func is not None:
        result = calls.follow_value(run, node, args[0], [item], {})
    return Value(Kind.LIST, item=result, ident=node, site=node, facts=frozenset({"generator"}))


def following(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`next(iterator)`."""
    from torchlint.model.evaluate import item_of

    if args and args[0].kind is Kind.PARAMETERS:
        return item_of(run, args[0], node)
    return item_of(run, args[0], node) if args and args[0].known else Value(ident=node)


def total(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`sum`, `min`, `max`, `abs`: of tensors they give tensors."""
    if not args:
        return UNKNOWN
    first = args[0]
    if name == "builtins.abs":
        return tensors.result(run, node, (first,), name="torch.abs") if first.is_tensor else first
    item = first if first.is_tensor else first.item
    if len(args) > 1 and name != "builtins.sum":
        item = join_all(args)
    if item is not None and item.is_tensor:
        return tensors.result(run, node, (item,), name="torch.add")
    return number_from(item) if item is not None and item.kind is Kind.NUMBER else UNKNOWN


def parent(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`super()`: the instance, seen as its next class; the class itself in class methods."""
    cls = run.model.class_of(node)
    if cls is None:
        return UNKNOWN
    kind = Kind.CLASS if run.owner.takes_class else cls.kind
    return Value(kind, name="super", cls=cls, ident=(cls, "super"), facts=frozenset({"super"}))


def get_attribute(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`getattr(x, "data")`, and `getattr(torch.optim, name)`: an optimizer whatever the name is."""
    if args and args[0].kind is Kind.NAMESPACE and args[0].name == OPTIMIZERS:
        return Value(Kind.CLASS, name=f"{OPTIMIZERS}.Optimizer", sure=Confidence.LIKELY)
    if len(args) >= 2 and args[1].const == "data" and args[0].is_tensor:
        return args[0].but(
            grad=Grad.NO,
            ident=node,
            site=node,
            name="torch.Tensor.data",
            role="",
            graph=frozenset(),
            bound=args[0],
            facts=args[0].facts | {"through_data"},
            carried=frozenset(),
        )
    return UNKNOWN


def set_attribute(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`setattr(x, name, value)`."""
    if len(args) == 3:
        run.event("setattr", node, args[0], value=args[2], args=tuple(args), name=name)
    return NONE


def partial(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`functools.partial(f, ...)`: calling it calls f."""
    first = args[0] if args else UNKNOWN
    if first.kind is Kind.CLASS:
        return first
    if first.kind is Kind.FUNCTION and first.func is None:
        return first
    if first.kind is Kind.FUNCTION and not any(isinstance(arg, ast.Starred) for arg in node.args):
        given = tuple(keywords.items())
        return first.but(ident=node, elements=(*(first.elements or ()), *args[1:]), fields=first.fields + given)
    return Value(ident=node)


def copied(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`copy.deepcopy(x)`: the same, as an object of its own."""
    first = args[0] if args else UNKNOWN
    if not name.endswith("deepcopy"):
        return first.but(ident=node, site=node)
    return members_anew(first, node).but(ident=node, site=node, storage=node, facts=first.facts | {"deepcopy"})


# -- numpy ------------------------------------------------------------------------------------


def numpy(run: Run, node: ast.Call, name: str, args: list[Value]) -> Value:
    """numpy functions give arrays (or numbers), never a graph."""
    for value in args:
        if value.is_tensor:
            run.event("host_read", node, value, name=name)
    if name in ("numpy.random.default_rng", "numpy.random.RandomState"):
        return Value(Kind.RNG, name="numpy.random.Generator", ident=node, site=node)
    if name in ("numpy.prod", "numpy.ndim", "numpy.isscalar"):
        return NUMBER
    if name in ("numpy.float32", "numpy.float64", "numpy.int64", "numpy.int32"):
        return NUMBER
    return Value(Kind.NDARRAY, sure=Confidence.LIKELY, ident=node, site=node, storage=node, name=name)


# -- torch ------------------------------------------------------------------------------------


def backward(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.autograd.backward(tensors)`."""
    first = args[0] if args else keywords.get("tensors", UNKNOWN)
    targets = [first] if first.is_tensor else first.parts() or [first]
    for target in targets:
        run.event("backward", node, target, name=name)
    return NONE


def gradient(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.autograd.grad(...)`: a graph of its own only with create_graph."""
    flag = keywords.get("create_graph", args[4] if len(args) > 4 else Value(Kind.NUMBER, const=False))
    state = {True: Grad.YES, False: Grad.NO}.get(flag.const, Grad.UNKNOWN) if run.grad is not False else Grad.NO
    run.event("autograd_grad", node, args[0] if args else keywords.get("outputs", UNKNOWN), args=tuple(args), name=name)
    outputs = args[:1] or [keywords.get("outputs", UNKNOWN)]
    item = Value(
        Kind.TENSOR,
        name=name,
        grad=state,
        ident=node,
        storage=node,
        site=node,
        graph=tensors.grown(run, node, outputs) if state is not Grad.NO else frozenset(),
        facts=frozenset({"first_order"}) if flag.const is not True else frozenset(),
    )
    inputs = args[1] if len(args) > 1 else keywords.get("inputs", UNKNOWN)
    elements = tuple(item.but(ident=(node, i)) for i in range(len(inputs.elements))) if inputs.elements else None
    if inputs.is_tensor:
        elements = (item,)
    return Value(Kind.TUPLE, item=item, elements=elements, ident=node, site=node)


def clip(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """Gradient clipping."""
    run.event("clip", node, args[0] if args else keywords.get("parameters", UNKNOWN), args=tuple(args), name=name)
    return Value(Kind.TENSOR, grad=Grad.NO, ident=node, storage=node, site=node)


def set_mode(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.set_grad_enabled(mode)` takes effect when it is called; as a `with` item it is undone."""
    if isinstance(run.model.parent(node), ast.Expr):
        run.grad = literal_bool(node.args[0]) if node.args else None
        run.event("set_grad", node, args[0] if args else UNKNOWN, name=name)
    return Value(Kind.CONTEXT, name=name, ident=node, site=node, facts=frozenset({"grad_unknown"}))


def grad_context(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.no_grad()` and the like."""
    facts = {"grad_off"} if name in ("torch.no_grad", "torch.inference_mode") else set()
    return Value(Kind.CONTEXT, name=name, ident=node, site=node, facts=frozenset(facts))


def variable(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`Variable(x)` shares x's storage and has no graph, also where x has one (measured on torch 2.13)."""
    first = args[0] if args else keywords.get("data", UNKNOWN)
    flag = keywords.get("requires_grad")
    value = first if first.is_tensor else Value(Kind.TENSOR, sure=Confidence.LIKELY, storage=node)
    value = value.but(
        site=node, ident=node, name=name, grad=Grad.NO, role="", carried=frozenset(), graph=frozenset(), source=None
    )
    if flag is not None and isinstance(flag.const, bool):
        return tensors.with_requires_grad(value, flag.const)
    return value


def same(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.compile(m)`, `torch.jit.script(m)`: the module again, compiled."""
    return args[0].but(facts=args[0].facts | {"compiled"}) if args else Value(ident=node)


def checkpoint(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`checkpoint(f, *args)` runs f."""
    if not args:
        return UNKNOWN
    from torchlint.model import modules

    target, rest = args[0], args[1:]
    if target.kind is Kind.MODULE:
        return modules.outcome(run, node, target, rest, {})
    if target.kind is Kind.FUNCTION and target.func is not None:
        return calls.follow_value(run, node, target, rest, {})
    return Value(ident=node, grad=Grad.YES if run.grad else Grad.UNKNOWN, facts=frozenset({"output"}))


def data_parallel(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`data_parallel(module, inputs, ...)` calls the module."""
    from torchlint.model import modules

    if not args or args[0].kind is not Kind.MODULE:
        return UNKNOWN
    rest = list(args[1].elements or ()) if len(args) > 1 and args[1].elements else args[1:2]
    return modules.call(run, node, args[0], rest, {})


def initialise(run: Run, node: ast.Call, name: str, target: Value) -> Value:
    """`torch.nn.init.normal_(x)` fills x under no_grad."""
    before, run.grad = run.grad, False
    tensors.changed_in_place(run, node, node.args[0] if node.args else node, target, UNKNOWN, name=name)
    run.grad = before
    return target


def loaded(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.load(...)`."""
    return Value(ident=node, site=node, name=name)


def saved(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`torch.save(obj, path)`."""
    run.event("save", node, args[0] if args else keywords.get("obj", UNKNOWN), args=tuple(args), name=name)
    return NONE


def to_parameters(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """`parameters_to_vector(params)`."""
    return tensors.result(run, node, tuple(args), name=name, grad=Grad.YES if run.grad else Grad.NO)


NUMBERS = (
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.distributed.is_initialized",
    "torch.distributed.is_available",
    "torch.cuda.is_available",
    "torch.cuda.device_count",
    "torch.is_grad_enabled",
    "torch.get_num_threads",
    "time.time",
    "time.perf_counter",
    "random.random",
    "random.randint",
    "random.uniform",
    "random.randrange",
    "random.gauss",
)
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(NUMBERS, length),
    "builtins.float": number,
    "builtins.int": number,
    "builtins.bool": number,
    "builtins.round": number,
    "builtins.str": text,
    "builtins.repr": text,
    "builtins.print": text,
    "builtins.format": text,
    "builtins.len": length,
    "builtins.isinstance": length,
    "builtins.hasattr": length,
    "builtins.id": length,
    "builtins.issubclass": length,
    "builtins.callable": length,
    "builtins.any": length,
    "builtins.all": length,
    "builtins.enumerate": iterate,
    "builtins.zip": iterate,
    "builtins.range": iterate,
    "builtins.reversed": iterate,
    "builtins.sorted": iterate,
    "builtins.iter": iterate,
    "itertools.cycle": iterate,
    "itertools.islice": iterate,
    "itertools.chain": iterate,
    "itertools.zip_longest": iterate,
    "tqdm.tqdm": iterate,
    "tqdm.auto.tqdm": iterate,
    "tqdm.trange": iterate,
    "tqdm.notebook.tqdm": iterate,
    "tqdm.auto.trange": iterate,
    "rich.progress.track": iterate,
    "tqdm.rich.tqdm": iterate,
    "builtins.map": mapping,
    "builtins.filter": mapping,
    "builtins.next": following,
    "builtins.sum": total,
    "builtins.max": total,
    "builtins.min": total,
    "builtins.abs": total,
    "builtins.super": parent,
    "builtins.getattr": get_attribute,
    "builtins.setattr": set_attribute,
    "functools.partial": partial,
    "copy.deepcopy": copied,
    "copy.copy": copied,
    "torch.autograd.backward": backward,
    "torch.autograd.grad": gradient,
    "torch.nn.utils.clip_grad_norm_": clip,
    "torch.nn.utils.clip_grad_value_": clip,
    "torch.nn.utils.clip_grad_norm": clip,
    "torch.nn.utils.clip_grads_with_norm_": clip,
    "torch.set_grad_enabled": set_mode,
    "torch.no_grad": grad_context,
    "torch.inference_mode": grad_context,
    "torch.enable_grad": grad_context,
    "torch.autograd.Variable": variable,
    "torch.compile": same,
    "torch.jit.script": same,
    "torch.utils.checkpoint.checkpoint": checkpoint,
    "torch.nn.parallel.data_parallel": data_parallel,
    "torch.nn.parallel.data_parallel.data_parallel": data_parallel,
    "torch.load": loaded,
    "torch.save": saved,
    "torch.nn.utils.parameters_to_vector": to_parameters,
}
