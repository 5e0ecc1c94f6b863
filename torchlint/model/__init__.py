"""The semantic model of one file: what names, values and places mean.

Rules never walk a tree. They loop over `model.nodes(ast.Call)` and ask: `name_of` for the dotted
origin of an expression under any import style, `value` for what it evaluates to at that point,
`place` for where it stands, `flow` for the order of events in a function.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterable, Iterator
from typing import cast

from torchlint import knowledge
from torchlint.files import Source
from torchlint.findings import Confidence, Span
from torchlint.model.annotations import annotation_value
from torchlint.model.classes import ClassInfo
from torchlint.model.events import Event, Flow
from torchlint.model.functions import FunctionInfo
from torchlint.model.interp import analyse
from torchlint.model.passed_on import bound_anew
from torchlint.model.positions import Positions
from torchlint.model.replaced import Replaced
from torchlint.model.session import Session
from torchlint.model.tree import Node, Place, Tree
from torchlint.model.values import NONE, UNKNOWN, Grad, Kind, Value
from torchlint.project import FileIndex, Project, Scope, Symbol
from torchlint.requirements import Configured, inline, newest_in, newest_torch, oldest_in, oldest_torch

__all__ = [
    "NONE",
    "UNKNOWN",
    "ClassInfo",
    "Confidence",
    "Event",
    "FileModel",
    "Flow",
    "FunctionInfo",
    "Grad",
    "Kind",
    "Place",
    "Value",
]

MAX_NESTING = 12  # analyses that wait for one another

BUILTINS = frozenset(dir(builtins))
# Builtins that libraries meant for star imports (torch, numpy, pylab, math) replace.
SHADOWED = frozenset(
    {
        "abs",
        "all",
        "any",
        "bool",
        "complex",
        "divmod",
        "float",
        "int",
        "max",
        "min",
        "pow",
        "round",
        "sum",
        "range",
        "open",
        "set",
        "map",
        "filter",
        "object",
        "str",
        "bytes",
        "hash",
        "input",
        "slice",
    }
)


def is_known(dotted: str) -> bool:
    """Whether torch has something of that canonical name."""
    return (
        knowledge.function(dotted) is not None
        or knowledge.module_class(dotted) is not None
        or knowledge.torch_class(dotted) is not None
    )


def is_placeholder(node: ast.AST) -> bool:
    """`name = None`, as written where an import failed."""
    return (
        isinstance(node, (ast.Assign, ast.AnnAssign))
        and isinstance(node.value, ast.Constant)
        and node.value.value is None
    )


class FileModel:
    """Answers questions about one file; other files of the project are consulted when names lead there."""

    def __init__(self, source: Source, project: Project | None = None) -> None:
        self.source = source
        self.project = project if project is not None else Project()
        self._setup(self.project.add(source))

    @classmethod
    def begin(cls, source: Source, project: Project) -> FileModel:
        """The model of a file that is to be looked at now.

        It is the one that answers about this file have come from before, so that a class is one object
        wherever it is met. Answers given when there was no time left are forgotten.
        """
        session = project.session(Session)
        if session.tired:
            for index in [key for key in project.cache if isinstance(key, FileIndex)]:
                del project.cache[index]
            session.followed.clear()
        session.work = 0
        model = cls.of(project, project.add(source))
        model.source = source
        return model

    @classmethod
    def of(cls, project: Project, index: FileIndex) -> FileModel:
        """The model of an indexed file, made once per project."""
        known = project.cache.get(index)
        if known is None:
            known = cls.__new__(cls)
            known.source = index.source
            known.project = project
            known._setup(index)
        return cast(FileModel, known)

    def _setup(self, index: FileIndex) -> None:
        self.index = index
        self.project.cache[index] = self
        self.tree = index.tree
        self._tree = Tree(self.tree, index)
        self._names: dict[ast.AST, str] = {}
        self._busy_names: set[ast.AST] = set()
        self._symbols: dict[str, Symbol] = {}
        self._classes: dict[ast.AST, ClassInfo] = {}
        self._functions: dict[ast.AST, FunctionInfo] = {}
        self._flows: dict[ast.AST, Flow] = {}
        self._running: dict[ast.AST, Flow] = {}  # being followed; what is known of them so far
        self._anew: dict[ast.AST, frozenset[str]] = {}
        self._positions = Positions(self.source)
        self.session: Session = self.project.session(Session)

    @functools.cached_property
    def torch_version(self) -> str:
        """The torch that the code is for: configured, else the newest that the project requires, else the current."""
        folder = self.index.folder
        required = newest_in(inline(self.source.text)) or (newest_torch(folder) if folder is not None else "")
        return self.project.session(Configured).torch_version or required or knowledge.torch_version()

    @functools.cached_property
    def oldest_torch(self) -> str:
        """The oldest torch that the code is for: configured, else the oldest that the project requires; "" if open."""
        folder = self.index.folder
        required = oldest_in(inline(self.source.text)) or (oldest_torch(folder) if folder is not None else "")
        return self.project.session(Configured).torch_version or required

    # -- the tree -----------------------------------------------------------------------------

    def span(self, node: ast.AST) -> Span:
        """Where a node stands, in characters; a decorated definition starts at its `def` or `class` line."""
        return self._positions.span(node, self._tree.parents)

    def nodes(self, *types: type[Node]) -> list[Node]:
        """All nodes of the given types, in source order."""
        return self._tree.nodes(*types)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node; None for the module."""
        return self._tree.parents.get(node)

    def holds(self, node: ast.AST) -> bool:
        """Whether a node is part of this file."""
        return node in self._tree.places

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the nearest outwards."""
        return self._tree.ancestors(node)

    def has(self, node: ast.AST) -> bool:
        """Whether a node is of this file's tree."""
        return node in self._tree.places

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement around a node (or the node itself)."""
        return self._tree.statement(node)

    def place(self, node: ast.AST) -> Place:
        """Where a node stands: function, class, loops, `with` items, branches."""
        return self._tree.places[node]

    def position(self, node: ast.AST) -> int:
        """The node's number in source order, for comparisons."""
        return self._tree.order[node]

    def scopes(self, node: ast.AST) -> Iterator[Scope]:
        """The scopes in which a name at `node` is looked up, innermost first."""
        return self._tree.scope_chain(node)

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope that a module, class, function or lambda node opens."""
        return self._tree.scopes[node]

    def function(self, node: ast.AST) -> FunctionInfo | None:
        """The function whose body holds the node; None at module or class level."""
        owner = self._tree.places[node].function
        return self.function_info(owner) if owner is not None else None

    def class_of(self, node: ast.AST) -> ClassInfo | None:
        """The innermost class around the node (through methods)."""
        owner = self._tree.places[node].class_
        return self.class_info(owner) if owner is not None else None

    @functools.cached_property
    def classes(self) -> list[ClassInfo]:
        """Every class defined in the file, in source order."""
        return [self.class_info(node) for node in self.nodes(ast.ClassDef)]

    @functools.cached_property
    def functions(self) -> list[FunctionInfo]:
        """Every function and method defined in the file (lambdas left out), in source order."""
        return [self.function_info(node) for node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)]

    @functools.cached_property
    def replaced(self) -> Replaced:
        """What the file's code replaces in classes and in torch from outside."""
        return Replaced(self)

    def class_info(self, node: ast.ClassDef) -> ClassInfo:
        """The ClassInfo of a class definition of this file."""
        if node not in self._classes:
            self._classes[node] = ClassInfo(self, node)
        return self._classes[node]

    def function_info(self, node: ast.AST) -> FunctionInfo:
        """The FunctionInfo of a function definition or lambda of this file."""
        if node not in self._functions:
            self._functions[node] = FunctionInfo(self, node)
        return self._functions[node]

    @functools.cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for call in self.nodes(ast.Call):
            match call.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    found.setdefault(name, []).append(call)
        return found

    def calls_named(self, name: str) -> list[ast.Call]:
        """Calls whose callee's last name is `name`, in source order."""
        return self._calls.get(name, [])

    @functools.cached_property
    def _attributes(self) -> dict[str, list[ast.Attribute]]:
        found: dict[str, list[ast.Attribute]] = {}
        for node in self.nodes(ast.Attribute):
            found.setdefault(node.attr, []).append(node)
        return found

    def attributes_named(self, name: str) -> list[ast.Attribute]:
        """Attribute nodes with that last name, in source order."""
        return self._attributes.get(name, [])

    def uses(self, name: str, scope_node: ast.AST) -> list[ast.Name]:
        """Loads of a local name inside a function or module node, nested functions included, in source order."""
        return [
            n for n in ast.walk(scope_node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        ]

    # -- names --------------------------------------------------------------------------------

    def name_of(self, expr: ast.AST | None) -> str:
        """The canonical dotted origin of a name or attribute chain: `T.zeros` -> `torch.zeros`; "" if unknown.

        Builtins are `builtins.x`, the project's own definitions `module.qualname`.
        """
        if expr is None or not isinstance(expr, (ast.Name, ast.Attribute)):
            return ""
        known = self._names.get(expr)
        if known is None:
            if expr in self._busy_names:
                return ""
            self._busy_names.add(expr)
            known = self._name_of(expr)
            self._busy_names.discard(expr)
            self._names[expr] = known
        return known

    def _name_of(self, expr: ast.Name | ast.Attribute) -> str:
        if isinstance(expr, ast.Attribute):
            base = self.name_of(expr.value)
            return self.canonical(f"{base}.{expr.attr}") if base else ""
        for scope in self.scopes(expr):
            if expr.id in scope.nonlocals:
                continue
            if expr.id in scope.bindings:
                return self._bound_name(expr.id, scope)
        for star in self._tree.scopes[self.tree].stars:
            found = self.canonical(f"{star}.{expr.id}")
            symbol = self._symbols.get(found)
            if is_known(found) or found != f"{star}.{expr.id}" or (symbol is not None and symbol.node is not None):
                return found
        if self._tree.scopes[self.tree].stars and expr.id in SHADOWED:
            return ""
        return f"builtins.{expr.id}" if expr.id in BUILTINS else ""

    def _bound_name(self, name: str, scope: Scope) -> str:
        nodes = scope.bindings[name]
        if len(nodes) > 1:
            # `torch = None` where an import fails stands for the same name.
            nodes = [node for node in nodes if not is_placeholder(node)] or nodes
        if all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes):
            return self.canonical(scope.imports[name])
        if len(nodes) > 1 and not all(
            isinstance(n, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) for n in nodes
        ):
            return ""
        match nodes[-1]:
            case ast.ClassDef() as node:
                return self._defined(self.class_info(node).dotted, node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
                return self._defined(self.function_info(node).dotted, node)
            case (
                ast.Assign(targets=[ast.Name()], value=ast.Name() | ast.Attribute() as value)
                | ast.AnnAssign(target=ast.Name(), value=ast.Name() | ast.Attribute() as value)
            ):
                return self.name_of(value)
            case ast.Import() | ast.ImportFrom():
                return self.canonical(scope.imports[name])
        return ""

    def _defined(self, dotted: str, node: ast.AST) -> str:
        self._symbols.setdefault(dotted, Symbol(dotted, self.index, node))
        return dotted

    def name_at(self, name: str, at: ast.AST) -> str:
        """The dotted origin of a bare name, looked up where a node stands."""
        for scope in self.scopes(at):
            if name in scope.bindings and name not in scope.nonlocals:
                return self._bound_name(name, scope)
        return f"builtins.{name}" if name in BUILTINS else ""

    def canonical(self, dotted: str) -> str:
        """Follow project re-exports, then torch's own aliases."""
        if dotted.startswith("torch."):
            return knowledge.canonical(dotted)
        if dotted in self._symbols:
            return self._symbols[dotted].dotted
        symbol = self.project.resolve(self.index, dotted)
        self._symbols[dotted] = symbol
        self._symbols.setdefault(symbol.dotted, symbol)
        if isinstance(symbol.node, (ast.Name, ast.Attribute)) and symbol.index is not None:
            inner = FileModel.of(self.project, symbol.index).name_of(symbol.node)
            return inner or symbol.dotted
        return knowledge.canonical(symbol.dotted)

    def definition(self, dotted: str) -> tuple[FileModel, ast.AST] | None:
        """The file and node that a dotted project name is defined by; None for outside or unknown names."""
        symbol = self._symbols.get(dotted)
        if symbol is None and dotted and not dotted.startswith(("torch.", "builtins.")):
            symbol = self.project.resolve(self.index, dotted)
            self._symbols[dotted] = symbol
        if symbol is None or symbol.index is None or symbol.node is None:
            return None
        return FileModel.of(self.project, symbol.index), symbol.node

    def class_named(self, expr: ast.AST) -> ClassInfo | None:
        """The project class that a name or attribute chain stands for."""
        found = self.definition(self.name_of(expr))
        if found is not None and isinstance(found[1], ast.ClassDef):
            return found[0].class_info(found[1])
        return None

    class_info_of = class_named

    def function_named(self, expr: ast.AST) -> FunctionInfo | None:
        """The project function that a name or attribute chain stands for."""
        found = self.definition(self.name_of(expr))
        if found is not None and isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return found[0].function_info(found[1])
        return None

    # -- values and flow ----------------------------------------------------------------------

    def flow(self, node: ast.AST | None = None) -> Flow:
        """What happens in a function (or in the module's own code, for None), in order."""
        node = node if node is not None else self.tree
        known, session = self._flows.get(node), self.session
        if known is not None:
            session.reads(node)
            return known
        if session.meets(node):
            return Flow()
        if session.depth >= MAX_NESTING:
            session.cut()
            return Flow()
        with session.nested(node, lambda: self._flows.pop(node, None)):
            self._running[node] = Flow()
            try:
                self._flows[node] = flow = analyse(self, node)
            finally:
                del self._running[node]
        return flow

    def is_followed(self, node: ast.AST) -> bool:
        """Whether the flow of a function is known already."""
        return node in self._flows

    def begins(self, node: ast.AST, flow: Flow) -> None:
        """Note the flow that is being made for a function."""
        if node in self._running:
            self._running[node] = flow

    def is_running(self, node: ast.AST) -> bool:
        """Whether a function is being analysed at the moment."""
        return node in self._running

    def is_anew(self, paths: Iterable[str], loop: ast.For | ast.AsyncFor | ast.While, owner: ast.AST) -> bool:
        """Whether a loop's iterations bind all of these paths before they read them (in the flow of `owner`)."""
        names = self._anew.get(loop)
        if names is None:
            names = self._anew[loop] = bound_anew(self, loop, owner)
        return all(re.split(r"[.\[]", path, maxsplit=1)[0] in names for path in paths)

    def owner(self, node: ast.AST) -> ast.AST:
        """The function or module node in whose flow an expression is evaluated."""
        return self._tree.places[node].function or self.tree

    def value(self, expr: ast.AST) -> Value:
        """What an expression evaluates to where it stands; UNKNOWN if that cannot be told."""
        if expr not in self._tree.places:
            return UNKNOWN
        owner = self.owner(expr)
        if owner in self._running:
            self.session.meets(owner)
            return self._running[owner].values.get(expr, UNKNOWN)
        return self.flow(owner).values.get(expr, UNKNOWN)

    def grad_at(self, node: ast.AST) -> bool | None:
        """Whether gradients are recorded where a statement or expression runs; None if that cannot be told."""
        owner = self.owner(node)
        if owner in self._running:
            return self._lexical_grad(node)
        return self.flow(owner).grad_modes.get(self.statement(node), self._lexical_grad(node))

    def _lexical_grad(self, node: ast.AST) -> bool | None:
        for item in reversed(self.place(node).withs):
            name = self.name_of(item.func) if isinstance(item, ast.Call) else ""
            if name in ("torch.no_grad", "torch.inference_mode"):
                return False
            if name == "torch.enable_grad":
                return True
        function = self.function(node)
        declared = function.declared_grad if function is not None else None
        return True if declared is None else declared

    def annotation_value(self, annotation: ast.expr, at: ast.AST) -> Value:
        """What a type annotation says of a value."""
        return annotation_value(self, annotation)
