"""Live tensor bytes: every storage that an operation makes is followed with a weak reference."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SWEEP = 4096  # storages between two removals of dead ones


class Storages(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """While active, knows the storages that operations return. `live` counts those still there."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation and takes note of what it returns."""
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.note(value)
        return result

    def note(self, tensor: torch.Tensor) -> None:
        """Follows the storage of a tensor."""
        try:
            storage = tensor.untyped_storage()
            number = storage._cdata
        except (NotImplementedError, RuntimeError):
            return  # sparse and other tensors without a storage
        old = self.known.get(number)
        # A number is used again when its storage is gone.
        if old is None or old[0].expired() or old[1] != storage.nbytes():
            self.known[number] = StorageWeakRef(storage), storage.nbytes()
            if len(self.known) % SWEEP == 0:
                self.sweep()

    def sweep(self) -> None:
        """Forgets storages that are gone."""
        self.known = {number: row for number, row in self.known.items() if not row[0].expired()}

    def live(self) -> int:
        """Bytes of all known storages that are still there."""
        self.sweep()
        return sum(size for _, size in self.known.values())
