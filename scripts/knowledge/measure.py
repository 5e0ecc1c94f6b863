"""What operators do when run: views, gradients, saved tensors, result types. CPU, fixed seed."""
from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ALONE_RUNS = 12  # after so many runs it is not asked any more which argument makes what be saved


@dataclass
class Facts:
    """What runs of one overload have shown so far."""

    runs: int = 0
    kinds: set[tuple[str, int | None]] = field(default_factory=set)
    grad: list[bool] = field(default_factory=list)  # per result tensor: carries grad
    dtypes: set[tuple[torch.dtype, torch.dtype]] = field(default_factory=set)  # (of input, of result)
    shares: list[bool] = field(default_factory=list)
    mutates: list[bool] = field(default_factory=list)
    gradients: int = 0  # elements of input gradients seen
    nonzero: bool = False
    saved: dict[str, set[str]] = field(default_factory=dict)
    joint: Counter[str] = field(default_factory=Counter)  # saved when everything requires grad, in how many runs
    graphs: Counter[str] = field(default_factory=Counter)  # runs with a graph in which that tensor was there
    graded: int = 0  # runs in which an input required grad
    sampled: bool = False  # torch's own samples were run, not only guesses
    tried: int = 0  # gradients computed


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


def scattered(value: torch.Tensor) -> torch.Tensor:
    """The same values in memory that is not contiguous."""
    if value.dim() >= 2:
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.stack([value, value], -1)[..., 0]


