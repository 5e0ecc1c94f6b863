"""What operations make of tensors: kind, graph, storage, and which other value they change."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Grad, Kind, Value, join, number_from

if TYPE_CHECKING:
    from torchlint.model.classes import ClassInfo
    from torchlint.model.interp import Run

OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
}
DUNDERS = {**OPERATORS, ast.Div: "truediv", ast.Mod: "mod", ast.FloorDiv: "floordiv", ast.BitAnd: "and",
           ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift"}
INHERITED = {"batch", "first_order", "maybe_overloaded"}  # facts that hold of whatever is computed from a value
MAX_GRAPH = 150  # operations remembered of one graph
INTEGER_OPERATORS = {"bitwise_and", "bitwise_or", "bitwise_xor"}
SQUASHES = {
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "sigmoid": "sigmoid",
    "logsigmoid": "logsigmoid",
    "softmin": "softmax",
    "gumbel_softmax": "softmax",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "logsigmoid",
    "Softmin": "softmax",
    "Softmax2d": "softmax",
}
# Operations after which a probability is still one: they move elements or drop the graph.
KEEPS_SQUASH = {
    "view",
    "reshape",
    "squeeze",
    "unsqueeze",
    "flatten",
    "transpose",
    "permute",
    "contiguous",
    "clone",
    "detach",
    "to",
    "float",
    "double",
    "half",
    "cuda",
    "cpu",
    "t",
    "view_as",
    "expand",
    "expand_as",
    "__getitem__",
    "type",
    "requires_grad_",
    "select",
    "narrow",
    "chunk",
    "split",
    "unbind",
    "clamp",
    "clamp_",
    "clip",
    "nan_to_num",
    "type_as",
    "bfloat16",
    "dropout",
    "unflatten",
    "movedim",
    "swapaxes",
}
SHARING = {"torch.as_tensor", "torch.from_numpy", "torch.asarray"}  # no copy where none is needed
INTEGERS = {
    "int64",
    "long",
    "int32",
    "int",
    "int16",
    "short",
    "int8",
    "uint8",
    "bool",
    "LongTensor",
    "IntTensor",
    "ShortTensor",
    "CharTensor",
    "ByteTensor",
    "BoolTensor",
}
CONVERTING = {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous"}
KIND_WORDS = {
    "number": NUMBER,
    "bool": NUMBER,
    "int": NUMBER,
    "float": NUMBER,
    "size": Value(Kind.SIZE),
    "dtype": Value(Kind.DTYPE),
    "device": Value(Kind.DEVICE),
    "none": NONE,
    "string": STRING,
}


def kind_word(value: Value) -> str:
    """The word that the operator tables use for a value's kind; "" if it is not known."""
    if value.kind is Kind.NUMBER:
        match value.const:
            case bool():
                return "bool"
            case int():
                return "int"
            case float():
                return "float"
        return ""
    return {
        Kind.TENSOR: "tensor",
        Kind.STRING: "string",
        Kind.NONE: "none",
        Kind.SIZE: "size",
        Kind.TUPLE: "tuple",
        Kind.LIST: "list",
        Kind.DTYPE: "dtype",
        Kind.DEVICE: "device",
        Kind.RNG: "generator",
    }.get(value.kind, "")


def sureness(values: Iterable[Value]) -> Confidence:
    """As sure as the least sure operand."""
    return min((trust(v) for v in values), default=Confidence.SURE)


def trust(value: Value) -> Confidence:
    """How sure an operation with a value gives a tensor: objects may overload torch's functions and operators.

    Lazy matrices and dicts of tensors do; so may whatever nothing is known of.
    """
    if value.is_tensor:
        overloads = value.cls is not None and overloads_functions(value.cls)
        return Confidence.LIKELY if overloads or "maybe_number" in value.facts else value.sure
    if value.kind in (Kind.LIST, Kind.TUPLE):
        parts = value.parts()
        return sureness(parts) if parts else Confidence.LIKELY
    if value.kind in (Kind.NUMBER, Kind.NONE, Kind.STRING, Kind.SIZE, Kind.DTYPE, Kind.DEVICE):
        return Confidence.SURE
    return value.sure if value.kind is Kind.NDARRAY else Confidence.LIKELY


