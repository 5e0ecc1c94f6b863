"""Rewriting of calls of deprecated and removed names, where the arguments map exactly."""
from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchlint.findings import Edit, Safety
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.fixes.layout import layout
from torchlint.fixes.names import parameters
from torchlint.knowledge import Deprecated, Moved, torch_version
from torchlint.knowledge.deprecations import release
from torchlint.model.values import Kind
from torchlint.requirements import Configured
from torchlint.rule import Repair

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.old_names import OldUse

Edits = tuple[Edit, ...]
PutCall = Callable[..., "Repair | None"]  # (node to replace, further edits)
FIRST = "now the solution"  # rows of functions that returned a pair and now return its first member
LATELY = 4  # minor releases of torch, the current one among them
IGNORED = ("ignored", "does nothing", "the current accelerator")
# What works with the old name alone: the fix would break code that uses it.
BOUND = {"torch.nn.utils.weight_norm": re.compile(r"\bweight\w*_[gv]\b|\bremove_weight_norm\b")}
NEEDED = ("broadcast_buffers", "outputs")  # without them the call does something else
# Named tuple fields that old pairs had, by position.
FIELDS = {"solution": 0, "eigenvalues": 0}


@dataclass
class Arguments:
    """The arguments of a new call: by position, and by keyword."""

    positional: dict[int, tuple[str, str]] = field(default_factory=dict)  # position -> (old name, text)
    keywords: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """As source; positions behind a gap become keywords of their old name."""
        parts: list[str] = []
        for position, (name, text) in sorted(self.positional.items()):
            parts.append(text if position == len(parts) else f"{name}={text}")
        return ", ".join([*parts, *(f"{name}={text}" for name, text in self.keywords.items())])


def modernised(model: FileModel, use: OldUse) -> Repair | None:
    """The fix of a use; None where the arguments given have no counterpart, or what is returned differs.

    A name that has only lately come to replace another is missing in many a torch that the code may run with.
    """
    made = _modernised(model, use)
    major, minor = release(torch_version())
    lately = release(use.row.since or "1.8") > (major, minor - LATELY)
    other = use.row.kind in ("function", "class", "module") and use.row.replacement != use.row.name
    said = model.project.session(Configured).torch_version
    return replace(made, safety=Safety.UNSAFE) if made is not None and lately and other and not said else made


def _modernised(model: FileModel, use: OldUse) -> Repair | None:
    row = use.row
    if row.name in BOUND and BOUND[row.name].search(layout(model.source).text):
        return None
    if row.argument:
        return _argument(model, use)
    if isinstance(use.node, (ast.ImportFrom, ast.Import, ast.alias)):
        return _import(model, use)
    if row.same:
        return _renamed(model, use)
    if row.kind == "attribute" and row.replacement.endswith("()") and isinstance(use.node, ast.expr):
        return _put(model, use.node, row.replacement[:-2], "()")
    special = SPECIAL.get(row.name)
    if special is not None and use.call is not None:
        return special(model, use.call)
    if row.mapped and use.call is not None and not row.differs:
        return _mapped(model, use.call, row, use.call)
    if row.mapped and use.call is not None and FIRST in row.differs:
        return _first(model, use.call, row)
    return _decorator(model, use)


def _put(model: FileModel, node: ast.expr, dotted: str, rest: str, safety: Safety | None = None,
         *more: Edits) -> Repair | None:
    """Replace an expression by a name of torch, as this file spells it, with what follows."""
    spelled = spell(model, dotted, at=node)
    if spelled is None:
        return None
    return edits.repair(f"Use `{dotted}`", edits.replace(model, node, spelled.text + rest), *more,
                        imports=spelled.imports, safety=safety)


def _renamed(model: FileModel, use: OldUse) -> Repair | None:
    """The new name with the same arguments."""
    row = use.row
    safety = Safety.UNSAFE if row.differs else None
    new = row.replacement.rpartition(".")[2]
    node = use.call.func if row.kind == "method" and use.call is not None else use.node
    if row.kind == "method" and isinstance(node, ast.Attribute):
        return edits.repair(f"Use `{new}`", edits.rename_attribute(model, node, new), safety=safety)
    return _put(model, node, row.replacement, "", safety) if isinstance(node, ast.expr) else None


