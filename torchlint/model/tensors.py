"""What operations make of tensors: kind, graph, storage, and which other value they change."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Grad, Kind, Value, join

if TYPE_CHECKING:
    from torchlint.knowledge import Callable_, Overload
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
INHERITED = {"batch", "first_order"}  # facts that hold of whatever is computed from a value
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
DETACHING = {"detach", "detach_"}
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
    return min((v.sure for v in values), default=Confidence.SURE)


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


def result(run: Run, node: ast.AST, operands: tuple[Value, ...], *, name: str, grad: Grad | None = None) -> Value:
    """A fresh tensor computed from operands."""
    state = grad if grad is not None else grad_of(run, operands)
    facts = frozenset(fact for v in operands for fact in v.facts if fact in INHERITED)
    return Value(
        Kind.TENSOR,
        sure=sureness(v for v in operands if v.is_tensor),
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
        sure=sureness(v for v in likely if v.is_tensor),
        name=name,
        grad=Grad.NO,
        ident=node,
        storage=node,
        site=node,
    )


def binary(run: Run, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
    """`left op right`."""
    word = OPERATORS.get(type(node.op), "")
    if left.is_tensor or right.is_tensor:
        other = right if left.is_tensor else left
        if other.kind in (Kind.STRING, Kind.NONE) or not word:
            return UNKNOWN
        if word in INTEGER_OPERATORS:
            return constant(run, node, name=f"torch.{word}", likely=(left, right))
        return result(run, node, (left, right), name=f"torch.{word}")
    if left.kind is Kind.NUMBER and right.kind is Kind.NUMBER:
        return NUMBER
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
        squash=base.squash, sure=base.sure, facts=value.facts | ({"advanced_index"} if advanced else frozenset())
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
    path = path_of(target)
    if path and run.grad is not False and value.is_tensor and value.grad is Grad.YES and base.grad is not Grad.YES:
        run.set(
            path,
            base.but(
                grad=Grad.YES, carried=base.carried | value.carried, role="", graph=grown(run, node, (base, value))
            ),
        )


# -- calls ------------------------------------------------------------------------------------


def chosen(entry: Callable_, args: list[Value], keywords: dict[str, Value]) -> Overload:
    """The overload that a call means, the main one when that is not clear."""
    found = entry.overload([kind_word(v) for v in args], [k for k in keywords if k])
    return found if found is not None else entry.overloads[0]


def call_function(run: Run, node: ast.Call, dotted: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """A call of a torch function."""
    entry = knowledge.function(dotted)
    if entry is None:
        return unbound(run, node, dotted, args, keywords)
    operands = (*args, *keywords.values())
    if entry.factory or dotted in SHARING:
        return factory(run, node, dotted, args, keywords)
    overload = chosen(entry, args, keywords)
    if entry.inplace and args and args[0].is_tensor:
        changed_in_place(run, node, node.args[0] if node.args else node, args[0], UNKNOWN, name=dotted)
    first = args[0] if args else keywords.get("input", UNKNOWN)
    inplace = keywords.get("inplace")
    if inplace is not None and inplace.const is True and first.is_tensor and node.args:
        changed_in_place(run, node, node.args[0], first, UNKNOWN, name=dotted)
    for keyword in node.keywords:
        if keyword.arg == "out" and keywords["out"].is_tensor:
            changed_in_place(run, node, keyword.value, keywords["out"], UNKNOWN, name=dotted)
    return from_overload(run, node, dotted, overload, operands, first, reliable=True)


def unbound(run: Run, node: ast.Call, dotted: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`torch.Tensor.sum(x)`."""
    tail = dotted.rpartition(".")[2]
    entry = knowledge.method(tail) if dotted.startswith("torch.Tensor.") else None
    if entry is None or entry.inplace or tail in SPECIAL_METHODS or not args or not args[0].is_tensor:
        return UNKNOWN
    overload = chosen(entry, args[1:], keywords)
    return from_overload(run, node, dotted, overload, (*args, *keywords.values()), args[0], reliable=True)


