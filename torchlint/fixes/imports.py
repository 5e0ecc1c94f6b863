"""How a file refers to a name of torch, and where an import goes that it lacks."""
from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlint.files import Source
from torchlint.findings import Edit
from torchlint.fixes.import_order import Place, sorted_place, top_of
from torchlint.fixes.layout import Layout, layout
from torchlint.fixes.reorder import spelled
from torchlint.fixes.statements import alone, attached_comments

if TYPE_CHECKING:
    from torchlint.model import FileModel

# Where the module ends and the attribute starts in a dotted name. All are loaded by `import torch`
# (read off sys.modules), so they can be reached as attributes of it.
MODULES = frozenset({
    "torch", "torch.amp", "torch.autograd", "torch.autograd.function", "torch.autograd.functional",
    "torch.autograd.graph", "torch.autograd.profiler", "torch.backends", "torch.backends.cudnn",
    "torch.backends.cuda", "torch.backends.mps", "torch.compiler", "torch.cuda", "torch.cuda.amp",
    "torch.cuda.amp.autocast_mode", "torch.cuda.amp.grad_scaler", "torch.distributed",
    "torch.distributions", "torch.fft", "torch.func", "torch.futures", "torch.hub", "torch.jit",
    "torch.library", "torch.linalg", "torch.mps", "torch.multiprocessing", "torch.nested",
    "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.modules", "torch.nn.parallel",
    "torch.nn.parameter", "torch.nn.utils", "torch.nn.utils.parametrizations",
    "torch.nn.utils.parametrize", "torch.nn.utils.rnn", "torch.optim", "torch.optim.lr_scheduler",
    "torch.optim.swa_utils", "torch.overrides", "torch.profiler", "torch.quasirandom",
    "torch.random", "torch.serialization", "torch.sparse", "torch.special", "torch.testing",
    "torch.types", "torch.utils", "torch.utils.data", "torch.utils.data.distributed",
    "torch.version", "torch.xpu",
})
_APART = frozenset({
    "torch.utils.checkpoint", "torch.utils.tensorboard", "torch.onnx", "torch.utils.cpp_extension",
})


@dataclass(frozen=True)
class Spelled:
    """How to write a name here, and the import statements that must be added for it."""

    text: str
    imports: tuple[str, ...] = ()


def spell(model: FileModel, dotted: str, at: ast.AST) -> Spelled | None:
    """How this file refers to `dotted` ("torch.no_grad") at a node: `torch.no_grad`, `T.no_grad`, `no_grad`.

    The file's own imports are used where they are bound and not hidden at that place; else the result
    names an import to add. None if every way to write it is taken by another meaning.
    """
    module, rest = _split(dotted)
    found: dict[str, int] = {}  # each way to write it, with how much of the name is imported
    for local, origin in visible_imports(model, at):
        for name in {origin, model.canonical(origin)}:
            tail = "" if name == dotted else dotted.removeprefix(name + ".")
            if name != dotted and (tail == dotted or not _reaches(model, origin, module)):
                continue
            text = local + ("." + tail if tail else "")
            found[text] = max(found.get(text, 0), len(name))
    if found:
        usual = _usual(model, found) if len(dotted) not in found.values() else {}
        best = max(found, key=lambda text: (usual.get(text, 0), found[text], -len(text)))
        named = found[best] >= len(module) or usual.get(best) or not _by_name(model, module)
        return Spelled(best) if named else _with_import(model, dotted, module, rest, at) or Spelled(best)
    return _with_import(model, dotted, module, rest, at)


def _usual(model: FileModel, texts: Iterable[str]) -> dict[str, int]:
    """How often the file reaches into the same module in each of these ways."""
    modules = {text.rpartition(".")[0]: text for text in texts}
    counts = Counter(spelled(node.value) for node in model.nodes(ast.Attribute))
    return {text: counts[module] for module, text in modules.items()}


