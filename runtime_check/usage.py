"""How a function uses its parameters, read off its source: the strongest hint at what to pass.

`usage(function, name)` follows the parameter through `self.x = x`, loops over it, and calls of other
functions and classes that can be resolved, a few levels deep.
"""
from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runtime_check.outline import outline
from runtime_check.statements import statements_in

DEPTH = 3
FOLLOWED = 60  # variables of functions that are looked at for one parameter
TENSOR_ATTRIBUTES = frozenset({
    "shape", "size", "dim", "ndim", "device", "dtype", "view", "reshape", "permute", "transpose", "unsqueeze",
    "squeeze", "flatten", "float", "long", "detach", "mean", "sum", "chunk", "split", "contiguous", "new_zeros",
    "new_ones", "requires_grad", "masked_fill", "softmax", "matmul", "expand", "repeat", "clone", "numel",
    "unbind", "norm", "pow", "exp", "log", "abs", "sqrt", "clamp", "T", "mT", "is_cuda", "data", "is_floating_point",
    "unfold", "t", "cumsum", "max", "min", "argmax", "sigmoid", "tanh", "bool", "int", "half", "double", "tolist",
    "item", "all", "any", "type_as", "type", "new", "new_full", "scatter_", "gather", "index_select", "narrow",
})
STRING_METHODS = frozenset({"lower", "upper", "startswith", "endswith", "split", "strip", "format", "replace"})


@dataclass
class Usage:
    """What happens to one value."""

    attributes: dict[str, Usage] = field(default_factory=dict)
    methods: set[str] = field(default_factory=set)  # attributes that are called
    calls: list[int] = field(default_factory=list)  # numbers of arguments in calls of the value
    called_early: bool = False  # ... already in the constructor
    element: Usage | None = None  # the value is iterated over or indexed
    unpacked: int = 0  # `a, b = value`
    parts: tuple[str, ...] = ()  # the names that it is unpacked to
    keys: dict[str, Usage] = field(default_factory=dict)  # value["key"]
    equals: list[Any] = field(default_factory=list)  # constants that it is compared with
    types: set[str] = field(default_factory=set)  # names in isinstance tests
    roles: list[tuple[Callable[..., Any], str]] = field(default_factory=list)  # (callee, its parameter)
    arithmetic: bool = False
    length: bool = False  # len(value)
    ranged: bool = False  # range(value)
    truth: bool = False  # tested as a condition
    can_be_none: bool = False
    splatted: bool = False  # *value or **value
    shape_unpacked: int = 0  # `b, c, h, w = value.shape`: the rank
    layers: list[str] = field(default_factory=list)  # attributes of self that are called with the value first
    guarded: set[str] = field(default_factory=set)  # attributes only read by getattr with default, or hasattr
    patterns: list[str] = field(default_factory=list)  # einops patterns applied to the value
    subscripts: list[str] = field(default_factory=list)  # its part of einsum equations

    @property
    def is_string(self) -> bool:
        return bool(self.methods & STRING_METHODS) or any(isinstance(item, str) for item in self.equals)

    @property
    def is_tensor(self) -> bool:
        """Attributes that only a tensor has, or a shape that is unpacked."""
        touched = self.attributes.keys() | self.methods
        return bool(self.shape_unpacked or (touched & TENSOR_ATTRIBUTES and not touched - TENSOR_ATTRIBUTES))

    @property
    def is_object(self) -> bool:
        """Attributes that no tensor has."""
        touched = self.attributes.keys() | self.methods
        return bool(touched - TENSOR_ATTRIBUTES - STRING_METHODS - {"items", "keys", "get"})


@dataclass
class Indexed:
    """A function's tree with what is asked of it again and again."""

    tree: ast.AST
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    loads: dict[str, list[ast.expr]] = field(default_factory=dict)  # "x" and "self.x" to their readings

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.loads.setdefault(name, []).append(node)
                case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Load()):
                    self.loads.setdefault(f"self.{attr}", []).append(node)
        for found in self.loads.values():  # as they stand in the text, however deep: inputs are made in this order
            found.sort(key=lambda node: (node.lineno, node.col_offset))


