"""Questions about training steps: which backward, clear and clip belong to which optimizer step."""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from torchlint.findings import Confidence
from torchlint.model.events import Event, Flow
from torchlint.model.values import UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

CLEARING_WORDS = ("zero_grad", "reset_grad", "clear_grad", "zero_gradients", "_foreach_zero_")


def bodies(model: FileModel) -> Iterator[tuple[ast.AST, Flow]]:
    """The file's own code and every function in it, each with its flow."""
    yield model.tree, model.flow()
    for function in model.functions:
        yield function.node, model.flow(function.node)


def functions_first(model: FileModel) -> Iterator[tuple[ast.AST, Flow]]:
    """As `bodies`, the file's own code last: what a function shows by itself comes before what its callers show."""
    yield from sorted(bodies(model), key=lambda body: (body[0] is model.tree, max_depth(body[1])))


def max_depth(flow: Flow) -> int:
    """How deep in helpers the events of a flow happen."""
    return max((event.depth for event in flow.events), default=0)


def place_of(model: FileModel, event: Event) -> ast.AST:
    """Where to report an event: where it really happens, if that is in this file."""
    return event.inner if event.inner is not None and model.has(event.inner) else event.node


T = TypeVar("T")


def once(model: FileModel, found: Iterable[tuple[Event, T]]) -> Iterator[T]:
    """Of what was found for events, one for each place, and one for each event of another file's helper.

    Such an event is known only by a call of this file that leads to it. The call that leaves the file comes first,
    then those of functions of this file that lead there.
    """
    pairs = list(found)
    places: set[ast.AST] = set()
    inner: set[ast.AST] = set()
    for event, item in sorted(pairs, key=lambda pair: leads_inside(model, pair[0])):
        place = place_of(model, event)
        abroad = event.inner is not None and not model.has(event.inner)
        if place in places or (event.inner in inner and leads_inside(model, event)):
            continue
        places.add(place)
        if abroad and event.inner is not None:
            inner.add(event.inner)
        yield item


def leads_inside(model: FileModel, event: Event) -> bool:
    """Whether an event of another file is reached through a function of this file."""
    if event.inner is None or model.has(event.inner) or not isinstance(event.node, ast.Call):
        return False
    callee = model.value(event.node.func).func
    return callee is not None and callee.model is model


def different(left: Value, right: Value) -> bool:
    """Whether two values are surely different objects."""
    return left.ident is not None and right.ident is not None and left.ident != right.ident


def same(left: Value, right: Value) -> bool:
    """Whether two values are surely the same object."""
    return left.ident is not None and left.ident == right.ident


def alike(left: Value, right: Value) -> bool:
    """Whether two values are the same object, or come from one expression by way of a wrapper such as `prepare`."""
    return same(left, right) or (left.site is not None and left.site is right.site)


def owns(optimizer: Value, module: Value) -> bool | None:
    """Whether an optimizer steps the parameters of a module; None if that cannot be told."""
    params = optimizer.elements[0] if optimizer.elements else None
    if params is None or params.kind is not Kind.PARAMETERS or params.bound is None:
        return None
    if params.bound.ident is None or module.ident is None:
        return None
    if params.bound.ident == module.ident:
        return True
    # What one expression made may have been handed on under two names: as a parameter, or through `prepare`.
    return None if module.site is not None and params.bound.site is module.site else False


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


def fills(event: Event) -> bool:
    """Whether an event may put something into gradients: a backward, or code that writes `.grad` itself."""
    if event.what in ("backward", "autograd_grad"):
        return True
    if event.what == "set_grad":
        return event.target.is_tensor
    if event.what in ("inplace", "data_write"):
        return event.target.role == "grad"
    word = event.name.rpartition(".")[2] or _called(event.inner) if event.what == "unknown_call" else ""
    return "clip" not in word and any(part in word for part in ("backward", "grads", "gradients"))


def clipped(clip: Event) -> Value:
    """What a clip is given: parameters, or the module that owns them."""
    return clip.args[0] if clip.args else clip.target


def belongs(flow: Flow, clip: Event, step: Event) -> Confidence | None:
    """How sure it is that a clip acts on the gradients that an optimizer steps on; None if it may be others."""
    params = clipped(clip)
    module = params.bound if params.kind is Kind.PARAMETERS else params if params.kind is Kind.MODULE else None
    taken = step.target.elements[0] if step.target.elements else UNKNOWN
    if same(params, taken) or (params.kind is Kind.OPTIMIZER and same(params, step.target)):
        return step.target.sure
    if module is not None:
        while "wrapper" in module.facts and module.bound is not None:
            module = module.bound
        owned = owns(step.target, module)
        if owned:
            return min(step.target.sure, module.sure)
        if owned is False:
            return None
    only = all(same(other.target, step.target) for other in flow.of("step")) and not flow.of("unknown_step")
    return min(step.target.sure, Confidence.LIKELY) if only else None


def meeting(model: FileModel, one: Event, other: Event) -> tuple[ast.AST, ast.AST] | None:
    """Nodes for two events in one function of this file: where they really happen, or the calls that lead there."""
    for left in (place_of(model, one), one.node):
        for right in (place_of(model, other), other.node):
            if model.has(left) and model.has(right) and model.owner(left) is model.owner(right) and left is not right:
                return left, right
    return None


def inside(event: Event, loops: tuple[ast.AST, ...]) -> bool:
    """Whether an event happens in the innermost of the given loops, perhaps deeper."""
    return event.loops[: len(loops)] == loops


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


def test_of(node: ast.AST) -> str:
    """The condition of a guard, for comparison with that of another `if` on the same one."""
    return ast.dump(node.test) if isinstance(node, (ast.If, ast.IfExp, ast.While)) else str(id(node))


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


def measures(model: FileModel, clip: Event) -> bool:
    """Whether a clip has no limit, so that it only tells the norm."""
    match place_of(model, clip):
        case ast.Call(args=args, keywords=keywords):
            limits = [k.value for k in keywords if k.arg in ("max_norm", "clip_value", "clip_val")] or args[1:2]
            return any(_is_huge(model, limit) for limit in limits)
    return False


def _is_huge(model: FileModel, limit: ast.expr) -> bool:
    match limit:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str())]):
            return True
    const = model.value(limit).const
    if isinstance(const, (int, float)):
        return const >= 1e6
    return model.name_of(limit) in ("math.inf", "numpy.inf", "torch.inf")
