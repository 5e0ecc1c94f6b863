"""Questions about what Modules hold: plain containers of modules or tensors, and whether a module has state."""
from __future__ import annotations

import ast
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.model.values import CONTAINERS, Kind, Value

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo
    from torchlint.model.functions import FunctionInfo

DEPTH = 4
REGISTERING = {"add_module", "register_module", "register_parameter", "register_buffer", "add_submodule"}
MODULE_CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.ParameterList",
                     "torch.nn.ParameterDict")


@dataclass(frozen=True)
class Held:
    """A plain container that an attribute of a class holds.

    `stmt` is the statement that stores it (or puts the first member in, where a base class stores it),
    `value` the stored expression, `members` what is known to be in it, nested containers opened.
    """

    cls: ClassInfo
    name: str
    stmt: ast.AST
    value: ast.expr | None
    method: FunctionInfo | None
    members: tuple[Value, ...]
    literal: bool  # all members are written in the stored expression


def plain_containers(cls: ClassInfo) -> Iterator[Held]:
    """Every list, tuple, dict or set that a method of the class keeps on `self` (or the class body holds)."""
    put = members_put(cls)
    for name, stores in cls.stores.items():
        values = [(method, stmt, expr, cls.model.value(expr)) for method, stmt, expr in stores if expr is not None]
        if any(value.kind is Kind.MODULE for *_, value in values):
            continue  # registered in the end
        kept = [row for row in values if row[3].kind in CONTAINERS]
        if not kept:
            continue
        added = [value for _, value in put.get(name, ())]
        method, stmt, expr, value = next((row for row in kept if members(row[3])), kept[0])
        found = (*members(value), *(part for one in added for part in members(one)))
        yield Held(cls, name, stmt, expr, method, found, not added)
    for name, rows in put.items():
        if name not in cls.stores and cls.attr(name).kind in CONTAINERS:
            node, _ = rows[0]
            found = tuple(part for _, one in rows for part in members(one))
            yield Held(cls, name, cls.model.statement(node), None, cls.model.function(node), found, False)


def members_put(cls: ClassInfo) -> dict[str, list[tuple[ast.AST, Value]]]:
    """What methods of the class append to, or set in, containers on `self`: attribute -> (place, value)."""
    found: dict[str, list[tuple[ast.AST, Value]]] = {}
    for method in cls.methods.values():
        me = method.self_name
        if not me:
            continue
        for event in cls.model.flow(method.node).of("store"):
            owner, _, name = event.path.partition(".")
            if owner == me and name.isidentifier() and event.depth == 0:
                found.setdefault(name, []).append((event.node, event.value))
    return found


def members(value: Value, depth: int = 0) -> list[Value]:
    """The value itself, or what is in it where it is a container."""
    if value.kind not in CONTAINERS:
        return [value]
    if depth >= DEPTH:
        return []
    parts = list(value.elements or ()) + [part for _, part in value.fields]
    if value.item is not None and not parts:
        parts.append(value.item)
    return [inner for part in parts for inner in members(part, depth + 1)]


def registered_idents(cls: ClassInfo) -> set[object]:
    """Identities of what attributes of the class register: modules (members of containers too) and parameters."""
    found: set[object] = set()
    for base in cls.project_mro:
        for stores in base.stores.values():
            for _, _, expr in stores:
                value = base.model.value(expr) if expr is not None else None
                if value is None or value.kind in CONTAINERS:
                    continue
                found.add(value.ident)
                if value.kind is Kind.MODULE:
                    found.update(part.ident for part in value.parts())
    found.discard(None)
    return found


def registers_by_name(method: FunctionInfo) -> bool:
    """Whether a method registers under computed names: `setattr(self, ...)`, `self.add_module(...)`, `vars(self)`."""
    for call in method.calls:
        match call:
            case ast.Call(func=ast.Name(id="setattr"), args=[_, name, *_]) if not isinstance(name, ast.Constant):
                return True
            case ast.Call(func=ast.Attribute(attr=how), args=[ast.Constant(), *_]) if how in REGISTERING:
                continue  # one module under a fixed name: `registered_idents` knows it
            case ast.Call(func=ast.Attribute(attr=how)) if how in REGISTERING or how == "__setattr__":
                return True
    nodes = method.own_nodes
    return any(isinstance(node, ast.Attribute) and node.attr in ("_modules", "_parameters") for node in nodes)


def handed_to_container(cls: ClassInfo, name: str) -> bool:
    """Whether `self.name` is an argument of a torch container, or its members are, in any method."""
    for method in cls.methods.values():
        for call in method.calls:
            if cls.model.name_of(call.func) in MODULE_CONTAINERS:
                for arg in (*call.args, *(k.value for k in call.keywords)):
                    if any(isinstance(n, ast.Attribute) and n.attr == name for n in ast.walk(arg)):
                        return True
    return False


