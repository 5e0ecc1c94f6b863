"""Making and calling Modules, optimizers, loaders and other objects."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model import calls, tensor_calls, tensors
from torchlint.model.classes import class_kind
from torchlint.model.replaced import is_replaced
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Grad, Kind, Value, join_all, unsure

if TYPE_CHECKING:
    from torchlint.model.interp import Run

Keywords = dict[str, Value]
Constructor = Callable[["Run", ast.Call, list[Value], Keywords], Value]
WRAPPERS = {
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
}
TRANSPARENT = {"Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Flatten", "Unflatten"}
# Modules that return two tensors, with the names that the two have.
PAIRS: dict[str, tuple[str, ...]] = {
    "torch.nn.GRU": (),
    "torch.nn.RNN": (),
    "torch.nn.LSTMCell": (),
    "torch.nn.MultiheadAttention": (),
    "torch.nn.AdaptiveLogSoftmaxWithLoss": ("output", "loss"),
}
# What these return depends on the kind of their input: packed sequences stay packed.
DOUBTED = {"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.Flatten", "torch.nn.Unflatten"}


def construct(run: Run, node: ast.Call, callee: Value, args: list[Value], keywords: Keywords) -> Value:
    """`Class(...)`, no surer than which class it is."""
    value = made(run, node, callee, args, keywords)
    return value if value.sure <= callee.sure else value.but(sure=callee.sure)


def made(run: Run, node: ast.Call, callee: Value, args: list[Value], keywords: Keywords) -> Value:
    """The instance that `Class(...)` makes."""
    if callee.cls is not None:
        return project_instance(run, node, callee, args, keywords)
    name = callee.name
    special = CONSTRUCTORS.get(name)
    if special is not None:
        return special(run, node, args, keywords)
    kind = class_kind(name)
    value = Value(kind, name=name, ident=node, site=node)
    match kind:
        case Kind.MODULE:
            return module_instance(value, node, args, keywords)
        case Kind.OPTIMIZER:
            params = args[0] if args else keywords.get("params", UNKNOWN)
            run.event("make_optimizer", node, value, args=(params,), name=name)
            return value.but(elements=(params,))
        case Kind.SCHEDULER:
            return value.but(bound=args[0] if args else keywords.get("optimizer"))
        case Kind.LOADER:
            return value.but(bound=args[0] if args else keywords.get("dataset"))
        case Kind.DATASET:
            return value.but(bound=args[0] if args else None)
        case Kind.SCALER:
            enabled = keywords.get("enabled", args[4] if len(args) > 4 else UNKNOWN)
            return value.but(facts=frozenset({"disabled"} if enabled.const is False else ()))
        case Kind.TENSOR:
            return tensor_calls.factory(run, node, name, args, keywords)
    return value


def project_instance(run: Run, node: ast.Call, callee: Value, args: list[Value], keywords: Keywords) -> Value:
    """An instance of a project class."""
    cls = callee.cls
    assert cls is not None
    value = cls.instance(ident=node, site=node)
    if cls.kind is Kind.OPTIMIZER:
        params = args[0] if args else keywords.get("params", UNKNOWN)
        run.event("make_optimizer", node, value, args=(params,), name=cls.dotted)
        return value.but(elements=(params,))
    if cls.kind is Kind.LOADER:
        return value.but(bound=args[0] if args else keywords.get("dataset"))
    if cls.kind is Kind.SCHEDULER:
        value = value.but(bound=args[0] if args else keywords.get("optimizer"))
    run.event("construct", node, value, args=(*args, *keywords.values()), name=cls.dotted)
    return value


def module_instance(value: Value, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    """An instance of one of torch's own (or another library's) Modules."""
    if value.name in WRAPPERS:
        inner = args[0] if args else keywords.get("module", UNKNOWN)
        ddp = {"wrapper", "ddp"} if "DistributedDataParallel" in value.name else {"wrapper"}
        return value.but(bound=inner, facts=frozenset(ddp), cls=None)
    pair = keywords.get("return_indices", UNKNOWN if "**" in keywords and "MaxPool" in value.name else None)
    if pair is not None and pair.const is not False:
        return value.but(facts=frozenset({"pair" if pair.const is True else "maybe_pair"}))
    affine = keywords.get("affine", keywords.get("elementwise_affine"))
    if affine is not None and affine.const is not True:
        return value.but(facts=frozenset({"frozen"}))  # it may have no parameters at all
    if value.name == "torch.nn.Sequential":
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            return value.but(item=args[0] if args else None)
        if len(args) == 1 and args[0].kind is Kind.DICT:
            return value.but(elements=tuple(member for _, member in args[0].fields) or None, item=args[0].item)
        return value.but(elements=tuple(args))
    if value.name in ("torch.nn.ModuleList", "torch.nn.ModuleDict") and args:
        return value.but(elements=args[0].elements, item=args[0].item, fields=args[0].fields)
    return value


def call(run: Run, node: ast.Call, module: Value, args: list[Value], keywords: Keywords) -> Value:
    """`module(...)`."""
    value = outcome(run, node, module, args, keywords)
    value = from_source(value, module)
    run.event("call", node, module, value=value, args=(*args, *keywords.values()), name=module.name)
    return value


def from_source(value: Value, module: Value) -> Value:
    """Mark what a module returned with the module's identity."""
    mark = module.ident
    if value.is_tensor or not value.known:
        return value.but(source=mark)
    if value.elements is not None:
        return value.but(elements=tuple(part.but(source=mark) for part in value.elements))
    if value.fields:
        return value.but(fields=tuple((key, part.but(source=mark)) for key, part in value.fields))
    return value


