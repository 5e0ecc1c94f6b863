"""Calls: which function, class or method is meant, and following it where its code can be seen."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model import attributes, containers, library, methods, modules, tensor_calls, tensors, values
from torchlint.model.functions import FunctionInfo
from torchlint.model.values import CONTAINERS, MUTABLE_CONTAINERS, NONE, UNKNOWN, Grad, Kind, Value

if TYPE_CHECKING:
    from torchlint.model.events import Event, Flow
    from torchlint.model.interp import Run

Keywords = dict[str, Value]


def call(run: Run, node: ast.Call) -> Value:
    """Evaluate a call; what it gives is no surer than what is called."""
    callee, base = callee_of(run, node.func)
    value = called(run, node, callee, base)
    for source in (callee, base):
        if source is not None and source.sure < value.sure and source.known and value.known:
            value = value.but(sure=source.sure)
    return value


def called(run: Run, node: ast.Call, callee: Value, base: Value | None) -> Value:
    """The arguments of a call, then what the callee does with them."""
    from torchlint.model.evaluate import path_of

    args, keywords = arguments(run, node)
    name = run.model.name_of(node.func)
    if name.startswith("torch.") and name in run.model.replaced.patched:
        return unknown(run, node, "", args, keywords)
    if name:
        known = library.call(run, node, name, args, keywords)
        if known is not None:
            return known
    if name in modules.CONSTRUCTORS:
        return modules.construct(run, node, Value(Kind.CLASS, name=name), args, keywords)
    if callee.kind is Kind.FUNCTION:
        return call_function(run, node, callee, args, keywords)
    if callee.kind is Kind.CLASS:
        return modules.construct(run, node, callee, args, keywords)
    if callee.kind is Kind.MODULE:
        forward = run.get(f"{path_of(node.func)}.forward")
        if forward is not None and forward.func is None:
            callee = callee.but(cls=None, name="torch.nn.Module")  # replaced by something that cannot be seen
        return modules.call(run, node, callee, args, keywords)
    if callee.kind is Kind.INSTANCE and callee.cls is not None and not isinstance(node.func, ast.Attribute):
        return method_result(run, node, callee, "__call__", args, keywords)
    if base is not None:
        found = methods.call(run, node, base, args, keywords)
        if found is not None:
            return found
    if callee.kind is Kind.INSTANCE and callee.cls is not None:
        return method_result(run, node, callee, "__call__", args, keywords)
    return unknown(run, node, name, args, keywords)


def callee_of(run: Run, func: ast.expr) -> tuple[Value, Value | None]:
    """(what is called, the receiver if it is a method)."""
    from torchlint.model.evaluate import expr, path_of

    if not isinstance(func, ast.Attribute):
        return expr(run, func), None
    base = expr(run, func.value)
    path = path_of(func)
    bound = run.get(path) if path else None
    value = bound if bound is not None else attributes.attribute(run, func, base)
    return run.record(func, value), base


def arguments(run: Run, node: ast.Call) -> tuple[list[Value], Keywords]:
    """Evaluated arguments; after a starred one positions are unknown, so the list stops there."""
    from torchlint.model.evaluate import expr

    args: list[Value] = []
    starred = False
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            inner = expr(run, arg.value)
            run.record(arg, UNKNOWN)
            if inner.elements is not None and not starred:
                args.extend(inner.elements)
            else:
                starred = True
                args.append(inner.item if inner.item is not None else UNKNOWN)
            continue
        args.append(expr(run, arg))
    keywords = {}
    for keyword in node.keywords:
        value = expr(run, keyword.value)
        keywords[keyword.arg or "**"] = value
    return args, keywords


def call_function(run: Run, node: ast.Call, callee: Value, args: list[Value], keywords: Keywords) -> Value:
    """A call of a function value: the project's, a tensor method, `Function.apply`, or torch's."""
    if callee.func is not None:
        return follow_value(run, node, callee, args, keywords)
    if callee.bound is not None and callee.bound.is_tensor:
        return tensor_calls.call_method(run, node, callee.bound, callee.name.rpartition(".")[2], args, keywords)
    if callee.name == "torch.autograd.Function.apply":
        return apply_function(run, node, callee.bound or UNKNOWN, args)
    return tensor_calls.call_function(run, node, callee.name, args, keywords)


def follow_value(run: Run, node: ast.AST, callee: Value, args: list[Value], keywords: Keywords) -> Value:
    """Follow a project function that a value stands for, with what `functools.partial` bound before."""
    assert callee.func is not None
    return inline(
        run,
        node,
        callee.func,
        callee.bound,
        [*(callee.elements or ()), *args],
        {**{str(k): v for k, v in callee.fields}, **keywords},
    )


def apply_function(run: Run, node: ast.Call, owner: Value, args: list[Value]) -> Value:
    """`Function.apply(...)`: forward's values, with a graph if an input has one."""
    grad = tensors.grad_of(run, args)
    cls = owner.cls
    returned = UNKNOWN
    if cls is not None:
        forward = cls.method("forward")
        if forward is not None:
            returned = forward.model.flow(forward.node).returns
    run.event("apply", node, owner, args=tuple(args), name=owner.name)
    if returned.kind is Kind.TUPLE and returned.elements is not None:
        parts = tuple(
            Value(
                Kind.TENSOR,
                sure=Confidence.LIKELY,
                grad=grad,
                ident=(node, i),
                storage=(node, i),
                site=node,
                graph=tensors.grown(run, node, args),
            )
            for i in range(len(returned.elements))
        )
        return Value(Kind.TUPLE, elements=parts, ident=node, site=node)
    return tensors.result(run, node, tuple(args), name=owner.name, grad=grad).but(sure=Confidence.LIKELY)


