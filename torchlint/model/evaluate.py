"""Expressions: what each evaluates to in the environment of the moment."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchlint.findings import Confidence
from torchlint.model import attributes, calls, containers, tensors
from torchlint.model.values import (
    CONTAINERS,
    NONE,
    NUMBER,
    STRING,
    UNKNOWN,
    Grad,
    Kind,
    Value,
    join,
    join_all,
    literal,
    unsure,
)

if TYPE_CHECKING:
    from torchlint.model.interp import Run


def path_of(expr: ast.AST) -> str:
    """`x`, `x.attr`, `x['key']`, `x[0]` as a path; "" for anything that is not a stable place."""
    match expr:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = path_of(value)
            return f"{base}.{attr}" if base else ""
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as key)):
            base = path_of(value)
            return f"{base}[{key!r}]" if base else ""
    return ""


def expr(run: Run, node: ast.expr) -> Value:
    """Evaluate and record."""
    handler = EXPRESSIONS.get(type(node))
    value = handler(run, node) if handler is not None else _children(run, node)
    # `run.record`, spelled out: no function runs more often.
    values = run.flow.values
    known = values.setdefault(node, value)
    if known is not value:
        values[node] = join(known, value)
    return value


def _children(run: Run, node: ast.expr) -> Value:
    """An expression that nothing is known of: its parts are still evaluated."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            expr(run, child)
    return UNKNOWN


def _name(run: Run, node: ast.Name) -> Value:
    bound = run.get(node.id)
    if bound is not None:
        return unsure(bound) if node.id in run.owner.rebound else bound
    return attributes.free_name(run, node)


def _constant(run: Run, node: ast.Constant) -> Value:
    return literal(node)


def _binary(run: Run, node: ast.BinOp) -> Value:
    return tensors.binary(run, node, expr(run, node.left), expr(run, node.right))


def _unary(run: Run, node: ast.UnaryOp) -> Value:
    value = expr(run, node.operand)
    if isinstance(node.op, ast.Not):
        return NUMBER
    if value.is_tensor:
        return tensors.result(run, node, (value,), name="torch.neg" if isinstance(node.op, ast.USub) else "")
    if value.kind is Kind.NUMBER and isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
        return Value(Kind.NUMBER, const=-value.const)
    return value if value.kind is Kind.NUMBER else UNKNOWN


def _compare(run: Run, node: ast.Compare) -> Value:
    values = [expr(run, part) for part in (node.left, *node.comparators)]
    if any(isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for op in node.ops):
        return NUMBER
    if any(value.is_tensor for value in values):
        if any(value.kind in (Kind.NONE, Kind.STRING) for value in values):
            return NUMBER  # a tensor equals neither
        return tensors.constant(run, node, name="torch.eq", likely=values)
    return NUMBER if all(v.kind is Kind.NUMBER for v in values) else UNKNOWN


def _bool_op(run: Run, node: ast.BoolOp) -> Value:
    return join_all([expr(run, value) for value in node.values])


def _ternary(run: Run, node: ast.IfExp) -> Value:
    from torchlint.model.narrow import assume

    expr(run, node.test)
    before = run.env
    if before is None:
        return UNKNOWN
    guards = run.guards
    yes, no = assume(run, node.test, before)
    values = []
    for env, branch, arm in ((yes, node.body, True), (no, node.orelse, False)):
        if env is not None:
            run.env = env
            run.guards = (*guards, (node, arm))
            values.append(expr(run, branch))
    run.env, run.guards = before, guards
    return join_all(values)


def _tuple(run: Run, node: ast.Tuple | ast.List) -> Value:
    kind = Kind.TUPLE if isinstance(node, ast.Tuple) else Kind.LIST
    values = [expr(run, elt) for elt in node.elts]
    if any(isinstance(elt, ast.Starred) for elt in node.elts):
        return Value(kind, ident=node, site=node)
    item = join_all(values) if values else None
    return Value(kind, elements=tuple(values), item=item, ident=node, site=node)


def _set(run: Run, node: ast.Set) -> Value:
    values = [expr(run, elt) for elt in node.elts]
    return Value(Kind.SET, item=join_all(values), ident=node, site=node)


def _dict(run: Run, node: ast.Dict) -> Value:
    fields = []
    values = []
    for key, member in zip(node.keys, node.values, strict=True):
        value = expr(run, member)
        if key is None:
            values.append(value.item or UNKNOWN)
            fields = list(value.fields) if value.kind is Kind.DICT else []  # may replace any that stand before it
            continue
        expr(run, key)
        values.append(value)
        if isinstance(key, ast.Constant):
            fields.append((key.value, value))
    return Value(Kind.DICT, fields=tuple(fields), item=join_all(values) if values else None, ident=node, site=node)


def _attribute(run: Run, node: ast.Attribute) -> Value:
    path = path_of(node)
    if path:
        bound = run.get(path)
        if bound is not None:
            expr(run, node.value)
            return bound
    return attributes.attribute(run, node, expr(run, node.value))


