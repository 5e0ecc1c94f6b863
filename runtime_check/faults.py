"""Errors that are the code's own: those with which it would end whatever it was given."""
from __future__ import annotations

import ast
import builtins
import linecache
import re
import sys
from typing import TYPE_CHECKING

from runtime_check.placeholder import Missing
from runtime_check.trace import frames_of

if TYPE_CHECKING:
    from runtime_check.extract import Namespace

#: What torch says of a graph that the code has spoilt itself, whatever the data.
GRAPH = re.compile(r"has been modified by an inplace operation|Trying to backward through the graph a second time"
                   r"|a leaf Variable that requires grad is being used in an in-place operation")
#: A part that torch does not have, or has no more.
ABSENT = re.compile(r"module '(torch(?:\.\w+)*)' has no attribute '(\w+)'")
#: Functions through which names may come that the text does not bind.
HIDDEN = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__dict__", "execfile", "__builtins__"})


def own_fault(error: BaseException, space: Namespace) -> bool:
    """Whether an error has its cause in the code alone: a name that nothing binds, a part that torch does not have,
    a graph that the code has changed."""
    frames = frames_of(error)
    spaces = {item.path: item for item in space.loader.spaces.values()}
    if not frames or not any(file in spaces for file, _, _ in frames):
        return False
    match error:
        case NameError(name=str() as name) if not isinstance(error, UnboundLocalError):
            place = spaces.get(frames[-1][0])
            return place is not None and bound_nowhere(place, name)
        case AttributeError():
            found = ABSENT.match(str(error))
            asked = [file for file, _, function in frames if function != "__getattr__"][-1]
            return found is not None and asked in spaces and not hasattr(sys.modules.get(found[1]), found[2])
        case IndexError():  # `loss.data[0]`, which torch has not known for long
            text = linecache.getline(*frames[-1][:2])
            return frames[-1][0] in spaces and "0-dim tensor" in str(error) and ".data[0]" in text
        case RuntimeError():
            return GRAPH.search(str(error)) is not None
    return False


def bound_nowhere(space: Namespace, name: str) -> bool:
    """Whether a file surely has no such name: neither it nor a module all of whose names it imports binds it."""
    if name in space.binding or hasattr(builtins, name) or any(_star_unknown(space, node) for node in space.stars):
        return False
    words = {node.id if isinstance(node, ast.Name) else node.attr
             for node in ast.walk(space.tree) if isinstance(node, (ast.Name, ast.Attribute))}
    declared = {item for node in ast.walk(space.tree) if isinstance(node, ast.Global) for item in node.names}
    return not words & HIDDEN and name not in declared | set_from_outside(space.tree) and not space.has(name)


def set_from_outside(tree: ast.Module) -> set[str]:
    """Names that a file sets as attributes of modules it holds: of `builtins`, or of what `sys.modules` has."""
    held = {item.asname or item.name for node in ast.walk(tree) if isinstance(node, ast.Import)
            for item in node.names if item.name == "builtins"}
    held |= {target.id for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_module_table(node.value)
             for target in node.targets if isinstance(target, ast.Name)}
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            and (is_module_table(node.value) or (isinstance(node.value, ast.Name) and node.value.id in held))}


def is_module_table(node: ast.expr) -> bool:
    """Whether an expression is a module by its name: `sys.modules[...]`, `importlib.import_module(...)`."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="modules")):
            return True
        case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
            return True
    return False


def _star_unknown(space: Namespace, node: ast.ImportFrom) -> bool:
    """Whether a module whose names are all imported is not there, so that it may have any name."""
    module = space._star_module(node)
    return module is None or isinstance(module, Missing)
