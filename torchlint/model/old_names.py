"""Where a file uses what torch deprecates or has removed: imports, names, methods and arguments."""
from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.knowledge import Deprecated
from torchlint.knowledge.deprecations import release
from torchlint.model.values import Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel

# What other rules report: old initialisers and functionals, loss arguments, dim of softmax, use_reentrant, saved_*,
# backward hooks of the old kind.
ELSEWHERE = ("torch.nn.init.", "torch.nn.functional.upsample", "torch.autograd.function.FunctionCtx.")
ELSEWHERE_NAMES = {"torch.nn.functional.tanh", "torch.nn.functional.sigmoid", "torch.Tensor.volatile",
                   "torch.nn.Module.register_backward_hook"}
ELSEWHERE_ARGUMENTS = {"size_average", "reduce", "use_reentrant"}
# The class whose methods a kind of value has.
OWNERS = {
    Kind.TENSOR: "torch.Tensor", Kind.MODULE: "torch.nn.Module", Kind.SCHEDULER: "torch.optim.lr_scheduler.LRScheduler",
}
POSITIONS = {"torch.optim.lr_scheduler.LRScheduler.step(epoch)": 0, "torch.nn.Module.state_dict(destination)": 0,
             "torch.cross(dim)": 2, "torch.stft(return_complex)": 9}
USUAL = {"only_inputs": True, "broadcast_buffers": "no value is usual"}
KEEP_EPOCH = ("CosineAnnealingWarmRestarts", "ReduceLROnPlateau")  # their step() takes an argument
WHOLE = ("TorchScript as a whole", "another package")
GONE = ("AttributeError", "ImportError", "ModuleNotFoundError")
CAREFUL = re.compile(r"version|hasattr|available|_ge_|_lt_|torch_?[12]|is_torch|legacy|has_|with_pt", re.IGNORECASE)


@dataclass(frozen=True)
class OldUse:
    """One use: the node to report, the row of the table, and the call that it belongs to."""

    node: ast.AST
    row: Deprecated
    removed: bool
    call: ast.Call | None = None
    sure: Confidence = Confidence.SURE


@functools.lru_cache(maxsize=1)
def old_uses(model: FileModel) -> tuple[OldUse, ...]:
    """The uses under the torch that the file is for, in source order; those behind a check of the version left out."""
    found = [*_imports(model), *_names(model), *_methods(model), *_arguments(model)]
    kept = {use.node: use for use in found[::-1] if not _elsewhere(use.row) and not careful(model, use.node)}
    return tuple(_once(sorted(kept.values(), key=lambda use: model.position(use.node))))


def _once(uses: list[OldUse]) -> Iterator[OldUse]:
    """What torch gives up as a whole is said once in a file."""
    seen = set()
    for use in uses:
        whole = use.row.differs.partition(";")[0] if use.row.differs.startswith(WHOLE) else ""
        if whole and not use.removed:
            if whole in seen:
                continue
            seen.add(whole)
        yield use


def _elsewhere(row: Deprecated) -> bool:
    name = row.name
    if row.argument:
        softmax = row.kind == "missing" and row.argument == "dim" and "softm" in name
        return softmax or row.argument in ELSEWHERE_ARGUMENTS
    return name in ELSEWHERE_NAMES or (name.startswith(ELSEWHERE) and not name.startswith("torch.nn.init.eye_"))


def _use(model: FileModel, node: ast.AST, row: Deprecated, call: ast.Call | None = None,
         sure: Confidence = Confidence.SURE) -> Iterator[OldUse]:
    status = row.status(max(model.torch_version, "1.8", key=release))
    if status:
        yield OldUse(node, row, status == "removed", call, sure)


def written(model: FileModel, expr: ast.AST) -> str:
    """The dotted origin of a name as the file's imports give it; unlike `name_of`, public names are not looked up."""
    if isinstance(expr, ast.Attribute):
        base = written(model, expr.value)
        return f"{base}.{expr.attr}" if base else ""
    if isinstance(expr, ast.Name):
        for scope in model.scopes(expr):
            if expr.id in scope.bindings and expr.id not in scope.nonlocals:
                bound = scope.bindings[expr.id]
                imported = all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in bound)
                choice = len(bound) > 1 and any(careful(model, node) for node in bound)  # one of them in each version
                return scope.imports[expr.id] if imported and not choice else ""
        star = model.name_of(expr)
        return star if star.startswith(("torch.", "functorch.")) else ""
    return ""


