"""Calls of torch functions and Tensor methods: which overload is meant, and what it gives."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model.tensors import (
    CONVERTING,
    INTEGERS,
    KEEPS_SQUASH,
    KIND_WORDS,
    SHARING,
    SQUASHES,
    changed_in_place,
    grad_of,
    grown,
    kind_word,
    result,
    set_requires_grad,
    trust,
    viewing,
    with_requires_grad,
)
from torchlint.model.values import NONE, STRING, UNKNOWN, Grad, Kind, Value

if TYPE_CHECKING:
    from torchlint.knowledge import Callable_, Overload
    from torchlint.model.interp import Run

DATA = {"tensor", "operand", "tensors"}  # kinds of parameters that take tensors


def chosen(entry: Callable_, args: list[Value], keywords: dict[str, Value]) -> tuple[Overload, bool]:
    """The overload that a call means, the main one when that is not clear; and whether what it returns is clear."""
    kinds = [kind_word(v) for v in args]
    found = entry.overload(kinds, [k for k in keywords if k])
    pair = keywords.get("return_indices")
    if pair is not None and pair.const is not False:
        pairs = next((each for each in entry.overloads if each.returns == "tensors"), None)
        return pairs or entry.overloads[0], pairs is not None and pair.const is True
    if pair is not None:
        return entry.overloads[0], True
    if found is not None:
        return found, True
    main, skipped = entry.overloads[0], int(entry.method)
    named = [p.name for p in main.params[skipped : skipped + len(args)]]
    may = [each for each in entry.overloads if each.fits(kinds, keywords, method=entry.method)] or entry.overloads
    # An overload that takes these arguments by the same names differs by options that the call does not use.
    may = [each for each in may if [p.name for p in each.params[skipped : skipped + len(args)]] != named]
    return main, all((each.returns, each.count) == (main.returns, main.count) for each in may)


def data_of(overload: Overload, operands: tuple[Value, ...], args: int, names: Iterable[str]) -> list[Value]:
    """The operands that stand for tensors: those decide, by overloading the function, what a call returns.

    `args` of the operands are positional (a method's receiver included), the others belong to `names`.
    """
    plain = [p for p in overload.params if p.way == "positional"]
    rest = next((p for p in overload.params if p.way == "rest"), None)
    kinds = {p.name: p.kind for p in overload.params}
    found = []
    for position, value in enumerate(operands[:args]):
        param = plain[position] if position < len(plain) else rest
        if param is not None and (param.kind in DATA or not position):
            found.append(value)
    for name, value in zip(names, operands[args:], strict=False):
        if kinds.get(name, "") in DATA and name != "out":
            found.append(value)
    return found


def call_function(run: Run, node: ast.Call, dotted: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """A call of a torch function."""
    entry = knowledge.function(dotted)
    if entry is None:
        return unbound(run, node, dotted, args, keywords)
    operands = (*args, *keywords.values())
    if entry.factory or dotted in SHARING:
        return factory(run, node, dotted, args, keywords)
    overload, clear = chosen(entry, args, keywords)
    if entry.inplace and args and args[0].is_tensor:
        changed_in_place(run, node, node.args[0] if node.args else node, args[0], UNKNOWN, name=dotted)
    first = args[0] if args else keywords.get("input", UNKNOWN)
    inplace = keywords.get("inplace")
    if inplace is not None and inplace.const is True and first.is_tensor and node.args:
        changed_in_place(run, node, node.args[0], first, UNKNOWN, name=dotted)
    for keyword in node.keywords:
        if keyword.arg == "out" and keywords["out"].is_tensor:
            changed_in_place(run, node, keyword.value, keywords["out"], UNKNOWN, name=dotted)
    data = data_of(overload, operands, len(args), keywords)
    if dotted.startswith("torch.nn."):
        data = [value for value in data if value.is_tensor]  # these take nothing but tensors
    return from_overload(run, node, dotted, overload, operands, first, data, reliable=clear)


def unbound(run: Run, node: ast.Call, dotted: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`torch.Tensor.sum(x)`."""
    tail = dotted.rpartition(".")[2]
    entry = knowledge.method(tail) if dotted.startswith("torch.Tensor.") else None
    if entry is None or entry.inplace or tail in SPECIAL_METHODS or not args or not args[0].is_tensor:
        return UNKNOWN
    overload, clear = chosen(entry, args[1:], keywords)
    operands = (*args, *keywords.values())
    data = data_of(overload, operands, len(args), keywords)
    return from_overload(run, node, dotted, overload, operands, args[0], data, reliable=clear)


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
        known = source.known or dotted == "torch.from_numpy"  # where it may be a tensor, that may have a graph
        return value.but(facts=frozenset({"numpy_shared"}), grad=value.grad if known else Grad.UNKNOWN)
    if dotted.endswith("_like") and args:
        return value.but(sure=trust(args[0]))
    return value


def from_overload(
    run: Run,
    node: ast.AST,
    name: str,
    overload: Overload,
    operands: tuple[Value, ...],
    first: Value,
    data: list[Value],
    *,
    reliable: bool,
) -> Value:
    """What a call of an operator overload returns."""
    tail = name.rpartition(".")[2]
    if overload.returns in KIND_WORDS:
        value = KIND_WORDS[overload.returns]
        return value if reliable else value.but(sure=Confidence.LIKELY)
    if overload.returns not in ("tensor", "tensors"):
        return UNKNOWN
    grad = None if overload.differentiable and not overload.zero_grad else Grad.NO
    if overload.zero_grad and overload.differentiable:
        grad = grad_of(run, operands)
    value = result(run, node, operands, name=name, grad=grad, data=data)
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
        return Value(Kind.TUPLE, sure=value.sure, item=value, ident=node, site=node)
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
    return Value(Kind.TUPLE, sure=value.sure, elements=members, fields=fields, ident=node, site=node)


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
    overload, clear = chosen(entry, args, keywords)
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
    data = data_of(overload, operands, len(args) + 1, keywords)
    return from_overload(run, node, dotted, overload, operands, base, data, reliable=clear)


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
    flag = args[0] if args else keywords.get("requires_grad", Value(Kind.NUMBER, const=True))
    if not isinstance(flag.const, bool):
        return base.but(grad=Grad.UNKNOWN)
    set_requires_grad(run, node.func.value, base, flag)  # type: ignore[attr-defined]
    return with_requires_grad(base, flag.const)


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