def _split(dotted: str) -> tuple[str, str]:
    """(module, name in it) of a dotted name: ("torch.nn", "Module")."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        if module in MODULES or module in _APART:
            return module, ".".join(parts[cut:])
    return ".".join(parts[:-1]), parts[-1]


def _reaches(model: FileModel, origin: str, module: str) -> bool:
    """Whether a name of `module` can be reached as an attribute of the imported `origin`."""
    if module not in _APART or origin == module:
        return True
    return any(alias.name == module for node in model.nodes(ast.Import) for alias in node.names)


def visible_imports(model: FileModel, at: ast.AST) -> Iterator[tuple[str, str]]:
    """(local name, dotted origin) of every import whose name is bound and not hidden at a node."""
    hidden: set[str] = set()
    for scope in model.scopes(at):
        for name in scope.bindings:
            if name in hidden or name in scope.nonlocals:
                continue
            hidden.add(name)
            nodes = scope.bindings[name]
            imported = all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes)
            if imported and any(_runs_before(model, node, at) for node in nodes):
                yield name, scope.imports[name]


def _runs_before(model: FileModel, node: ast.AST, at: ast.AST) -> bool:
    """Whether an import has surely run when `at` does (code of functions runs after their module's)."""
    where, here = model.place(node), model.place(at)
    if where.type_checking or where.handler:
        return False
    inside = here.function is where.function
    if inside and model.position(node) > model.position(at):
        return False
    guards, loops = (here.guards, here.loops) if inside else ((), ())
    return where.guards == guards[: len(where.guards)] and where.loops == loops[: len(where.loops)]


def taken(model: FileModel, name: str, at: ast.AST) -> bool:
    """Whether `name` means something at a node or anywhere at the top level already."""
    module_scope = model.scope_of(model.tree)
    if name in module_scope.bindings or any(name in scope.bindings for scope in model.scopes(at)):
        return True
    # Someone else's free use of the name (a builtin, a star import) must not change its meaning.
    return any(node.id == name for node in model.nodes(ast.Name))


def _with_import(model: FileModel, dotted: str, module: str, rest: str, at: ast.AST) -> Spelled | None:
    name = rest.partition(".")[0]
    direct = Spelled(rest, (f"from {module} import {name}",)) if rest and not taken(model, name, at) else None
    if direct is not None and _by_name(model, module):
        return direct
    top = dotted.partition(".")[0]
    if module in MODULES and not taken(model, top, at):
        return Spelled(dotted, (f"import {top}",))
    if module not in MODULES and not taken(model, top, at) and not top_package(model, top):
        return Spelled(dotted, (f"import {module}",)) if module.count(".") == 0 else direct
    return direct


def _by_name(model: FileModel, module: str) -> bool:
    """Whether the file takes names from a module one by one."""
    return any(isinstance(node, ast.ImportFrom) and node.module == module and not node.level
               for node in top_imports(model.tree))


def top_package(model: FileModel, top: str) -> bool:
    """Whether the file imports anything of a package at its top level."""
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == top)
        or (isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == top for alias in node.names))
        for node in top_imports(model.tree)
    )


