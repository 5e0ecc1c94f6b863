"""Questions about training steps: which backward, clear and clip belong to which optimizer step."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.model.events import Event, Flow
from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

CLEARING_WORDS = ("zero_grad", "reset_grad", "clear_grad", "zero_gradients", "_foreach_zero_")


def bodies(model: FileModel) -> Iterator[tuple[ast.AST, Flow]]:
    """The file's own code and every function in it, each with its flow."""
    yield model.tree, model.flow()
    for function in model.functions:
        yield function.node, model.flow(function.node)


def place_of(model: FileModel, event: Event) -> ast.AST:
    """Where to report an event: where it really happens, if that is in this file."""
    return event.inner if event.inner is not None and model.has(event.inner) else event.node


def different(left: Value, right: Value) -> bool:
    """Whether two values are surely different objects."""
    return left.ident is not None and right.ident is not None and left.ident != right.ident


def same(left: Value, right: Value) -> bool:
    """Whether two values are surely the same object."""
    return left.ident is not None and left.ident == right.ident


def owns(optimizer: Value, module: Value) -> bool | None:
    """Whether an optimizer steps the parameters of a module; None if that cannot be told."""
    params = optimizer.elements[0] if optimizer.elements else None
    if params is None or params.kind is not Kind.PARAMETERS or params.bound is None:
        return None
    if params.bound.ident is None or module.ident is None:
        return None
    return params.bound.ident == module.ident


def clears(event: Event, optimizer: Value) -> bool:
    """Whether an event may clear the gradients that an optimizer steps on."""
    match event.what:
        case "zero_grad" if event.target.kind is Kind.MODULE:
            return owns(optimizer, event.target) is not False
        case "zero_grad":
            return not different(event.target, optimizer)
        case "clear_grad" | "set_grad":
            return True
        case "store_attr":
            return event.name == "grad"
        case "inplace" | "data_write":
            return event.target.role == "grad"
        case "setattr":
            return True
        case "unknown_call":
            word = event.name.rpartition(".")[2] or _called(event.inner)
            if any(part in word for part in CLEARING_WORDS):
                return True
            return any(_hands_over(arg, optimizer) for arg in event.args)
    return False


def _called(node: ast.AST | None) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _hands_over(arg: Value, optimizer: Value) -> bool:
    """Whether code that cannot be seen is given the optimizer or its parameters."""
    if arg.kind is Kind.OPTIMIZER or same(arg, optimizer):
        return not different(arg, optimizer)
    return arg.kind is Kind.PARAMETERS


def periodic_guards(model: FileModel, event: Event) -> list[ast.AST]:
    """The `if` statements around an event that hold only every n-th time (a modulo in the test)."""
    return [node for node, _ in event.guards if isinstance(node, ast.If) and is_periodic(model, node.test)]


def is_periodic(model: FileModel, test: ast.expr, depth: int = 0) -> bool:
    """Whether a test counts: it holds a modulo, directly or through names assigned from one."""
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return model.value(node.left).kind is not Kind.STRING
        if isinstance(node, ast.Name) and depth < 2:
            for scope in model.scopes(node):
                if node.id in scope.bindings:
                    values = [b.value for b in scope.bindings[node.id] if isinstance(b, ast.Assign)]
                    if values and any(is_periodic(model, value, depth + 1) for value in values):
                        return True
                    break
    return False


def early_continue(model: FileModel, event: Event) -> bool:
    """Whether the loop body may leave before the event by a counting `if ...: continue`."""
    if not event.loops or not model.has(event.loops[-1]):
        return False
    body = getattr(event.loops[-1], "body", [])
    here = model.statement(event.node)
    for statement in body:
        if statement is here or any(parent is statement for parent in model.ancestors(here)):
            return False
        if isinstance(statement, ast.If) and is_periodic(model, statement.test) and any(
            isinstance(inner, ast.Continue) for inner in statement.body
        ):
            return True
    return False


def is_stepped(event: Event) -> bool:
    """A step of something that surely is an optimizer of torch's kind, without a closure."""
    if event.what != "step" or event.target.kind is not Kind.OPTIMIZER:
        return False
    cls = event.target.cls
    return not event.args and (cls is None or cls.method("step") is None) and "LBFGS" not in event.target.name