def fresh(
    value: Any, requires: Callable[[torch.Tensor], bool], made: list[torch.Tensor], *, strided: bool = False
) -> Any:
    """A copy of arguments with new leaves; `made` receives the new tensors in order."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone(memory_format=torch.contiguous_format)
        if strided:
            copy = scattered(copy)
        if requires(value) and (copy.is_floating_point() or copy.is_complex()):
            copy.requires_grad_()
        made.append(copy)
        return copy
    if type(value) in (list, tuple):
        return type(value)(fresh(part, requires, made, strided=strided) for part in value)
    return value


@functools.cache
def saved_names(node: type) -> tuple[str, ...]:
    """The attributes of a kind of graph node that hold what it saved."""
    return tuple(name for name in dir(node) if name.startswith("_saved_"))


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
        for name in saved_names(type(node)):
            with contextlib.suppress(RuntimeError, AttributeError):
                found.update(storage(each) for each in leaves(getattr(node, name)))
        todo.extend(after for after, _ in node.next_functions)
    return found - {0}


@dataclass(frozen=True)
class Call:
    """Something to run: the callable, its arguments, and the parameter names of the positional ones."""

    target: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    names: Sequence[str]
    inplace: bool = False

    @property
    def owner(self) -> dict[int, str]:
        """Parameter name of every tensor among the arguments, by identity."""
        found = {}
        for name, value in [*zip(self.names, self.args, strict=False), *self.kwargs.items()]:
            found.update({id(each): name for each in leaves(value)})
        return found


def observe(facts: Facts, call: Call) -> bool:
    """Run with everything requiring grad, then with one argument at a time; False if the call fails."""
    every = frozenset(call.owner.values())
    if not run(facts, call, every):
        # Some inputs have no derivative: `target` of soft_margin_loss. Leave these out.
        every = frozenset(name for name in every if run(Facts(), call, frozenset({name})))
        if not run(facts, call, every):
            return False
    run(facts, call, every, strided=True)
    if facts.joint and (facts.runs <= ALONE_RUNS or not facts.joint.keys() <= facts.saved.keys()):
        for name in sorted(every):
            run(facts, call, frozenset({name}), alone=name)
    return True


def run(facts: Facts, call: Call, requiring: frozenset[str], *, strided: bool = False, alone: str = "") -> bool:
    """One call in which the named arguments require grad. With `alone` only what is saved is noted."""
    owner = call.owner
    made: list[torch.Tensor] = []

    def wants(each: torch.Tensor) -> bool:
        return owner.get(id(each)) in requiring

    torch.default_generator.manual_seed(0)
    args = fresh(list(call.args), wants, made, strided=strided)
    kwargs = {key: fresh(value, wants, made, strided=strided) for key, value in call.kwargs.items()}
    order = [owner.get(id(each), "") for each in leaves([list(call.args), list(call.kwargs.values())])]
    stop, inputs = set(), list(made)
    if call.inplace and made and made[0].requires_grad:
        args[0] = made[0].clone()
        stop.add(args[0].grad_fn)
        made[0] = args[0]
    before = [each._version for each in made]
    try:
        result = call.target(*args, **kwargs)
    except Exception:
        return False
    outputs = list(leaves(result))
    names = kept_names(outputs, made, order, stop)
    if alone:
        for name in names:
            facts.saved.setdefault(name, set()).add(alone)
        return True
    if not strided and any(each.requires_grad for each in outputs):  # an operator may copy scattered memory first
        facts.joint.update(names)
        facts.graphs.update({name for name, each in zip(order, made, strict=True) if storage(each)})
        facts.graphs.update(f"result{number or ''}" for number, each in enumerate(outputs) if storage(each))
    record(facts, result, outputs, made, before)
    gradients(facts, outputs, [each for each in inputs if each.requires_grad])
    return True


def kept_names(outputs: list[torch.Tensor], made: list[torch.Tensor], order: list[str], stop: set[Any]) -> set[str]:
    """Parameters and results whose memory backward keeps."""
    addresses: dict[int, set[str]] = {}
    for name, each in zip(order, made, strict=True):
        addresses.setdefault(storage(each), set()).add(name)
    for number, each in enumerate(outputs):
        addresses.setdefault(storage(each), set()).add(f"result{number or ''}")
    kept = saved_storages(outputs, stop)
    return {name for address in kept for name in addresses.get(address, ()) if name}


def record(
    facts: Facts, result: Any, outputs: list[torch.Tensor], made: list[torch.Tensor], before: list[int]
) -> None:
    """Add what a run with everything requiring grad has shown."""
    facts.runs += 1
    facts.kinds.add(kind_of(result))
    requiring = [each for each in made if each.requires_grad]
    if requiring:
        facts.graded += 1
        while len(facts.grad) < len(outputs):
            facts.grad.append(False)
        for number, each in enumerate(outputs):
            facts.grad[number] |= each.requires_grad
    if not made:
        return
    first = made[0]
    facts.mutates.append(first._version != before[0])
    if outputs:
        facts.dtypes.add((first.dtype, outputs[0].dtype))
        if storage(first) and storage(outputs[0]):
            facts.shares.append(storage(outputs[0]) == storage(first))


def gradients(facts: Facts, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Whether any gradient differs from zero."""
    carrying = [each for each in outputs if each.requires_grad]
    if not carrying or not inputs or facts.nonzero or any(each.is_complex() for each in inputs):
        return
    torch.default_generator.manual_seed(1)
    try:
        found = torch.autograd.grad(carrying, inputs, [torch.randn_like(each) for each in carrying],
                                    allow_unused=True)
    except Exception:
        facts.nonzero = True  # cannot be told: assume that it matters
        return
    facts.tried += 1
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


class Capture(TorchFunctionMode):
    """Notes the arguments of the first call of one torch function, however it is reached."""

    def __init__(self, target: Callable[..., Any]) -> None:
        super().__init__()
        self.target = target
        self.seen: tuple[list[Any], dict[str, Any]] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of every function under this mode."""
        if self.seen is None and func is self.target:
            self.seen = list(args), dict(kwargs or {})
        return func(*args, **(kwargs or {}))


def arguments_of(target: Callable[..., Any], op: Callable[..., Any], sample: Any) -> tuple[list[Any], dict[str, Any]]:
    """How an operator's description calls `target` for a sample: some swap or pack the arguments."""
    with Capture(target) as mode, contextlib.suppress(Exception):
        op(sample.input, *sample.args, **sample.kwargs)
    return mode.seen if mode.seen is not None else ([sample.input, *sample.args], dict(sample.kwargs))
