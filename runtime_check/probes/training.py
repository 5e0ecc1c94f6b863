"""Follows optimizers: what is in `.grad` when they step, and what moves."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from runtime_check.probes import graphs, values
from runtime_check.probes.bench import RUNS, Bench, Program, Run, Way
from runtime_check.probes.gradients import Names

#: Nodes of a graph behind which the reduction of a loss is looked for; behind a factor a sum may be anything.
PASSING = {"AddBackward", "SubBackward", "NegBackward", "CloneBackward", "ToCopyBackward", "SqueezeBackward",
           "ViewBackward", "ReshapeAliasBackward", "UnsqueezeBackward"}
SCALING = {"MulBackward", "DivBackward"}


@dataclass
class Step:
    """One step of one optimizer."""

    optimizer: int
    backwards: int  # backwards since this optimizer's last step
    held: dict[str, torch.Tensor]  # .grad after the last backward before the step
    added: dict[str, torch.Tensor]  # what the backwards since the last step have added
    moved: float = 0.0  # norm of the change of all its parameters
    gradient: float = 0.0  # norm of .grad as the step found it


@dataclass
class Training:
    """What the optimizers of a run did."""

    run: Run
    steps: list[Step] = field(default_factory=list)
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)  # reached by a backward
    owned: set[int] = field(default_factory=set)  # ids of tensors in a param group
    late: set[int] = field(default_factory=set)  # registered after the first optimizer was made
    alive: list[object] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    scalers: int = 0  # gradient scalers that were made
    scaled: int = 0  # of these, those that are switched on
    reductions: set[str] = field(default_factory=set)  # of what was backwarded: mean, sum or an empty string
    clipped: int = 0  # times that a gradient was changed, by the flagged statement or between backward and step

    @property
    def orphans(self) -> list[str]:
        """Leaves that get gradients, were registered after an optimizer was made, and are in none."""
        return [name for name, leaf in self.leaves.items() if id(leaf) in self.late and id(leaf) not in self.owned]


class Watch:
    """Collects a `Training`."""

    def __init__(self, training: Training) -> None:
        self.training, self.names = training, Names()
        self.numbers: dict[int, int] = {}
        self.since: dict[str, torch.Tensor] = {}
        self.held: dict[str, torch.Tensor] = {}
        self.backwards = 0
        self.before: dict[int, list[torch.Tensor]] = {}
        self.latest: dict[torch.Tensor, torch.Tensor] = {}  # gradients after the last backward or step

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has been made."""
        self.numbers.setdefault(id(optimizer), len(self.numbers) + 1)
        self.training.alive.append(optimizer)

    def registered(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        """A module has got a parameter."""
        if isinstance(parameter, torch.Tensor):
            self.names.registered(module, name, parameter)
            if self.numbers:
                self.training.late.add(id(parameter))

    def backward(self, roots: list[torch.Tensor], run: Any) -> None:
        """Around one backward: notes what it adds to each leaf."""
        leaves = graphs.leaves(roots)
        self.training.reductions.update(reduction(root.grad_fn) for root in roots)
        before = [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in leaves]
        run()
        self.backwards += 1
        for leaf, old in zip(leaves, before, strict=True):
            if leaf.grad is None:
                continue
            name, now = self.names.of(leaf), leaf.grad.detach().clone()
            added = now if old is None else now - old
            self.since[name] = added if name not in self.since else self.since[name] + added
            self.held[name] = now
            self.training.leaves[name] = leaf
            self.latest[leaf] = now

    def parameters(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """All tensors of an optimizer."""
        return [p for group in optimizer.param_groups for p in group["params"]]

    def step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """The hook before every step."""
        mine = self.parameters(optimizer)
        self.training.clipped += self.changed(mine)
        self.training.owned.update(id(p) for p in mine)
        self.before[id(optimizer)] = [p.detach().clone() for p in mine]

    def step_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """The hook after every step."""
        self.made(optimizer)
        mine = self.parameters(optimizer)
        names = {self.names.of(p) for p in mine}
        old = self.before.pop(id(optimizer), [])
        moved = size({str(i): p.detach() - b for i, (p, b) in enumerate(zip(mine, old, strict=False))})
        gradient = size({str(i): p.grad for i, p in enumerate(mine) if p.grad is not None})
        held = {n: g for n, g in self.held.items() if n in names}
        added = {n: g for n, g in self.since.items() if n in names}
        self.training.steps.append(Step(self.numbers[id(optimizer)], self.backwards, held, added, moved, gradient))
        self.since = {n: g for n, g in self.since.items() if n not in names}
        self.backwards = 0
        self.latest.update({p: p.grad.detach().clone() for p in mine if p.grad is not None})

    def flagged(self, frame: FrameType, index: int) -> None:
        """After the flagged statement: whether it has changed a gradient, other than to set it to zero."""
        self.training.clipped += self.changed(list(self.latest))

    def changed(self, leaves: list[torch.Tensor]) -> bool:
        """Whether a gradient is another than after the last backward or step, and not zero."""
        return any(
            leaf.grad is not None and leaf in self.latest and bool(leaf.grad.any())
            and not torch.equal(leaf.grad, self.latest[leaf])
            for leaf in leaves
        )


def reduction(node: Any, depth: int = 0) -> str:
    """How the values of a batch became the one that is backwarded: mean, sum, or "" if that cannot be seen."""
    name = type(node).__name__.rstrip("0123456789")
    if node is None or depth > 12:
        return ""
    if hasattr(node, "_saved_reduction"):
        return {1: "mean", 2: "sum"}.get(node._saved_reduction, "")
    if name in ("MeanBackward", "SumBackward"):
        return name.removesuffix("Backward").lower()
    if name in PASSING or name in SCALING:
        found = {reduction(inner, depth + 1) for inner, _ in node.next_functions if inner is not None}
        one = found.pop() if len(found) == 1 else ""
        return "" if one == "sum" and name in SCALING else one  # a sum that is divided may be a mean
    return ""


@contextmanager
def scalers_on(training: Training, scale: float = 0.0) -> Iterator[None]:
    """Lets gradient scalers for a GPU that is not there work on the CPU instead of switching themselves off.

    `scale` is what they begin with instead of their own.
    """
    kind = getattr(torch.amp, "GradScaler", None)
    if kind is None:
        yield
        return
    plain, signature = kind.__init__, inspect.signature(kind.__init__)

    def init(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        absent = str(device).startswith("cuda") and not torch.cuda.is_available()
        given = signature.bind(self, "cpu" if absent else device, *args, **kwargs)
        if scale:
            given.arguments["init_scale"] = scale
        plain(*given.args, **given.kwargs)
        training.scalers += 1
        training.scaled += bool(self.is_enabled())

    kind.__init__ = init
    try:
        yield
    finally:
        kind.__init__ = plain


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Fills the training of a watch while it lasts."""
    plain, create = torch.autograd.backward, torch.optim.Optimizer.__init__

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        watch.backward([r for r in roots if isinstance(r, torch.Tensor)], lambda: plain(tensors, *args, **kwargs))

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        watch.made(self)

    handles = [
        register_module_parameter_registration_hook(watch.registered),
        register_optimizer_step_pre_hook(watch.step_begins),
        register_optimizer_step_post_hook(watch.step_ends),
    ]
    torch.autograd.backward, torch.optim.Optimizer.__init__ = backward, init
    try:
        yield
    finally:
        torch.autograd.backward, torch.optim.Optimizer.__init__ = plain, create
        for handle in handles:
            handle.remove()


def measure(bench: Bench, program: Program, way: Way, *, scale: float = 0.0) -> Training:
    """Runs a program, follows its optimizers, and keeps its values."""
    training = Training(Run(way.label))
    watch = Watch(training)
    result = values.measure(
        bench, program, way, watched(watch), scalers_on(training, scale), limit=RUNS, after=watch.flagged
    )
    training.run, training.values = result.run, result.values
    return training


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Distance of two sets of gradients by the size of the larger; 0 for none."""
    names = {*one, *other}
    zero = torch.zeros(())
    far = size({name: one.get(name, zero) - other.get(name, zero) for name in names})
    return far / max(size(one), size(other), 1e-30)


def size(gradients: dict[str, torch.Tensor]) -> float:
    """The norm of all gradients together."""
    return math.sqrt(sum(float(g.norm()) ** 2 for g in gradients.values()))
