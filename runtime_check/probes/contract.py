"""BreaksContract: a module that can be built and called, held against what torch and its users rely on.

Five promises: parameters that take part get a gradient; tensors follow `.to`; eval mode is
deterministic; a state_dict holds the state; inputs are left as they are. Each is measured with a
control, and nothing is said where the control fails.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_check.drive import Built, build_module
from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import values
from runtime_check.probes.bench import Bench
from runtime_check.probes.gradcheck import qualname_at
from runtime_check.probes.not_registered import strays
from runtime_check.sandbox import shorten
from runtime_check.trace import pristine

BUILDS = 4
NAMED = 3  # names listed in a sentence
DROPPING = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "bernoulli",
            "bernoulli_", "scaled_dot_product_attention", "dropout_", "feature_dropout", "native_dropout"}
RANDOM = DROPPING | {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
                     "normal_", "uniform_", "multinomial", "exponential_", "gumbel_softmax", "poisson", "rrelu",
                     "random_", "cauchy_", "log_normal_", "geometric_", "empty", "empty_like"}


@dataclass(frozen=True)
class Broken:
    """A promise that is not kept: a clause for a sentence, and the number behind it."""

    clause: str
    row: Evidence


@dataclass
class Work(TorchFunctionMode):  # type: ignore[misc]
    """Notes the tensors that torch functions are given, and the random functions among them."""

    used: dict[int, torch.Tensor] = field(default_factory=dict)
    random: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in RANDOM:
            self.random.add(name)
        if name not in ("__get__", "__set__", "detach", "size", "dim", "numel", "to", "type", "data_ptr"):
            for tensor in tensors((args, kwargs)):
                self.used[id(tensor)] = tensor
        return func(*args, **(kwargs or {}))


def probe(bench: Bench) -> Outcome:
    """Confirmed when a promise is broken; refuted when all that could be measured are kept."""
    name = qualname_at(bench.case.text, bench.case.flagged[0].first)
    why = f"`{name}` could not be built"
    try:
        for built in islice(build_module(bench.flagged.space, name, seed=bench.case.seed), BUILDS):
            if built.inputs is None or built.make is None:
                why = built.why or why
                continue
            return judged(bench, built)
    except Exception as error:
        why = f"`{name}` could not be built ({type(error).__name__}: {shorten(error)})"
    return cannot_tell(why)


def judged(bench: Bench, built: Built) -> Outcome:
    """The outcome for one way to build and call the module."""
    broken: list[Broken] = []
    measured: list[str] = []
    for check in (gradients, followers, evaluation, stored, untouched):
        if bench.left < 0:
            break
        with pristine(bench.case.seed):
            try:
                found = check(built)
            except Exception:
                continue  # what this check asks of the module it cannot do: that breaks no promise
        measured.append(check.__name__)
        broken += [found] if found is not None else []
    if broken:
        return Outcome(Verdict.CONFIRMED, "; ".join(item.clause for item in broken),
                       tuple(item.row for item in broken), built.label)
    if not measured:
        return cannot_tell("the module runs, and none of the measurements does", how=built.label)
    row = Evidence("promises broken", "0", "measured", f"{len(measured)} ({', '.join(measured)})")
    return Outcome(Verdict.REFUTED, "every promise that was measured is kept", (row,), built.label)


# -- tools --------------------------------------------------------------------------------------


def tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Tensors in nested containers and plain objects."""
    match value:
        case torch.Tensor():
            yield value
        case dict() if depth:
            for item in value.values():
                yield from tensors(item, depth - 1)
        case list() | tuple() if depth:
            for item in value:
                yield from tensors(item, depth - 1)
        case _ if depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
            yield from tensors(vars(value), depth - 1)


