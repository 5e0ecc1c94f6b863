"""Ways to run the code around a finding, best first.

First as the file itself calls it, then through its callers, then the whole script, then with arguments
made up from the text. Every run starts from fresh objects and seeded random generators.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from runtime_check.driver import PER_LEVEL, Drive, Driver
from runtime_check.elsewhere import called_elsewhere, drivers_elsewhere
from runtime_check.extract import Namespace, Target
from runtime_check.functions import Example, differentiable, examples
from runtime_check.hints import Hint, HintError, given, hints_for, instance, run
from runtime_check.learned import Learned
from runtime_check.modules import CannotBuild, inputs_for, running
from runtime_check.search import Failure, attempt
from runtime_check.slices import Arguments
from runtime_check.standins import expects_gpu, surroundings
from runtime_check.trace import OutOfTime, time_limit

AS_CALLED = 1.0  # seconds for making a module as a file does
Hints = Mapping[str, Callable[[], object]]


def drives(space: Namespace, target: Target, *, seed: int = 0, budget_s: float = 3.0, device: str = "cpu",
           hints: Hints | None = None, made: bool = True, called: bool = True,
           learned: Learned | None = None) -> Iterator[Drive]:
    """Ranked ways to run code that reaches `target.line`. Nothing has run before a drive's `run` is called,
    except that drives of kind "made" search for arguments within `budget_s` seconds, if they are wanted.
    Those that calls in the project lead to are left out unless `called`. What runs show about how the program can be
    run is added to what is `learned`."""
    driver = Driver(space, seed, learned=learned)
    if hints and target.qualname in hints:
        yield Drive("with the factory given for it", driver.fresh(hints[target.qualname]), "hint")
    hinted = list(hints_for(space, target.qualname)) if target.kind != "script" else []
    for hint in hinted:
        prepare = driver.prepared(partial(_noting, hint, space, partial(given, hint, space, target)))
        call = partial(_noting, hint, space, partial(run, hint, space, target))
        yield Drive(f"with {hint.label}", driver.fresh(call), "hint", prepare)
        driver.given.append((hint.label, partial(instance, hint, space, target)))
    if any(hint.label in space.loader.broken for hint in hinted):
        return
    if target.kind == "script":
        yield from driver.script(target)
        return
    graph = driver.graph
    owner = graph.owners.get(target.qualname)
    seen: set[str] = set()
    calls = itertools.chain(
        [] if owner is not None and owner.is_generator else driver.called(target.qualname),
        driver.alone(owner),
        driver.through(target.qualname),
        driver.called(target.qualname),
        called_elsewhere(space, target.qualname, seed),
        driver.main_block(target.qualname),
    )
    searched = driver.made(target, budget_s, device) if made else ()
    for drive in itertools.chain(calls if called else (), searched):
        if drive.label not in seen:
            seen.add(drive.label)
            yield drive


@dataclass(frozen=True)
class Built:
    """An instance of a Module class, and a call of it with inputs whose forward ran.

    `call` is None, and `why` says why, if no inputs were found. Every call makes new inputs.
    """

    label: str
    module: nn.Module
    call: Callable[[], object] | None
    why: str = ""
    make: Callable[[], nn.Module] | None = None  # another instance
    inputs: Callable[[], tuple[list[Any], dict[str, Any]]] | None = None  # new arguments for a call


def build_module(space: Namespace, qualname: str, *, seed: int = 0, budget_s: float = 1.2) -> Iterator[Built]:
    """Instances of a Module class, best first. Raises CannotBuild, or what loading the class raises."""
    cls = space.resolve(qualname)
    if not isinstance(cls, type):
        raise CannotBuild(f"`{qualname}` is no class")
    driver = Driver(space, seed)
    yield from _built_from_hints(driver, qualname)
    for other, name in itertools.chain([(driver, qualname)], drivers_elsewhere(space, qualname, seed)):
        yield from _built_as_called(other, name, cls)
    with surroundings(space.path, seed, cuda=expects_gpu(space.text)):
        yield from _built_from_instances(driver, qualname, cls)
        for item in running(cls, budget_s):
            module = item.made.make()
            label = f"{qualname}({item.made.arguments.label})"
            if item.inputs is None:
                yield Built(label, module, None, item.why, item.made.make)
                continue
            call = partial(_call_module, module, item.inputs.make)
            yield Built(f"{label}({item.inputs.label})", module, call, "", item.made.make, item.inputs.make)


def _call_module(module: nn.Module, inputs: Callable[[], tuple[list[Any], dict[str, Any]]]) -> object:
    args, kwargs = inputs()
    return module(*args, **kwargs)


def _noting(hint: Hint, space: Namespace, call: Callable[[], object]) -> object:
    """A call of the user's factory; if that fails it is noted."""
    try:
        return call()
    except HintError:
        space.loader.broken.add(hint.label)
        raise


