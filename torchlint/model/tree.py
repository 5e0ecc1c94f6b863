"""One walk over a file's tree: parents, nodes by type, and the place of every node."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from torchlint.project import FileIndex, Scope, collect_bindings, has_captures, target_names

Node = TypeVar("Node", bound=ast.AST)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BLOCKS = {
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.For, ast.AsyncFor, ast.While, ast.With,
    ast.AsyncWith, ast.If, ast.Try, ast.ExceptHandler, getattr(ast, "TryStar", ast.Try),
}
# Fields without child nodes that anybody asks for: contexts, operators, constants.
SKIPPED_FIELDS = {"ctx", "op", "ops", "kind", "type_comment", "type_ignores", "id", "attr", "n", "s", "level"}
FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Place:
    """Where a node stands. One object is shared by all nodes of the same place.

    `withs` are the context expressions of enclosing `with` statements of the same function,
    `guards` the enclosing `if` statements (and conditional loops' tests) with the branch taken.
    """

    function: ast.AST | None = None
    class_: ast.ClassDef | None = None  # the innermost class around the innermost function or node
    loops: tuple[ast.AST, ...] = ()
    withs: tuple[ast.expr, ...] = ()
    guards: tuple[tuple[ast.AST, bool], ...] = ()
    tries: tuple[ast.AST, ...] = ()
    handler: bool = False
    main_guard: bool = False
    type_checking: bool = False

    def excludes(self, other: Place) -> bool:
        """Whether the two are in different arms of one `if`, so that never both run in one pass."""
        mine = dict(self.guards)
        return any(test in mine and mine[test] is not arm for test, arm in other.guards)


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes that anybody asks for, last first."""
    kind = type(node)
    fields = FIELDS.get(kind)
    if fields is None:
        fields = FIELDS[kind] = tuple(f for f in node._fields if f not in SKIPPED_FIELDS)[::-1]
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found.extend(child for child in reversed(value) if isinstance(child, ast.AST))
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


class Tree:
    """The walked file. Nothing here knows about torch."""

    def __init__(self, tree: ast.Module, index: FileIndex) -> None:
        self.tree = tree
        self.index = index
        self.package = index.package
        self.captures = has_captures(index.source.text)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.places: dict[ast.AST, Place] = {}
        self.scopes: dict[ast.AST, Scope] = {}  # scope-making node -> its scope
        self.by_type: dict[type[ast.AST], list[ast.AST]] = {}
        self.order: dict[ast.AST, int] = {}
        self._walk()

    def _walk(self) -> None:
        """Depth first, in source order, with an explicit stack: deep nesting costs no recursion."""
        self.scopes[self.tree] = self.index.scope
        stack: list[tuple[ast.AST, Place]] = [(self.tree, Place())]
        parents, places, by_type, order = self.parents, self.places, self.by_type, self.order
        count = 0
        while stack:
            node, place = stack.pop()
            places[node] = place
            order[node] = count
            count += 1
            kind = type(node)
            known = by_type.get(kind)
            if known is None:
                by_type[kind] = [node]
            else:
                known.append(node)
            inner = self._inner_places(node, place) if kind in BLOCKS else None
            fields = FIELDS.get(kind)
            if fields is None:
                fields = FIELDS[kind] = tuple(f for f in node._fields if f not in SKIPPED_FIELDS)[::-1]
            for name in fields:
                value = getattr(node, name, None)
                if value is None or isinstance(value, str):
                    continue
                where = place if inner is None else inner.get(name, place)
                if isinstance(value, list):
                    for child in reversed(value):
                        if isinstance(child, ast.AST):
                            parents[child] = node
                            stack.append((child, where))
                elif isinstance(value, ast.AST):
                    parents[value] = node
                    stack.append((value, where))

    def _inner_places(self, node: ast.AST, place: Place) -> dict[str, Place]:
        """The places of a node's blocks, by field name, where they differ from the node's own."""
        inner: dict[str, Place] = {}
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function_scope(node)
                holder = self.parents.get(node)
                owner = holder if isinstance(holder, ast.ClassDef) else place.class_
                inner["body"] = Place(function=node, class_=owner)
            case ast.ClassDef(body=body):
                scope = Scope(node, None)
                collect_bindings(body, scope, self.package, self.captures)
                self.scopes[node] = scope
                inner["body"] = Place(function=place.function, class_=node, guards=place.guards)
            case ast.For() | ast.AsyncFor() | ast.While():
                inner["body"] = replace(place, loops=(*place.loops, node))
            case ast.With(items=items) | ast.AsyncWith(items=items):
                inner["body"] = replace(place, withs=place.withs + tuple(i.context_expr for i in items))
            case ast.If(test=test):
                checking = place.type_checking or is_type_checking(test)
                main = place.main_guard or is_main_guard(test)
                inner["body"] = replace(place, guards=(*place.guards, (node, True)),
                                        main_guard=main, type_checking=checking)
                inner["orelse"] = replace(place, guards=(*place.guards, (node, False)))
            case ast.Try():
                inner["body"] = replace(place, tries=(*place.tries, node))
            case ast.ExceptHandler():
                inner["body"] = replace(place, handler=True)
        return inner

    def _function_scope(self, node: ast.AST) -> None:
        scope = Scope(node, None)
        args = node.args  # type: ignore[attr-defined]
        for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if arg is not None:
                scope.bind(arg.arg, arg)
        if not isinstance(node, ast.Lambda):
            collect_bindings(node.body, scope, self.package, self.captures)  # type: ignore[attr-defined]
        self.scopes[node] = scope

    def nodes(self, *types: type[Node]) -> list[Node]:
        """All nodes of the given types, in source order."""
        if len(types) == 1:
            return self.by_type.get(types[0], [])  # type: ignore[return-value]
        found = [node for kind in types for node in self.by_type.get(kind, ())]
        found.sort(key=self.order.__getitem__)
        return found  # type: ignore[return-value]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the nearest outwards."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement around a node (or the node itself)."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def scope_chain(self, node: ast.AST) -> Iterator[Scope]:
        """The scopes in which a name at `node` is looked up, innermost first (Python's rule for classes)."""
        first = True
        child: ast.AST = node
        if isinstance(node, COMPREHENSIONS):
            yield comprehension_scope(node)
        elif node is self.tree:
            yield self.scopes[node]
        for parent in self.ancestors(node):
            if isinstance(parent, COMPREHENSIONS):
                yield comprehension_scope(parent)
            elif parent in self.scopes:
                # Decorators, defaults, bases and annotations belong to the scope around.
                if isinstance(parent, ast.ClassDef):
                    if first and self.places[child].class_ is parent:
                        yield self.scopes[parent]
                elif isinstance(parent, ast.Module) or self.places[child].function is parent:
                    yield self.scopes[parent]
                    first = False
            child = parent


def comprehension_scope(node: ast.AST) -> Scope:
    """The names that a comprehension's targets bind."""
    scope = Scope(node, None)
    for generator in node.generators:  # type: ignore[attr-defined]
        for name in target_names(generator.target):
            scope.bind(name, generator)
    return scope


def is_main_guard(test: ast.expr) -> bool:
    """Whether a test is `__name__ == "__main__"`."""
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
    return False


def is_type_checking(test: ast.expr) -> bool:
    """Whether a test is `TYPE_CHECKING`."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def attribute_targets(
    stmt: ast.AST, target: ast.AST, value: ast.expr | None
) -> Iterator[tuple[ast.AST, ast.Attribute, ast.expr | None]]:
    """The attributes that a target binds, each with the value if that is spelled."""
    match target:
        case ast.Attribute():
            yield stmt, target, value
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(elts) else None
            for position, elt in enumerate(elts):
                yield from attribute_targets(stmt, elt, parts[position] if parts else None)
        case ast.Starred(value=inner):
            yield from attribute_targets(stmt, inner, None)


def chain(expr: ast.AST) -> str:
    """`a.b.c` of a name and its attributes; "" of anything else."""
    match expr:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            inner = chain(value)
            return f"{inner}.{attr}" if inner else ""
    return ""