def overloads_functions(cls: ClassInfo) -> bool:
    """Whether a subclass of Tensor decides itself what torch's functions do with it."""
    return any(cls.method(name) is not None for name in ("__torch_function__", "__torch_dispatch__"))


def grad_of(run: Run, operands: Iterable[Value]) -> Grad:
    """The graph of a differentiable operation's result."""
    if run.grad is False:
        return Grad.NO
    states = set()
    for value in operands:
        if value.is_tensor:
            states.add(value.grad)
        elif value.kind in (Kind.LIST, Kind.TUPLE):
            states.update(part.grad for part in value.parts() if part.is_tensor)
            if any(not part.known for part in value.parts()) or not value.parts():
                states.add(Grad.UNKNOWN)
        elif not value.known:
            states.add(value.grad)
    if Grad.YES in states:
        return Grad.YES if run.grad else Grad.UNKNOWN
    return Grad.UNKNOWN if Grad.UNKNOWN in states else Grad.NO


def trust_in_grad(run: Run, state: Grad, operands: Iterable[Value]) -> Confidence:
    """How sure it is that an operation's result has a graph, or has none, from what its operands are."""
    if run.grad is False or state is Grad.UNKNOWN:
        return Confidence.SURE
    parts = [part for v in operands for part in (v.parts() if v.kind in (Kind.LIST, Kind.TUPLE) else [v])]
    if state is Grad.NO:
        # What only an annotation or a default calls a number may be a tensor with a graph.
        return min((part.sure for part in parts if part.is_tensor or part.kind is Kind.NUMBER), default=Confidence.SURE)
    attached = [part.sure if part.is_tensor else Confidence.LIKELY for part in parts if part.grad is Grad.YES]
    return max(attached, default=Confidence.LIKELY)


def carried_by(operands: Iterable[Value]) -> frozenset[ast.AST]:
    """Loops whose earlier iterations are part of the operands' graphs."""
    found: frozenset[ast.AST] = frozenset()
    for value in operands:
        if value.is_tensor and value.grad is not Grad.NO:
            found |= value.carried
        elif value.kind in (Kind.LIST, Kind.TUPLE):
            for part in value.parts():
                if part.is_tensor and part.grad is not Grad.NO:
                    found |= part.carried
    return found


def grown(run: Run, node: ast.AST, operands: Iterable[Value]) -> frozenset[Hashable]:
    """The graph of an operation's result: its operands' graphs, leaves among them, and the operation."""
    found: set[Hashable] = set()
    for operand in operands:
        for value in (operand, *operand.parts()) if operand.kind in (Kind.LIST, Kind.TUPLE) else (operand,):
            if value.grad is Grad.NO or (not value.known and value.grad is Grad.UNKNOWN):
                continue
            found |= value.graph
            if value.role in ("parameter", "leaf") and value.ident is not None:
                found.add(("leaf", value.ident))
    if len(found) < MAX_GRAPH:
        found.add(node)
        run.flow.made.add(node)
    return frozenset(found)


def result(run: Run, node: ast.AST, operands: tuple[Value, ...], *, name: str, grad: Grad | None = None,
           data: Iterable[Value] | None = None) -> Value:
    """A fresh tensor computed from operands; `data` are those that decide whether it is one (by default all)."""
    state = grad if grad is not None else grad_of(run, operands)
    facts = frozenset(fact for v in operands for fact in v.facts if fact in INHERITED)
    if any(not v.known for v in (operands if data is None else data)):
        facts |= {"maybe_overloaded"}  # a lazy matrix, a dict of tensors
    sure = sureness(operands if data is None else data)
    return Value(
        Kind.TENSOR,
        sure=sure if grad is not None else min(sure, trust_in_grad(run, state, operands)),
        name=name,
        ident=node,
        storage=node,
        site=node,
        grad=state,
        carried=carried_by(operands) if state is not Grad.NO else frozenset(),
        facts=facts,
        graph=grown(run, node, operands) if state is not Grad.NO else frozenset(),
        source=next((v.source for v in operands if v.is_tensor and v.source is not None), None),
    )


def constant(run: Run, node: ast.AST, *, name: str, likely: Iterable[Value] = ()) -> Value:
    """A fresh tensor without a graph."""
    return Value(
        Kind.TENSOR,
        sure=sureness(likely),
        name=name,
        grad=Grad.NO,
        ident=node,
        storage=node,
        site=node,
    )