def careful(model: FileModel, node: ast.AST) -> bool:
    """Whether a place is prepared for several versions of torch: it tries, or looks at the version first."""
    place = model.place(node)
    if place.tries or place.handler or place.type_checking:
        return True
    tests: list[ast.AST] = [guard.test for guard, _ in place.guards if isinstance(guard, (ast.If, ast.While))]
    for parent in model.ancestors(node):
        if isinstance(parent, ast.IfExp):
            tests.append(parent.test)
    function = model.function(node)
    own = function.own_nodes if function is not None else []
    tests += [one.test for one in own if isinstance(one, ast.Assert) and model.position(one) < model.position(node)]
    tests += _tests_of_others(model, node)
    return any(CAREFUL.search(word) for test in tests for word in _words(test))


def _tests_of_others(model: FileModel, node: ast.AST) -> Iterator[ast.AST]:
    """What is looked at before a name that a value is given gets another: `f = old`, `if hasattr(...): f = new`."""
    parent = model.parent(node)
    match parent:
        case ast.Assign(value=value, targets=[ast.Name(id=name) as target]) if value is node:
            bound = next((scope.bindings[name] for scope in model.scopes(target) if name in scope.bindings), ())
            for other in bound:
                if other is not target and other is not parent:
                    yield from (guard.test for guard, _ in model.place(other).guards if isinstance(guard, ast.If))


def _words(test: ast.AST) -> Iterator[str]:
    for node in ast.walk(test):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word):
                yield word


# -- imports and names --------------------------------------------------------------------------


def _imports(model: FileModel) -> Iterator[OldUse]:
    """Imports of deprecated modules, and of names that are gone."""
    for node in model.nodes(ast.Import):
        for alias in node.names:
            row = knowledge.deprecated(alias.name)
            if row is not None and row.kind == "module":
                yield from _use(model, node, row)
    for statement in model.nodes(ast.ImportFrom):
        if statement.level or not (statement.module or "").startswith(("torch", "functorch")):
            continue
        for alias in statement.names:
            row = knowledge.deprecated(f"{statement.module}.{alias.name}")
            if row is None:
                continue
            if row.kind == "module":
                yield from _use(model, statement, row)
            elif row.observed.removeprefix("raises ") in GONE:
                yield from (use for use in _use(model, alias, row) if use.removed)


@functools.cache
def _last_names() -> frozenset[str]:
    return frozenset(row.name.rpartition(".")[2] for row in knowledge.deprecations() if not row.argument)


def _names(model: FileModel) -> Iterator[OldUse]:
    """Loads of deprecated functions, classes, attributes and modules, called or not."""
    imported = {alias.name for node in model.nodes(ast.Import) for alias in node.names}
    froms = [alias for node in model.nodes(ast.ImportFrom) for alias in node.names]
    local = {alias.asname or alias.name for alias in froms if alias.name in _last_names()}
    local |= _last_names() if any(alias.name == "*" for alias in froms) else set()
    for node in model.nodes(ast.Name, ast.Attribute):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if (node.attr not in _last_names()) if isinstance(node, ast.Attribute) else (node.id not in local):
            continue
        dotted = written(model, node)
        row = knowledge.deprecated(dotted) if dotted else None
        if row is None or row.kind in ("method",):
            continue
        if row.kind == "module":
            if isinstance(node, ast.Attribute) and row.name == dotted and dotted not in imported:
                yield from _member(model, node, dotted)
            continue
        parent = model.parent(node)
        if row.kind == "function" and isinstance(parent, ast.Attribute):
            continue  # a module has the name of a function that is gone: `torch.autograd.variable.Variable`
        for use in _use(model, node, row, parent if isinstance(parent, ast.Call) and parent.func is node else None):
            if not (use.removed and isinstance(node, ast.Name) and row.observed.removeprefix("raises ") in GONE):
                yield use  # of a name that is gone, the import is reported


def _member(model: FileModel, node: ast.Attribute, dotted: str) -> Iterator[OldUse]:
    """The name that is taken from a deprecated module."""
    parent = model.parent(node)
    if isinstance(parent, ast.Attribute):
        row = knowledge.deprecated(f"{dotted}.{parent.attr}")
        if row is not None:
            yield from _use(model, parent, row)


# -- methods and arguments -----------------------------------------------------------------------


@functools.cache
def _method_names() -> frozenset[str]:
    rows = (row for row in knowledge.deprecations() if not row.argument)
    return frozenset(row.name.rpartition(".")[2] for row in rows if row.kind in ("method", "attribute"))


def _methods(model: FileModel) -> Iterator[OldUse]:
    """Deprecated methods and attributes of tensors, modules, schedulers and distributions."""
    for name in sorted(_method_names()):
        for node in model.attributes_named(name):
            value = model.value(node.value)
            if value.sure < Confidence.SURE and (value.source is not None or "maybe_overloaded" in value.facts):
                continue  # it may be a lazy matrix, which has methods of these names
            row = knowledge.deprecated(_member_name(value, name))
            if row is None or row.kind not in ("method", "attribute") or written(model, node.value):
                continue
            if row.kind == "attribute" and value.sure < Confidence.SURE:
                continue  # data frames and dicts of tensors have `names`, too
            parent = model.parent(node)
            call = parent if isinstance(parent, ast.Call) and parent.func is node else None
            if (call is not None) is (row.kind == "method") and isinstance(node.ctx, ast.Load):
                yield from _use(model, call or node, row, call, value.sure)


