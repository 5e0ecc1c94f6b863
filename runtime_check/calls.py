"""Finds the calls in a file that run a given class, method or function, and who makes them.

Types are inferred from the text alone, by name: enough to see that `net(x)` runs `Net.forward` when
`net = Net()` stands above it. An unknown receiver is kept as a weak match.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from runtime_check.statements import Step, is_main_guard, steps

Function = ast.FunctionDef | ast.AsyncFunctionDef
SAME = frozenset({
    "to", "cuda", "cpu", "eval", "train", "double", "float", "half", "requires_grad_", "apply",
    "share_memory", "compile",
})
WRAPPERS = frozenset({
    "DataParallel", "DistributedDataParallel", "DDP", "deepcopy", "copy", "compile", "script", "prepare",
})

LIBRARIES = ("torch", "nn", "F", "np", "numpy", "math", "os", "copy", "random")


@dataclass(frozen=True)
class Owner:
    """A function or method of the file's top level; `name` is dotted."""

    name: str
    node: Function
    cls: str = ""

    @property
    def parameters(self) -> list[str]:
        spec = self.node.args
        extra = [item.arg for item in (spec.vararg, spec.kwarg) if item]
        return [item.arg for item in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]] + extra

    @property
    def required(self) -> list[str]:
        """Parameters without a default, `self` and `cls` included."""
        spec = self.node.args
        plain = [item.arg for item in [*spec.posonlyargs, *spec.args]]
        pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        named = [item.arg for item, default in pairs if default is None]
        return plain[: len(plain) - len(spec.defaults)] + named

    @property
    def is_generator(self) -> bool:
        own = [item for item in ast.walk(self.node) if isinstance(item, (ast.Yield, ast.YieldFrom))]
        inner = [item for part in ast.walk(self.node) if part is not self.node and isinstance(part, Function)
                 for item in ast.walk(part)]
        return any(item not in inner for item in own)


@dataclass(frozen=True)
class Site:
    """A call that runs the target. `receiver` is the expression before the method, or the called instance."""

    call: ast.Call
    owner: Owner | None  # None at the top level or in the `__main__` block
    receiver: ast.expr | None
    sure: bool

    @property
    def line(self) -> int:
        return self.call.lineno


