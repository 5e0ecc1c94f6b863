"""Walking autograd graphs and what Python objects hold.

Nodes are told apart by their sequence number, so that counting keeps nothing alive. Measured on
torch 2.13: every built-in and custom node has one, and all `AccumulateGrad` nodes share the largest.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

LIMIT = 50_000  # objects, and nodes, looked at in one walk
LEAF = 2**64 - 1
OPAQUE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.Generator,
    range,
)

Node = Any  # torch.autograd.graph.Node; its attributes depend on the operation


def held(values: Iterable[object], *, classes: bool = False, without: Iterable[object] = ()) -> Iterator[torch.Tensor]:
    """Tensors reachable from values through containers, attributes, closures and bound methods.

    Each is given once. `classes` looks into the attributes of classes too; what is in `without` is not
    looked into.
    """
    seen: set[int] = {id(value) for value in without}
    alive: list[object] = []  # keeps the numbers in `seen` from being used again
    queue = deque(values)
    while queue and len(seen) < LIMIT:
        value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        alive.append(value)
        if isinstance(value, torch.Tensor):
            yield value
        queue.extend(parts(value, classes=classes))


def parts(value: object, *, classes: bool = False) -> list[object]:
    """What a value holds directly. Code of the value is not run."""
    match value:
        case torch.Tensor():
            return list(vars(value).values()) if vars(value) else []
        case dict():
            return [*value.keys(), *value.values()]
        case list() | tuple() | set() | frozenset() | deque():
            return list(value)
        case types.MethodType():
            return [value.__self__]
        case types.FunctionType():
            return cells(value)
        case type() if classes:
            return list(vars(value).values())
    if isinstance(value, OPAQUE):
        return []
    found: list[object] = []
    inner = getattr(value, "__dict__", None)
    if isinstance(inner, dict):
        found.extend(inner.values())
    for kind in type(value).__mro__:
        for name in slots(kind):
            member = kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found.append(member.__get__(value))
                except AttributeError:
                    continue
    return found


def cells(function: types.FunctionType) -> list[object]:
    """The values that a function's closure holds."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # not filled yet
    return found


def slots(kind: type) -> tuple[str, ...]:
    """The names in a class' `__slots__`."""
    names = kind.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def own(names: dict[str, Any]) -> list[object]:
    """The values of a file's globals that may hold tensors: no imported modules, no dunder names."""
    return [v for k, v in names.items() if not k.startswith("__") and not isinstance(v, types.ModuleType)]


def walk(tensors: Iterable[torch.Tensor]) -> Iterator[Node]:
    """Every autograd node reachable from tensors, each once, `AccumulateGrad` nodes left out."""
    seen: set[int] = set()
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    while stack and len(seen) < LIMIT:
        node = stack.pop()
        number = node._sequence_nr()
        if number == LEAF or number in seen:
            continue
        seen.add(number)
        yield node
        stack.extend(following for following, _ in node.next_functions if following is not None)


def numbers(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The sequence numbers of the nodes reachable from tensors."""
    return {node._sequence_nr() for node in walk(tensors)}


def leaves(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaf tensors that a backward from tensors would reach, in the order of a depth-first walk."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    for tensor in tensors:
        if tensor.grad_fn is None and tensor.requires_grad and id(tensor) not in seen:
            seen.add(id(tensor))
            found.append(tensor)
    for node in walk(tensors if isinstance(tensors, list) else list(tensors)):
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None and id(variable) not in seen:
                seen.add(id(variable))
                found.append(variable)
    return found


def saved_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the storages that the graph behind tensors keeps for backward, leaves left out."""
    leaf = {t.untyped_storage().data_ptr() for t in leaves(tensors)}
    sizes: dict[int, int] = {}
    for node in walk(tensors):
        for value in saved_by(node):
            storage = value.untyped_storage()
            if storage.data_ptr() not in leaf:
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def saved_by(node: Node) -> list[torch.Tensor]:
    """The tensors that one node keeps; none after backward has freed them."""
    found: list[torch.Tensor] = []
    names = [name for name in dir(node) if name.startswith("_saved_")]
    for name in [*names, "saved_tensors"]:
        try:
            value = getattr(node, name, None)
        except RuntimeError:
            continue  # freed
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, torch.Tensor))
    return found


def flat(value: object, limit: int = 1000) -> list[torch.Tensor]:
    """The tensors in a result: through containers and attributes, in a stable order."""
    found = []
    for tensor in held([value]):
        found.append(tensor)
        if len(found) >= limit:
            break
    return found