def has_state(value: Value, depth: int = 0) -> bool:
    """Whether a module surely has parameters or buffers: by torch's tables, its members, or its class."""
    if value.kind is not Kind.MODULE or depth > DEPTH:
        return False
    if value.cls is not None:
        return class_has_state(value.cls, depth)
    if value.elements:
        return any(has_state(part, depth + 1) for part in value.elements)
    known = knowledge.module_class(value.name)
    if known is not None:
        if known.wrapper and value.bound is not None:
            return has_state(value.bound, depth + 1)
        return known.has_parameters or known.has_buffers
    return value.item is not None and has_state(value.item, depth + 1)


def makes_weights(value: Value, old: Collection[Hashable] = (), depth: int = 0) -> bool:
    """Whether a Module that an expression makes comes with parameters made for it, not with those it is given.

    `old` are the identities of modules that were there before.
    """
    made = value.site
    if value.kind is not Kind.MODULE or not isinstance(made, ast.Call) or value.ident in old or depth > DEPTH:
        return False
    if "wrapper" in value.facts:
        return False
    if value.cls is not None:
        return _class_makes_weights(value.cls, old, depth) or any(
            makes_weights(part, old, depth + 1) for part in _given(value.cls.model, made))
    if value.elements is not None:
        return any(makes_weights(part, old, depth + 1) for part in value.elements)
    if value.item is not None:
        return makes_weights(value.item, old, depth + 1)
    known = knowledge.module_class(value.name)
    return known is not None and known.has_parameters and known.kind not in ("container", "loss") and not known.wrapper


def _class_makes_weights(cls: ClassInfo, old: Collection[Hashable], depth: int) -> bool:
    """Whether a class makes parameters for its instances, or inherits those of a layer and keeps them."""
    for base in cls.project_mro:
        for part in (part for part in map(base.attr, base.stores) if _is_made_by(base, part)):
            if makes_weights(part, old, depth + 1) or (part.role == "parameter" and isinstance(part.site, ast.Call)):
                return True
    layers = [knowledge.module_class(name) for name in cls.outside if name]
    return any(layer is not None and layer.has_parameters for layer in layers) and not any(
        "weight" in base.stores for base in cls.project_mro)


def _given(model: FileModel, call: ast.Call) -> list[Value]:
    """What the function around a constructor's call makes and gives to it."""
    if not model.has(call):
        return []
    values = [model.value(arg) for arg in call.args]
    return [value for value in values if value.site is not None and model.has(value.site)
            and model.owner(value.site) is model.owner(call)]


def _is_made_by(cls: ClassInfo, part: Value) -> bool:
    """Whether the code of a class makes what an attribute holds."""
    return part.site is not None and cls.model.has(part.site) and cls.model.class_of(part.site) is cls


def class_has_state(cls: ClassInfo, depth: int = 0) -> bool:
    """Whether instances of a project class surely have parameters or buffers."""
    for base in cls.project_mro:
        for name, stores in base.stores.items():
            if any(isinstance(stmt, ast.Call) and how(stmt) in ("register_buffer", "register_parameter")
                   for _, stmt, _ in stores):
                return True
            value = cls.attr(name)
            if value.role in ("parameter", "buffer") or has_state(value, depth + 1):
                return True
            if value.kind is Kind.MODULE and value.cls is None and knowledge.module_class(value.name) is None:
                return True
    for name in cls.outside:
        known = knowledge.module_class(name) if name else None
        if known is not None and (known.has_parameters or known.has_buffers):
            return True
    return not cls.fully_known


def how(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def building_methods(cls: ClassInfo) -> set[str]:
    """The constructor and the methods of the class that it calls, directly or not."""
    return reached(cls, "__init__", "__post_init__", "reset_parameters", "init_weights") - {"forward"}


def reached(cls: ClassInfo, *names: str) -> set[str]:
    """Methods of a class by name, and those that they call on their own instance, directly or not."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        method = cls.method(name)
        if name in found or method is None:
            continue
        found.add(name)
        for call in method.calls:
            match call.func:
                case ast.Attribute(value=ast.Name(id=owner), attr=other) if owner == method.self_name:
                    todo.append(other)
    return found


def reads_of(cls: ClassInfo, name: str) -> list[ast.expr]:
    """Where methods of the class read `self.name`."""
    found: list[ast.expr] = []
    for method in cls.methods.values():
        me = method.self_name
        for node in ast.walk(method.node):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ast.Load()) if owner == me and attr == name:
                    found.append(node)
    return found


def comment_says(cls: ClassInfo, stmt: ast.AST, words: tuple[str, ...]) -> bool:
    """Whether a comment on the lines of a statement, or just above it, has one of the words."""
    return comment_on(cls.model, stmt, words)


def comment_on(model: FileModel, stmt: ast.AST, words: tuple[str, ...]) -> bool:
    """The same for a statement of any file."""
    lines = model.source.text.splitlines()
    first, last = stmt.lineno - 1, (stmt.end_lineno or stmt.lineno)  # type: ignore[attr-defined]
    while first > 0 and lines[first - 1].strip().startswith("#"):
        first -= 1
    text = " ".join(line.partition("#")[2].lower() for line in lines[first:last])
    return any(word in text for word in words)