def converted(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of arguments with their tensors changed."""
    match value:
        case torch.Tensor():
            return change(value)
        case dict():
            return {key: converted(item, change) for key, item in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(converted(item, change) for item in value)
    return value


def called(module: torch.nn.Module, given: tuple[list[Any], dict[str, Any]]) -> Any:
    """A call with copies of arguments."""
    args, kwargs = converted(given, lambda item: item.detach().clone())
    return module(*args, **kwargs)


def listed(names: list[str]) -> str:
    """`a`, `b` and 3 more."""
    shown = ", ".join(f"`{name}`" for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def make(built: Built, seed: int = 0) -> torch.nn.Module:
    """A new instance."""
    assert built.make is not None
    torch.manual_seed(seed)
    return built.make()


def arguments(built: Built) -> tuple[list[Any], dict[str, Any]]:
    """New arguments for a call."""
    assert built.inputs is not None
    return built.inputs()


def agree(one: Any, other: Any) -> bool:
    """Whether two results hold the same values."""
    first, second = dict(values.flat(one, "output")), dict(values.flat(other, "output"))
    return first.keys() == second.keys() and not values.gaps(first, second)


@contextmanager
def recording() -> Iterator[Work]:
    """Watches torch functions."""
    work = Work()
    with work:
        yield work


# -- promises -----------------------------------------------------------------------------------


def gradients(built: Built) -> Broken | None:
    """Parameters that take part in the forward get a gradient, with two sets of inputs."""
    module = make(built).train()
    silent: set[str] | None = None
    reached = 0
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        with recording() as work:
            value = called(module, arguments(built))
        ends = [item for item in tensors(value) if item.requires_grad]
        if not ends:
            return None
        torch.stack([(item.abs() if item.is_complex() else item).double().sum() for item in ends]).sum().backward()
        taking = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) in work.used}
        without = {name for name, p in taking.items() if p.grad is None}
        reached = len(taking) - len(without)
        silent = without if silent is None else silent & without
    if not silent or not reached:
        return None
    row = Evidence("parameters that take part and get no gradient", str(len(silent)), "that get one", str(reached))
    return Broken(f"{listed(sorted(silent))} takes part in the forward and gets no gradient", row)


def followers(built: Built) -> Broken | None:
    """Tensors that the forward uses are converted with the module."""
    module = make(built).eval().double()
    given = converted(arguments(built), lambda item: item.double() if item.is_floating_point() else item)
    held = strays(module, constants=True)  # what the call itself makes and keeps is another matter
    with recording() as work, torch.no_grad():
        called(module, given)
    left = [name for name, item in held.items() if id(item) in work.used and item.dtype == torch.float32]
    if not left:
        return None
    moved = sum(item.dtype == torch.float64 for item in (*module.parameters(), *module.buffers()))
    row = Evidence("tensors used that stay float32 after .to(float64)", str(len(left)), "registered that follow",
                   str(moved))
    return Broken(f"{listed(sorted(left))} does not follow `.to`: it is no buffer or parameter", row)


def evaluation(built: Built) -> Broken | None:
    """In eval mode nothing is dropped at random. Sampling that is no dropout is taken to be meant."""
    module = make(built).eval()
    given = arguments(built)
    found: list[Any] = []
    with torch.no_grad(), recording() as work:
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(called(module, given))
    if not agree(found[0], found[1]) or agree(found[0], found[2]) or not work.random <= DROPPING:
        return None
    row = Evidence("results of two calls in eval mode with other seeds", "differ", "with one seed", "the same")
    return Broken(f"in eval mode `{min(work.random)}` still draws random numbers", row)


def stored(built: Built) -> Broken | None:
    """An instance that loads the state_dict of another gives the same results; so does a deep copy."""
    module, other = make(built, 1).eval(), make(built, 2).eval()
    twin = copy.deepcopy(module)
    for item in strays(other, constants=False).values():
        item.data.normal_()  # both may have been made from one seed
    other.load_state_dict(module.state_dict())
    given = arguments(built)
    found = []
    for one in (module, twin, other):
        torch.manual_seed(0)
        with torch.no_grad():
            found.append(called(one, given))
    if not agree(found[0], found[1]) or agree(found[0], found[2]):
        return None
    row = Evidence("result after loading the state_dict of another instance", "differs", "of a deep copy", "the same")
    return Broken("the state_dict does not hold all that the output depends on", row)


def untouched(built: Built) -> Broken | None:
    """The forward does not change its inputs, unless a layer was asked to with `inplace=True`."""
    module = make(built).eval()
    if any(getattr(child, "inplace", False) is True for child in module.modules()):
        return None
    args, kwargs = converted(arguments(built), lambda item: item.detach().clone())
    before = converted((args, kwargs), lambda item: item.clone())
    with torch.no_grad():
        module(*args, **kwargs)
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    old = {**dict(zip(names, before[0], strict=False)), **before[1]}
    changed = [name for name in named if not agree(named[name], old[name])]
    if not changed:
        return None
    row = Evidence("inputs changed by the forward", str(len(changed)), "inputs", str(len(named)))
    return Broken(f"the forward changes {listed(changed)}, which belongs to the caller", row)
