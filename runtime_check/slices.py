"""Cuts the statements that one call needs out of a function or script, and runs them up to the call.

A backward slice: the statements before the call that bind or prepare what its arguments read, inside
the blocks (loops, `with`) that the call stands in. The call itself is replaced by a marker that stops
the run, so nothing behind it happens.
"""
from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime_check.calls import Function, Owner, Site
from runtime_check.extract import Namespace
from runtime_check.statements import bound, is_main_guard, read, touched

STOP, ARGS, CLASS = "__torchlint_stop__", "__torchlint_args__", "__torchlint_class__"
SEEDS = ("manual_seed", "seed", "set_default_dtype", "set_num_threads", "use_deterministic_algorithms")


class Reached(BaseException):
    """The marked call was reached; `value` is its result, or its arguments."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class NotReached(RuntimeError):
    """The run ended before the marked call."""


@dataclass(frozen=True)
class Arguments:
    """What a call was about to be given. `receiver`: the object before the method, or the called instance."""

    receiver: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Slice:
    """Statements that lead to a call; `needs` are the parameters of the owner that they read."""

    nodes: list[ast.stmt]
    needs: set[str]
    conditional: bool  # the call stands under an `if` that may be false
    used: set[str] = field(default_factory=set)


def cut(site: Site, tree: ast.Module, *, only_arguments: bool = False,
        drop_conditions: bool = False) -> Slice | None:
    """The slice for a call, or None if its place cannot be found."""
    body = site.owner.node.body if site.owner else tree.body
    path = _path(body, site.call)
    if path is None:
        return None
    block, position = path[-1]
    statement = block[position]
    marked = _mark(statement, site, only_arguments)
    needed = _reads(statement, site.call)
    nodes, conditional = [marked], False
    for depth in range(len(path) - 1, -1, -1):
        block, position = path[depth]
        if depth < len(path) - 1:
            nodes, needed, is_if = _wrap(block[position], nodes, needed, drop_conditions)
            conditional |= is_if
        nodes, needed = _before(block[:position], nodes, needed)
    parameters = set(site.owner.parameters) if site.owner else set()
    return Slice(nodes, needed & parameters, conditional, needed)


def _reads(statement: ast.stmt, call: ast.Call) -> set[str]:
    """Names that running the statement up to the call may read: what stands behind the call is read later."""
    turned = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda)
    for item in ast.walk(statement):
        if isinstance(item, turned) and any(part is call for part in ast.walk(item)):
            return read(statement)  # what stands behind is evaluated before
    end = (call.end_lineno or 0, call.end_col_offset or 0)
    names = {item.id for item in ast.walk(statement) if isinstance(item, ast.Name)
             and isinstance(item.ctx, ast.Load) and (item.lineno, item.col_offset) < end}
    match statement:
        case ast.AugAssign(target=ast.Name(id=name)):
            return names | {name}
    return names


def _path(body: list[ast.stmt], call: ast.Call) -> list[tuple[list[ast.stmt], int]] | None:
    """Blocks and positions from `body` down to the statement that evaluates the call."""
    for position, node in enumerate(body):
        if not (node.lineno <= call.lineno and (node.end_lineno or 0) >= (call.end_lineno or 0)):
            continue
        if not any(item is call for item in ast.walk(node)):
            continue
        for block in _blocks(node):
            inner = _path(block, call)
            if inner is not None:
                return [(body, position), *inner]
        return [(body, position)]
    return None


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(node, (Function, ast.ClassDef)):
        return []
    found = [getattr(node, name) for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
    found += [item.body for item in getattr(node, "handlers", [])]
    found += [item.body for item in getattr(node, "cases", [])]
    return found


def _mark(statement: ast.stmt, site: Site, only_arguments: bool) -> ast.stmt:
    """A copy of the statement in which reaching the call ends the run."""
    call = site.call
    if only_arguments:
        receiver = site.receiver if site.receiver is not None else ast.Constant(None)
        new = ast.Call(ast.Name(ARGS, ast.Load()), [receiver, *call.args], call.keywords)
    else:
        new = ast.Call(ast.Name(STOP, ast.Load()), [call], [])
    ast.copy_location(new, call)
    for part in (new.func, *new.args[:1]):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, call)
    return copy.deepcopy(statement, {id(call): new})


def _wrap(outer: ast.stmt, nodes: list[ast.stmt], needed: set[str],
          drop: bool) -> tuple[list[ast.stmt], set[str], bool]:
    """The slice of a block put back into the statement around it."""
    match outer:
        case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
            loop = ast.copy_location(ast.For(target, source, nodes, [], None), outer)
            return [loop], needed - bound(target) | read(source), False
        case ast.While(test=test):
            return [ast.copy_location(ast.While(test, nodes, []), outer)], needed | read(test), False
        case ast.With(items=items):
            reads = set().union(*(read(item.context_expr) for item in items))
            names = set().union(*(bound(item) for item in items))
            return [ast.copy_location(ast.With(items, nodes, None), outer)], needed - names | reads, False
        case ast.If(test=test) if not drop and not is_main_guard(outer):
            skip = ast.copy_location(ast.Pass(), outer)
            kept = ast.If(test, nodes, []) if _contains(outer.body, nodes) else ast.If(test, [skip], nodes)
            return [ast.copy_location(kept, outer)], needed | read(test), True
    return nodes, needed, isinstance(outer, ast.If) and not is_main_guard(outer)


def _contains(body: list[ast.stmt], nodes: list[ast.stmt]) -> bool:
    first, last = body[0].lineno, body[-1].end_lineno or 0
    return first <= nodes[-1].lineno <= last


def _before(block: list[ast.stmt], nodes: list[ast.stmt],
            needed: set[str]) -> tuple[list[ast.stmt], set[str]]:
    """Puts the statements of a block that the slice needs in front of it."""
    kept: list[ast.stmt] = []
    for node in reversed(block):
        if is_main_guard(node) and isinstance(node, ast.If):
            inner, needed = _before(node.body, [], needed)
            kept[:0] = inner
            continue
        binds = bound(node)
        scope = isinstance(node, (ast.Global, ast.Nonlocal))
        if binds & needed or touched(node) & needed or scope or _seeds(node):
            kept.insert(0, node)
            if isinstance(node, (ast.Assign, ast.AnnAssign, Function, ast.ClassDef)):
                needed = needed - binds  # bound anew here, whatever it was before
            needed = needed | read(node)
            if isinstance(node, ast.AugAssign):
                needed = needed | binds
    return [*kept, *nodes], needed


def _seeds(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))):
            return attr in SEEDS
    return False


class _PlainSuper(ast.NodeTransformer):
    """`super()` outside of its class: name the class and the instance."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="super"), args=[]):
                node.args = [ast.Name(CLASS, ast.Load()), ast.Name("self", ast.Load())]
                return ast.fix_missing_locations(ast.copy_location(node, node))
        return node


