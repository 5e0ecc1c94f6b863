"""Classes of the project: bases through any number of files, methods, and what `self.x` holds."""
from __future__ import annotations

import ast
import functools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model.bases import bases_of
from torchlint.model.duck import duck_kind
from torchlint.model.functions import FunctionInfo
from torchlint.model.replaced import computed_names, is_replaced
from torchlint.model.values import UNKNOWN, Grad, Kind, Value, join_all

if TYPE_CHECKING:
    from torchlint.model import FileModel

MODULE = "torch.nn.Module"
FUNCTION = "torch.autograd.Function"
REGISTERING = {"register_buffer": "buffer", "register_parameter": "parameter", "add_module": "module",
               "register_module": "module"}


class ClassInfo:
    """One class of the project. Identity is the definition: the same class is the same object."""

    def __init__(self, model: FileModel, node: ast.ClassDef) -> None:
        self.model = model
        self.node = node
        self._attrs: dict[str, Value] = {}
        self._met: dict[str, Value] = {}  # what is known of attributes that are being asked for
        self._found: dict[str, FunctionInfo | None] = {}

    def __repr__(self) -> str:
        return f"ClassInfo({self.dotted})"

    @functools.cached_property
    def qualname(self) -> str:
        """Dotted name within the file."""
        names = [self.node.name]
        names += [a.name for a in self.model.ancestors(self.node)
                  if isinstance(a, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
        return ".".join(reversed(names))

    @functools.cached_property
    def dotted(self) -> str:
        """Module and qualified name."""
        return f"{self.model.index.name}.{self.qualname}"

    @functools.cached_property
    def bases(self) -> tuple[ClassInfo | str, ...]:
        """Each base as a project class, or the canonical dotted name of an outside one ("" if unknown)."""
        return bases_of(self.model, self.node)

    @functools.cached_property
    def mro(self) -> tuple[ClassInfo | str, ...]:
        """This class and all its bases, nearest first; cycles are cut."""
        found: dict[ClassInfo | str, None] = {}
        queue: deque[ClassInfo | str] = deque([self])
        while queue:
            item = queue.popleft()
            if item not in found:
                found[item] = None
                queue.extend(item.bases if isinstance(item, ClassInfo) else ())
        return tuple(found)

    @functools.cached_property
    def project_mro(self) -> tuple[ClassInfo, ...]:
        """The project's own classes among the bases, this one first."""
        return tuple(item for item in self.mro if isinstance(item, ClassInfo))

    @functools.cached_property
    def outside(self) -> tuple[str, ...]:
        """Dotted names of all bases outside the project; "" stands for one that is not known."""
        return tuple(item for item in self.mro if isinstance(item, str))

    @functools.cached_property
    def kind(self) -> Kind:
        """What instances of the class are."""
        for name in self.outside:
            kind = class_kind(name)
            if kind is not Kind.UNKNOWN:
                return kind
        return Kind.INSTANCE

    @property
    def is_module(self) -> bool:
        """Surely a subclass of torch.nn.Module."""
        return self.kind is Kind.MODULE

    @functools.cached_property
    def is_function(self) -> bool:
        """A subclass of torch.autograd.Function."""
        return any(name in (FUNCTION, "torch.autograd.function.InplaceFunction") for name in self.outside)

    @property
    def fully_known(self) -> bool:
        """No base is missing: every base is in the project, in torch, or `object`."""
        return all(name.startswith("torch.") or name in ("builtins.object", "abc.ABC", "typing.Generic",
                                                         "typing.Protocol") for name in self.outside)

    def is_a(self, dotted: str) -> bool:
        """Whether a class of that canonical name is among the bases."""
        return any(name == dotted for name in self.outside)

    @functools.cached_property
    def methods(self) -> dict[str, FunctionInfo]:
        """Methods defined in this class itself, the last definition of each."""
        found = {}
        for node in self._body_statements():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if not any(self.model.name_of(d).endswith("overload") or is_accessor(d) for d in node.decorator_list):
                    found[node.name] = self.model.function_info(node)
        return found

    def _body_statements(self) -> Iterator[ast.stmt]:
        stack = list(self.node.body)[::-1]
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node, (ast.If, ast.Try)):
                stack.extend((*node.body, *node.orelse)[::-1])

    def inner_class(self, name: str) -> ClassInfo | None:
        """A class defined in the body of this class or of a project base."""
        for cls in self.project_mro:
            for node in cls._body_statements():
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return cls.model.class_info(node)
        return None

    def method(self, name: str) -> FunctionInfo | None:
        """The method as Python would find it, among the project's classes."""
        if name not in self._found:
            self._found[name] = next((cls.methods[name] for cls in self.project_mro if name in cls.methods), None)
        return self._found[name]

    def all_methods(self) -> Iterator[FunctionInfo]:
        """Methods of this class and its project bases; an overridden one is left out."""
        seen: set[str] = set()
        for cls in self.project_mro:
            for name, method in cls.methods.items():
                if name not in seen:
                    seen.add(name)
                    yield method

    # -- attributes ---------------------------------------------------------------------------

    @functools.cached_property
    def computed_names(self) -> tuple[str, ...]:
        """How the names of attributes begin that the class binds without spelling them; "" for any name."""
        return tuple(dict.fromkeys(prefix for cls in self.project_mro for prefix in computed_names(cls)))

    @functools.cached_property
    def stores(self) -> dict[str, list[tuple[FunctionInfo | None, ast.AST, ast.expr | None]]]:
        """Every binding of `self.name` (or class-level `name`) in this class: (method, statement, value)."""
        found: dict[str, list[tuple[FunctionInfo | None, ast.AST, ast.expr | None]]] = {}
        for node in self._body_statements():
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if isinstance(target, ast.Name):
                            found.setdefault(target.id, []).append((None, node, value))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.setdefault(name, []).append((None, node, node.value))
        for method in self.methods.values():
            me = method.self_name
            if not me:
                continue
            for stmt, attribute, stored in method.attribute_stores:
                if isinstance(attribute.value, ast.Name) and attribute.value.id == me:
                    found.setdefault(attribute.attr, []).append((method, stmt, stored))
            for call in method.calls:
                self._registered(method, me, call, found)
        return found

    @staticmethod
    def _registered(
        method: FunctionInfo, me: str, call: ast.Call,
        found: dict[str, list[tuple[FunctionInfo | None, ast.AST, ast.expr | None]]],
    ) -> None:
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr=how),
                args=[ast.Constant(value=str(name)), *rest],
            ) if owner == me and how in REGISTERING:
                value = rest[0] if rest else next(
                    (k.value for k in call.keywords if k.arg in ("tensor", "param", "module")), None)
                found.setdefault(name, []).append((method, call, value))
            case ast.Call(
                func=ast.Name(id="setattr"), args=[ast.Name(id=owner), ast.Constant(value=str(name)), value]
            ) if owner == me:
                found.setdefault(name, []).append((method, call, value))

    def attr(self, name: str) -> Value:
        """What `self.name` holds: the join of everything any method of the class or its bases stores there."""
        session = self.model.session
        if name in self._attrs:
            session.reads((self, name))
            return self._attrs[name]
        if session.meets((self, name)):
            return self._met.get(name, UNKNOWN)
        with session.nested((self, name), lambda: self._attrs.pop(name, None), deeper=False):
            self._attrs[name] = value = self._attr(name)
            self._met.pop(name, None)
        return value

    def _attr(self, name: str) -> Value:
        value = self._met[name] = self._kept(name)
        if value.kind is Kind.MODULE and "frozen" not in value.facts and self._freezes(value):
            value = value.but(facts=value.facts | {"frozen"})
        elif value.role == "parameter" and value.grad is Grad.YES and self._freezes(value):
            value = value.but(grad=Grad.UNKNOWN)
        if value.known and value.sure is Confidence.SURE and is_replaced(self, name):
            return value.but(sure=Confidence.LIKELY)
        return value

    def _freezes(self, kept: Value) -> bool:
        """Whether a method of the class freezes a parameter or module that it keeps, or all of its own."""
        members = [(kept.ident, "item"), *(part.ident for part in kept.parts() if part.ident is not None)]
        for method in self.all_methods():
            if method.sets_requires_grad and method.self_name:
                mine = (kept.ident, method.params[0], *members)
                events = method.model.flow(method.node).of("freeze")
                if any(event.target.ident in mine for event in events):
                    return True
        return False

    def _kept(self, name: str) -> Value:
        values: list[Value] = []
        for cls in self.project_mro:
            for method, stmt, expr in cls.stores.get(name, ()):
                values.append(cls._stored(method, stmt, expr))
            if values:
                break
        method = self.method(name)
        if not values and method is not None:
            if method.is_property:
                return method.returned(self.instance())
            return Value(Kind.FUNCTION, name=method.dotted, func=method)
        known = [v for v in values if v.kind is not Kind.NONE]
        first = next((v for v in known if v.known), None)
        if first is not None and all(
            not v.known or v.kind is first.kind for v in known
        ) and any(not v.known for v in known):
            # One store is understood and others are not: what is understood is likely, not sure.
            known = [v for v in known if v.known]
            return join_all(known).but(sure=min(Confidence.LIKELY, first.sure))
        return join_all(values) if first is not None else self._used_as(name)

    def _used_as(self, name: str) -> Value:
        """What the methods that the class calls on `self.name` prove."""
        names: set[str] = set()
        for cls in self.project_mro:
            for method in cls.methods.values():
                if method.self_name:
                    names |= method.used_methods.get(f"{method.self_name}.{name}", set())
        kind = duck_kind(names)
        if kind in (Kind.UNKNOWN, Kind.TENSOR):
            return UNKNOWN
        return Value(kind, sure=Confidence.LIKELY, ident=(self, name))

    def registered_as(self, name: str) -> str:
        """ "buffer", "parameter" or "module" if the class registers the name by a call, else ""."""
        for cls in self.project_mro:
            for _, stmt, _ in cls.stores.get(name, ()):
                if isinstance(stmt, ast.Call) and isinstance(stmt.func, ast.Attribute):
                    return REGISTERING[stmt.func.attr]
        return ""

    def _stored(self, method: FunctionInfo | None, stmt: ast.AST, expr: ast.expr | None) -> Value:
        if isinstance(stmt, ast.Call):
            how = REGISTERING[stmt.func.attr] if isinstance(stmt.func, ast.Attribute) else "setattr"
            value = self.model.value(expr) if expr is not None else UNKNOWN
            if how == "buffer":
                return value.but(kind=Kind.TENSOR, role="buffer", ident=(self, stmt)) if (
                    value.kind in (Kind.TENSOR, Kind.UNKNOWN)) else value
            return value
        if isinstance(stmt, (ast.AnnAssign,)) and stmt.value is None:
            return self.model.annotation_value(stmt.annotation, stmt)
        if isinstance(stmt, (ast.AugAssign, ast.For, ast.With)) or expr is None:
            return UNKNOWN
        value = self.model.value(expr)
        if not value.known and isinstance(stmt, ast.AnnAssign):
            return self.model.annotation_value(stmt.annotation, stmt)
        return value

    def instance(self, ident: object = None, site: ast.AST | None = None) -> Value:
        """A value that stands for an instance."""
        return Value(self.kind, name=self.dotted, cls=self, ident=ident or self, site=site)


