"""Records the gradients that a run computes, so that two runs can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from runtime_check.probes import graphs
from runtime_check.probes.bench import Bench, Program, Run, Way
from runtime_check.trace import Watcher

TOLERANCE = 1e-3  # relative; float32 rounding of reordered sums stays well below
OVERWRITTEN = "modified by an inplace operation"


class Names:
    """Names for leaves that are the same in two runs of nearly the same program.

    Parameters are numbered in the order in which modules register them, other leaves in the order
    in which backwards meet them.
    """

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.alive: list[torch.Tensor] = []
        self.counts: dict[str, int] = {}

    def registered(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        """The hook for new parameters of any module."""
        if isinstance(parameter, torch.Tensor) and id(parameter) not in self.known:
            self.give(parameter, f"{type(module).__name__}.{name}")

    def give(self, leaf: torch.Tensor, base: str) -> str:
        """Names a leaf; the second of a name gets a number."""
        self.counts[base] = count = self.counts.get(base, 0) + 1
        self.known[id(leaf)] = name = base if count == 1 else f"{base} #{count}"
        self.alive.append(leaf)
        return name

    def of(self, leaf: torch.Tensor) -> str:
        """The name of a leaf."""
        return self.known.get(id(leaf)) or self.give(leaf, f"leaf {tuple(leaf.shape)}")


@dataclass
class Record:
    """The gradients of a run: for each backward, a name and a gradient for each leaf it reached."""

    run: Run
    backwards: list[dict[str, torch.Tensor]] = field(default_factory=list)
    users: int = 0  # backwards of the program itself
    errors: list[BaseException] = field(default_factory=list)  # that backwards ended with, caught or not
    ours: bool = False  # the last backward was started by the check, from the run's result
    modules: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = field(default_factory=list)
    names: Names = field(default_factory=Names)

    @property
    def alive(self) -> list[torch.nn.Parameter]:
        """The trainable parameters that modules registered."""
        return [parameter for _, _, parameter in self.modules if parameter.requires_grad]

    @property
    def parameters(self) -> list[str]:
        """The names of the trainable parameters."""
        return [self.names.of(parameter) for parameter in self.alive]

    @property
    def overwritten(self) -> bool:
        """Whether autograd refused because a saved tensor had been changed."""
        return isinstance(self.run.error, RuntimeError) and OVERWRITTEN in str(self.run.error)


@dataclass(frozen=True)
class Difference:
    """Where two records differ most in their first backward that differs."""

    backward: int  # counted from 1
    leaf: str
    one: float  # norms of the two gradients
    other: float
    relative: float  # norm of the difference by the larger norm


@contextmanager
def recorded(record: Record) -> Iterator[None]:
    """Adds to `record` the gradients after every backward, and the results of `autograd.grad`."""
    names = record.names
    backward, grad = torch.autograd.backward, torch.autograd.grad

    def registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        if isinstance(parameter, torch.Tensor):
            names.registered(module, name, parameter)
            record.modules.append((module, name, parameter))

    handle = register_module_parameter_registration_hook(registered)

    def note(tensors: list[torch.Tensor], values: dict[str, torch.Tensor] | None = None) -> None:
        found = (
            values
            if values is not None
            else {names.of(leaf): leaf.grad.detach().clone() for leaf in tensors if leaf.grad is not None}
        )
        record.backwards.append(found)

    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        reached = graphs.leaves([root for root in roots if isinstance(root, torch.Tensor)])
        try:
            backward(tensors, *args, **kwargs)
        except Exception as error:
            record.errors.append(error)
            raise
        record.users += 1
        note(reached)

    def watched_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = grad(outputs, inputs, *args, **kwargs)
        values = {f"result {i}": g.detach().clone() for i, g in enumerate(result) if g is not None}
        note([], values)
        return result

    torch.autograd.backward, torch.autograd.grad = watched_backward, watched_grad
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad
        handle.remove()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor that is being saved for backward."""
    return tensor.detach().clone()


def same(tensor: torch.Tensor) -> torch.Tensor:
    """What was saved."""
    return tensor


def measure(
    bench: Bench, program: Program, way: Way, *more: Any, keep_saved: bool = False, before: Watcher | None = None,
    after: Watcher | None = None,
) -> Record:
    """Runs a program and records its gradients.

    If it does no backward, one is run from its result. With `keep_saved` every tensor that autograd
    saves is copied, so that gradients belong to the values of the forward, whatever is overwritten.
    """
    record = Record(Run(way.label))

    def finish(value: object) -> None:
        if not record.users:
            record.ours = backward_from(value)

    watches: list[Any] = [recorded(record), *more]
    if keep_saved:
        watches.append(torch.autograd.graph.saved_tensors_hooks(copied, same))
    record.run = bench.run(program, way, *watches, inspect=finish, before=before, after=after)
    return record


def outputs_of(value: object) -> list[torch.Tensor]:
    """Everything differentiable in a result."""
    outputs = [t for t in graphs.flat(value) if t.requires_grad and t.grad_fn is not None]
    return [t for t in outputs if t.is_floating_point() or t.is_complex()]


def backward_from(value: object, keep: bool = False) -> bool:
    """Backward from everything differentiable in a result, each element with its own weight.

    With `keep` another one can follow.
    """
    outputs = outputs_of(value)
    if not outputs:
        return False
    weights = [torch.linspace(0.5, 1.5, max(1, t.numel())).reshape(t.shape).to(t) for t in outputs]
    total = sum(
        ((t * w).sum().abs() if t.is_complex() else (t * w).sum()) for t, w in zip(outputs, weights, strict=True)
    )
    torch.autograd.backward(total, retain_graph=keep)
    return True


def difference(one: Record, other: Record) -> Difference | None:
    """The first backward in which two records differ beyond rounding; None if they agree."""
    for index, (a, b) in enumerate(zip(one.backwards, other.backwards, strict=False), 1):
        found = [compare(index, leaf, a.get(leaf), b.get(leaf)) for leaf in {**a, **b}]
        worst = max((d for d in found if d is not None), key=lambda d: d.relative, default=None)
        if worst is not None:
            return worst
    return None


def compare(index: int, leaf: str, a: torch.Tensor | None, b: torch.Tensor | None) -> Difference | None:
    """The difference of two gradients of a leaf; None within tolerance. A missing one counts as zero."""
    x = torch.zeros(()) if a is None else a.to(torch.complex128 if a.is_complex() else torch.float64)
    y = torch.zeros(()) if b is None else b.to(torch.complex128 if b.is_complex() else torch.float64)
    if a is not None and b is not None and a.shape != b.shape:
        return Difference(index, leaf, norm(x), norm(y), math.inf)
    bad = torch.isfinite(x).logical_not().any() or torch.isfinite(y).logical_not().any()
    if bad:
        equal = x.shape == y.shape and torch.equal(x.isnan(), y.isnan())
        return None if equal else Difference(index, leaf, norm(x), norm(y), math.inf)
    gap, size = norm(x - y), max(norm(x), norm(y))
    if size == 0 or gap <= TOLERANCE * size + 1e-9:
        return None
    return Difference(index, leaf, norm(x), norm(y), gap / size)


def norm(value: torch.Tensor) -> float:
    """The Euclidean norm."""
    return float(torch.linalg.vector_norm(value))