def _stop(value: object) -> object:
    raise Reached(value)


def _args(receiver: Any, *args: Any, **kwargs: Any) -> object:
    raise Reached(Arguments(receiver, args, kwargs))


def run_at_top(space: Namespace, part: Slice) -> Any:
    """Runs a slice of the top level or the `__main__` block. Returns what the marked call gave."""
    _markers(space)
    wanted = [node for node in part.nodes if not _loaded_by_name(space, node)]
    try:
        with space.busy(len(space.steps)):
            _execute_in_turn(space, wanted)
    except Reached as reached:
        return reached.value
    raise NotReached("the call was not reached: a loop before it is empty or a condition is false")


def _execute_in_turn(space: Namespace, nodes: list[ast.stmt]) -> None:
    """Runs statements one by one; names of whole top-level ones that fail get stand-ins, where there are some."""
    known = {id(step.node): step for step in space.steps}
    for node in nodes:
        try:
            space.execute([node])
        except Exception as error:
            if id(node) not in known or not space.fall_back(known[id(node)], error):
                raise


def _loaded_by_name(space: Namespace, node: ast.stmt) -> bool:
    """Definitions, imports and pinned names: the namespace supplies them when they are read."""
    if isinstance(node, (Function, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return True
    names = bound(node)
    return bool(names) and names <= space.pins.keys()


def run_in_function(space: Namespace, owner: Owner, part: Slice,
                    bind: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
    """Runs a slice of a function with the arguments that `bind` gives. Returns what the marked call gave."""
    _markers(space)
    nodes = part.nodes
    if owner.cls:
        nodes = [_PlainSuper().visit(copy.deepcopy(node)) for node in nodes]
        dict.__setitem__(space.globals, CLASS, space.resolve(owner.cls))
    name = owner.node.name
    made = ast.copy_location(_definition(owner.node, nodes), owner.node)
    scratch: dict[str, Any] = {}
    tree = ast.fix_missing_locations(ast.Module([made], []))
    exec(compile(tree, space.path, "exec", flags=space.flags, dont_inherit=True), space.globals, scratch)
    args, kwargs = bind()
    try:
        scratch[name](*args, **kwargs)
    except Reached as reached:
        return reached.value
    raise NotReached(f"the call in `{owner.name}` was not reached: a loop is empty or a condition is false")


def _definition(node: ast.FunctionDef | ast.AsyncFunctionDef, body: list[ast.stmt]) -> ast.FunctionDef:
    plain = copy.deepcopy(node.args)
    for item in [*plain.posonlyargs, *plain.args, *plain.kwonlyargs, plain.vararg, plain.kwarg]:
        if item is not None:
            item.annotation = None
    made = ast.FunctionDef(name=node.name, args=plain, body=body, decorator_list=[], returns=None)
    vars(made)["type_params"] = []  # needed from Python 3.12 on
    return made


def _markers(space: Namespace) -> None:
    dict.__setitem__(space.globals, STOP, _stop)
    dict.__setitem__(space.globals, ARGS, _args)
