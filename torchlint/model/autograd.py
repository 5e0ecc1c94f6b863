"""Questions about autograd Functions: how the classes of a file are used."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.model.values import Kind

if TYPE_CHECKING:
    from torchlint.knowledge import Callable_
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo
    from torchlint.model.functions import FunctionInfo

CONTEXT = ("ctx", "context", "_ctx", "fctx")  # what the first parameter of forward is called


def instance_calls(model: FileModel) -> list[tuple[ast.Call, ClassInfo]]:
    """Calls of instances of Function subclasses, which torch rejects, with the class; in source order."""
    found = []
    for call in model.nodes(ast.Call):
        called = model.value(call.func)
        if called.kind is Kind.INSTANCE and called.cls is not None and called.cls.is_function:
            found.append((call, called.cls))
    return found


def maker_of(model: FileModel, call: ast.Call) -> ast.Call | None:
    """The expression of this file, without arguments, that made the instance which is called."""
    site = model.value(call.func).site
    if isinstance(site, ast.Call) and not site.args and not site.keywords and model.parent(site) is not None:
        return site
    return None


def apply_calls(model: FileModel, cls: ClassInfo) -> Iterator[ast.Call]:
    """The file's calls of `Function.apply`, also through a name: `square = Square.apply`."""
    for node in model.attributes_named("apply"):
        if model.class_named(node.value) is not cls:
            continue
        match model.parent(node):
            case ast.Call(func=func) as call if func is node:
                yield call
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield from (c for c in model.calls_named(name) if model.name_of(c.func) == model.name_of(node))


def apply_counts(cls: ClassInfo) -> set[int]:
    """How many arguments the calls of `.apply` in a class's own file pass; empty if one cannot be counted."""
    found: set[int] = set()
    for call in apply_calls(cls.model, cls):
        if any(isinstance(arg, ast.Starred) for arg in call.args) or call.keywords:
            return set()
        found.add(len(call.args))
    return found


def changed_parameters(model: FileModel, function: FunctionInfo) -> Iterator[tuple[ast.AST, ast.arg]]:
    """In-place changes of what a function was given, directly or through a view: (place, parameter), in order."""
    params = {*function.params, *function.args.kwonlyargs}
    if function.args.vararg is not None:
        params.add(function.args.vararg)
    for node in sorted(function.own_nodes, key=model.position):
        for target in changed_by(model, node):
            arg = parameter_behind(model, target, params)
            if arg is not None:
                yield node, arg


def changed_by(model: FileModel, node: ast.AST) -> Iterator[ast.expr]:
    """The tensors that a statement or call changes in place."""
    match node:
        case ast.AugAssign(target=target):
            yield target
        case ast.Assign(targets=targets):
            yield from (target.value for target in targets if isinstance(target, ast.Subscript))
        case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if is_inplace(knowledge.method(name)):
            if not model.name_of(receiver):
                yield receiver
            elif node.args:  # torch.relu_(x)
                yield from node.args[:1] if is_inplace(knowledge.function(model.name_of(node.func))) else ()
        case ast.Call(args=args, keywords=keywords) if model.name_of(node.func).startswith("torch."):
            flag = next((k.value for k in keywords if k.arg == "inplace"), None)
            if args and isinstance(flag, ast.Constant) and flag.value is True:
                yield args[0]
            yield from (k.value for k in keywords if k.arg == "out")


def is_inplace(entry: Callable_ | None) -> bool:
    """Whether an operator changes the values of its first argument; `__iadd__` and `resize_` are not counted."""
    return entry is not None and entry.inplace and not entry.name.startswith("__") and (
        entry.name.rpartition(".")[2] not in ("resize_", "set_", "resize_as_"))


def parameter_behind(model: FileModel, expr: ast.expr, params: set[ast.arg], depth: int = 0) -> ast.arg | None:
    """The parameter whose memory an expression is, or is a view of."""
    match expr:
        case ast.Name():
            value = model.value(expr)
            match value.site:
                case ast.Call(func=ast.Attribute(value=inner, attr="contiguous")) if depth < 4:
                    return parameter_behind(model, inner, params, depth + 1)  # itself, unless it has to copy
            return next((arg for arg in params if arg in (value.ident, value.storage)), None)
        case ast.Attribute(value=inner, attr="data" | "T" | "mT"):
            return parameter_behind(model, inner, params)
        case ast.Subscript(value=inner, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            basic = all(isinstance(part, (ast.Slice, ast.Constant, ast.UnaryOp)) for part in parts)
            return parameter_behind(model, inner, params) if basic or not isinstance(expr.ctx, ast.Load) else None
        case ast.Call(func=ast.Attribute(value=inner, attr=name)):
            entry = knowledge.method(name)
            if entry is not None and entry.view and not entry.inplace:
                return parameter_behind(model, inner, params)
    return None


def context_of(cls: ClassInfo, method: FunctionInfo) -> ast.arg | None:
    """The `ctx` parameter of a method of a Function; None for the forward of a class with setup_context."""
    params = method.params[1:] if method.is_classmethod else method.params
    if not params or (method.name == "forward" and cls.method("setup_context") is not None):
        return None
    return next((arg for arg in params if arg.arg == "ctx"), params[0])


def mixes_interfaces(cls: ClassInfo, forward: FunctionInfo) -> bool:
    """Whether a forward takes `ctx`, by its name, although the class defines `setup_context`."""
    first = forward.params[0].arg if forward.params else ""
    return first in CONTEXT and cls.method("setup_context") is not None


def hands_over(model: FileModel, method: FunctionInfo, context: ast.arg) -> bool:
    """Whether a method gives `ctx` away, so that what happens to it cannot all be seen."""
    for node in method.own_nodes:
        if isinstance(node, ast.Name) and node.id == context.arg and isinstance(node.ctx, ast.Load):
            if not isinstance(model.parent(node), ast.Attribute):
                return True
    return False


def inner_call(expr: ast.expr | None) -> ast.expr | None:
    """The receiver of an in-place method call; None for anything else."""
    match expr:
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if is_inplace(knowledge.method(name)):
            return inner
    return None


def gradients_given(cls: ClassInfo, forward: FunctionInfo, arg: ast.arg) -> list[ast.expr]:
    """What the returns of backward give for an argument of forward; a value that is not opened stands for all."""
    backward = cls.method("backward")
    if backward is None or arg not in forward.params:
        return []
    position = forward.params.index(arg) - (1 if context_of(cls, forward) is not None else 0)
    found: list[ast.expr] = []
    for node, _ in backward.model.flow(backward.node).return_values:
        match node.value:
            case ast.Tuple(elts=elts):
                starred = next((i for i, elt in enumerate(elts) if isinstance(elt, ast.Starred)), len(elts))
                if position < len(elts):
                    found.append(elts[min(position, starred)])
            case ast.expr() as value:
                found.append(value)
    return found
