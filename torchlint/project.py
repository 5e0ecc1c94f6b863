"""The project index: what every file imports and defines, so that names resolve across files.

Files are read on demand: a file costs nothing until an import leads to it. Only the top level of a
file is looked at here; bodies belong to `torchlint.model`.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from torchlint.files import Source, UnreadableFile, read_source

T = TypeVar("T")
MAX_HOPS = 24  # re-exports followed before a name is given up
MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
INSTALLED = ("site-packages", "dist-packages")
OUTSIDE = {"torch", "numpy", "torchvision", "torchaudio", "scipy"}


@dataclass(eq=False)
class Scope:
    """The names that a module, class or function binds, each with every binding node in order."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[ast.AST]] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # local name -> absolute dotted origin
    nonlocals: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)

    def bind(self, name: str, node: ast.AST) -> None:
        """Note that `node` binds `name` here."""
        self.bindings.setdefault(name, []).append(node)


@dataclass(frozen=True)
class Symbol:
    """What a dotted name stands for: a definition in the project, or something outside it.

    `node` is a ClassDef, a function definition or the value expression of a single assignment;
    None for a name outside the project, whose `dotted` says all there is to know.
    """

    dotted: str
    index: FileIndex | None = None
    node: ast.AST | None = None


@dataclass(eq=False)
class FileIndex:
    """One file's top level."""

    source: Source
    name: str  # dotted module name as far as the folders say, e.g. "pkg.models.net"
    package: str  # the package that relative imports start from
    scope: Scope
    folder: Path | None = None
    asked: dict[str, Path | None] = field(default_factory=dict)  # modules looked up for it, and where they are
    looked_beside: bool = False  # whether the texts of all files in its folder were looked at

    @property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return self.source.tree


def target_names(target: ast.AST) -> Iterator[str]:
    """Names bound by an assignment target."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            for elt in elts:
                yield from target_names(elt)
        case ast.Starred(value=value):
            yield from target_names(value)


def import_bindings(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    """(local name, absolute dotted origin) of an import statement; the name "*" for a star import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, alias.name
            else:
                top = alias.name.partition(".")[0]
                yield top, top
        return
    base = absolute(node.module or "", node.level, package)
    for alias in node.names:
        yield alias.asname or alias.name, f"{base}.{alias.name}" if base else alias.name


def absolute(module: str, level: int, package: str) -> str:
    """The absolute name of a possibly relative module."""
    if not level:
        return module
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - (level - 1)] if level > 1 else parts
    return ".".join([*kept, module] if module else kept)


def has_captures(text: str) -> bool:
    """Whether expressions or patterns of a file may bind names; few files do, and looking for them costs."""
    return ":=" in text or re.search(r"^[ \t]*match\b", text, re.MULTILINE) is not None


def collect_bindings(statements: Iterable[ast.stmt], scope: Scope, package: str, captures: bool = True) -> None:
    """Record what statements bind in `scope`, through blocks but not into functions or classes."""
    stack = list(statements)[::-1]
    while stack:
        node = stack.pop()
        match node:
            case ast.Import() | ast.ImportFrom():
                for local, origin in import_bindings(node, package):
                    if local == "*":
                        scope.stars.append(origin.removesuffix(".*"))
                    else:
                        scope.bind(local, node)
                        scope.imports[local] = origin
                continue
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                scope.bind(name, node)
                continue
            case ast.Assign(targets=targets):
                for target in targets:
                    for name in target_names(target):
                        scope.bind(name, node)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                for name in target_names(target):
                    scope.bind(name, node)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                for name in target_names(target):
                    scope.bind(name, node)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        for name in target_names(item.optional_vars):
                            scope.bind(name, node)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                scope.nonlocals.update(names)
            case ast.ExceptHandler(name=str(name)):
                scope.bind(name, node)
            case ast.Delete() | ast.Expr() | ast.Return() | ast.Pass():
                pass
        if captures:
            collect_walrus(node, scope)
        stack.extend(block_children(node)[::-1])