def inline(
    run: Run, node: ast.AST, func: FunctionInfo, receiver: Value | None, args: list[Value], keywords: Keywords
) -> Value:
    """Follow a project function with what is passed to it; its events become the caller's."""
    from torchlint.model.interp import MAX_DEPTH

    if func.is_generator:
        if "contextlib.contextmanager" in func.decorators:
            return context_value(func)
        return Value(Kind.LIST, item=func.model.flow(func.node).yields, ident=node, facts=frozenset({"generator"}))
    if func.node in run.active:
        func.model.session.moments += 1
        return UNKNOWN
    if run.depth >= MAX_DEPTH or run.budget.steps <= 0 or func.model.session.tired:
        return fallback(run, node, func, args)
    if any(d.endswith(("abstractmethod", "overload")) for d in func.decorators):
        return UNKNOWN
    env = bind(func, receiver, args, keywords)
    prefix = receiver_path(node) if receiver is not None else ""
    inner_self = func.self_name
    shares = bool(prefix and inner_self) and run.env is not None
    if shares:
        for key, value in run.env.items():  # type: ignore[union-attr]
            if key.startswith(prefix + "."):
                env[inner_self + key[len(prefix) :]] = value
    grad = func.declared_grad if func.declared_grad is not None else run.grad
    flow = followed(run, func, env, grad) if telling(env, func) else own_flow(func, grad)
    if flow is None:
        flow = followed(run, func, env, grad)
    for event in flow.events:
        if is_heard(run, event):
            heard = lifted_event(run, event, node, flow)
            if receiver is not None and func.params and event.target.ident is func.params[0]:
                heard = replace(heard, target=receiver)  # what the method does to `self`, it does to the receiver
            run.flow.events.append(heard)
    containers.hand_back(run, func, env, flow)
    if shares:
        for key, value in flow.end.items():
            if key.startswith(inner_self + ".") and value != env.get(key):
                run.env[prefix + key[len(inner_self) :]] = lifted(run, value, node, flow)  # type: ignore[index]
    if run.grad is not None and func.declared_grad is None and flow.grad_after is not run.grad:
        run.grad = flow.grad_after
    returned = lifted(run, flow.returns, node, flow)
    if isinstance(func.node, ast.AsyncFunctionDef) and not isinstance(run.model.parent(node), ast.Await):
        return Value(ident=node, site=node)  # a coroutine
    return values.unsure(returned) if func.is_wrapped else returned


