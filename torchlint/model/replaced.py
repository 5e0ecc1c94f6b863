"""What may give an attribute or method another value than its class does: subclasses, other code, computed names."""
from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlint.model.tree import FUNCTIONS

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo

TENSOR_PARTS = {"data", "grad", "requires_grad"}  # of whatever tensor, hardly ever of the class at hand


def is_replaced(cls: ClassInfo, name: str) -> bool:
    """Whether what an instance of the class has under a name may not be what the class itself puts there."""
    if any(name.startswith(prefix) for prefix in cls.computed_names):
        return True
    return name in cls.model.replaced.outside or overridden(cls, name)


def overridden(cls: ClassInfo, name: str) -> bool:
    """Whether a subclass in the same file has something of its own under a name."""
    return any(name in sub.methods or name in sub.stores for sub in cls.model.replaced.subclasses(cls))


class Replaced:
    """What the code of one file replaces from outside, and who derives from whom in it."""

    def __init__(self, model: FileModel) -> None:
        self.model = model
        self._subclasses: dict[ClassInfo, tuple[ClassInfo, ...]] = {}

    @functools.cached_property
    def targets(self) -> list[ast.Attribute]:
        """Attributes that are stored anywhere but on the `self` of a method."""
        stores = [node for node in self.model.nodes(ast.Attribute) if isinstance(node.ctx, ast.Store)]
        return [node for node in stores if not self._on_self(node)]

    @functools.cached_property
    def outside(self) -> frozenset[str]:
        """The names of attributes that are stored from outside their class."""
        return frozenset(node.attr for node in self.targets) - TENSOR_PARTS

    @functools.cached_property
    def patched(self) -> frozenset[str]:
        """Dotted names of torch's own functions that the file replaces: `torch.load = patched`."""
        names = (self.model.name_of(node) for node in self.targets if isinstance(node.value, (ast.Name, ast.Attribute)))
        return frozenset(name for name in names if name.startswith("torch."))

    @functools.cached_property
    def _derived(self) -> dict[str, list[ast.ClassDef]]:
        """The classes of the file by the last name of each of their bases."""
        found: dict[str, list[ast.ClassDef]] = {}
        for node in self.model.nodes(ast.ClassDef):
            for base in node.bases:
                base = base.value if isinstance(base, ast.Subscript) else base
                match base:
                    case ast.Name(id=name) | ast.Attribute(attr=name):
                        found.setdefault(name, []).append(node)
        return found

    def subclasses(self, cls: ClassInfo) -> tuple[ClassInfo, ...]:
        """The classes of the file that derive from a class, directly or not."""
        known = self._subclasses.get(cls)
        if known is None:
            known = self._subclasses[cls] = tuple(self._below(cls))
        return known

    def _below(self, cls: ClassInfo) -> Iterator[ClassInfo]:
        seen = {cls.node}
        names = [cls.node.name]
        while names:
            for node in self._derived.get(names.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    names.append(node.name)
                    info = self.model.class_info(node)
                    if cls in info.mro:
                        yield info

    def _on_self(self, node: ast.Attribute) -> bool:
        """Whether the receiver is the instance parameter of the method around it."""
        owner = self.model.place(node).function
        if not isinstance(node.value, ast.Name) or owner is None or not isinstance(owner, FUNCTIONS):
            return False
        return self.model.function_info(owner).self_name == node.value.id


def computed_names(cls: ClassInfo) -> Iterator[str]:
    """How the names begin that methods of a class may bind without spelling them: `setattr(self, f"layer{i}", ...)`."""
    if "__getattribute__" in cls.methods or "__dict__" in cls.stores:
        yield ""
    for method in cls.methods.values():
        me = method.self_name
        for call in method.calls:
            match call:
                case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=owner), name, _]) if owner == me:
                    if not isinstance(name, ast.Constant):
                        yield prefix_of(name)
                case ast.Call(func=ast.Attribute(attr="update", value=ast.Attribute(
                        value=ast.Name(id=owner), attr="__dict__"))) if owner == me:
                    yield ""
                case ast.Call(func=ast.Attribute(attr="update", value=ast.Call(
                        func=ast.Name(id="vars"), args=[ast.Name(id=owner)]))) if owner == me:
                    yield ""


def rebound_names(model: FileModel, owner: ast.AST) -> frozenset[str]:
    """Variables of a function or file that inner functions, and globals that any function, may bind anew."""
    found: set[str] = set()
    for shared in model.nodes(ast.Global):
        if isinstance(owner, ast.Module) or model.place(shared).function is owner:
            found.update(shared.names)
    for borrowed in model.nodes(ast.Nonlocal):
        if owner in model.ancestors(borrowed):
            found.update(borrowed.names)
    return frozenset(found)


def prefix_of(name: ast.expr) -> str:
    """The text that a computed string begins with."""
    match name:
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add()):
            return text
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.partition("%")[0]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.partition("{")[0]
    return ""
