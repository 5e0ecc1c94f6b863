"""What operators do when run: views, gradients, saved tensors, result types. CPU, fixed seed."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

MAX_SAMPLES = 12
FIXED = (torch.int64, torch.bool, torch.int32, torch.uint8)


@dataclass
class Facts:
    """What runs of one overload have shown so far."""

    runs: int = 0
    kinds: set[tuple[str, int | None]] = field(default_factory=set)
    grad: list[bool] = field(default_factory=list)  # per result tensor: carries grad
    gradless_runs: int = 0  # runs in which an input required grad
    dtypes: set[tuple[torch.dtype, torch.dtype]] = field(default_factory=set)  # (of input, of result)
    shares: list[bool] = field(default_factory=list)
    mutates: list[bool] = field(default_factory=list)
    gradients: int = 0  # elements of input gradients seen
    nonzero: bool = False
    saved: dict[str, set[str]] = field(default_factory=dict)
    joint: set[str] = field(default_factory=set)  # saved when everything requires grad
    random: bool = False


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """Tensors inside arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))


def storage(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory, 0 when it has none."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.numel() else 0
    except (RuntimeError, NotImplementedError):
        return 0


def fresh(value: Any, requires: Callable[[torch.Tensor], bool], made: list[torch.Tensor]) -> Any:
    """A copy of arguments with new leaves; `made` receives the new tensors in order."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        if requires(value) and (copy.is_floating_point() or copy.is_complex()):
            copy.requires_grad_()
        made.append(copy)
        return copy
    if type(value) in (list, tuple):
        return type(value)(fresh(part, requires, made) for part in value)
    return value


def saved_storages(results: Sequence[torch.Tensor], stop: set[Any]) -> set[int]:
    """Addresses of all tensors that the graph behind the results keeps for backward."""
    found: set[int] = set()
    todo = [each.grad_fn for each in results if each.grad_fn is not None]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or node in stop:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    found.update(storage(each) for each in leaves(getattr(node, name)))
                except RuntimeError:
                    continue
        todo.extend(after for after, _ in node.next_functions)
    return found - {0}


def observe(
    facts: Facts, call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str],
    inplace: bool = False,
) -> bool:
    """Run once with everything requiring grad, then with one argument at a time; False if the call fails."""
    owner = {}
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        owner.update({id(each): name for each in leaves(value)})
    differentiable = sorted({name for name in owner.values()})
    if not run(facts, call, args, kwargs, owner, None, inplace):
        return False
    if len(differentiable) > 1 or facts.joint:
        for name in differentiable:
            run(facts, call, args, kwargs, owner, name, inplace)
    return True


def run(
    facts: Facts, call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], owner: dict[int, str],
    only: str | None, inplace: bool,
) -> bool:
    """One call in which all arguments (or only the named one) require grad."""
    made: list[torch.Tensor] = []
    def wants(each: torch.Tensor) -> bool:
        return only is None or owner.get(id(each)) == only
    torch.manual_seed(0)
    new_args, new_kwargs = fresh(list(args), wants, made), {}
    for key, value in kwargs.items():
        new_kwargs[key] = fresh(value, wants, made)
    order = [owner.get(id(each), "") for each in leaves([list(args), list(kwargs.values())])]
    if inplace:
        new_args[0] = made[0].clone() if made and made[0].requires_grad else made[0]
    stop = {new_args[0].grad_fn} if inplace and new_args and isinstance(new_args[0], torch.Tensor) else set()
    before = [each._version for each in made]
    try:
        result = call(*new_args, **new_kwargs)
    except Exception:
        return False
    outputs = list(leaves(result))
    addresses: dict[int, set[str]] = {}
    inputs = dict(zip(map(id, made), order, strict=True))
    for each in made:
        addresses.setdefault(storage(each), set()).add(inputs[id(each)])
    for number, each in enumerate(outputs):
        addresses.setdefault(storage(each), set()).add(f"result{number or ''}")
    kept = saved_storages(outputs, stop)
    names = {name for address in kept for name in addresses.get(address, ()) if name}
    if only is not None:
        for name in names:
            facts.saved.setdefault(name, set()).add(only)
        return True
    facts.joint |= names
    record(facts, result, outputs, made, before, new_args)
    return True


def record(
    facts: Facts, result: Any, outputs: list[torch.Tensor], made: list[torch.Tensor], before: list[int],
    args: list[Any],
) -> None:
    """Add what a run with everything requiring grad has shown."""
    facts.runs += 1
    facts.kinds.add(kind_of(result))
    requiring = [each for each in made if each.requires_grad]
    if requiring:
        facts.gradless_runs += 1
        for number, each in enumerate(outputs):
            while len(facts.grad) <= number:
                facts.grad.append(False)
            facts.grad[number] |= each.requires_grad
        gradients(facts, outputs, requiring)
    first = next(leaves(args), None)
    if outputs and first is not None and storage(first) and storage(outputs[0]):
        facts.shares.append(storage(outputs[0]) == storage(first))
        facts.dtypes.add((first.dtype, outputs[0].dtype))
    if made:
        facts.mutates.append(made[0]._version != before[0])


def gradients(facts: Facts, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Whether any gradient differs from zero."""
    carrying = [each for each in outputs if each.requires_grad]
    if not carrying or facts.nonzero:
        return
    torch.manual_seed(1)
    try:
        found = torch.autograd.grad(carrying, inputs, [torch.randn_like(each) for each in carrying],
                                    allow_unused=True)
    except Exception:
        facts.nonzero = True  # cannot be told: assume that it matters
        return
    for each in found:
        if each is not None:
            facts.gradients += each.numel()
            facts.nonzero |= bool((each != 0).any())


def kind_of(value: Any) -> tuple[str, int | None]:
    """Our word for what a call returned, and how many tensors."""
    match value:
        case torch.Tensor():
            return "tensor", None
        case torch.Size():
            return "size", None
        case bool():
            return "bool", None
        case int():
            return "int", None
        case float():
            return "float", None
        case complex():
            return "number", None
        case str():
            return "string", None
        case None:
            return "none", None
        case torch.dtype():
            return "dtype", None
        case torch.device():
            return "device", None
        case tuple() | list() if value and all(isinstance(each, torch.Tensor) for each in value):
            return "tensors", len(value)
    return "other", None


def argument_kind(value: Any) -> str:
    """The kind of an argument, in the words of `Param.kind`."""
    kind = kind_of(value)[0]
    if kind == "other":
        return {tuple: "tuple", list: "list", torch.Generator: "generator"}.get(type(value), "")
    return kind


VALUES: dict[str, list[Any]] = {
    "float": [0.5], "number": [0.5, 1], "bool": [True], "int": [0, 1, 2], "dtype": [torch.float32],
    "device": ["cpu"], "size": [(3, 3), (1,), (9,), (0,), (0, 1), (1, 0)],
}
SHAPES = [(3, 3), (4,), (2, 3, 3), (1, 2, 4, 4), (1, 2, 4, 4, 4), ()]


def synthetic(params: Sequence[Any]) -> Iterator[list[Any]]:
    """Guesses at arguments for the required parameters, likeliest first."""
    required = [p for p in params if p.required or p.way == "rest"]
    if any(p.way == "keyword" for p in required):
        return
    for shape, mode in itertools.product(SHAPES, ("float", "index", "mask", "integer")):
        choices = []
        for p in required:
            if p.is_tensor:
                choices.append([tensor(shape, p.name, mode)])
            elif p.kind == "tensors":
                choices.append([[tensor(shape, "", mode), tensor(shape, "", mode)]])
            elif p.way == "rest" and p.kind in ("size", "int"):
                choices.append([0, 1, 3])
            else:
                choices.append(VALUES.get(p.kind, [None]))
        yield from (list(each) for each in itertools.islice(itertools.product(*choices), 40))


def tensor(shape: tuple[int, ...], name: str, mode: str) -> torch.Tensor:
    """A tensor that suits a parameter of this name."""
    torch.manual_seed(len(name))
    if mode == "integer" or any(word in name for word in ("ind", "target", "pivots")):
        return torch.zeros(shape, dtype=torch.int64) + (mode == "integer")
    if "mask" in name or "condition" in name or mode == "mask":
        return torch.rand(shape) > 0.5
    return torch.rand(shape) * 0.8 + 0.1