def binary(run: Run, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
    """`left op right`."""
    word = OPERATORS.get(type(node.op), "")
    own = overridden(run, node, left, right)
    if own is not None:
        return own
    if left.is_tensor or right.is_tensor:
        other = right if left.is_tensor else left
        if other.kind in (Kind.STRING, Kind.NONE) or not word:
            return UNKNOWN
        if word in INTEGER_OPERATORS:
            return constant(run, node, name=f"torch.{word}", likely=(left, right))
        return result(run, node, (left, right), name=f"torch.{word}")
    if left.kind is Kind.NUMBER and right.kind is Kind.NUMBER:
        return number_from(left, right)
    if left.kind is right.kind and left.kind in (Kind.LIST, Kind.TUPLE):
        item = join(left.item, right.item) if left.item and right.item else left.item or right.item
        elements = left.elements + right.elements if left.elements is not None and right.elements is not None else None
        return Value(left.kind, item=item, elements=elements, ident=node, site=node)
    if {left.kind, right.kind} == {Kind.LIST, Kind.NUMBER} and word == "mul":
        base = left if left.kind is Kind.LIST else right
        return base.but(elements=None, ident=node, site=node, facts=base.facts | {"repeated"})
    if left.kind is Kind.STRING:
        return STRING
    if Kind.NDARRAY in (left.kind, right.kind):
        return Value(Kind.NDARRAY, sure=Confidence.LIKELY)
    return made_from(node, left, right)


def overridden(run: Run, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value | None:
    """What a project class' own operator gives; None where torch's or Python's is meant."""
    from torchlint.model import calls

    name = DUNDERS.get(type(node.op), "")
    if not name or (left.cls is None and right.cls is None):
        return None
    for value, other, method in ((left, right, f"__{name}__"), (right, left, f"__r{name}__")):
        owner = value.kind is Kind.INSTANCE or value.is_tensor
        if owner and value.cls is not None and value.cls.method(method) is not None:
            return calls.method_result(run, node, value, method, (other,))
    return None


def made_from(node: ast.AST, *parts: Value) -> Value:
    """Something unknown times a number: if it has a graph, that value is in it."""
    unknown = [v for v in parts if not v.known]
    if len(unknown) != 1 or any(v.known and v.kind is not Kind.NUMBER for v in parts) or unknown[0].ident is None:
        return UNKNOWN
    return Value(ident=node, graph=unknown[0].graph | {("leaf", unknown[0].ident)})


def row(run: Run, node: ast.AST, base: Value) -> Value:
    """One row of a tensor that is iterated over: a view."""
    return base.but(
        ident=node,
        site=node,
        name="torch.Tensor.__getitem__",
        role="",
        storage=base.storage,
        facts=base.facts - {"scalar", "maybe_number"},
    )


def indexed(run: Run, node: ast.Subscript, base: Value, key: Value) -> Value:
    """`tensor[key]`: a view for basic indices, a copy for tensor, list and mask indices."""
    advanced = _advanced(node.slice, run)
    value = result(run, node, (base,), name="torch.Tensor.__getitem__", grad=_same_grad(run, base))
    if not advanced:
        value = viewing(value, base)
    return value.but(
        squash=base.squash, facts=value.facts | ({"advanced_index"} if advanced else frozenset())
    )


def viewing(value: Value, base: Value) -> Value:
    """The value as a view of `base`; a view of `x.data` still changes x behind autograd's back."""
    if "through_data" in base.facts:
        return value.but(storage=base.storage, bound=base.bound, facts=value.facts | {"through_data"})
    return value.but(storage=base.storage)


def _same_grad(run: Run, base: Value) -> Grad:
    return (
        Grad.NO if run.grad is False else base.grad if run.grad else (Grad.NO if base.grad is Grad.NO else Grad.UNKNOWN)
    )


def _advanced(index: ast.expr, run: Run) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for part in parts:
        value = run.flow.values.get(part, UNKNOWN)
        if isinstance(part, (ast.Slice, ast.Constant, ast.UnaryOp)) or value.kind is Kind.NUMBER:
            continue
        if value.kind in (Kind.TENSOR, Kind.LIST, Kind.NDARRAY) or isinstance(part, (ast.Compare, ast.List)):
            return True
    return False


def attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    """`tensor.attr`."""
    name = node.attr
    if name == "data":
        return base.but(
            grad=Grad.NO,
            ident=node,
            site=node,
            name="torch.Tensor.data",
            carried=frozenset(),
            graph=frozenset(),
            role="",
            bound=base,
            facts=base.facts | {"through_data"},
        )
    if name == "grad":
        return Value(
            Kind.TENSOR,
            sure=base.sure,
            grad=Grad.NO,
            ident=(base.ident, "grad"),
            storage=(base.ident, "grad"),
            site=node,
            optional=True,
            role="grad",
        )
    entry = knowledge.tensor_attribute(name)
    if entry is not None:
        if entry.returns == "tensor":
            value = result(run, node, (base,), name=f"torch.Tensor.{name}", grad=_same_grad(run, base))
            shares = entry.view or entry.may_view
            return viewing(value, base).but(squash=base.squash) if shares else value
        return KIND_WORDS.get(entry.returns, UNKNOWN)
    if knowledge.method(name) is not None:
        return Value(Kind.FUNCTION, name=f"torch.Tensor.{name}", bound=base)
    return Value(ident=(base.ident, name))


def set_requires_grad(run: Run, target: ast.expr, base: Value, flag: Value) -> None:
    """`t.requires_grad = True/False`."""
    from torchlint.model.evaluate import path_of

    path = path_of(target)
    if not path or not isinstance(flag.const, bool):
        return
    run.set(path, with_requires_grad(base, flag.const))
    if base.role == "parameter" and base.bound is not None and base.bound.kind is Kind.MODULE:
        freeze(run, target, base.bound, not flag.const)
    elif base.role == "parameter":
        run.event("thaw" if flag.const else "freeze", target, base)


def freeze(run: Run, node: ast.AST, module: Value, flag: bool) -> None:
    """A module's parameters are frozen (or thawed): its outputs carry no graph of their own."""
    run.event("freeze" if flag else "thaw", node, module)
    if run.env is None or module.ident is None:
        return
    for name, value in run.env.items():
        if value.kind is Kind.MODULE and value.ident == module.ident:
            run.env[name] = frozen(value, flag)


def frozen(module: Value, flag: bool) -> Value:
    """A module with frozen (or thawed) parameters."""
    return module.but(facts=module.facts | {"frozen"} if flag else module.facts - {"frozen"})


def with_requires_grad(base: Value, flag: bool) -> Value:
    """The tensor after `requires_grad_(flag)`."""
    if flag:
        return base.but(grad=Grad.YES, role=base.role or ("leaf" if base.grad is Grad.NO else base.role))
    return base.but(grad=Grad.NO, role="" if base.role == "leaf" else base.role)


def changed_in_place(run: Run, node: ast.AST, target: ast.expr, base: Value, value: Value, *, name: str) -> None:
    """Note an in-place change; what is written into a tensor may attach it."""
    from torchlint.model.evaluate import path_of

    what = "data_write" if "through_data" in base.facts else "inplace"
    run.event(what, node, base, value=value, name=name, path=path_of(target))
    changes = written(run, node, base, value, whatever=what == "inplace" and name == "torch.Tensor.__setitem__")
    if not changes or run.env is None:
        return
    path = path_of(target)
    if path:
        run.set(path, base.but(**changes))
    for other, held in run.env.items():  # views of the same storage
        if held.is_tensor and held.storage == base.storage is not None and held.grad is not Grad.YES and other != path:
            run.env[other] = held.but(**changes)


def written(run: Run, node: ast.AST, base: Value, value: Value, *, whatever: bool) -> dict[str, Any]:
    """What changes in a tensor by what is written into it, which may attach it.

    `whatever`: also something that may not be a tensor can be written there.
    """
    if run.grad is False:
        return {}
    if value.is_tensor and value.grad is Grad.YES and base.grad is not Grad.YES:
        graph = grown(run, node, (base, value))
        return {"grad": Grad.YES, "carried": base.carried | value.carried, "role": "", "graph": graph}
    unclear = value.grad is Grad.UNKNOWN and (value.is_tensor or (whatever and not value.known))
    return {"grad": Grad.UNKNOWN} if unclear and base.grad is Grad.NO and "batch" not in value.facts else {}