class CallGraph:
    """The calls of one file, by what they run. `foreign` are imported classes by the names that they have here."""

    def __init__(self, tree: ast.Module, foreign: Mapping[str, ast.ClassDef] | None = None) -> None:
        self.tree = tree
        self.steps: list[Step] = steps(tree)
        self.classes: dict[str, ast.ClassDef] = {}
        self.owners: dict[str, Owner] = {}
        self._known: dict[tuple[str, str], str] = {}  # types of variables and attributes already asked for
        for body in _definition_blocks(tree):
            self._collect(body, "")
        self.foreign = dict(foreign or {})
        self.classes.update(self.foreign)

    def _collect(self, body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    self.classes[prefix + name] = node
                    self._collect(node.body, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.owners[prefix + name] = Owner(prefix + name, node, prefix.rstrip("."))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Owner | None]]:
        """All calls with the top-level function or method that they are in, in source order."""
        found: list[tuple[ast.Call, Owner | None]] = []
        inside: set[int] = set()
        for owner in self.owners.values():
            for item in ast.walk(owner.node):
                inside.add(id(item))
                if isinstance(item, ast.Call):
                    found.append((item, owner))
        for item in ast.walk(self.tree):
            if isinstance(item, ast.Call) and id(item) not in inside:
                found.append((item, None))
        return sorted(found, key=lambda pair: (pair[0].lineno, pair[0].col_offset))

    def bases(self, name: str) -> list[str]:
        """The class and its bases in the file, nearest first."""
        found = [name]
        for item in found:
            node = self.classes.get(item)
            for base in node.bases if node else []:
                text = ast.unparse(base)
                if text in self.classes and text not in found:
                    found.append(text)
        return found

    def family(self, name: str) -> set[str]:
        """The class and the classes of the file that derive from it."""
        return {item for item in self.classes if name in self.bases(item)}

    def base_text(self, name: str) -> str:
        """The written bases of a class and of its bases in the file, for a look at what kind it is."""
        nodes = [self.classes[item] for item in self.bases(name) if item in self.classes]
        return " ".join(ast.unparse(base) for node in nodes for base in node.bases)

    def sites(self, qualname: str) -> list[Site]:
        """Calls that run a function, a method (also through an instance), or make an instance of a class."""
        holder, _, last = qualname.rpartition(".")
        if qualname in self.classes:
            return list(self._constructions(self.family(qualname)))
        if not holder or holder not in self.classes:
            return list(self._plain(qualname))
        if last in ("__init__", "__new__", "__post_init__"):
            return list(self._constructions(self.family(holder)))
        return sorted(self._method(holder, last), key=lambda site: not site.sure)

    def _plain(self, name: str) -> Iterator[Site]:
        for call, owner in self.calls:
            match call.func:
                case ast.Name() | ast.Attribute() if _text(call.func) == name:
                    yield Site(call, owner, None, True)

    def _constructions(self, names: set[str]) -> Iterator[Site]:
        for call, owner in self.calls:
            text = _text(call.func)
            holder, _, made = text.rpartition(".")
            by_method = holder in names and made in ("from_config", "create", "build")
            by_itself = text == "cls" and owner is not None and owner.cls in names
            if text in names or by_method or by_itself:
                yield Site(call, owner, None, True)

    def _method(self, holder: str, name: str) -> Iterator[Site]:
        family = self.family(holder)
        unique = sum(item.rpartition(".")[2] == name for item in self.owners) == 1
        for call, owner in self.calls:
            match call.func:
                case ast.Attribute(value=value, attr=attr):
                    if name in ("forward", "backward") and attr == "apply" and ast.unparse(value) in family:
                        yield Site(call, owner, None, True)
                        continue
                    kind = self.type_of(value, owner) if attr == name else ""
                    weak = unique and not kind and not _is_library(value) and self._fits(call, f"{holder}.{name}")
                    if attr == name and _text(value) in family:
                        yield Site(call, owner, None, True)  # Net.helper(x): a static or class method
                    elif attr == name and (kind in family or weak):
                        yield Site(call, owner, value, kind in family)
                    elif name in ("forward", "__call__") and self.type_of(call.func, owner) in family:
                        yield Site(call, owner, call.func, True)
                case func if name in ("forward", "__call__") and self.type_of(func, owner) in family:
                    yield Site(call, owner, func, True)

    def _fits(self, call: ast.Call, qualname: str) -> bool:
        """Whether the number of arguments of a call fits a method."""
        owner = self.owners.get(qualname)
        if owner is None or any(isinstance(item, ast.Starred) for item in call.args):
            return True
        count = len(call.args) + len(call.keywords)
        spec = owner.node.args
        most = count if spec.vararg or spec.kwarg else len(owner.parameters) - 1
        return len(owner.required) - 1 <= count <= most

    def type_of(self, node: ast.expr, owner: Owner | None, depth: int = 4) -> str:
        """The file's class that an expression is an instance of, or ""."""
        if depth == 0:
            return ""
        match node:
            case ast.Call(func=func) if _text(func) in self.classes:
                return _text(func)
            case ast.Call(func=func, args=[first, *_]) if _text(func).rpartition(".")[2] in WRAPPERS:
                return self.type_of(first, owner, depth)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in SAME:
                return self.type_of(value, owner, depth)
            case ast.Call(func=ast.Name(id=name)) if name in self.owners:
                return self._returned(self.owners[name], depth)
            case ast.Name(id="self" | "cls") if owner is not None and owner.cls:
                return owner.cls
            case ast.Name(id=name):
                return self._variable(name, owner, depth)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(self.type_of(value, owner, depth - 1), attr, depth)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.type_of(value, owner, depth)
            case ast.IfExp(body=body, orelse=other):
                return self.type_of(body, owner, depth) or self.type_of(other, owner, depth)
        return ""

    def _returned(self, owner: Owner, depth: int) -> str:
        for item in ast.walk(owner.node):
            if isinstance(item, ast.Return) and item.value is not None:
                kind = self.type_of(item.value, owner, depth - 1)
                if kind:
                    return kind
        return ""

    def _attribute(self, holder: str, attr: str, depth: int) -> str:
        key = ("." + holder, attr)
        if key not in self._known:
            self._known[key] = ""  # a question in progress: definitions may go in circles
            self._known[key] = self._find_attribute(holder, attr, depth)
        return self._known[key]

    def _find_attribute(self, holder: str, attr: str, depth: int) -> str:
        for cls in self.bases(holder) if holder else []:
            for owner in self.owners.values():
                if owner.cls != cls:
                    continue
                for target, value in _assignments(owner.node):
                    if _text(target) == f"self.{attr}":
                        kind = self.type_of(value, owner, depth - 1)
                        if kind:
                            return kind
        return ""

    def _variable(self, name: str, owner: Owner | None, depth: int) -> str:
        key = (owner.name if owner else "", name)
        if key not in self._known:
            self._known[key] = ""
            self._known[key] = self._find_variable(name, owner, depth)
        return self._known[key]

    def _find_variable(self, name: str, owner: Owner | None, depth: int) -> str:
        places: list[tuple[ast.AST, Owner | None]] = [(owner.node, owner)] if owner else []
        top = [step.node for step in self.steps if not isinstance(step.node, (Function, ast.ClassDef))]
        places += [(node, None) for node in top]
        for place, inside in places:
            for target, value in _assignments(place):
                if isinstance(target, ast.Name) and target.id == name and _text(value) != name:
                    kind = self.type_of(value, inside, depth - 1)
                    if kind:
                        return kind
            if inside is not None and name in inside.parameters:
                return self._parameter(name, inside, depth)
        return ""

    def _parameter(self, name: str, owner: Owner, depth: int) -> str:
        spec = owner.node.args
        for item in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]:
            note = ast.unparse(item.annotation) if item.arg == name and item.annotation else ""
            if note in self.classes:
                return note
        if depth <= 1:
            return ""
        position = owner.parameters.index(name)
        for call, caller in self.calls:
            text = _text(call.func)
            if text.rpartition(".")[2] != owner.name.rpartition(".")[2] and text != owner.cls:
                continue
            at = position - (1 if owner.cls else 0)
            given = [item.value for item in call.keywords if item.arg == name]
            given += [call.args[at]] if 0 <= at < len(call.args) else []
            kind = self.type_of(given[0], caller, depth - 2) if given and caller is not owner else ""
            if kind:
                return kind
        return ""