# What a caller must hear of however deep it happens: the parts of a training step.
VITAL = {
    "backward",
    "step",
    "zero_grad",
    "clear_grad",
    "set_grad",
    "clip",
    "unscale",
    "scaler_update",
    "scheduler_step",
    "train",
    "eval",
    "set_mode",
    "make_optimizer",
    "add_params",
    "collective",
    "load_state",
}
MAX_EVENTS = 2_000  # of one flow; beyond it helpers are only heard with what is vital
HEARD_DEPTH = 3


def is_heard(run: Run, event: Event) -> bool:
    """Whether a helper's event is told to the caller. Without a limit, layers of helpers multiply their events."""
    if event.what == "yield":
        return False
    if len(run.flow.events) > MAX_EVENTS:
        return False
    return event.what in VITAL or (event.depth < HEARD_DEPTH and len(run.flow.events) < MAX_EVENTS // 2)


def lifted(run: Run, value: Value, call: ast.AST, flow: Flow, depth: int = 0) -> Value:
    """A value of a helper as its caller sees it: the operations that the helper made belong to this call."""
    if not flow.made:
        return value
    changes: dict[str, Any] = {}
    if not flow.made.isdisjoint(value.graph):
        mine = {(call, node) for node in value.graph & flow.made}
        run.flow.made |= mine
        changes["graph"] = frozenset(mine) | (value.graph - flow.made)
    if depth < 3 and (value.elements or value.item is not None or value.fields):
        parts = [lifted(run, part, call, flow, depth + 1) for part in value.elements or ()]
        if any(new is not old for new, old in zip(parts, value.elements or (), strict=True)):
            changes["elements"] = tuple(parts)
        item = lifted(run, value.item, call, flow, depth + 1) if value.item is not None else None
        if item is not value.item:
            changes["item"] = item
        fields = [(key, lifted(run, part, call, flow, depth + 1)) for key, part in value.fields]
        if any(new[1] is not old[1] for new, old in zip(fields, value.fields, strict=True)):
            changes["fields"] = tuple(fields)
    return value.but(**changes) if changes else value


def lifted_event(run: Run, event: Event, call: ast.AST, flow: Flow) -> Event:
    """A helper's event as the caller sees it, its values included."""
    target, value = lifted(run, event.target, call, flow), lifted(run, event.value, call, flow)
    return event.seen_from(call, run.loops, run.guards, target, value)


# Arguments of these kinds do not change what a function does with tensors.
DULL = {Kind.NUMBER, Kind.STRING, Kind.NONE, Kind.DEVICE, Kind.DTYPE, Kind.SIZE, Kind.UNKNOWN, Kind.NDARRAY, Kind.RNG}


def telling(env: dict[str, Value], func: FunctionInfo) -> bool:
    """Whether what is passed says more than the function's own file knows of it."""
    for name, value in env.items():
        if name == func.self_name and value.cls is func.cls:
            continue  # attributes are known per class, not per instance
        if "output" in value.facts or value.source is not None:
            return True
        if value.kind in CONTAINERS:
            if any(part.kind not in DULL for part in value.parts()):
                return True
        elif value.kind not in DULL:
            return True
    return False


def own_flow(func: FunctionInfo, grad: bool | None) -> Flow | None:
    """The function's flow as its own file shows it; None if it is being analysed or in another grad mode."""
    if func.model.is_running(func.node) or any(func.model.is_running(owner) for owner in func.borrows_from):
        return None
    flow = func.model.flow(func.node)
    return flow if flow.grad_before is grad else None


def followed(run: Run, func: FunctionInfo, env: dict[str, Value], grad: bool | None) -> Flow:
    """The flow of a function under given arguments; the same question is answered once."""
    from torchlint.model.interp import Run, follow

    session = func.model.session
    key = (func.node, grad, run.depth, tuple(env.items()))
    known = session.followed.get(key)
    if known is not None:
        session.reads(key)
        return known
    sub = Run(
        func.model,
        env=env.copy(),
        grad=grad,
        depth=run.depth + 1,
        budget=run.budget,
        active=(*run.active, func.node),
        outer=run,
    )
    with session.remembering(key) as keep:
        flow = follow(sub, func)
    if keep() and run.budget.steps > 0:
        session.followed[key] = flow
    return flow


def fallback(run: Run, node: ast.AST, func: FunctionInfo, args: list[Value]) -> Value:
    """Too deep to follow: the function's own summary, as long as there is time to make one."""
    tired = func.model.session.tired and not func.model.is_followed(func.node)
    returned = UNKNOWN if tired else func.model.flow(func.node).returns
    run.event("unknown_call", node, args=tuple(args), name=func.dotted)
    return returned if returned.kind not in (Kind.TENSOR,) else returned.but(carried=frozenset(), grad=Grad.UNKNOWN)


def receiver_path(node: ast.AST) -> str:
    """The path of a method call's receiver."""
    from torchlint.model.evaluate import path_of

    match node:
        case ast.Call(func=ast.Attribute(value=receiver)):
            if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super":
                return "self"
            return path_of(receiver)
        case ast.Call(func=func):
            return path_of(func)
    return ""


def bind(func: FunctionInfo, receiver: Value | None, args: list[Value], keywords: Keywords) -> dict[str, Value]:
    """Parameters bound to arguments; what is not passed gets its default or what its annotation says."""
    params = list(func.params)
    env: dict[str, Value] = {}
    values = list(args)
    if receiver is not None and not func.is_static and func.cls is not None:
        values.insert(0, receiver)
    for arg in (*params, *func.args.kwonlyargs):
        position = params.index(arg) if arg in params else -1
        if 0 <= position < len(values):
            given: Value | None = values[position]
        elif arg.arg in keywords:
            given = keywords[arg.arg]
        else:
            given = func.default_of(arg)
        if given is None or not given.known:
            declared = func.declared_value(arg)
            given = (
                declared
                if declared is not None and declared.known
                else given
                if given is not None
                else Value(ident=arg)
            )
        env[arg.arg] = given
    if func.args.vararg is not None:
        rest = tuple(values[len(params) :])
        env[func.args.vararg.arg] = Value(Kind.TUPLE, elements=rest)
    if func.args.kwarg is not None:
        named = tuple((k, v) for k, v in keywords.items() if k not in env and k != "**")
        env[func.args.kwarg.arg] = Value(Kind.DICT, fields=named)
    return env


def context_value(func: FunctionInfo) -> Value:
    """What a project context manager does to the grad mode of its block."""
    modes = {func.model.grad_at(node) for node in func.yields}
    if modes == {False}:
        return Value(Kind.CONTEXT, name=func.dotted, func=func, facts=frozenset({"grad_off"}))
    return Value(Kind.CONTEXT, name=func.dotted, func=func)


def method_result(
    run: Run,
    node: ast.AST,
    base: Value,
    name: str,
    args: tuple[Value, ...] | list[Value] = (),
    keywords: Keywords | None = None,
) -> Value:
    """The result of a special method of a project instance."""
    method = base.cls.method(name) if base.cls is not None else None
    if method is None:
        return UNKNOWN
    value = inline(run, node, method, base, list(args), keywords or {})
    return value if base.sure is Confidence.SURE else values.unsure(value)


def unknown(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value:
    """A call of code that cannot be seen."""
    from torchlint.model.evaluate import path_of

    run.event("unknown_call", node, args=(*args, *keywords.values()), name=name)
    if not name.startswith(containers.HARMLESS):
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = run.flow.values.get(arg, UNKNOWN)
            if value.kind in MUTABLE_CONTAINERS and path_of(arg):
                containers.changed(run, arg, value, containers.loose(value))
    if name.startswith(("torch.", "torchvision.ops.")) and knowledge.function(name) is not None:
        return tensor_calls.call_function(run, node, name, args, keywords)
    if name.startswith("torch.Tensor."):
        return tensor_calls.unbound(run, node, name, args, keywords)
    source = next((v.source for v in args if v.source is not None), None)
    return Value(ident=node, site=node, source=source)


__all__ = ["NONE", "call", "inline", "method_result"]
