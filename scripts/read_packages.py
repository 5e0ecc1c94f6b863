"""Read which classes of other packages derive from torch's, and write torchlint's table about them.

    python scripts/read_packages.py FOLDER [--output FILE]

FOLDER holds unpacked wheels, one folder each (`pip install --no-deps --target FOLDER/name name`). Only sources are
read; nothing is imported. Classes of one package refer to those of the others, so read all of them in one run.
"""
from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from torchlint import knowledge  # noqa: E402
from torchlint.knowledge import third_party  # noqa: E402

KINDS = ("module", "optimizer", "scheduler", "dataset", "sampler", "loader", "function")
SKIPPED = ("/tests/", "/test/", "/testing/", "/examples/", "/benchmarks/", "dummy_", "/build/")


@dataclass
class Class:
    """A class definition: base classes as written in full, and the methods of its body."""

    path: str
    bases: list[str]
    methods: set[str]


@dataclass
class Module:
    """Names of one source file."""

    name: str
    classes: dict[str, Class] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those under `if` and `try` included."""
    for node in body:
        match node:
            case ast.If(body=inner, orelse=other):
                yield from statements([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other):
                yield from statements([*inner, *other, *(each for h in handlers for each in h.body)])
            case _:
                yield node


def dotted(node: ast.expr) -> str:
    """A name as written; type arguments and calls of `with_metaclass` are looked through."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case ast.Subscript(value=value):
            return dotted(value)
    return ""


def read(path: Path, name: str) -> Module:
    """The names of a source file."""
    found = Module(name)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8", errors="replace")).body):
        match node:
            case ast.Import(names=names):
                for each in names:
                    found.imports[each.asname or each.name.partition(".")[0]] = (
                        each.name if each.asname else each.name.partition(".")[0])
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                source = ".".join([*parts, *([module] if module else [])])
                for each in names:
                    if each.name == "*":
                        found.stars.append(source)
                    else:
                        found.imports[each.asname or each.name] = f"{source}.{each.name}"
            case ast.ClassDef(name=own, bases=bases, body=body):
                methods = {item.name for item in body if isinstance(item, ast.FunctionDef)}
                found.classes.setdefault(own, Class(f"{name}.{own}", [dotted(base) for base in bases], methods))
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if dotted(value):
                found.imports.setdefault(target, dotted(value))
    return found


class Graph:
    """All classes of all packages."""

    def __init__(self, folder: Path) -> None:
        self.modules: dict[str, Module] = {}
        self.versions: dict[str, str] = {}
        for package in sorted(folder.glob("*/*/__init__.py")):
            if not any(word in package.name for word in ("test", "build")):
                self.add(package.parent)

    def add(self, package: Path) -> None:
        """Read one package, with the version that the folder beside it names."""
        info = sorted(package.parent.glob("*.dist-info"))
        written = re.search(r'^__version__ = "(.+)"', (package / "__init__.py").read_text(encoding="utf-8"), re.M)
        if not info and written is None:
            return
        version = info[0].name.removesuffix(".dist-info").rpartition("-")[2] if info else str(written and written[1])
        self.versions[package.name] = version
        for path in sorted(package.rglob("*.py")):
            relative = path.relative_to(package.parent).with_suffix("")
            if any(word in f"/{relative.as_posix()}/" for word in SKIPPED):
                continue
            name = ".".join(relative.parts).removesuffix(".__init__")
            try:
                self.modules[name] = read(path, name)
            except SyntaxError:
                continue

    def find(self, path: str, depth: int = 0) -> Class | str | None:
        """The class that a dotted path means, or a path outside these packages."""
        module, _, rest = path.rpartition(".")
        rests = [rest]
        while module and module not in self.modules:
            module, _, rest = module.rpartition(".")
            rests.insert(0, rest)
        if not module:
            return path
        return self.member(self.modules[module], rests, depth) if depth < 20 else None

    def member(self, module: Module, names: list[str], depth: int) -> Class | str | None:
        """A name of a module: defined there, imported, or through a star."""
        first, rest = names[0], names[1:]
        if first in module.classes and not rest:
            return module.classes[first]
        target = module.imports.get(first)
        if target is not None:
            head = target.partition(".")[0]
            if "." not in target and target != first and (head in module.classes or head in module.imports):
                return self.member(module, [target, *rest], depth + 1) if depth < 20 else None  # `Old = New`
            if "." in target and head in module.imports and head not in self.versions and head != first:
                target = module.imports[head] + target[len(head):]
            return self.find(".".join([target, *rest]), depth + 1)
        for star in module.stars:
            if star in self.modules:
                found = self.member(self.modules[star], names, depth + 1) if depth < 20 else None
                if found is not None:
                    return found
        return None

    def base(self, cls: Class, written: str) -> Class | str | None:
        """What a base class as written in a class statement is."""
        module = self.modules[cls.path.rpartition(".")[0]]
        return self.member(module, written.split("."), 0) if written else None


def classify(graph: Graph) -> dict[str, tuple[str, bool]]:
    """Class path -> (what it is, whether a class outside torch defines its `__call__`)."""

    @functools.cache
    def of(path: str) -> tuple[str, bool]:
        found = graph.find(path)
        if isinstance(found, str):
            return outside(found), False
        if found is None:
            return "", False
        what, call = "", "__call__" in found.methods
        for written in found.bases:
            base = graph.base(found, written)
            if base is None or (isinstance(base, Class) and base.path == found.path):
                continue
            kind, called = of(base.path) if isinstance(base, Class) else (outside(base), False)
            what = what or kind
            call |= called
        return what, call

    sys.setrecursionlimit(10_000)
    return {cls.path: of(cls.path) for module in graph.modules.values() for cls in module.classes.values()}


def outside(path: str) -> str:
    """What torch's classes are, and those of packages that are not among the read ones."""
    name = knowledge.canonical(path)
    if knowledge.module_class(name) is not None:
        return "module"
    own = knowledge.torch_class(name)
    if own is not None and own.what in KINDS:
        return own.what
    known = third_party.by_hand(path)
    return known if known in KINDS else ""


def table(graph: Graph) -> dict[str, dict[str, str]]:
    """package -> kind ("module", "module call", ...) -> names; "=" before a name that only holds for its full path."""
    classes = classify(graph)
    kinds: dict[tuple[str, str], set[tuple[str, bool]]] = defaultdict(set)
    for path, kind in classes.items():
        kinds[path.partition(".")[0], path.rpartition(".")[2]].add(kind)
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, (what, call) in classes.items():
        if not what:
            continue
        package, name = path.partition(".")[0], path.rpartition(".")[2]
        agreed = len(kinds[package, name]) == 1
        found[package][f"{what} call" if call else what].add(name if agreed else "=" + path.partition(".")[2])
    return {package: {"version": graph.versions[package],
                      **{kind: " ".join(sorted(names)) for kind, names in sorted(by_kind.items())}}
            for package, by_kind in sorted(found.items())}


def main() -> None:
    """Read all packages of the folder and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "torchlint" / "knowledge" / "packages.json")
    options = parser.parse_args()
    entries = table(Graph(options.folder))
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in entries.items()]
    options.output.write_text('{\n"entries": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    for package, kinds in entries.items():
        print(package, {kind: names if kind == "version" else len(names.split()) for kind, names in kinds.items()})


if __name__ == "__main__":
    main()