def is_accessor(decorator: ast.expr) -> bool:
    """`@name.setter` adds to the property of that name; reading it still calls the getter."""
    return isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "deleter") and isinstance(
        decorator.value, ast.Name)


def super_init_calls(init: FunctionInfo) -> list[ast.Call]:
    """Calls of a parent's constructor in a body: `super().__init__(...)`, `Base.__init__(self, ...)`."""
    return [call for call in init.calls if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"]


def runs_module_init(cls: ClassInfo, init: FunctionInfo, depth: int = 0) -> bool:
    """Whether a constructor gets to `Module.__init__`, itself or through methods; True where that is unclear."""
    for call in init.calls:
        match call.func:
            case ast.Attribute(value=receiver, attr="__init__"):
                if _leads_to_module(cls, init, receiver):
                    return True
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == init.self_name and depth < 3:
                helper = cls.method(name)
                if helper is not None and helper is not init and runs_module_init(cls, helper, depth + 1):
                    return True
    return False


def _leads_to_module(cls: ClassInfo, init: FunctionInfo, receiver: ast.expr) -> bool:
    """Whether `receiver.__init__(...)` runs `Module.__init__` for an instance of the class."""
    if isinstance(receiver, ast.Call):  # super()
        for base in (init.cls or cls).bases:
            if not isinstance(base, ClassInfo) or base.is_module:
                return True
            own = base.method("__init__")
            if own is not None:
                return bool(super_init_calls(own)) or bool(base.outside and not base.fully_known)
        return True
    named = init.model.class_named(receiver)
    if named is None or named.is_module or not named.fully_known:
        return True
    own = named.method("__init__")
    return own is None or any(isinstance(c.func, ast.Attribute) and isinstance(c.func.value, ast.Call)
                              for c in super_init_calls(own))


def class_kind(dotted: str) -> Kind:
    """What instances of an outside class are; UNKNOWN when nothing is known of it."""
    if not dotted:
        return Kind.UNKNOWN
    return _class_kind(knowledge.canonical(dotted))


@functools.cache
def _class_kind(name: str) -> Kind:
    if knowledge.module_class(name) is not None:
        return Kind.MODULE
    own = knowledge.torch_class(name)
    if own is not None:
        return TORCH_KINDS.get(own.what, Kind.UNKNOWN)
    if name in OTHER_KINDS:
        return OTHER_KINDS[name]
    other = knowledge.third_party_class(name)
    return TORCH_KINDS.get(other.what, Kind.UNKNOWN) if other is not None else Kind.UNKNOWN


# What the tables call a class -> what its instances are.
TORCH_KINDS = {
    "module": Kind.MODULE, "optimizer": Kind.OPTIMIZER, "scheduler": Kind.SCHEDULER, "dataset": Kind.DATASET,
    "sampler": Kind.SAMPLER, "loader": Kind.LOADER, "scaler": Kind.SCALER, "tensor": Kind.TENSOR,
    "parameter": Kind.TENSOR, "buffer": Kind.TENSOR, "device": Kind.DEVICE, "dtype_class": Kind.DTYPE,
    "size": Kind.SIZE, "generator": Kind.RNG, "handle": Kind.HANDLE, "ctx": Kind.CTX,
}
OTHER_KINDS = {
    "numpy.random.Generator": Kind.RNG, "numpy.random.RandomState": Kind.RNG, "random.Random": Kind.RNG,
    "numpy.ndarray": Kind.NDARRAY,
}

__all__ = ["FUNCTION", "MODULE", "ClassInfo", "class_kind", "runs_module_init", "super_init_calls"]
