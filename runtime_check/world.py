"""What a training function is given: a model, batches that fit it, an optimizer over its parameters.

The objects of one run belong together, so they come from one `World`: the optimizer holds the very
parameters of the model that the loader's batches fit.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from runtime_check import names
from runtime_check.outside import Quiet
from runtime_check.specs import Assignment, Spec, Tensor

COUNT = 4  # batches of a loader

LOADERS = re.compile(r"loader|batches|dataset|(^|_)(data|iter|iterator|stream|ds|dl|episodes|samples|pairs)$"
                     r"|^(train|val|test)(set|_data|_set)?$")
OPTIMIZERS = re.compile(r"optim|^opt(_|$)|(^|_)opt$|solver|sgd|adam")
SCHEDULERS = re.compile(r"sched")
SCALERS = re.compile(r"scaler|grad_scaler|^amp$")
LOSSES = re.compile(r"criterion|criteria|loss(_?(fn|func|function|fct|f|module|obj))?$|objective|cost|^ce$|^mse$|^bce$")
LOGS = re.compile(r"writer|logger|(^|_)log$|wandb|tensorboard|(^|_)tb$|pbar|progress|(?<!para)meter|recorder|summary"
                  r"|callback|tracker|monitor|console")
DEVICES = re.compile(r"^(device|dev|gpu|cuda_device|map_location)$")
RANKS = re.compile(r"^(local_|global_)?rank$|^gpu_id$|^local_rank$")


class Batches(list[Any]):
    """A loader of a few batches; new copies of the tensors each time it is run through."""

    batch_size = names.BATCH
    sampler = Quiet()

    def __iter__(self) -> Iterator[Any]:
        return (fresh(item) for item in super().__iter__())

    @property
    def dataset(self) -> list[Any]:
        """As many items as the batches hold."""
        return [None] * (len(self) * self.batch_size)


def fresh(value: Any) -> Any:
    """Copies of the tensors in a batch."""
    match value:
        case torch.Tensor():
            return value.clone()
        case tuple() | list():
            return type(value)(fresh(item) for item in value)
        case dict():
            return {key: fresh(item) for key, item in value.items()}
    return value


class AnyNet(nn.Module):  # type: ignore[misc]
    """A small network for any tensor: some of its numbers, a linear layer, a few outputs."""

    def __init__(self, outputs: int = names.CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(names.WIDTH, outputs)

    def forward(self, x: Any, *more: object, **options: object) -> Any:
        flat = x.reshape(x.shape[0], -1).to(self.fc.weight.dtype) if x.dim() else x.reshape(1, 1).float()
        short = flat[:, : names.WIDTH]
        return self.fc(nn.functional.pad(short, (0, names.WIDTH - short.shape[1])))


@dataclass(frozen=True)
class Recipe:
    """A model that can be made: its name, how, the inputs that fit it and the output that they gave."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Assignment | None = None
    output: Any = None


ANY = Recipe("AnyNet", AnyNet, Assignment((("x", Tensor((names.BATCH, 1, 28, 28))),)),
             torch.zeros(names.BATCH, names.CLASSES))


class Outputs(dict[str, Any]):
    """What models of libraries give: parts by name, by attribute and by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)


class LossNet(nn.Module):  # type: ignore[misc]
    """A small network that computes its loss itself, from whatever it is given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(names.VOCABULARY, names.WIDTH), nn.Linear(names.WIDTH, names.VOCABULARY)

    def forward(self, *args: Any, labels: Any = None, **options: Any) -> Outputs:
        given = next(item for item in (*args, *options.values()) if isinstance(item, torch.Tensor))
        logits = self.fc(self.embed(given.long().abs() % names.VOCABULARY))
        if isinstance(labels, torch.Tensor) and labels.shape == logits.shape[:-1] and not labels.is_floating_point():
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten() % names.VOCABULARY)
        else:
            loss = logits.pow(2).mean()
        return Outputs(loss=loss, logits=logits)


#: Code whose model gives its loss.
ASKS_LOSS = re.compile(r"""\w\.(loss|logits)\b|\w\[["'](loss|logits)["']\]|\(\*\*(batch|inputs|data)\)""")
TOKENS = Tensor((names.BATCH, 8), "long", names.VOCABULARY)
WITH_LOSS = Recipe("LossNet", LossNet, Assignment((("input_ids", TOKENS),)),
                   torch.zeros(names.BATCH, 8, names.VOCABULARY))