def outcome(run: Run, node: ast.AST, module: Value, args: list[Value], keywords: Keywords) -> Value:
    """What calling a module gives."""
    if "wrapper" in module.facts and module.bound is not None:
        return outcome(run, node, module.bound, args, keywords)
    if module.cls is not None:
        own = module.cls.method("__call__")
        forward = own if own is not None else module.cls.method("forward")
        if forward is not None:
            result = calls.inline(run, node, forward, module, args, keywords)
            if is_replaced(module.cls, "forward"):
                result = unsure(result)
            return less_attached(result, module) if result.known else output(run, node, module)
        base = next((b for b in module.cls.outside if knowledge.module_class(b) is not None), "")
        if base and base != "torch.nn.Module":
            value = torch_module(run, node, module.but(name=base, cls=None), args, keywords)
            # A base that cannot be seen may have a forward of its own.
            return value if module.cls.fully_known else value.but(sure=min(value.sure, Confidence.LIKELY))
        return output(run, node, module)
    if module.name != "torch.nn.Module" and knowledge.module_class(module.name) is not None:
        return torch_module(run, node, module, args, keywords)
    return output(run, node, module)


def less_attached(value: Value, module: Value) -> Value:
    """What a module gives whose parameters were frozen: a graph only if its input has one."""
    if "frozen" in module.facts and value.attached:
        return value.but(grad=Grad.UNKNOWN)
    return value


def output(run: Run, node: ast.AST, module: Value) -> Value:
    """What a module gives whose code cannot be seen: something that carries a graph in grad mode."""
    grad = Grad.NO if run.grad is False else Grad.YES if run.grad else Grad.UNKNOWN
    graph = tensors.grown(run, node, ()) if grad is not Grad.NO else frozenset()
    return Value(
        grad=grad, ident=node, storage=node, site=node, source=module.ident, facts=frozenset({"output"}), graph=graph
    )


def torch_module(run: Run, node: ast.AST, module: Value, args: list[Value], keywords: Keywords) -> Value:
    """The result of one of torch's own Modules."""
    info = knowledge.module_class(module.name)
    assert info is not None
    operands = (*args, *keywords.values())
    tail = module.name.rpartition(".")[2]
    if tail == "Sequential":
        return sequential(run, node, module, args)
    if info.kind == "container" and tail in ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict"):
        return UNKNOWN
    grad = tensors.grad_of(run, operands)
    sure = tensors.trust_in_grad(run, grad, operands)
    if tail == "Identity" and args and not args[0].is_tensor:
        return args[0]
    frozen = "frozen" in module.facts
    if info.has_parameters and run.grad is not False and not (frozen and grad is Grad.YES):
        grad, sure = Grad.YES if run.grad and not frozen else Grad.UNKNOWN, Confidence.SURE
    elif not info.built and run.grad is not False and grad is Grad.NO:
        grad, sure = Grad.UNKNOWN, Confidence.SURE  # whether it has parameters is not known
    value = tensors.result(run, node, operands, name=module.name, grad=grad, data=()).but(
        sure=sure, source=module.ident
    )
    if info.kind == "loss":
        value = value.but(facts=value.facts | {"loss"})
    first = args[0] if args else UNKNOWN
    if (module.name in DOUBTED and not first.is_tensor) or "maybe_pair" in module.facts:
        value = value.but(sure=Confidence.LIKELY)
    squash = tensors.SQUASHES.get(tail, first.squash if tail in TRANSPARENT else "")
    value = value.but(squash=squash)
    if module.name == "torch.nn.LSTM":
        state = Value(Kind.TUPLE, elements=(value.but(ident=(node, 1)), value.but(ident=(node, 2))), ident=(node, "h"))
        return Value(Kind.TUPLE, elements=(value.but(ident=(node, 0)), state), ident=node, site=node)
    if module.name in PAIRS or "pair" in module.facts:
        second = value.but(ident=(node, 1), grad=Grad.NO if "pair" in module.facts else value.grad)
        if module.name == "torch.nn.MultiheadAttention":
            weights = keywords.get("need_weights", args[4] if len(args) > 4 else Value(Kind.NUMBER, const=True))
            second = {True: second, False: NONE}.get(weights.const, second.but(optional=True))
        members = (value.but(ident=(node, 0)), second)
        fields = tuple(zip(PAIRS.get(module.name, ()), members, strict=False))
        return Value(Kind.TUPLE, elements=members, fields=fields, ident=node, site=node)
    return value