def _import(model: FileModel, use: OldUse) -> Repair | None:
    """The new module in the import, or the new name where nothing else has to change."""
    row, node = use.row, use.node
    if not row.same:
        return None
    place = layout(model.source)
    if isinstance(node, ast.ImportFrom) and node.module and row.kind == "module" and len(node.names) >= 1:
        tail = row.name.removeprefix(node.module + ".")
        new = row.replacement.removesuffix("." + tail)
        start = place.text.find(node.module, place.range(node)[0])
        if new != row.replacement and start >= 0:
            return edits.repair(f"Import from `{new}`", (place.edit(start, start + len(node.module), new),))
    if isinstance(node, ast.Import) and len(node.names) == 1 and node.names[0].asname:
        text = f"import {row.replacement} as {node.names[0].asname}"
        return edits.repair(f"Import `{row.replacement}`", edits.replace(model, node, text))
    parent = model.parent(node)
    if isinstance(node, ast.alias) and isinstance(parent, ast.ImportFrom) and len(parent.names) == 1:
        module, _, name = row.replacement.rpartition(".")
        kept = f" as {node.asname or node.name}" if (node.asname or node.name) != name else ""
        return edits.repair(f"Import `{row.replacement}`",
                            edits.replace(model, parent, f"from {module} import {name}{kept}"))
    return None


# -- calls ----------------------------------------------------------------------------------------


def gathered(model: FileModel, call: ast.Call, row: Deprecated) -> Arguments | None:
    """The new arguments of an old call; None if one has no counterpart or cannot be seen."""
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
        return None
    order = [move for move in row.moves if not move.keyword_only]
    given: list[tuple[Moved, str, bool]] = []
    if row.kind == "method" and isinstance(call.func, ast.Attribute):
        given.append((order.pop(0), edits.source_of(model, call.func.value), True))
    if order and order[0].place == "list" and not call.keywords:
        inside = ", ".join(edits.source_of(model, arg) for arg in call.args)
        return Arguments({0: ("", f"[{inside}]")})
    if len(call.args) > len(order):
        return None
    given += [(move, edits.source_of(model, arg), True) for move, arg in zip(order, call.args, strict=False)]
    by_name = {move.name: move for move in row.moves}
    for keyword in call.keywords:
        move = by_name.get(keyword.arg or "")
        if move is None:
            return None
        given.append((move, edits.source_of(model, keyword.value), False))
    return _placed(model, row, given)


def _placed(model: FileModel, row: Deprecated, given: list[tuple[Moved, str, bool]]) -> Arguments | None:
    made = Arguments()
    for move, text, _ in given:
        if isinstance(move.place, int):
            made.positional[move.place] = (move.name, text)
        elif move.place is None or move.place == "list":
            return None
        else:
            made.keywords[move.place] = text
    for slot, text in row.adds:
        text = text.replace("'", layout(model.source).quote)
        if isinstance(slot, int):
            made.positional[slot] = ("", text)
        else:
            made.keywords[slot] = text
    return made


def _mapped(model: FileModel, call: ast.Call, row: Deprecated, node: ast.expr, *more: Edits,
            extra: str = "") -> Repair | None:
    """The new call in the place of `node`."""
    if in_front := _added_in_front(model, call, row, node):
        return in_front
    made = gathered(model, call, row)
    if made is None:
        return None
    text = made.text()
    return _put(model, node, row.replacement, f"({text}{', ' if text and extra else ''}{extra})", None, *more)


def _added_in_front(model: FileModel, call: ast.Call, row: Deprecated, node: ast.expr) -> Repair | None:
    """A new first argument in front of the others, which keep their lines: `autocast(enabled=x)`."""
    if node is not call or len(row.adds) != 1 or row.adds[0][0] != 0 or call.args or not call.keywords:
        return None
    if {k.arg for k in call.keywords} - {move.name for move in row.moves}:
        return None
    place = layout(model.source)
    start = place.range(call.keywords[0])[0]
    value = row.adds[0][1].replace("'", place.quote)
    gap = "\n" + place.indent(start) if place.first_on_line(start) else " "
    return _put(model, call.func, row.replacement, "", None, (place.edit(start, start, f"{value},{gap}"),))


def _first(model: FileModel, call: ast.Call, row: Deprecated) -> Repair | None:
    """Where only the first member of the old pair is used, the new call is exactly that."""
    extra = ""
    if row.name.endswith("triangular_solve"):
        passed = {k.arg for k in call.keywords}
        count = len(call.args) + (row.kind == "method")
        extra = "" if count > 2 or "upper" in passed else "upper=True"
    return _first_member(model, call, lambda node, *more: _mapped(model, call, row, node, *more, extra=extra))


def _first_member(model: FileModel, call: ast.Call, put: PutCall) -> Repair | None:
    parent = model.parent(call)
    match parent:
        case ast.Subscript(slice=ast.Constant(value=0)) if parent.value is call:
            return put(parent)
        case ast.Attribute(attr=attr) if attr in FIELDS:
            return put(parent)
        case ast.Assign(targets=[ast.Tuple(elts=[first, ast.Name(id=second)]) as target]):
            owner = model.place(parent).function or model.tree
            if not model.uses(second, owner):
                return put(call, edits.replace(model, target, edits.source_of(model, first)))
    return None