def _member_name(value: Value, name: str) -> str:
    """The dotted name of a method of a value; "" where its class is unknown or has a method of its own."""
    if value.cls is not None and name in {method.name for method in value.cls.all_methods()}:
        return ""
    if value.sure < Confidence.LIKELY:
        return ""
    if value.kind is Kind.SCHEDULER and not value.name.startswith("torch."):
        return ""
    if value.name.startswith("torch.distributions."):
        return f"torch.distributions.Distribution.{name}"
    owner = OWNERS.get(value.kind)
    return f"{owner}.{name}" if owner else ""


@functools.cache
def _callable_names() -> frozenset[str]:
    return frozenset(row.name.rpartition(".")[2] for row in knowledge.deprecations() if row.argument)


def _arguments(model: FileModel) -> Iterator[OldUse]:
    """Calls with deprecated arguments, without arguments that have to be given, and in an old order."""
    renamed = {
        alias.asname: alias.name for node in model.nodes(ast.ImportFrom) for alias in node.names
        if alias.asname and alias.name in _callable_names()
    }
    for local, name in sorted({**{name: name for name in _callable_names()}, **renamed}.items()):
        for call in model.calls_named(local):
            for row, sure in _rows(model, call, name):
                node = _fits(model, call, row)
                if node is not None:
                    yield from _use(model, node, row, call, sure)
                    break


def _rows(model: FileModel, call: ast.Call, name: str) -> Iterator[tuple[Deprecated, Confidence]]:
    dotted = model.name_of(call.func)
    sure = Confidence.SURE
    if not dotted.startswith("torch.") and isinstance(call.func, ast.Attribute):
        value = model.value(call.func.value)
        dotted, sure = _member_name(value, name), value.sure
        if value.name.rpartition(".")[2] in KEEP_EPOCH:
            return
        if not dotted and name.endswith("_") and value.kind is Kind.UNKNOWN:
            dotted, sure = f"torch.Tensor.{name}", Confidence.LIKELY  # nothing but a tensor has `addcmul_`
    for row in knowledge.deprecated_arguments(dotted) if dotted else ():
        yield row, sure


def _fits(model: FileModel, call: ast.Call, row: Deprecated) -> ast.AST | None:
    """What to report of a call that a row is about; None if it is not."""
    open_ended = any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords)
    given = {keyword.arg: keyword for keyword in call.keywords}
    position = POSITIONS.get(f"{row.name}({row.argument})")
    passed = given.get(row.argument) is not None or (position is not None and len(call.args) > position)
    match row.kind:
        case "argument":
            if not passed or _quiet(model, row, given.get(row.argument)):
                return None
            return None if open_ended and row.argument not in given else call
        case "missing":
            return None if passed or open_ended or not call.args or _other_arm(model, call, row.argument) else call
        case "value":
            keyword, _, text = row.argument.partition("=")
            wanted = ast.literal_eval(text)
            value = given.get(keyword)
            return call if value is not None and model.value(value.value).const == wanted else None
        case "signature":
            return None if open_ended or not _old_order(model, call, row) else call
    return None


def _other_arm(model: FileModel, call: ast.Call, argument: str) -> bool:
    """Whether the other arm of an `if` makes the call with the argument: the code chooses by version."""
    for guard, _ in model.place(call).guards:
        for node in ast.walk(guard):
            if isinstance(node, ast.Call) and model.name_of(node.func) == model.name_of(call.func):
                if any(keyword.arg == argument for keyword in node.keywords):
                    return True
    return False


def _quiet(model: FileModel, row: Deprecated, keyword: ast.keyword | None) -> bool:
    """Whether torch accepts the value without a word: the one that it would use anyway."""
    if keyword is None or row.removed:
        return False
    const = model.value(keyword.value).const
    default = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
    return default or const is USUAL.get(row.argument, False)


def _old_order(model: FileModel, call: ast.Call, row: Deprecated) -> bool:
    """Whether arguments stand in an old order: more by position than the present order allows."""
    names = row.argument.split(",")
    if row.name.startswith("torch.Tensor."):
        names.remove("self")
    if len(call.args) != len(names):
        return False
    for name, arg in zip(names, call.args, strict=True):
        value = model.value(arg)
        if name in ("alpha", "beta", "value"):
            if value.known and value.kind is not Kind.NUMBER:
                return False
        elif value.known and not value.is_tensor and name != "other":
            return False
    return True