@dataclass
class World:
    """The objects of one run."""

    recipes: list[Recipe]
    models: dict[str, nn.Module] = field(default_factory=dict)

    def recipe(self, name: str) -> Recipe:
        """The recipe whose name is most like a parameter's."""
        words = [word for word in names.snake(name).split("_") if len(word) > 2]
        scored = [(sum(word in names.snake(item.name) for word in words), -position, item)
                  for position, item in enumerate(self.recipes)]
        return max(scored, key=lambda entry: entry[:2])[2] if scored else ANY

    def model(self, name: str) -> nn.Module:
        """The model for a parameter of this name, one per name."""
        if name not in self.models:
            self.models[name] = self.recipe(name).make()
        return self.models[name]

    def parameters(self, name: str) -> list[nn.Parameter]:
        """Trainable parameters for an optimizer of this name: of the model that it names, else of all."""
        suffix = names.snake(name).rpartition("_")[2]
        chosen = [model for key, model in self.models.items() if suffix and names.snake(key).endswith(suffix)]
        models = chosen or list(self.models.values()) or [self.model("model")]
        found = [item for model in models for item in model.parameters() if item.requires_grad]
        return found or [nn.Parameter(torch.zeros(1))]


#: The world of the run in progress.
current = World([])


#: Where training code is told to work.
device = "cpu"


@contextlib.contextmanager
def on(where: str) -> Iterator[None]:
    """While it lasts, training code is told to work on another device."""
    global device
    before, device = device, where
    try:
        yield
    finally:
        device = before


def enter(recipes: list[Recipe]) -> None:
    """Begins a new world; what was made before belongs to the old one."""
    global current
    current = World(recipes)


def make_model(name: str) -> nn.Module:
    """The current world's model of this name."""
    return current.model(name)


def make_optimizer(name: str, kind: Callable[..., Any] = torch.optim.SGD) -> Any:
    """An optimizer over the current world's model."""
    return kind(current.parameters(name), lr=0.01)


def make_scheduler(name: str) -> Any:
    """A schedule for an optimizer over the current world's model."""
    return torch.optim.lr_scheduler.StepLR(make_optimizer("optimizer"), 1)


def make_scaler() -> Any:
    """A gradient scaler for the CPU."""
    return torch.amp.GradScaler("cpu", init_scale=8.0)


@dataclass(frozen=True)
class BatchSpec(Spec):
    """A loader of batches. `form`: "tuple", "list", "alone" or "dict" (with `keys`)."""

    items: tuple[Spec, ...]
    form: str = "tuple"
    keys: tuple[str, ...] = ()
    count: int = COUNT
    single: bool = False  # one batch, not a loader of them

    def make(self) -> Any:
        return self._batch() if self.single else Batches(self._batch() for _ in range(self.count))

    def _batch(self) -> Any:
        made = [item.make() for item in self.items]
        match self.form:
            case "alone":
                return made[0]
            case "dict":
                return dict(zip(self.keys, made, strict=False))
            case "list":
                return made
        return tuple(made)

    @property
    def label(self) -> str:
        inner = ", ".join(item.label for item in self.items)
        match self.form:
            case "alone":
                batch = inner
            case "dict":
                pairs = zip(self.keys, self.items, strict=False)
                batch = "{" + ", ".join(f"{key!r}: {item.label}" for key, item in pairs) + "}"
            case _:
                batch = f"({inner})"
        return batch if self.single else f"[{batch}] * {self.count}"


def targets_for(output: Any, inputs: Assignment | None) -> list[Spec]:
    """Targets that a loss may want for an output: class numbers, values of the same shape, values in 0 to 1."""
    out = output
    while isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(output, dict):
        out = next((item for item in output.values() if isinstance(item, torch.Tensor)), None)
    found: list[Spec] = []
    if isinstance(out, torch.Tensor) and out.is_floating_point() and out.dim() >= 1:
        shape = tuple(out.shape)
        classes = shape[1] if len(shape) in (2, 4) else shape[-1]
        if len(shape) >= 2 and classes > 1:
            rest = (shape[0], *shape[2:]) if len(shape) in (2, 4) else shape[:-1]
            found.append(Tensor(rest, "long", classes))
        found += [Tensor(shape), Tensor(shape, "unit")]
        if len(shape) == 2 and shape[1] == 1:
            found = [Tensor(shape), Tensor(shape, "unit"), Tensor((shape[0],), "unit"), Tensor((shape[0],), "long", 2)]
        return [*found, Tensor((shape[0],), "long", 2)]
    return [Tensor((names.BATCH,), "long", names.CLASSES), Tensor((names.BATCH, names.CLASSES))]