def top_imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports at the top level of a file, outside of `if` and `try`."""
    return [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]


# -- adding them -----------------------------------------------------------------------------


def import_edits(source: Source, statements: Iterable[str]) -> tuple[Edit, ...]:
    """Edits that add import statements ("import torch", "from torch import nn") which the file lacks.

    They stand beside the file's other imports, after docstring and `__future__`, never inside a
    block. A name joins an existing `from` import of the same module.
    """
    edits: list[Edit] = []
    pending: dict[Place, list[str]] = {}
    joined: dict[int, list[str]] = {}
    for text in dict.fromkeys(statements):
        wanted = ast.parse(text).body[0]
        if not isinstance(wanted, (ast.Import, ast.ImportFrom)) or _present(source.tree, wanted):
            continue
        host = _host(source, wanted)
        if host is not None:
            joined.setdefault(source.tree.body.index(host), []).extend(_names(wanted))
        else:
            pending.setdefault(_anchor(source, wanted), []).append(text)
    for index, names in joined.items():
        edits.append(_join(layout(source), source.tree.body[index], names))
    for at, texts in pending.items():
        edits.append(_insertion(source, at, texts))
    return tuple(edits)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in node.names]


def _present(tree: ast.Module, wanted: ast.Import | ast.ImportFrom) -> bool:
    """Whether the file has this import at its top level."""
    for node in top_imports(tree):
        if _origin(node) == _origin(wanted) and set(_names(wanted)) <= set(_names(node)):
            return True
    return False


def _origin(node: ast.Import | ast.ImportFrom) -> tuple[str, int] | None:
    return (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else None


def _leading(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports that the file starts with, up to the first statement that is something else."""
    found: list[ast.Import | ast.ImportFrom] = []
    for index, node in enumerate(tree.body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                found.append(node)
        elif not docstring:
            break
    return found


def _host(source: Source, wanted: ast.stmt) -> ast.ImportFrom | None:
    """The leading `from` import of the same module that has room for one more name."""
    if not isinstance(wanted, ast.ImportFrom):
        return None
    place = layout(source)
    for node in _leading(source.tree):
        if isinstance(node, ast.ImportFrom) and (node.module, node.level) == (wanted.module, wanted.level):
            end = place.range(node)[1]
            length = place.line_end(end) - place.line_start(end) + sum(map(len, _names(wanted))) + 2
            if node.names[0].name != "*" and (place.text[end - 1] == ")" or length <= place.width):
                return node
    return None


def _join(place: Layout, node: ast.stmt, names: list[str]) -> Edit:
    """Add names behind the last one of a `from` import, one per line if they stand so."""
    assert isinstance(node, ast.ImportFrom)
    end = place.range(node)[1]
    start, last = place.range(node.names[-1])
    comma = place.after(last)
    if comma is not None and comma.text == "," and comma.start < end:
        gap = "\n" + place.indent(start) if place.first_on_line(start) else " "
        comment = place.comment_after(comma.end) if gap != " " else None
        at = comment.end if comment is not None else comma.end
        return place.edit(at, at, "".join(f"{gap}{name}," for name in names))
    gap = "\n" + place.indent(start) if place.first_on_line(start) and len(node.names) > 1 else " "
    return place.edit(last, last, "".join(f",{gap}{name}" for name in names))


def _anchor(source: Source, wanted: ast.Import | ast.ImportFrom) -> Place:
    """The line where a new import goes."""
    place = layout(source)
    leading = _leading(source.tree)
    if not leading:
        return Place(_after_head(source))
    if all(alone(place, stmt) for stmt in leading) and (found := sorted_place(place, leading, wanted)) is not None:
        return found
    top = top_of(wanted)
    family = [node for node in leading if top_of(node) == top]
    if family and isinstance(wanted, ast.Import):
        plain: list[ast.Import | ast.ImportFrom] = [node for node in family if isinstance(node, ast.Import)]
        if not plain:
            return Place(place.line_start(place.range(family[0])[0]))
        family = plain
    if not family and top in sys.stdlib_module_names:
        if not any(top_of(node) in sys.stdlib_module_names for node in leading):
            return Place(attached_comments(place, place.range(leading[0])[0], ""))
        own = _among_own(source, leading, top)
        if own is not None:
            return Place(own)
    last = (family or leading)[-1]
    return Place(place.next_line(_end_of_line(source, last)))


def _among_own(source: Source, leading: Sequence[ast.stmt], top: str) -> int | None:
    """The offset for a module of Python's own in a file that imports those first; None if it does not."""
    place = layout(source)
    own = [top_of(node) in sys.stdlib_module_names for node in leading]
    count = own.index(False) if False in own else len(own)
    if not count or True in own[count:]:
        return None
    plain = [node for node in leading[:count] if isinstance(node, ast.Import)]
    smaller = [node for node in plain if top_of(node) < top]
    if plain and not smaller:
        return place.line_start(place.range(plain[0])[0])
    return place.next_line(_end_of_line(source, (smaller or leading[:count])[-1]))


def _end_of_line(source: Source, stmt: ast.stmt) -> int:
    """The end of the last statement on the line where `stmt` ends."""
    place = layout(source)
    end = place.range(stmt)[1]
    for node in source.tree.body:
        start, stop = place.whole(node)
        if start >= end and place.line_of(start) == place.line_of(end):
            end = stop
    return end


def _head(tree: ast.Module) -> list[ast.stmt]:
    """Docstring and `__future__` imports."""
    found: list[ast.stmt] = []
    for index, node in enumerate(tree.body):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                found.append(node)
            case ast.ImportFrom(module="__future__"):
                found.append(node)
            case _:
                break
    return found


def _after_head(source: Source) -> int:
    place = layout(source)
    head = _head(source.tree)
    if head:
        return place.next_line(_end_of_line(source, head[-1]))
    if source.tree.body:
        return place.line_start(place.whole(source.tree.body[0])[0])
    return len(place.text)


def _insertion(source: Source, where: Place, texts: list[str]) -> Edit:
    """New import lines at the start of a line, set off by blank lines from what is no import."""
    place, at = layout(source), where.offset
    text = where.before + "".join(f"{line}\n" for line in texts) + where.after
    if not _leading(source.tree):
        if _head(source.tree):
            text = "\n" + text
        rest = place.text[at : place.line_end(at)] if at < len(place.text) else ""
        if rest.strip():
            text += "\n"
    if at == len(place.text) and place.text and not place.text.endswith(("\n", "\r")):
        text = "\n" + text.rstrip("\n")
    return place.edit(at, at, text)