def factory(run: Run, node: ast.Call, dotted: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """A fresh leaf: `torch.zeros`, `torch.tensor`, `randn_like`."""
    flag = keywords.get("requires_grad")
    grad, role = Grad.NO, ""
    if flag is not None:
        grad = Grad.UNKNOWN if not isinstance(flag.const, bool) else Grad.YES if flag.const else Grad.NO
        role = "leaf" if grad is Grad.YES else ""
    value = Value(Kind.TENSOR, name=dotted, grad=grad, role=role, ident=node, storage=node, site=node)
    if dotted in SHARING:
        source = args[0] if args else keywords.get("data", UNKNOWN)
        if source.is_tensor:
            return source.but(ident=node, site=node, name=dotted)
        return value.but(facts=frozenset({"numpy_shared"}))
    return value


def from_overload(
    run: Run, node: ast.AST, name: str, overload: Overload, operands: tuple[Value, ...], first: Value, *, reliable: bool
) -> Value:
    """What a call of an operator overload returns."""
    tail = name.rpartition(".")[2]
    if overload.returns in KIND_WORDS:
        return KIND_WORDS[overload.returns]
    if overload.returns not in ("tensor", "tensors"):
        return UNKNOWN
    grad = None if overload.differentiable and not overload.zero_grad else Grad.NO
    if overload.zero_grad and overload.differentiable:
        grad = grad_of(run, operands)
    value = result(run, node, operands, name=name, grad=grad)
    if not reliable:
        value = value.but(sure=min(value.sure, Confidence.LIKELY))
    value = value.but(squash=squash_after(tail, first), facts=value.facts | dtype_facts(overload))
    if first.is_tensor and (overload.view or (overload.may_view and tail not in CONVERTING)):
        value = viewing(value, first)
    if overload.returns == "tensors":
        return several(node, value, overload)
    return value


def dtype_facts(overload: Overload) -> frozenset[str]:
    """What is known of the result's dtype and gradient."""
    found = set()
    if overload.dtype:
        found.add(f"dtype:{overload.dtype}")
    if overload.zero_grad:
        found.add("zero_grad")
    return frozenset(found)


def squash_after(tail: str, first: Value) -> str:
    """Whether the result is a probability (or its logarithm)."""
    if tail in SQUASHES:
        return SQUASHES[tail]
    if tail in KEEPS_SQUASH:
        return first.squash
    if tail == "log" and first.squash in ("softmax", "sigmoid"):
        return {"softmax": "log_softmax", "sigmoid": "logsigmoid"}[first.squash]
    return ""


def several(node: ast.AST, value: Value, overload: Overload) -> Value:
    """A tuple of tensors."""
    if overload.count is None:
        return Value(Kind.TUPLE, item=value, ident=node, site=node)
    flags = overload.outputs if len(overload.outputs) == overload.count else (True,) * overload.count
    members = tuple(
        value.but(
            ident=(node, i),
            storage=(node, i) if value.storage is node else value.storage,
            grad=value.grad if flag else Grad.NO,
        )
        for i, flag in enumerate(flags)
    )
    fields = tuple(zip(overload.names, members, strict=False))
    return Value(Kind.TUPLE, elements=members, fields=fields, ident=node, site=node)


def call_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """`tensor.method(...)`."""
    if not isinstance(node.func, ast.Attribute):  # a bound method that was kept in a name
        return UNKNOWN
    special = SPECIAL_METHODS.get(name)
    if special is not None:
        return special(run, node, base, args, keywords)
    entry = knowledge.method(name)
    if entry is None:
        return UNKNOWN
    overload = chosen(entry, args, keywords)
    operands = (base, *args, *keywords.values())
    dotted = f"torch.Tensor.{name}"
    if entry.inplace:
        source = args[0] if args else UNKNOWN
        changed_in_place(run, node, node.func.value, base, source, name=dotted)
        after = result(run, node, operands, name=dotted) if overload.differentiable else base
        grad = base.grad if after.grad is Grad.UNKNOWN and base.grad is Grad.YES else after.grad
        return base.but(
            grad=grad if run.grad is not False else base.grad,
            carried=after.carried | base.carried,
            graph=after.graph | base.graph,
        )
    if name in ("item", "tolist", "numpy"):
        run.event("host_read", node, base, name=name)
    return from_overload(run, node, dotted, overload, operands, base, reliable=base.sure is Confidence.SURE)


def _backward(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    from torchlint.model.evaluate import path_of

    if base.grad is Grad.UNKNOWN:  # that backward is called proves a graph
        base = base.but(grad=Grad.YES, sure=min(base.sure, Confidence.LIKELY))
        path = path_of(node.func.value)  # type: ignore[attr-defined]
        if path:
            run.set(path, base)
    run.event("backward", node, base, args=tuple(args), name="torch.Tensor.backward")
    return NONE


def _detach(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    from torchlint.model.evaluate import path_of

    tail = node.func.attr  # type: ignore[attr-defined]
    if tail == "detach_":
        path = path_of(node.func.value)  # type: ignore[attr-defined]
        after = base.but(grad=Grad.NO, carried=frozenset(), graph=frozenset())
        if path:
            run.set(path, after)
        return after
    return base.but(
        grad=Grad.NO,
        carried=frozenset(),
        graph=frozenset(),
        ident=node,
        site=node,
        name="torch.Tensor.detach",
        role="",
        facts=base.facts - {"first_order"},
    )


def _requires_grad(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    from torchlint.model.evaluate import path_of

    flag = args[0] if args else keywords.get("requires_grad", Value(Kind.NUMBER, const=True))
    if not isinstance(flag.const, bool):
        return base.but(grad=Grad.UNKNOWN)
    after = with_requires_grad(base, flag.const)
    path = path_of(node.func.value)  # type: ignore[attr-defined]
    if path:
        run.set(path, after)
    return after


def _convert(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`.to(...)` and the like: the same values, a graph node unless nothing changes."""
    name = f"torch.Tensor.{node.func.attr}"  # type: ignore[attr-defined]
    role = base.role if base.role in ("input",) else ""
    facts = base.facts - {"through_data"} | {"converted"}
    if base.role in ("parameter", "leaf"):
        facts = facts | {"from_" + base.role}
    types = [v.name or v.const for v in (*args, *keywords.values()) if v.kind is not Kind.NUMBER]
    if any(isinstance(t, str) and t.rpartition(".")[2] in INTEGERS for t in types):
        return base.but(
            ident=node,
            site=node,
            name=name,
            role=role,
            storage=node,
            facts=facts,
            grad=Grad.NO,
            carried=frozenset(),
            graph=frozenset(),
        )
    return base.but(
        ident=node,
        site=node,
        name=name,
        role=role,
        storage=(node, base.storage),
        facts=facts,
        graph=grown(run, node, (base,)),
    )


def _type(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`.type(dtype)` converts, `.type()` gives a name."""
    return _convert(run, node, base, args, keywords) if args or keywords else STRING


def _numpy(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    run.event("host_read", node, base, name="numpy")
    return Value(
        Kind.NDARRAY, sure=base.sure, storage=base.storage, ident=node, site=node, facts=frozenset({"tensor_shared"})
    )


def _clone(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    grad = Grad.NO if run.grad is False else base.grad
    return base.but(
        ident=node,
        site=node,
        name="torch.Tensor.clone",
        role="",
        storage=node,
        grad=grad,
        graph=grown(run, node, (base,)) if grad is not Grad.NO else frozenset(),
        facts=base.facts - {"through_data", "numpy_shared"},
    )


def _register_hook(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    run.event("register_hook", node, base, args=tuple(args), name="torch.Tensor.register_hook")
    return Value(Kind.HANDLE, ident=node, site=node)


def _new(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    name = f"torch.Tensor.{node.func.attr}"  # type: ignore[attr-defined]
    return factory(run, node, name, args, keywords)


SPECIAL_METHODS = {
    "backward": _backward,
    "detach": _detach,
    "detach_": _detach,
    "requires_grad_": _requires_grad,
    "numpy": _numpy,
    "clone": _clone,
    "register_hook": _register_hook,
    "new_tensor": _new,
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new,
    "new_empty": _new,
    "new": _new,
    "type": _type,
    **dict.fromkeys(CONVERTING - {"contiguous", "type"}, _convert),
}
