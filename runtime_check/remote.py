"""Remote procedure calls with nobody to call: what `torch.distributed.rpc` is for code that runs alone.

Calls are made here and at once, references hold their values, and the backward of many machines is that of one.
"""
from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

WORD = "distributed.rpc"
TRIES = 64  # calls after which what waits for other machines is given up


class Worker:
    """Who runs the code: itself."""

    def __init__(self, name: Any = "worker0") -> None:
        self.name, self.id = str(getattr(name, "name", name)), 0


def call(to: object, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, *more: object,
         **options: object) -> Any:
    """`rpc_sync`. What waits until others have called too is called in their place."""
    for _ in range(TRIES):
        value = function(*args, **(kwargs or {}))
        if not isinstance(value, torch.futures.Future):
            return value
        if value.done():
            return value.value()
    raise RuntimeError("the call waits for other processes, and there are none")


def later(*args: Any, **options: Any) -> Any:
    """`rpc_async`: done already."""
    future: Any = torch.futures.Future()
    future.set_result(call(*args, **options))
    return future


def remote(*args: Any, **options: Any) -> Reference:
    """`remote`: a reference to what the call gives."""
    return Reference(call(*args, **options))


class Methods:
    """Calls methods of a value and hands on what they give."""

    def __init__(self, value: Any, hand_on: Callable[..., Any]) -> None:
        self._value, self._hand_on = value, hand_on

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._value, name)
        return lambda *args, **options: self._hand_on("", method, args, options)


class Reference:
    """`RRef`: the value itself."""

    def __init__(self, value: Any, *args: object, **options: object) -> None:
        self._value = value

    def __class_getitem__(cls, item: object) -> Any:
        return cls

    def local_value(self) -> Any:
        return self._value

    def to_here(self, *args: object, **options: object) -> Any:
        return self._value

    def is_owner(self) -> bool:
        return True

    confirmed_by_owner = is_owner

    def owner(self) -> Worker:
        return Worker()

    def owner_name(self) -> str:
        return Worker().name

    def rpc_sync(self, *args: object) -> Methods:
        return Methods(self._value, call)

    def rpc_async(self, *args: object) -> Methods:
        return Methods(self._value, later)

    def remote(self, *args: object) -> Methods:
        return Methods(self._value, remote)

    def backward(self, context: int = -1, retain_graph: bool = False) -> None:
        self._value.backward(retain_graph=retain_graph)


class RemoteModule(torch.nn.Module):  # type: ignore[misc]
    """`torch.distributed.nn.RemoteModule`: a module that is here."""

    def __init__(self, place: object, kind: Callable[..., Any], args: Any = (), kwargs: Any = None) -> None:
        super().__init__()
        self.module = kind(*args, **(kwargs or {}))

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def forward_async(self, *args: Any, **options: Any) -> Any:
        return later("", self.module, args, options)

    def remote_parameters(self, recurse: bool = True) -> list[Reference]:
        return [Reference(item) for item in self.module.parameters(recurse)]

    def get_module_rref(self) -> Reference:
        return Reference(self.module)


class Optimizer:
    """`DistributedOptimizer`: one optimizer over the values of references, which starts every pass at zero."""

    def __init__(self, kind: Callable[..., Any], references: Any, *args: Any, **options: Any) -> None:
        self.parameters = [item.local_value() for item in references]
        self.inner = kind(self.parameters, *args, **options)

    def step(self, context: int = 0) -> None:
        self.inner.step()
        self.inner.zero_grad()


def backward(context: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """The backward of a context."""
    torch.autograd.backward(roots, retain_graph=retain_graph)


@contextlib.contextmanager
def context() -> Iterator[int]:
    """The scope of a backward."""
    yield 0


def gradients(of: int) -> dict[Any, Any]:
    """Gradients by parameter; whose they are is not known, but there are some."""
    return {torch.zeros(1): torch.zeros(1)}


def same(function: Any) -> Any:
    """A decorator that says nothing."""
    return function


def nothing(*args: object, **options: object) -> None:
    """For what starts and ends a connection."""


def spawn(function: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 1, **options: Any) -> None:
    """All processes in turn: which of them trains is for the code to say."""
    for rank in range(nprocs):
        function(rank, *args)


REPLACED: dict[str, dict[str, Any]] = {
    "torch.distributed.rpc": {
        "init_rpc": nothing, "shutdown": nothing, "rpc_sync": call, "rpc_async": later, "remote": remote,
        "RRef": Reference, "get_worker_info": Worker,
    },
    "torch.distributed.rpc.functions": {"async_execution": same},
    "torch.distributed.autograd": {"context": context, "backward": backward, "get_gradients": gradients},
    "torch.distributed.optim": {"DistributedOptimizer": Optimizer},
    "torch.multiprocessing": {"spawn": spawn},
    "torch.distributed.nn": {"RemoteModule": RemoteModule},
}


@contextlib.contextmanager
def alone(text: str) -> Iterator[None]:
    """While it lasts, code that speaks of remote calls makes them here."""
    owners = []
    with contextlib.suppress(ImportError):  # torch may be built without it
        owners = [(importlib.import_module(module), REPLACED[module]) for module in REPLACED if WORD in text]
    with contextlib.ExitStack() as stack:
        for owner, names in owners:  # which know one another as they are by now
            for name, value in names.items():
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, value))
        yield