def _subscript(run: Run, node: ast.Subscript) -> Value:
    base = expr(run, node.value)
    key = expr(run, node.slice)
    path = path_of(node)
    if path:
        bound = run.get(path)
        if bound is not None:
            return bound
    if base.is_tensor:
        return tensors.indexed(run, node, base, key)
    if base.kind in CONTAINERS or base.kind is Kind.SIZE:
        member = _member(base, node.slice, key)
        return member if base.sure is Confidence.SURE else unsure(member)
    if base.kind is Kind.MODULE:
        return attributes.submodule_item(run, node, base, key)
    if base.kind is Kind.CLASS:
        return base
    if base.kind in (Kind.LOADER, Kind.DATASET):
        return attributes.dataset_item(run, base, node)
    if base.kind is Kind.NDARRAY:
        return Value(Kind.NDARRAY, sure=Confidence.LIKELY)
    if base.kind is Kind.INSTANCE and base.cls is not None:
        return calls.method_result(run, node, base, "__getitem__", (key,))
    return Value(ident=(base.ident, "item", key.const)) if base.ident is not None and key.const is not None else UNKNOWN


def _member(base: Value, index: ast.expr, key: Value) -> Value:
    """The member of a container under a key."""
    if base.kind is Kind.SIZE:
        return base if isinstance(index, ast.Slice) else NUMBER
    if isinstance(index, ast.Slice):
        return base.but(elements=None, ident=index, fields=())
    if (
        base.elements is not None
        and isinstance(key.const, int)
        and -len(base.elements) <= key.const < len(base.elements)
    ):
        return base.elements[key.const]
    if base.kind is Kind.DICT and key.const is not None:
        found = base.field(key.const)
        if found is not None:
            return found
        if base.fields:
            return UNKNOWN
    return base.item if base.item is not None else UNKNOWN


def _slice(run: Run, node: ast.Slice) -> Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            expr(run, part)
    return UNKNOWN