def _built_from_hints(driver: Driver, qualname: str) -> Iterator[Built]:
    """The module and the inputs of the user's factories. Raises what is wrong with one: the user can mend it."""
    target = Target("method", f"{qualname}.forward", 0, 0, 0)
    for hint in hints_for(driver.space, qualname):
        prepare = driver.prepared(partial(given, hint, driver.space, target))
        assert prepare is not None
        first = prepare()
        if isinstance(first.receiver, nn.Module) and (first.args or first.kwargs):
            inputs = partial(_inputs_of, prepare)
            call = partial(_call_module, first.receiver, inputs)
            make = partial(_receiver_of, prepare)
            yield Built(f"{qualname} with {hint.label}", first.receiver, call, "", make, inputs)
        else:
            driver.given.append((hint.label, partial(instance, hint, driver.space, target)))


def _built_as_called(driver: Driver, qualname: str, cls: type) -> Iterator[Built]:
    """The module and the inputs of the calls that the file itself makes, where they run."""
    for drive in itertools.islice(driver.called(f"{qualname}.forward"), PER_LEVEL):
        prepare = drive.prepare
        if prepare is None:
            continue
        try:
            with time_limit(AS_CALLED):  # in the sizes that the file asks for: some take minutes
                given = prepare()
        except (Exception, OutOfTime):
            continue
        if isinstance(given.receiver, cls) and not isinstance(attempt(partial(_call_given, prepare)), Failure):
            call = partial(_call_module, given.receiver, partial(_inputs_of, prepare))
            yield Built(f"{qualname} {drive.label}", given.receiver, call, "", partial(_receiver_of, prepare),
                        partial(_inputs_of, prepare))


def _call_given(prepare: Callable[[], Arguments]) -> object:
    given = prepare()
    return given.receiver(*given.args, **given.kwargs)


def _inputs_of(prepare: Callable[[], Arguments]) -> tuple[list[Any], dict[str, Any]]:
    given = prepare()
    return list(given.args), given.kwargs


def _receiver_of(prepare: Callable[[], Arguments]) -> Any:
    return prepare().receiver


def _built_from_instances(driver: Driver, qualname: str, cls: type) -> Iterator[Built]:
    """Instances as the file makes them, with made-up inputs."""
    target = Target("method", f"{qualname}.forward", 0, 0, 0)
    for label, make in driver.instances(target)[:2]:
        module = attempt(make)
        if isinstance(module, Failure) or not isinstance(module[0], cls) or not isinstance(module[0], nn.Module):
            continue
        first = next(inputs_for(module[0], 1.0)[0], None)
        if first is not None:
            inputs = first.arguments
            yield Built(f"{label}({inputs.label})", module[0], partial(_call_module, module[0], inputs.make), "",
                        make, inputs.make)


def build_function_class(space: Namespace, qualname: str, *, seed: int = 0, budget_s: float = 3.0) -> Iterator[Example]:
    """Arguments for an autograd Function: those that the user says, else as the file calls it, then made up.

    Raises what loading it raises. Floating tensors are float64 leaves that require grad; every call makes new ones.
    """
    cls = space.resolve(qualname)
    driver = Driver(space, seed)
    hints = list(hints_for(space, qualname))
    for hint in hints:
        prepare = driver.prepared(partial(given, hint, space, Target("method", f"{qualname}.forward", 0, 0, 0)))
        assert prepare is not None
        yield Example(hint.label, partial(_given, prepare), cls, True, True, partial(_trained, prepare))
    if hints:
        return  # nothing is guessed in their place
    for drive in itertools.islice(driver.called(f"{qualname}.forward"), PER_LEVEL):
        if drive.prepare is not None:
            yield Example(drive.label, partial(_given, drive.prepare), cls, True,
                          trained=partial(_trained, drive.prepare))
    with surroundings(space.path, seed, cuda=expects_gpu(space.text)):
        yield from examples(cls, budget_s, space.tree)


def _given(prepare: Callable[[], Arguments]) -> tuple[Any, ...]:
    return differentiable(prepare().args)


def _trained(prepare: Callable[[], Arguments]) -> frozenset[int]:
    """Positions of the arguments that ask for a gradient themselves."""
    given = enumerate(prepare().args)
    return frozenset(i for i, item in given if isinstance(item, torch.Tensor) and item.requires_grad)


__all__ = [
    "Built", "CannotBuild", "Drive", "Example", "Hints", "build_function_class", "build_module", "drives",
]
