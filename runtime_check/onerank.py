"""A process group of one: what code meets here that was written to be run as many processes.

Its variables of the environment are there for code that cannot do without them, not for code that asks
whether they are set. Backends for accelerators become gloo, and `spawn` calls its function once, here.
"""

from __future__ import annotations

import contextlib
import datetime
import numbers
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

VARIABLES = {
    "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}
SETTLE = 0.02  # seconds without the lock in which finished work is dropped
SECONDS = 5.0  # that an operation may wait

_environ: Any = os._Environ  # the type of `os.environ`
_read = _environ.__getitem__
_wrap = DistributedDataParallel.__init__
_spawn = mp.spawn


def _variable(self: Any, key: str) -> str:
    """A variable of the environment; `get` and `in` see only what is really there."""
    try:
        return str(_read(self, key))
    except KeyError:
        asks = sys._getframe(1).f_globals.get("__name__") in ("_collections_abc", "collections.abc", "os")
        if asks or key not in VARIABLES:
            raise
        return VARIABLES[key]


def _joined(real: Callable[..., None]) -> Callable[..., None]:
    """`init_process_group` for one process; what asks for more ranks of ours gets the real one."""

    def init(*args: Any, **options: Any) -> None:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            return real(*args, **options)
        limit = datetime.timedelta(seconds=SECONDS)
        return real("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit)

    return init


def _joining(module: Any) -> Callable[[], Any]:
    """What gives the process group that operations use by default, which is made when it is first asked for."""
    real = module._get_default_group

    def group() -> Any:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return real()

    return group


def _of_rank(real: Callable[..., int]) -> Callable[..., int]:
    """What turns the number of a rank into that of its group. One that is not there is refused: gloo ends the process
    over numbers below zero, waits for the others, and has crashed over what was no number."""

    def rank(*args: Any, **options: Any) -> int:
        found = real(*args, **options)
        if not isinstance(found, numbers.Integral):
            raise TypeError(f"a rank is a number, not {type(found).__name__}")
        if not 0 <= found < dist.get_world_size():
            raise ValueError(f"there is no rank {found}")
        return found

    return rank


def settled(real: Callable[..., None]) -> Callable[..., None]:
    """`destroy_process_group` that lets the threads of gloo drop their tensors first.

    It joins them without giving up the interpreter's lock, which one of them needs for that: both would wait for ever.
    """

    def destroy(*args: Any, **options: Any) -> None:
        time.sleep(SETTLE)
        real(*args, **options)

    return destroy


def on_cpu(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any,
            **options: Any) -> None:
    """The wrapper of a module, which is not on the devices that it is said to be on if there are none."""
    if all(item.device.type == "cpu" for item in module.parameters()):
        device_ids = output_device = None
    _wrap(self, module, device_ids, output_device, *args, **options)


def _once(fn: Callable[..., object], args: tuple[Any, ...] = (), nprocs: int = 1, **options: Any) -> None:
    """`spawn` with one process: this one."""
    fn(0, *args)


def _kept(state: object, bucket: Any) -> Any:
    """What stands for the mean over all ranks where there is nobody to ask: the gradients of this one."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_kept.__annotations__.clear()  # torch compares them with its own types


def _alone_among(self: Any, *args: Any, **options: Any) -> None:
    """The wrapper of a module whose ranks do not answer."""
    on_cpu(self, *args, **options)
    self.register_comm_hook(None, _kept)


@contextlib.contextmanager
def first_of(ranks: int) -> Iterator[None]:
    """While it lasts, code finds itself to be the first of several ranks with a GPU each, of which nobody answers:
    its collectives have the right shapes, and values that mean nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    variables = {**VARIABLES, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, variables))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", _alone_among))
        if mp.spawn is _spawn:
            stack.enter_context(mock.patch.object(mp, "spawn", _once))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        stack.callback(dist.destroy_process_group)
        for name in ("init_process_group", "destroy_process_group"):
            stack.enter_context(mock.patch.object(dist, name, lambda *args, **options: None))
        yield


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """While it lasts, code for many processes finds itself to be the only one."""
    if not dist.is_available() or "RANK" in os.environ:
        yield
        return
    before = dist.is_initialized()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(os._Environ, "__getitem__", _variable))
        stack.enter_context(mock.patch.object(dist, "init_process_group", _joined(dist.init_process_group)))
        stack.enter_context(mock.patch.object(dist, "destroy_process_group", settled(dist.destroy_process_group)))
        for module in (dist.distributed_c10d, torch.nn.parallel.distributed):
            if hasattr(module, "_get_default_group"):
                stack.enter_context(mock.patch.object(module, "_get_default_group", _joining(module)))
        numbered = getattr(dist.distributed_c10d, "_canonicalize_group_rank", None)
        if numbered is not None:
            changed = mock.patch.object(dist.distributed_c10d, "_canonicalize_group_rank", _of_rank(numbered))
            stack.enter_context(changed)
        if not torch.cuda.is_available():
            stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", on_cpu))
        if mp.spawn is _spawn:
            stack.enter_context(mock.patch.object(mp, "spawn", _once))
        try:
            yield
        finally:
            if dist.is_initialized() and not before:
                dist.destroy_process_group()