def collect_walrus(node: ast.AST, scope: Scope) -> None:
    """Record `name := value` and match captures in a statement's own expressions."""
    stack = [child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.stmt, ast.ExceptHandler))]
    while stack:
        child = stack.pop()
        match child:
            case ast.NamedExpr(target=ast.Name(id=name)):
                scope.bind(name, child)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.bind(name, child)
            case ast.Lambda() | ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                continue
            case ast.stmt():
                continue
        stack.extend(ast.iter_child_nodes(child))


def block_children(node: ast.AST) -> list[ast.stmt]:
    """The statements directly inside a compound statement that share its scope."""
    found: list[ast.stmt] = []
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            for child in block:
                if isinstance(child, ast.match_case):
                    found.extend(child.body)
                else:
                    found.append(child)
    return found


class Project:
    """Finds and indexes the files that imports lead to."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        self.roots = tuple(Path(root) for root in roots)
        self.cache: dict[object, object] = {}  # for what the model derives from indexes
        self._by_path: dict[str, FileIndex | None] = {}
        self._located: dict[tuple[str, Path], Path | None] = {}
        self._dirs: dict[Path, tuple[Path, ...]] = {}

    def session(self, make: Callable[[], T]) -> T:
        """The one object of its kind that all models of this project share, made at first use."""
        return cast(T, self.cache.setdefault(make, make()))

    def add(self, source: Source) -> FileIndex:
        """Index a source that is already in memory; it wins over the file on disk.

        A text that an import has led to before keeps its index, and with it its tree: what is known of other
        files names its nodes. Raises what `source.tree` raises when the text cannot be parsed.
        """
        key = self._key(source.path)
        known = self._by_path.get(key)
        if known is None or known.source.text != source.text:
            known = self._by_path[key] = self._index(source)
        elif known.source is not source:
            source.take(known.tree)
            known.source = source
        return known

    def indexed(self, path: str) -> FileIndex | None:
        """The index of a source that was added, or of a file that an import led to."""
        return self._by_path.get(self._key(path))

    @staticmethod
    def _key(path: str) -> str:
        return path if path.startswith("<") else str(Path(path).absolute())

    def _index(self, source: Source) -> FileIndex:
        folder = None if source.path.startswith("<") else Path(source.path).absolute().parent
        name, package = module_name(source.path)
        scope = Scope(source.tree, None)
        collect_bindings(source.tree.body, scope, package, has_captures(source.text))
        return FileIndex(source, name, package, scope, folder)

    def search_dirs(self, folder: Path) -> tuple[Path, ...]:
        """Where an absolute import in a file of `folder` may start, nearest first."""
        known = self._dirs.get(folder)
        if known is not None:
            return known
        found: list[Path] = []
        here = folder
        for _ in range(8):
            found.append(here)
            if (here / "src").is_dir():
                found.append(here / "src")
            if here.name in INSTALLED or here == here.parent or any((here / m).exists() for m in MARKERS):
                break
            here = here.parent
        found.extend(root for root in self.roots if root not in found)
        self._dirs[folder] = tuple(found)
        return self._dirs[folder]

    def module(self, dotted: str, index: FileIndex) -> FileIndex | None:
        """The index of the project file that `import dotted` reads from the file of `index`."""
        if not dotted or index.folder is None or dotted.partition(".")[0] in OUTSIDE:
            return None
        if dotted not in index.asked:
            index.asked[dotted] = self.locate(dotted, index.folder)
        path = index.asked[dotted]
        return self.file(path) if path is not None else None

    def locate(self, dotted: str, folder: Path) -> Path | None:
        """The file that `import dotted` reads from a file in `folder`, if it belongs to the project."""
        key = (dotted, folder)
        if key not in self._located:
            self._located[key] = self._locate(dotted, folder)
        return self._located[key]

    def _locate(self, dotted: str, folder: Path) -> Path | None:
        parts = dotted.split(".")
        for base in self.search_dirs(folder):
            if base.name in INSTALLED and folder != base and folder.relative_to(base).parts[0] != parts[0]:
                continue  # an installed package sees itself, not its neighbours
            if not (base / parts[0]).is_dir() and not (base / f"{parts[0]}.py").is_file():
                continue
            stem = base.joinpath(*parts)
            for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
                if path.is_file():
                    return path
        return None

    def file(self, path: Path) -> FileIndex | None:
        """The index of a file; None when it cannot be read or parsed (it is reported where it is linted)."""
        key = str(path.absolute())
        if key not in self._by_path:
            self._by_path[key] = None  # a cycle of imports ends here
            try:
                self._by_path[key] = self._index(read_source(path))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                pass
        return self._by_path[key]

    def beside(self, index: FileIndex, limit: int = 200) -> Iterator[tuple[Path, str]]:
        """The Python files in a file's own folder, itself included, with their texts; the first `limit` by name."""
        index.looked_beside = True
        for path in neighbours(index.folder)[:limit]:
            try:
                yield path, read_source(path).text
            except UnreadableFile:
                continue

    def resolve(self, index: FileIndex, dotted: str) -> Symbol:
        """What an absolute dotted name, written in `index`, stands for; re-exports are followed."""
        for _ in range(MAX_HOPS):
            step = self._step(index, dotted)
            if isinstance(step, Symbol):
                return step
            index, dotted = step
        return Symbol(dotted)

    def _step(self, index: FileIndex, dotted: str) -> Symbol | tuple[FileIndex, str]:
        """One hop: a final symbol, or the file and dotted name where the search goes on."""
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            found = self.module(".".join(parts[:cut]), index)
            if found is None:
                continue
            if cut == len(parts):
                return Symbol(dotted, found, found.tree)
            return self.member(found, parts[cut], parts[cut + 1 :], dotted)
        return Symbol(dotted)

    def member(
        self, found: FileIndex, name: str, rest: list[str], dotted: str
    ) -> Symbol | tuple[FileIndex, str]:
        """What `name` (and attributes `rest` of it) means at the top level of `found`."""
        origin = found.scope.imports.get(name)
        nodes = found.scope.bindings.get(name, [])
        if origin is not None and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes):
            return found, ".".join([origin, *rest])
        if not nodes:
            for star in found.scope.stars:
                starred = self.module(star, found)
                if starred is not None and starred is not found:
                    step = self.member(starred, name, rest, "")
                    if not isinstance(step, Symbol) or step.node is not None:
                        return step
            return Symbol(dotted)
        node = nodes[-1]
        full = f"{found.name}.{'.'.join([name, *rest])}"
        for part in rest:
            if not isinstance(node, ast.ClassDef):
                return Symbol(full, found, None)
            inner = [s for s in node.body if getattr(s, "name", None) == part]
            if not inner:
                return Symbol(full, found, None)
            node = inner[-1]
        if isinstance(node, ast.AnnAssign) and len(nodes) == 1:
            return Symbol(full, found, node.value)
        if isinstance(node, ast.Assign) and len(nodes) == 1:
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                return Symbol(full, found, node.value)
            return Symbol(full, found, None)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return Symbol(full, found, node)
        return Symbol(full, found, None)


def neighbours(folder: Path | None) -> list[Path]:
    """The Python files of a folder by name."""
    return sorted(folder.glob("*.py")) if folder is not None else []


def module_name(path: str) -> tuple[str, str]:
    """(dotted module name, package for relative imports) from a path and the `__init__.py` above it."""
    if path.startswith("<"):
        return "__main__", ""
    file = Path(path).absolute()
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    packages: list[str] = []
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        packages.insert(0, folder.name)
        folder = folder.parent
    if not packages:
        # A folder without __init__.py is a namespace package: relative imports still work in it.
        packages = [file.parent.name] if file.parent.name.isidentifier() else []
        return ".".join(parts) or file.parent.name, ".".join(packages)
    return ".".join([*packages, *parts]), ".".join(packages)
