"""What a statement binds, reads and changes: the facts that loading on demand and slicing need.

Pure functions over `ast`; nothing here runs code or knows about torch.
"""
from __future__ import annotations
import __future__

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Methods that make a class without a known base look like a Module.
MODULE_METHODS = frozenset({"forward", "training_step"})
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef

# Methods that prepare the object they are called on. A bare call of one of these belongs to the
# object's definition; a bare call of anything else (fit, run, step) is work, not definition.
PREPARES = frozenset({
    "append", "add", "update", "extend", "insert", "setdefault", "add_argument", "set_defaults",
    "add_subparsers", "add_module", "register", "register_buffer", "register_parameter", "setLevel",
    "addHandler", "to", "eval", "train", "cuda", "cpu", "half", "double", "float", "apply",
    "load_state_dict", "seed", "manual_seed", "requires_grad_", "init_weights", "reset_parameters",
    "normal_", "uniform_", "zero_", "fill_", "copy_", "merge_from_file", "merge_from_list", "freeze",
    "compile",
})


DOCUMENTS = re.compile(r"^[\w.]*docstring\w*(\(|$)")


@dataclass(frozen=True)
class Step:
    """One statement that may be run on its own."""

    index: int
    node: ast.stmt
    binds: frozenset[str]
    touches: frozenset[str]  # names bound elsewhere whose object this statement prepares
    main: bool = False  # inside `if __name__ == "__main__":`


def without_docs(tree: ast.Module, text: str) -> ast.Module:
    """The tree without decorators that only write documentation: making it can take longer than all the rest."""
    for node in statements_in(tree) if "docstring" in text else ():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.decorator_list:
            node.decorator_list = [item for item in node.decorator_list if not DOCUMENTS.search(ast.unparse(item))]
    return tree


def statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """The statement and all statements in it, however deep; expressions are not entered."""
    work = [node]
    while work:
        item = work.pop()
        if isinstance(item, ast.stmt):
            yield item
        for name in BLOCKS.get(type(item), ()):
            work.extend(getattr(item, name))


#: Where nodes that hold statements keep them.
BLOCKS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(name for name in ("body", "orelse", "finalbody", "handlers", "cases") if name in kind._fields)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, (ast.stmt, ast.ExceptHandler, ast.match_case, ast.Module))
}


def is_for_checkers(node: ast.stmt, name: str) -> bool:
    """Whether a statement is `if TYPE_CHECKING:` that gives a name to type checkers alone."""
    match node:
        case ast.If(test=ast.Name(id=flag) | ast.Attribute(attr=flag), orelse=other) if flag == "TYPE_CHECKING":
            return not any(name in bound(item) for item in other)
    return False


def is_patch(node: ast.stmt) -> bool:
    """Whether a statement sets an attribute of something inside an imported module: `logging.Logger.once = once`."""
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Attribute())]):
            return True
    return False