@lru_cache(maxsize=1 << 16)
def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return ast.unparse(node) if isinstance(node, ast.Attribute) else ""


def _is_library(node: ast.expr) -> bool:
    return _text(node).partition(".")[0] in LIBRARIES


@lru_cache(maxsize=1 << 12)
def _assignments(node: ast.AST) -> tuple[tuple[ast.expr, ast.expr], ...]:
    """Pairs of target and value; unpacking of a tuple of the same length is taken apart. Asked for again and again."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for item in ast.walk(node):
        match item:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    match target, value:
                        case (ast.Tuple(elts=left), ast.Tuple(elts=right)) if len(left) == len(right):
                            found += zip(left, right, strict=True)
                        case _:
                            found.append((target, value))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                found.append((target, value))
            case ast.NamedExpr(target=target, value=value):
                found.append((target, value))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                found.append((target, value))
    return tuple(found)


def _definition_blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """The top level and the blocks of top-level `if` and `try` statements, which may hold definitions."""
    yield tree.body
    for node in tree.body:
        match node:
            case ast.If(body=body, orelse=other) if not is_main_guard(node):
                yield from (body, other)
            case ast.Try(body=body, handlers=handlers, orelse=other):
                yield from (body, other, *(item.body for item in handlers))


def test_arguments(graph: CallGraph, owner: Owner, wanted: str = "") -> dict[str, ast.expr | str]:
    """What pytest would pass to a function: the first value of each parametrization, the one that is `wanted` if it is
    there, or a fixture's name."""
    found: dict[str, ast.expr | str] = {}
    for item in owner.node.decorator_list:
        match item:
            case ast.Call(func=func, args=[ast.Constant(value=str() as listed), ast.List(elts=[first, *rest]), *_]):
                if ast.unparse(func).endswith("parametrize"):
                    first = next((item for item in rest if wanted and ast.unparse(item) == wanted), first)
                    listed_names = [name.strip() for name in listed.split(",")]
                    values = first.elts if len(listed_names) > 1 and isinstance(first, ast.Tuple) else [first]
                    found.update(zip(listed_names, values, strict=False))
    for name in owner.required:
        fixture = graph.owners.get(name)
        if name not in found and fixture is not None and not fixture.required:
            if any("fixture" in ast.unparse(item) for item in fixture.node.decorator_list):
                found[name] = name
    return found
