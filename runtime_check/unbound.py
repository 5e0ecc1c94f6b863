"""Stand-ins for names that code reads and nothing binds.

Such a program cannot run as it stands. What a run with stand-ins shows is told with a sentence about each of them.
"""
from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from runtime_check.faults import bound_nowhere

if TYPE_CHECKING:
    from runtime_check.extract import Namespace

#: Code that asks whether there is a name.
CAUGHT = re.compile(r"\bexcept\s*\(?[\w, ]*NameError")
#: What calls a function that it is given, and wants no result of it.
HOOKS = re.compile(r"^(apply|register_step_\w*hook|atexit\.register)$")

Maker = Callable[["Namespace", str], Any]
_maker: Maker | None = None


@contextlib.contextmanager
def standing_in(make: Maker) -> Iterator[None]:
    """While it lasts, names that nothing binds have the values that `make` makes, unless these are None."""
    global _maker
    before, _maker = _maker, make
    try:
        yield
    finally:
        _maker = before


def value(space: Namespace, name: str) -> Any:
    """The stand-in for a name. KeyError if it has none, or if none are wanted now."""
    made = _maker(space, name) if _maker is not None else None
    if made is None:
        raise KeyError(name)
    return made


def is_unbound(space: Namespace, name: str) -> bool:
    """Whether nothing binds a name of a file, and the file does not reckon with that itself."""
    return not name.startswith("__") and bound_nowhere(space, name) and not CAUGHT.search(space.text)


def data(space: Namespace, name: str, choice: int = 0, complaint: str = "") -> tuple[str, Any] | None:
    """What it is and the value that stands for a name of data, or of a logger; None for other names."""
    from runtime_check import lazy

    found = lazy.fallback(space, name, choice, complaint)
    if found is None or size_decides(space.tree, name):
        return None
    return "made-up batches" if isinstance(found, lazy.LazyBatches) else "a silent logger", found


def other(space: Namespace, name: str, main: Namespace) -> tuple[str, Any] | None:
    """What it is and the value that stands for a name, by how the file uses it; None if that does not say enough.

    `main` is the script that runs, in which options are found.
    """
    from runtime_check import lazy, names

    if only_handed_on(space.tree, name):
        return "a function that does nothing", nothing
    use = lazy.usage_at_top(space, name)
    if use.calls or use.attributes or use.methods or use.keys or use.is_string:
        return None
    number = lazy.channels_in(main) if name in lazy.CHANNELS else names.number(name)
    return None if number is None else (f"the number {number}", number)


def size_decides(tree: ast.Module, name: str) -> bool:
    """Whether something is compared with the size of data that no loop goes through: a made-up size would decide it."""
    gone_through = {id(node.iter) for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))}
    if any(isinstance(node, ast.Name) and node.id == name and id(node) in gone_through for node in ast.walk(tree)):
        return False
    compared = (part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node))
    return any(isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len"
               and any(isinstance(item, ast.Name) and item.id == name for item in part.args) for part in compared)


def only_handed_on(tree: ast.Module, name: str) -> bool:
    """Whether a name is read only to be given to what calls it for its effect: `net.apply(initialize)`."""
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    given = [part for node in ast.walk(tree) if isinstance(node, ast.Call) for part in node.args
             if isinstance(node.func, ast.Attribute) and HOOKS.search(node.func.attr)]
    return bool(reads) and all(any(node is part for part in given) for node in reads)


def nothing(*args: object, **options: object) -> None:
    """Does nothing."""