def is_main_guard(node: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":` (either order)."""
    match node:
        case ast.If(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return {_text(left), _text(right)} == {"__name__", "__main__"}
    return False


def _text(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=str() as value):
            return value
    return ""


def steps(tree: ast.Module) -> list[Step]:
    """The top-level statements in order; those of the `__main__` block follow in their place, marked."""
    found: list[Step] = []
    for node in tree.body:
        inner = node.body if is_main_guard(node) and isinstance(node, ast.If) else [node]
        for part in inner:
            names, changed = frozenset(bound(part)), frozenset(touched(part))
            found.append(Step(len(found), part, names, changed, part is not node))
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what runs when it runs: function, lambda and class bodies are not entered.

    Decorators, defaults, annotations and bases of a nested definition do run and are walked.
    """
    work = [node]
    while work:
        item = work.pop()
        yield item
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                work.extend(item.decorator_list)
                work.append(item.args)
                work.extend([item.returns] if item.returns else [])
            case ast.Lambda():
                work.append(item.args)
            case ast.ClassDef():
                work.extend([*item.decorator_list, *item.bases, *item.keywords])
            case _:
                work.extend(ast.iter_child_nodes(item))


def bound(node: ast.AST) -> set[str]:
    """Names that running `node` binds in its own scope."""
    names: set[str] = set()
    inner: set[int] = set()  # targets of comprehensions stay inside them
    nodes = list(walk(node))
    for item in nodes:
        match item:
            case ast.comprehension():
                inner.update(id(part) for part in ast.walk(item.target))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name="*"):
                pass
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.partition(".")[0])
            case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                names.add(name)
            case ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
                names.add(name)
    for item in nodes:
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) and id(item) not in inner:
            names.add(item.id)
    return names


def read(node: ast.AST, deep: bool = True) -> set[str]:
    """Names that `node` loads; with `deep` also those that the functions defined in it load."""
    nodes = ast.walk(node) if deep else walk(node)
    return {item.id for item in nodes if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}


def class_body_reads(node: ast.AST) -> set[str]:
    """Names that class bodies anywhere in `node` load directly.

    CPython looks these up without `__missing__` of a dict subclass, so they must be present before.
    """
    names: set[str] = set()
    for item in statements_in(node):
        if isinstance(item, ast.ClassDef):
            for part in item.body:
                names |= read(part, deep=False)
    return names


def root(node: ast.expr) -> str:
    """The name that an attribute, subscript or call chain starts from, or ""."""
    while True:
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
                node = value
            case ast.Call(func=ast.Name(id="enumerate" | "list" | "zip" | "reversed"), args=[first, *_]):
                node = first  # enumerate(net.layers), list(net.parameters())
            case ast.Call(func=func):
                node = func
            case ast.Name(id=name):
                return name
            case _:
                return ""


def touched(node: ast.stmt) -> set[str]:
    """Names whose object `node` prepares without binding the name: `cfg.lr = 1`, `items.append(2)`."""
    match node:
        case ast.Assign(targets=targets):
            return _attribute_roots(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return _attribute_roots([target])
        case ast.Delete(targets=targets):
            return _attribute_roots(targets)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=attr), args=args)):
            if attr in PREPARES or attr.startswith(("register_", "add_", "set_")):
                return {root(value)} - {""}
            if attr.endswith("_") and not attr.startswith("_"):  # x.mul_(3), nn.init.normal_(net.weight)
                return {root(value), *(root(item) for item in args[:1])} - {""}
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            return {root(item) for item in decorators} - {""}  # `@registry.register("conv")`
        case ast.For(body=body) | ast.With(body=body):
            inner = [touched(part) for part in body]
            if all(inner):  # every statement of the block prepares something
                start = {root(node.iter)} if isinstance(node, ast.For) else set()
                return (start | set().union(*inner)) - {""} - bound(node)
    return set()


def _attribute_roots(targets: list[ast.expr]) -> set[str]:
    names: set[str] = set()
    for target in targets:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                names |= _attribute_roots(parts)
            case ast.Attribute() | ast.Subscript():
                names.add(root(target))
    return names - {""}


def guarded_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of imports whose failure the file handles itself, other than by raising again."""
    for node in statements_in(tree):
        if isinstance(node, ast.Try) and any(_catches_import_error(item) for item in node.handlers):
            for part in node.body:
                for item in statements_in(part):
                    if isinstance(item, (ast.Import, ast.ImportFrom)):
                        yield from range(item.lineno, (item.end_lineno or item.lineno) + 1)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    names = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
    caught = handler.type is None or any(
        isinstance(item, ast.Name) and item.id in names for item in ast.walk(handler.type)
    )
    return caught and not any(isinstance(item, ast.Raise) for item in handler.body)


def future_flags(tree: ast.Module) -> int:
    """The flags of the compiler that a file asks for with `from __future__ import ...`."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= feature.compiler_flag if feature else 0
    return flags


_LASTING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def lasts(node: ast.stmt) -> bool:
    """Whether a statement defines or imports, be it that it tries to: what it gives is the same in every run."""
    return isinstance(node, _LASTING) or (
        isinstance(node, ast.Try) and any(isinstance(item, _LASTING) for item in statements_in(node)))


def is_star(node: ast.stmt) -> bool:
    """Whether a statement is `from module import *`."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def looks_like_module(node: ast.stmt) -> bool:
    """A class that defines `forward`, or makes `nn.` layers in its constructor."""
    if not isinstance(node, ast.ClassDef):
        return False
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    if methods.keys() & MODULE_METHODS:
        return True
    made = methods.get("__init__")
    return made is not None and any(
        isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "nn"
        for item in ast.walk(made)
    )
