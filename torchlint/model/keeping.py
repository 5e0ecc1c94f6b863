"""Questions about what outlives an iteration: stores of values with a graph, and which loops they grow in."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.model.evaluate import path_of
from torchlint.model.events import Event
from torchlint.model.graphs import retains
from torchlint.model.values import Grad, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

KEEPING = ("append", "appendleft", "extend", "extendleft", "insert", "add", "__setitem__", "__iadd__", "setdefault",
           "put", "push")


@dataclass(frozen=True)
class Store:
    """A value put where it outlives the statement: added to a sum, or put into a container or tensor."""

    node: ast.AST
    path: str  # of what it is put into
    values: tuple[Value, ...]  # with a graph, or perhaps with one
    loops: tuple[ast.AST, ...]
    event: Event | None = None


def stores(model: FileModel, function: ast.AST) -> Iterator[Store]:
    """Stores in a function (and in the methods that it calls) of values that may carry a graph."""
    flow = model.flow(function)
    for event in flow.events:
        match event.what:
            case "accumulate" if event.grad is not False:
                yield from _store(model, event, event.path)
            case "store" if event.name in KEEPING and not _constant_key(event.inner):
                yield from _store(model, event, event.path)
            case "inplace" if event.grad is not False and event.name != "torch.Tensor.__iop__":
                if not event.target.attached or event.target.carried:
                    yield from _store(model, event, event.path)
            case "store_attr" if event.value.carried & set(event.loops) or _adds_to_itself(model, event.node):
                yield from _store(model, event, event.path)
    whole = function is model.tree
    for assign in model.nodes(ast.Assign) if whole else model.function_info(function).own_nodes:
        match assign:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() | ast.Call() | ast.IfExp(body=ast.BinOp())
                            | ast.IfExp(orelse=ast.BinOp()) as made):
                place = model.place(assign)
                if (place.function or model.tree) is function and model.value(made).carried & set(place.loops):
                    value = model.value(made)
                    if value.attached and _reads(made, name):
                        yield Store(assign, name, (value,), place.loops)


def _adds_to_itself(model: FileModel, target: ast.AST) -> bool:
    """`self.x = 0.9 * self.x + 0.1 * y`."""
    path = path_of(target)
    match model.parent(target):
        case ast.Assign(value=ast.BinOp() as made) if path:
            return any(path_of(node) == path for node in ast.walk(made) if isinstance(node, ast.Attribute))
    return False


def _reads(expr: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(expr))


def _store(model: FileModel, event: Event, path: str) -> Iterator[Store]:
    if event.depth:
        # In a method of an object: only what the object keeps counts.
        receiver = path_of(event.node.func.value) if isinstance(event.node, ast.Call) and isinstance(
            event.node.func, ast.Attribute) else ""
        root, _, rest = path.partition(".")
        if not receiver or not rest or root != "self":
            return
        path = f"{receiver}.{rest}"
    values = tuple(_may_hold_graph(event.value))
    if path and values:
        yield Store(event.node, path, values, event.loops, event)


def _may_hold_graph(value: Value) -> Iterator[Value]:
    """The value or its members, two levels deep, that carry a graph or are of an unknown kind."""
    level = [value]
    for _ in range(3):
        yield from (v for v in level if v.is_tensor and v.grad is not Grad.NO)
        yield from (v for v in level if not v.known and v.ident is not None)
        level = [part for v in level if not v.is_tensor for part in v.parts()]


def _constant_key(node: ast.AST | None) -> bool:
    """Whether an item is always put under the same key, or under one that is not a counter."""
    match node:
        case ast.Subscript(slice=ast.Constant()):
            return True
    return False


def growing_loops(model: FileModel, store: Store) -> list[ast.AST]:
    """The loops around a store in which what it puts into lives on from iteration to iteration."""
    return [loop for loop in store.loops if isinstance(loop, (ast.For, ast.AsyncFor, ast.While))
            and model.holds(loop) and not any(not guarded for guarded in resets(model, store, loop))]


def resets(model: FileModel, store: Store, loop: ast.AST) -> Iterator[bool]:
    """For each place in the loop where the target of a store is made anew or emptied: whether under a condition."""
    outer = {id(test) for test, _ in model.place(store.node).guards}
    for node in ast.walk(loop):
        if any(_starts(store.path, path) for path in _bound(node, loop)) and node is not store.node:
            yield any(id(test) not in outer and _inside(model, test, loop) for test, _ in model.place(node).guards)


def _inside(model: FileModel, node: ast.AST, loop: ast.AST) -> bool:
    return any(parent is loop for parent in model.ancestors(node))


def _starts(path: str, prefix: str) -> bool:
    return bool(prefix) and (path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")))


def _bound(node: ast.AST, loop: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from (p for p in _targets(target) if not any(
                    path_of(part) == p for part in ast.walk(value) if isinstance(part, (ast.Name, ast.Attribute))))
        case ast.AnnAssign(target=target, value=ast.expr()):
            yield from _targets(target)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            yield from _targets(target)
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from _targets(target)
        case ast.Call(func=ast.Attribute(value=receiver, attr="clear" | "zero_" | "reset" | "detach_")):
            yield path_of(receiver)
        case ast.Delete(targets=targets):
            for target in targets:
                yield path_of(target.value if isinstance(target, ast.Subscript) else target)


def _targets(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            for elt in elts:
                yield from _targets(elt)
        case ast.Starred(value=inner):
            yield from _targets(inner)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            yield path_of(inner)
        case _:
            yield path_of(target)


def backwarded(model: FileModel, function: ast.AST, value: Value, loop: ast.AST | None, at: ast.AST) -> bool:
    """Whether a backward in the loop (or anywhere in the function) uses up the graph of a value stored at a place."""
    guards = {id(test) for test, _ in model.place(at).guards}
    for event in model.flow(function).of("backward"):
        if value.grad is Grad.UNKNOWN and any(id(test) not in guards for test, _ in event.guards):
            continue  # where that backward runs, the value may have been replaced by its detached self
        if (loop is None or loop in event.loops) and not retains(event.node) and shares(event.target, value):
            return True
    return False


def shares(target: Value, value: Value) -> bool:
    """Whether the graph of a backward's target and a value's graph hold a common operation of this iteration."""
    if target.ident is not None and target.ident == value.ident:
        return True
    if not value.known:
        return ("leaf", value.ident) in target.graph
    return any(not (isinstance(key, tuple) and key[0] in ("leaf", "earlier")) for key in value.graph & target.graph)


def limits(model: FileModel, store: Store) -> Iterator[ast.expr]:
    """The lengths to which what a store puts into is cut.

    `deque(maxlen=3)`, `last = last[-3:]`, `if len(last) > 3: last.pop(0)`.
    """
    node, path = store.node, store.path
    if store.event is not None and store.event.inner is not None and model.has(store.event.inner):
        node = store.event.inner  # in the method that stores
    match node:
        case ast.Call(func=ast.Attribute(value=kept)):
            path = path_of(kept)
            made = model.value(kept).site
            if isinstance(made, ast.Call) and model.value(kept).name == "collections.deque":
                yield from (*made.args[1:], *(keyword.value for keyword in made.keywords if keyword.arg == "maxlen"))
    for cut in model.nodes(ast.Subscript):
        match cut.slice, model.parent(cut):
            case (ast.Slice(lower=ast.UnaryOp(operand=limit), upper=None) | ast.Slice(lower=None, upper=ast.expr(
                    ) as limit)), ast.Assign(targets=[target]) if _is_kept(model, node, path, target):
                if any(path_of(part) == path for part in ast.walk(cut.value)):
                    yield limit
    for taken in _takings(model):
        if _is_kept(model, node, path, taken):
            for up in model.ancestors(taken):
                match getattr(up, "test", None):
                    case ast.Compare(left=ast.Call(args=[measured]), comparators=[limit]) if path_of(measured) == path:
                        yield limit


def _takings(model: FileModel) -> Iterator[ast.expr]:
    """What something is taken out of: `last` in `last.pop(0)`, `del last[0]`, `last = last[1:]`."""
    for call in (*model.calls_named("pop"), *model.calls_named("popleft")):
        if isinstance(call.func, ast.Attribute):
            yield call.func.value
    for item in model.nodes(ast.Subscript):
        whole = item.slice.lower is not None if isinstance(item.slice, ast.Slice) else False
        if isinstance(item.ctx, ast.Del) or (whole and isinstance(model.parent(item), ast.Assign)):
            yield item.value


def _is_kept(model: FileModel, node: ast.AST, path: str, target: ast.expr) -> bool:
    """Whether an expression is what a store puts into, or all of its items: `last`, `last[:]`."""
    inner = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice) else target
    same = model.class_of if "." in path else model.owner
    return path_of(inner) == path and same(inner) is same(node)