def _decorator(model: FileModel, use: OldUse) -> Repair | None:
    """`@custom_fwd` becomes a decorator with the argument that is needed now."""
    parent = model.parent(use.node)
    bare = isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and use.node in parent.decorator_list
    if not bare or not use.row.mapped or use.row.differs or not isinstance(use.node, ast.expr):
        return None
    adds = ", ".join(f"{name}={text}" for name, text in use.row.adds if isinstance(name, str))
    return _put(model, use.node, use.row.replacement, f"({adds.replace(chr(39), layout(model.source).quote)})")


# -- arguments -------------------------------------------------------------------------------------


def _argument(model: FileModel, use: OldUse) -> Repair | None:
    row, call = use.row, use.call
    if call is None:
        return None
    if row.kind == "missing" and row.adds:
        added = [edits.add_keyword_argument(model, call, f"{name}={text.replace(chr(39), layout(model.source).quote)}")
                 for name, text in row.adds]
        return edits.repair("Say what is the default today", *added)
    if row.kind == "signature":
        return _reordered(model, call, row)
    keyword = next((k for k in call.keywords if k.arg == row.argument), None)
    if keyword is None or len(row.moves) != 1 or row.kind != "argument":
        return None
    place = row.moves[0].place
    if isinstance(place, str):
        return edits.repair(f"Use `{place}`", edits.rename_keyword(model, keyword, place))
    if row.argument in NEEDED:
        return None
    silent = row.argument == "verbose" and model.value(keyword.value).const is False
    harmless = row.differs.startswith(IGNORED) or silent
    return edits.repair(
        f"Leave `{row.argument}` out", edits.remove_argument(model, call, keyword),
        safety=None if harmless else Safety.UNSAFE)


def _reordered(model: FileModel, call: ast.Call, row: Deprecated) -> Repair | None:
    """The present order: tensors first, numbers by keyword."""
    names = row.argument.split(",")
    places = {move.name: move.place for move in row.moves}
    offset = 0
    if row.name.startswith("torch.Tensor."):
        names.remove("self")
        offset = 1
    made = Arguments()
    for name, arg in zip(names, call.args, strict=True):
        place = places[name]
        if isinstance(place, int):
            made.positional[place - offset] = (name, edits.source_of(model, arg))
        elif place is not None:
            made.keywords[place] = edits.source_of(model, arg)
    made.keywords |= {k.arg or "": edits.source_of(model, k.value) for k in call.keywords}
    func = edits.source_of(model, call.func)
    return edits.repair("Pass the numbers by keyword", edits.replace(model, call, f"{func}({made.text()})"))


# -- functions whose rewriting depends on the values given ---------------------------------------


def _norm(model: FileModel, call: ast.Call) -> Repair | None:
    """`torch.norm` with a number for p, or none, is `vector_norm`, bit for bit."""
    order = ["input", "p", "dim", "keepdim"]
    given = dict(zip(order, call.args, strict=False)) | {k.arg or "": k.value for k in call.keywords}
    if set(given) - {*order, "dtype"} or len(call.args) > 4 or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if "p" in given and not _number(model, given["p"]):
        return None
    changes = [edits.rename_keyword(model, k, {"input": "x", "p": "ord"}[k.arg])
               for k in call.keywords if k.arg in ("input", "p")]
    return _put(model, call.func, "torch.linalg.vector_norm", "", None, *changes)


def _number(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression is a number whoever calls: a parameter may be given "fro", whatever its default."""
    for node in ast.walk(expr):
        if isinstance(node, ast.Attribute) and not model.name_of(node):
            return False
        if isinstance(node, ast.Name) and _said(model, node) not in (None, "int", "float"):
            return False
    return model.value(expr).kind is Kind.NUMBER


def _said(model: FileModel, name: ast.Name) -> str | None:
    """The annotation of a parameter, "" for none; None for a name that is no parameter."""
    function = model.place(name).function
    for arg in parameters(function) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else ():
        if arg.arg == name.id:
            return ast.unparse(arg.annotation) if arg.annotation is not None else ""
    return None


def _symeig(model: FileModel, call: ast.Call) -> Repair | None:
    """With the triangle named that `symeig` read; the eigenvectors only where they were asked for."""
    given = dict(zip(["input", "eigenvectors", "upper"], call.args, strict=False))
    given |= {k.arg or "": k.value for k in call.keywords}
    if set(given) - {"input", "eigenvectors", "upper"} or "input" not in given:
        return None
    wanted = [model.value(given[name]).const if name in given else default
              for name, default in (("eigenvectors", False), ("upper", True))]
    if not all(isinstance(value, bool) for value in wanted):
        return None
    triangle = ', UPLO="U"' if wanted[1] else ""
    rest = f"({edits.source_of(model, given['input'])}{triangle.replace(chr(34), layout(model.source).quote)})"
    if wanted[0]:
        return _put(model, call, "torch.linalg.eigh", rest)
    return _first_member(
        model, call, lambda node, *more: _put(model, node, "torch.linalg.eigvalsh", rest, None, *more))


SPECIAL = {"torch.norm": _norm, "torch.symeig": _symeig}