_files: dict[str, tuple[list[str], dict[tuple[str, int], ast.AST]]] = {}
_indexed: dict[types.CodeType, Indexed | None] = {}


def _functions(path: str) -> dict[tuple[str, int], ast.AST]:
    """The functions of a file by name and first line (of their decorators), in the text that it has now."""
    lines = linecache.getlines(path)
    if path not in _files or _files[path][0] is not lines:
        found: dict[tuple[str, int], ast.AST] = {}
        try:
            tree = outline("".join(lines), path).tree
        except (SyntaxError, ValueError, RecursionError):
            tree = ast.Module([], [])
        for node in statements_in(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                found[node.name, first] = node
                found.setdefault((node.name, node.lineno), node)  # its decorators may have been left out
        _files[path] = lines, found
    return _files[path][1]


def index_of(code: types.CodeType) -> Indexed | None:
    """The tree of the function that a code object was compiled from, or None if its source is not known."""
    if code not in _indexed:
        tree = _functions(code.co_filename).get((code.co_name, code.co_firstlineno))
        _indexed[code] = Indexed(tree) if tree is not None else None
    return _indexed[code]


def source_tree(function: Any) -> ast.AST | None:
    """The syntax tree of a function or code object with the file's line numbers, or None."""
    code = function if isinstance(function, types.CodeType) else getattr(plain(function), "__code__", None)
    found = index_of(code) if code is not None else None
    return found.tree if found is not None else None


def plain(function: Any) -> Any:
    """The function behind methods and wrappers."""
    return inspect.unwrap(getattr(function, "__func__", function))


def usage(function: Callable[..., Any], name: str, owner: type | None = None, depth: int = DEPTH) -> Usage:
    """How `function` (a plain function or method of `owner`) uses its parameter `name`."""
    result = Usage()
    Reader(function, owner, depth).follow(name, result)
    return result


class Reader:
    """Collects usages in one function."""

    def __init__(self, function: Callable[..., Any], owner: type | None, depth: int,
                 seen: set[tuple[Any, str]] | None = None, early: bool = False) -> None:
        self.function = plain(function)
        code = getattr(self.function, "__code__", None)
        self.index = index_of(code) if code is not None else None
        self.owner, self.depth = owner, depth
        self.seen: set[tuple[Any, str]] = set() if seen is None else seen
        self.early = early or getattr(self.function, "__name__", "") == "__init__"  # runs while constructing

    def follow(self, name: str, into: Usage) -> None:
        """Adds every use of a variable ("x") or attribute ("self.x") to a usage; each is followed once."""
        if self.index is None or (self.function, name) in self.seen or len(self.seen) > FOLLOWED:
            return
        self.seen.add((self.function, name))
        for node in self.index.loads.get(name, ()):
            self._use(node, self.index.parents, into)

    def _use(self, node: ast.expr, parents: dict[ast.AST, ast.AST], into: Usage) -> None:
        parent = parents.get(node)
        match parent:
            case ast.Attribute(attr=attr):
                self._attribute(parent, attr, parents, into)
            case ast.Call(func=func) if func is node:
                into.calls.append(len(parent.args) + len(parent.keywords))
                into.called_early |= self.early
            case ast.Call():
                self._argument(node, parent, parents, into, None)
            case ast.keyword(arg=arg):
                call = parents.get(parent)
                if isinstance(call, ast.Call):
                    self._argument(node, call, parents, into, arg)
            case ast.Starred():
                into.splatted = True
            case ast.Subscript(value=value, slice=index) if value is node:
                self._subscript(parent, index, parents, into)
            case ast.For(iter=source, target=target) | ast.comprehension(iter=source, target=target) if source is node:
                self._iterate(target, into)
            case ast.Assign(value=value, targets=[target]) if value is node:
                self._assigned(target, into)
            case ast.Compare():
                self._compared(node, parent, into)
            case ast.BinOp() | ast.UnaryOp(op=ast.USub()):
                into.arithmetic = True
                into.can_be_none |= isinstance(getattr(parent, "op", None), ast.BitOr)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if test is node:
                into.truth = True
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                into.truth = True

    def _attribute(self, node: ast.Attribute, attr: str, parents: dict[ast.AST, ast.AST], into: Usage) -> None:
        outer = parents.get(node)
        if isinstance(outer, ast.Call) and outer.func is node:
            into.methods.add(attr)
            if attr == "size" and not outer.args:
                self._shape(outer, parents, into)
            if attr in ("permute", "view") and attr == "permute" and len(outer.args) > 1:
                into.shape_unpacked = into.shape_unpacked or len(outer.args)
            return
        if attr == "shape":
            self._shape(node, parents, into)
        inner = into.attributes.setdefault(attr, Usage())
        self._use(node, parents, inner)

    def _shape(self, node: ast.AST, parents: dict[ast.AST, ast.AST], into: Usage) -> None:
        match parents.get(node):
            case ast.Assign(targets=[ast.Tuple(elts=parts)]) if not any(isinstance(p, ast.Starred) for p in parts):
                into.shape_unpacked = len(parts)

    def _subscript(self, node: ast.Subscript, index: ast.expr, parents: dict[ast.AST, ast.AST], into: Usage) -> None:
        match index:
            case ast.Constant(value=str() as key):
                self._use(node, parents, into.keys.setdefault(key, Usage()))
            case ast.Tuple(elts=parts):
                into.attributes.setdefault("shape", Usage())
                into.shape_unpacked = into.shape_unpacked or len(parts) if len(parts) > 2 else into.shape_unpacked
            case _:
                into.element = into.element or Usage()
                self._use(node, parents, into.element)

    def _iterate(self, target: ast.expr, into: Usage) -> None:
        into.element = into.element or Usage()
        match target:
            case ast.Name(id=name):
                self.follow(name, into.element)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                into.element.unpacked, into.element.parts = len(parts), _names(parts)

    def _assigned(self, target: ast.expr, into: Usage) -> None:
        match target:
            case ast.Tuple(elts=parts) if not any(isinstance(item, ast.Starred) for item in parts):
                into.unpacked, into.parts = len(parts), _names(parts)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if self.owner is not None and self.early:
                self._follow_self(attr, into)
            case ast.Name(id=name) if self.depth > 0:
                self.depth -= 1
                self.follow(name, into)
                self.depth += 1

    def _follow_self(self, attr: str, into: Usage) -> None:
        """The parameter lives on as an attribute: look at it in all methods of the class."""
        for _, function in _methods(self.owner):
            if self.depth > 0:
                Reader(function, self.owner, self.depth - 1, self.seen).follow(f"self.{attr}", into)

    def _compared(self, node: ast.expr, parent: ast.Compare, into: Usage) -> None:
        others = [item for item in [parent.left, *parent.comparators] if item is not node]
        for other in others:
            match other:
                case ast.Constant(value=None):
                    into.can_be_none = True
                case ast.Constant(value=value):
                    into.equals.append(value)
                case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                    into.equals += [part.value for part in parts if isinstance(part, ast.Constant)]
                case ast.Dict(keys=keys):
                    into.equals += [key.value for key in keys if isinstance(key, ast.Constant)]
                case _:
                    into.arithmetic = True

    def _argument(self, node: ast.expr, call: ast.Call, parents: dict[ast.AST, ast.AST], into: Usage,
                  keyword: str | None) -> None:
        text = ast.unparse(call.func) if isinstance(call.func, (ast.Name, ast.Attribute)) else ""
        short = text.rpartition(".")[2]
        match short:
            case "len":
                into.length = True
            case "range":
                into.ranged = True
            case "isinstance" if call.args[0] is node:
                into.types |= {item.id if isinstance(item, ast.Name) else getattr(item, "attr", "")
                               for item in ast.walk(call.args[1]) if isinstance(item, (ast.Name, ast.Attribute))}
            case "getattr" | "hasattr" if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                into.guarded.add(str(call.args[1].value))
            case "zip" | "enumerate" | "list" | "tuple" | "sorted" | "reversed" | "sum" | "tqdm" | "track":
                into.element = into.element or Usage()
                self._loop_over(node, call, parents, into)
            case "iter":
                outer = parents.get(call)
                if isinstance(outer, ast.Call) and ast.unparse(outer.func) == "next" and outer.args[:1] == [call]:
                    into.element = into.element or Usage()
                    self._use(outer, parents, into.element)
            case "int" | "float":
                into.arithmetic = True
            case "einsum" if isinstance(call.args[0], ast.Constant) and node in call.args[1:]:
                parts = str(call.args[0].value).partition("->")[0].split(",")
                position = call.args.index(node) - 1
                into.subscripts += [parts[position].strip()] if position < len(parts) else []
            case "rearrange" | "repeat" | "reduce" if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                into.patterns.append(str(call.args[1].value))
            case _:
                if text.startswith("self.") and call.args and call.args[0] is node:
                    into.layers.append(text.removeprefix("self."))
                self._role(node, call, text, keyword, into)

    def _loop_over(self, node: ast.expr, call: ast.Call, parents: dict[ast.AST, ast.AST], into: Usage) -> None:
        outer = parents.get(call)
        match outer:
            case ast.For(target=target) | ast.comprehension(target=target):
                position = call.args.index(node) if node in call.args else 0
                short = ast.unparse(call.func)
                match target:
                    case ast.Tuple(elts=parts) if short == "zip" and position < len(parts):
                        self._iterate(parts[position], into)
                    case ast.Tuple(elts=[_, item]) if short == "enumerate":
                        self._iterate(item, into)
                    case _ if short.endswith(("list", "tuple", "sorted", "reversed", "tqdm", "track")):
                        self._iterate(target, into)
            case ast.Call(func=ast.Name(id="enumerate" | "zip")):  # enumerate(tqdm(loader))
                self._loop_over(call, outer, parents, into)

    def _role(self, node: ast.expr, call: ast.Call, text: str, keyword: str | None, into: Usage) -> None:
        callee = self.resolve(text)
        if callee is None or self.depth <= 0:
            return
        name = keyword or parameter_at(callee, call, node)
        if not name:
            return
        into.roles.append((callee, name))
        function = getattr(callee, "__init__", callee) if isinstance(callee, type) else callee
        if str(getattr(function, "__module__", "")).startswith("torch."):
            return
        owner = callee if isinstance(callee, type) else self.owner if text.startswith(("self.", "super")) else None
        helper = owner is self.owner and self.early
        Reader(function, owner, self.depth - 1, self.seen, helper).follow(name, into)

    def resolve(self, text: str) -> Any:
        """The object that a dotted name means in this function, or None."""
        if text.startswith("self.") and self.owner is not None:
            value = getattr(self.owner, text.removeprefix("self."), None)
            return value if callable(value) else None
        if text.startswith("super(") and text.endswith(".__init__"):
            return self._parent_init()
        first, *rest = text.split(".")
        try:
            value = self.function.__globals__[first]
            for part in rest:
                value = getattr(value, part)
        except Exception:
            return None
        return value if callable(value) else None

    def _parent_init(self) -> Any:
        if self.owner is None:
            return None
        for base in self.owner.__mro__[1:]:
            if "__init__" in vars(base):
                return vars(base)["__init__"]
        return None


def _names(parts: list[ast.expr]) -> tuple[str, ...]:
    return tuple(item.id if isinstance(item, ast.Name) else "" for item in parts)


def _methods(owner: type | None) -> Iterator[tuple[str, Callable[..., Any]]]:
    for cls in owner.__mro__ if owner is not None else ():
        if cls.__module__.startswith("torch."):
            return
        for name, value in vars(cls).items():
            if inspect.isfunction(value):
                yield name, value


def parameter_at(callee: Any, call: ast.Call, node: ast.expr) -> str:
    """The parameter of `callee` that a positional argument fills, or ""."""
    if node not in call.args:
        return ""
    try:
        names = list(inspect.signature(callee).parameters)
    except (TypeError, ValueError):
        return ""
    if not isinstance(callee, type) and names[:1] == ["self"]:
        names = names[1:]
    position = call.args.index(node)
    return names[position] if position < len(names) else ""
