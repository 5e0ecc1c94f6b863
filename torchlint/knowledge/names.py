"""Public names of torch's objects, and torch's classes by those names."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torchlint.knowledge.callables import Param, params_of
from torchlint.knowledge.tables import table


@functools.cache
def canonical(dotted: str) -> str:
    """The public name of a torch object, whatever module of torch it was imported from.

    "torch.nn.modules.linear.Linear" gives "torch.nn.Linear"; members of classes follow their class. Names that
    are not known, or that are public already, come back unchanged. Old names that torch deprecates
    ("torch.cuda.amp.autocast", "functorch.vmap") stay as they are, so that rules can see them.
    """
    if not dotted.startswith("torch"):
        return dotted
    names = table("names")
    module, _, last = dotted.rpartition(".")
    rest = ""
    while module:
        targets = names.get(module)
        if targets is not None:
            renamed = targets.get("=", {}).get(last)
            if renamed is not None:
                return str(renamed) + rest
            for target, words in targets.items():
                if target != "=" and last in words.split():
                    return f"{target}.{last}{rest}"
        module, _, before = module.rpartition(".")
        rest = f".{last}{rest}"
        last = before
    return dotted


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """An nn.Module class of torch.

    `kind`: loss, container, activation, attention, dropout, norm, rnn, linear, conv, pool, padding, embedding,
    transformer or other. `parameters` and `buffers` are the names registered by a typical instance itself;
    `has_parameters` and `has_buffers` count its submodules too. `mode_sensitive`: forward does something else
    in training mode than after eval(). `built`: the generator could make an instance; where it is false, the
    facts about parameters are not known. `functional`: the one function that forward calls, if it is only one.
    `returns`: "tensor", the nesting of a tuple such as "(tensor,(tensor,tensor))" of LSTM, "none" inside it for
    None, or "" where it depends on arguments or is not known.
    `wrapper`: holds the module that it was given as `module` (DistributedDataParallel and its like).
    """

    name: str
    kind: str = "other"
    params: tuple[Param, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    has_parameters: bool = False
    has_buffers: bool = False
    mode_sensitive: bool = False
    built: bool = False
    functional: str = ""
    returns: str = ""
    wrapper: bool = False

    @property
    def stateless(self) -> bool:
        """Whether it surely has neither parameters nor buffers, so that several instances are interchangeable."""
        return self.built and not (self.has_parameters or self.has_buffers) and self.kind != "container"


@dataclass(frozen=True, slots=True)
class TorchClass:
    """A class or single object of torch that is not a Module.

    `what`: optimizer, scheduler, dataset, sampler, loader, scaler, tensor, parameter, buffer, function, ctx,
    device, dtype, dtype_class, size, generator, context, packed, handle, stream or event. `detail`: of a context
    which one (no_grad, enable_grad, inference_mode, set_grad_enabled, autocast, anomaly, ...); of a scheduler
    "epoch" or "batch", how often torch's own documentation steps it; of an optimizer "closure" if step() needs one.
    """

    name: str
    what: str
    detail: str = ""
    params: tuple[Param, ...] = ()


@functools.cache
def module_class(dotted: str) -> ModuleClass | None:
    """The torch Module class of this canonical name, None if there is none."""
    entry = table("classes").get(dotted)
    if entry is None or entry["is"] != "module":
        return None
    return ModuleClass(
        name=dotted,
        kind=entry.get("kind", "other"),
        params=tuple(params_of(entry.get("params", ""))),
        parameters=tuple(entry.get("parameters", "").split()),
        buffers=tuple(entry.get("buffers", "").split()),
        has_parameters=entry.get("has_parameters", False),
        has_buffers=entry.get("has_buffers", False),
        mode_sensitive=entry.get("mode", False),
        built=entry.get("built", False),
        functional=entry.get("functional", ""),
        returns=entry.get("returns", ""),
        wrapper=entry.get("wrapper", False),
    )


@functools.cache
def torch_class(dotted: str) -> TorchClass | None:
    """The class or object of torch of this canonical name that is not a Module, None if there is none."""
    entry: dict[str, Any] | None = table("classes").get(dotted)
    if entry is None or entry["is"] == "module":
        return None
    what, _, detail = entry["is"].partition(":")
    detail = detail or entry.get("step", "") or ("closure" if entry.get("closure") else "")
    return TorchClass(dotted, what, detail, tuple(params_of(entry.get("params", ""))))


def optimizer_class(dotted: str) -> TorchClass | None:
    """A torch optimizer class."""
    return _of(dotted, "optimizer")


def scheduler_class(dotted: str) -> TorchClass | None:
    """A learning rate scheduler class; `detail` says whether it is usually stepped per "epoch" or "batch"."""
    return _of(dotted, "scheduler")


def data_class(dotted: str) -> str | None:
    """ "loader", "dataset" or "sampler" for the classes of torch.utils.data, else None."""
    found = torch_class(dotted)
    return found.what if found is not None and found.what in ("loader", "dataset", "sampler") else None


def context(dotted: str) -> str | None:
    """Which context manager a name is: no_grad, inference_mode, enable_grad, autocast, ...; None if it is none."""
    found = torch_class(dotted)
    return found.detail if found is not None and found.what == "context" else None


def _of(dotted: str, what: str) -> TorchClass | None:
    found = torch_class(dotted)
    return found if found is not None and found.what == what else None