def sequential(run: Run, node: ast.AST, module: Value, args: list[Value]) -> Value:
    """Member after member; unknown members give something with a graph."""
    value = args[0] if args else UNKNOWN
    if module.elements is None:
        value = output(run, node, module)
        return value.but(kind=Kind.TENSOR, sure=Confidence.LIKELY, site=node)
    for member in module.elements:
        if member.kind is Kind.MODULE:
            value = outcome(run, node, member, [value], {})
        else:
            value = output(run, node, module)
    return value if value.known else value.but(kind=Kind.TENSOR, sure=Confidence.LIKELY)


# -- constructors with a meaning of their own -------------------------------------------------


def _parameter(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    data = args[0] if args else keywords.get("data", UNKNOWN)
    flag = args[1] if len(args) > 1 else keywords.get("requires_grad")
    grad = Grad.YES if flag is None else {True: Grad.YES, False: Grad.NO}.get(flag.const, Grad.UNKNOWN)
    facts = frozenset({"frozen"}) if grad is Grad.NO else frozenset()
    return Value(
        Kind.TENSOR,
        name="torch.nn.Parameter",
        role="parameter",
        grad=grad,
        ident=node,
        storage=node,
        site=node,
        bound=data if data.known else None,
        facts=facts,
    )


def _uninitialised(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    value = _parameter(run, node, [UNKNOWN, *args[:1]], keywords)
    return value.but(name="torch.nn.UninitializedParameter")


def _buffer(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    return Value(Kind.TENSOR, name="torch.nn.Buffer", role="buffer", grad=Grad.NO, ident=node, storage=node, site=node)


def _typed(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    return tensors.constant(run, node, name=run.model.name_of(node.func))


def _list(kind: Kind, run: Run, node: ast.Call, args: list[Value]) -> Value:
    from torchlint.model.evaluate import item_of

    if not args:
        return Value(kind, ident=node, site=node, elements=() if kind is not Kind.DICT else None)
    source = args[0]
    if source.kind in (Kind.LIST, Kind.TUPLE, Kind.SET) and kind in (Kind.LIST, Kind.TUPLE, Kind.SET):
        return Value(
            kind, elements=source.elements if kind is not Kind.SET else None, item=source.item, ident=node, site=node
        )
    if source.kind is Kind.DICT and kind is Kind.DICT:
        return source.but(ident=node, site=node)
    if source.kind is Kind.STATE_DICT and kind is Kind.DICT:
        return source.but(ident=node, site=node)
    item = item_of(run, source, node) if source.known else UNKNOWN
    return Value(kind, item=item if kind is not Kind.DICT else None, ident=node, site=node)


def _deque(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    value = _list(Kind.LIST, run, node, args)
    bounded = len(args) > 1 or "maxlen" in keywords
    return value.but(name="collections.deque", elements=None, facts=frozenset({"bounded"} if bounded else ()))


def _dict(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
    value = _list(Kind.DICT, run, node, args)
    named = tuple((k, v) for k, v in keywords.items() if k != "**")
    parts = [v for _, v in named]
    return value.but(fields=value.fields + named, item=join_all(parts) if parts else value.item)


def _of(kind: Kind) -> Constructor:
    def make(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
        return _list(kind, run, node, args)

    return make


def _plain(value: Value) -> Constructor:
    def make(run: Run, node: ast.Call, args: list[Value], keywords: Keywords) -> Value:
        return value.but(ident=node, site=node) if value.kind not in (Kind.NUMBER, Kind.STRING) else value

    return make


CONSTRUCTORS: dict[str, Constructor] = {
    "torch.nn.Parameter": _parameter,
    "torch.nn.Buffer": _buffer,
    "torch.nn.UninitializedParameter": _uninitialised,
    "torch.nn.UninitializedBuffer": _buffer,
    "collections.deque": _deque,
    "builtins.list": _of(Kind.LIST),
    "builtins.tuple": _of(Kind.TUPLE),
    "builtins.set": _of(Kind.SET),
    "builtins.frozenset": _of(Kind.SET),
    "builtins.dict": _dict,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _plain(Value(Kind.DICT)),
    "collections.Counter": _plain(Value(Kind.DICT)),
    "torch.device": _plain(Value(Kind.DEVICE)),
    "torch.Generator": _plain(Value(Kind.RNG)),
    "builtins.int": _plain(NUMBER),
    "builtins.float": _plain(NUMBER),
    "builtins.bool": _plain(NUMBER),
    **dict.fromkeys(
        (
            "torch.FloatTensor",
            "torch.LongTensor",
            "torch.DoubleTensor",
            "torch.HalfTensor",
            "torch.IntTensor",
            "torch.ByteTensor",
            "torch.BoolTensor",
            "torch.cuda.FloatTensor",
            "torch.cuda.LongTensor",
        ),
        _typed,
    ),
    "builtins.str": _plain(STRING),
    "torch.Size": _plain(Value(Kind.SIZE)),
}