def _comprehension(run: Run, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    inner, before = _enter_generators(run, node)
    value = expr(run, node.elt)
    run.env, run.loops = before
    kind = Kind.SET if isinstance(node, ast.SetComp) else Kind.LIST
    facts = frozenset({"generator"}) if isinstance(node, ast.GeneratorExp) else frozenset()
    gives = any(part.role == "parameter" for part in (value, *value.parts()))
    if isinstance(node, ast.GeneratorExp) and inner.kind is Kind.PARAMETERS and gives:
        return Value(Kind.PARAMETERS, ident=node, site=node, bound=inner.bound, facts=facts)
    return Value(kind, item=value, ident=node, site=node, facts=facts)


def _dict_comprehension(run: Run, node: ast.DictComp) -> Value:
    _, before = _enter_generators(run, node)
    expr(run, node.key)
    value = expr(run, node.value)
    run.env, run.loops = before
    return Value(Kind.DICT, item=value, ident=node, site=node)


def _enter_generators(run: Run, node: ast.expr) -> tuple[Value, tuple[dict[str, Value] | None, tuple[ast.AST, ...]]]:
    before = (run.env, run.loops)
    first = UNKNOWN
    for number, generator in enumerate(node.generators):  # type: ignore[attr-defined]
        iterated = expr(run, generator.iter)
        if not number:
            first = iterated
            run.env = dict(run.env or {})
            run.loops = (*run.loops, node)
        assign(run, generator.target, item_of(run, iterated, generator.iter))
        for test in generator.ifs:
            expr(run, test)
    return first, before


def _lambda(run: Run, node: ast.Lambda) -> Value:
    info = run.model.function_info(node)
    return Value(Kind.FUNCTION, name=info.dotted, func=info, ident=node)


def _named(run: Run, node: ast.NamedExpr) -> Value:
    value = expr(run, node.value)
    assign(run, node.target, value, node.value)
    return value


def _starred(run: Run, node: ast.Starred) -> Value:
    expr(run, node.value)
    return UNKNOWN


def _string(run: Run, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            expr(run, part.value)
    return STRING


def _await(run: Run, node: ast.Await) -> Value:
    return expr(run, node.value)


def _yield(run: Run, node: ast.Yield | ast.YieldFrom) -> Value:
    value = expr(run, node.value) if node.value is not None else NONE
    run.yielded.append(item_of(run, value, node) if isinstance(node, ast.YieldFrom) else value)
    run.event("yield", node, value)
    return UNKNOWN


EXPRESSIONS: dict[type[ast.AST], Callable[[Run, Any], Value]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.IfExp: _ternary,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Set: _set,
    ast.Dict: _dict,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension,
    ast.Lambda: _lambda,
    ast.NamedExpr: _named,
    ast.Starred: _starred,
    ast.JoinedStr: _string,
    ast.Await: _await,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Call: calls.call,
}


# -- targets ----------------------------------------------------------------------------------


def assign(run: Run, target: ast.expr, value: Value, source: ast.expr | None = None) -> None:
    """Bind a target to a value."""
    match target:
        case ast.Name(id=name):
            if value.kind is Kind.UNKNOWN and not value.facts:
                value = run.owner.proven_local(name, value)
            run.set(name, value)
            run.record(target, value)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            for elt, part in zip(elts, unpacked(run, value, elts, target), strict=True):
                assign(run, elt, part)
        case ast.Starred(value=inner):
            assign(run, inner, value)
        case ast.Attribute():
            base = expr(run, target.value)
            attributes.store_attribute(run, target, base, value)
        case ast.Subscript():
            base = expr(run, target.value)
            expr(run, target.slice)
            store_item(run, target, base, value)


def store_item(run: Run, target: ast.Subscript, base: Value, value: Value) -> None:
    """`base[key] = value`: into a tensor it is an in-place operation, into a container a store."""
    if base.is_tensor:
        tensors.changed_in_place(run, target, target.value, base, value, name="torch.Tensor.__setitem__")
        return
    run.event("store", target, base, value=value, path=path_of(target.value), name="__setitem__")
    if base.kind in CONTAINERS:
        containers.put(run, target.value, base, value, key=run.flow.values.get(target.slice, UNKNOWN).const)
    path = path_of(target)
    if path:
        run.set(path, value)


def unpacked(run: Run, value: Value, elts: list[ast.expr], at: ast.AST) -> list[Value]:
    """The parts of a value that is unpacked into targets; no surer than the value is."""
    parts = _parts(run, value, elts, at)
    return [unsure(part) for part in parts] if value.known and value.sure is not Confidence.SURE else parts


def _parts(run: Run, value: Value, elts: list[ast.expr], at: ast.AST) -> list[Value]:
    star = next((i for i, elt in enumerate(elts) if isinstance(elt, ast.Starred)), None)
    known = value.elements
    if known is not None and star is None and len(known) == len(elts):
        return list(known)
    if known is not None and star is not None and len(known) >= len(elts) - 1:
        end = len(known) - (len(elts) - 1 - star)
        rest = Value(Kind.LIST, elements=known[star:end], ident=elts[star], site=elts[star])
        return [*known[:star], rest, *known[end:]]
    item = NUMBER if value.kind is Kind.SIZE else item_of(run, value, at)
    parts = [_at_position(item, i) for i in range(len(elts))]
    if star is not None:  # `first, *rest = ...`: whatever is unpacked, a list
        parts[star] = Value(Kind.LIST, item=item if item.known else None, ident=elts[star], site=elts[star])
    return parts


def _at_position(item: Value, position: int) -> Value:
    """One of several items: not the same object as its neighbours; views of one tensor still share its storage."""
    if item.ident is None:
        return item
    ident = (item.ident, position)
    return item.but(ident=ident, storage=ident if item.storage == item.ident else item.storage)


def item_of(run: Run, value: Value, at: ast.AST) -> Value:
    """What iterating over a value gives; no surer than the value is."""
    item = _item_of(run, value, at)
    return unsure(item) if value.known and value.sure is not Confidence.SURE else item


def _item_of(run: Run, value: Value, at: ast.AST) -> Value:
    if value.kind is Kind.TENSOR:
        return tensors.row(run, at, value)
    if value.kind is Kind.PARAMETERS:
        return value.item or Value(Kind.TENSOR, role="parameter", grad=Grad.YES, ident=at, storage=at)
    if value.kind in (Kind.LOADER, Kind.DATASET):
        return attributes.dataset_item(run, value, at)
    if value.kind is Kind.SIZE:
        return NUMBER
    if value.kind is Kind.MODULE:
        return attributes.submodule_item(run, at, value, UNKNOWN)
    if value.kind is Kind.NDARRAY:
        return UNKNOWN
    if value.kind is Kind.DICT:
        return STRING if value.fields else UNKNOWN
    if value.item is not None and value.kind in (*CONTAINERS, Kind.UNKNOWN, Kind.INSTANCE):
        return value.item
    return UNKNOWN


def augmented(run: Run, node: ast.AugAssign) -> None:
    """`target op= value`: on a tensor an in-place operation, on a number or list a rebinding."""
    value = expr(run, node.value)
    before = expr(run, node.target)
    run.record(node.target, before)
    after = tensors.binary(run, node, before, value)
    if before.is_tensor and "maybe_number" not in before.facts:
        tensors.changed_in_place(run, node, node.target, before, value, name="torch.Tensor.__iop__")
        after = tensors.result(run, node, (before, value), name=after.name).but(ident=before.ident, role=before.role)
        after = tensors.viewing(after, before)
    path = path_of(node.target)
    holder = node.target.value if isinstance(node.target, ast.Subscript) else node.target  # of `sums[name] += loss`
    run.event("accumulate", node, before, value=value, path=path or path_of(holder))
    if before.kind in (Kind.LIST, Kind.SET):
        containers.put(run, node.target, before, value.item if value.item is not None else UNKNOWN)
        run.event("store", node, before, value=value.item or UNKNOWN, path=path, name="__iadd__")
        return
    if not path:
        return
    run.set(path, after)
