"""Loaders for scripts whose data cannot be read: batches are made when the loop asks for them.

By then the script has made its models and options, so the sizes can be taken from there.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from runtime_check import names, world
from runtime_check.extract import Namespace
from runtime_check.modules import inputs_for
from runtime_check.outside import Quiet
from runtime_check.specs import Tensor
from runtime_check.training import TrainingGuesser
from runtime_check.usage import Indexed, Reader, Usage
from runtime_check.world import Batches, BatchSpec, Recipe

HEIGHTS = ("img_height", "hr_height", "image_height", "height")
SIDES = ("img_size", "image_size", "imageSize", "crop_size", "size", "resolution")
DATASETS = re.compile(r"dataset|(^|_)(ds|set)$|^(train|val|valid|test)_?set$")
#: What a loss says of a target whose shape is not that of its input.
TARGETS = re.compile(r"[Tt]arget size \(.*?(?:same as|different to) (?:the )?input size"
                     r" \(torch\.Size\(\[([\d, ]+)\]\)\)")
CHANNELS = ("channels", "img_channels", "image_channels", "nc", "in_channels", "n_channels")


class LazyBatches(Batches):
    """Stands for the loader bound to `name` at the top level of a script. `choice` picks among the likely forms, of
    which the first is the one with which an earlier run has failed with `complaint`."""

    def __init__(self, space: Namespace, name: str, choice: int, complaint: str = "") -> None:
        super().__init__()
        self.space, self.name, self.choice, self.complaint = space, name, choice, complaint

    def __iter__(self) -> Iterator[Any]:
        if not len(self._items()):
            self.extend(self._make())
        return super().__iter__()

    def _items(self) -> list[Any]:
        return list.copy(self)

    def __len__(self) -> int:
        return max(list.__len__(self), world.COUNT)

    def _make(self) -> list[Any]:
        use = usage_at_top(self.space, self.name)
        options: dict[BatchSpec, None] = {}
        shape = wanted(self.complaint) if self.choice == 1 else None
        if shape is not None:
            x = image_options(self.space) or next(self._inputs(), Tensor((names.BATCH, names.WIDTH)))
            guesser, y = TrainingGuesser(_nothing, None, []), Tensor(shape, "unit")
            return list.copy(next(guesser.forms(use.element or Usage(), x, y, [x], False)).make())
        for item in self._sized(use.element or Usage()):
            options[item] = None
            if len(options) > self.choice:
                break
        return list.copy(list(options)[-1].make())

    def _inputs(self) -> Iterator[Tensor]:
        """Inputs of the models that the script has made."""
        for recipe in recipes_in(self.space):
            yield from (spec for _, spec in recipe.inputs.tensors()) if recipe.inputs is not None else ()

    def _sized(self, use: Usage) -> Iterator[BatchSpec]:
        image = image_options(self.space)
        guesser = TrainingGuesser(_nothing, None, [])
        if image is not None:
            for y in (Tensor((names.BATCH,), "long", 2), image):
                yield from guesser.forms(use, image, y, [image], single=False)
        guesser.recipes = recipes_in(self.space)  # takes time: only if the options say nothing
        yield from guesser.batches(use, single=False)


class LazyItems(LazyBatches):
    """Stands for a data set: single items, to be put together by a real loader."""

    def __getitem__(self, index: Any) -> Any:
        if not self._items():
            self.extend(self._make())
        batch, row = divmod(int(index), names.BATCH)
        if batch >= len(self._items()):
            raise IndexError(index)
        return _row(list.__getitem__(self, batch), row)

    def __len__(self) -> int:
        return names.BATCH * world.COUNT

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def wanted(complaint: str) -> tuple[int, ...] | None:
    """The shape that a loss wants its target to have, by the error that it raises."""
    found = TARGETS.search(complaint)
    return tuple(int(item) for item in found[1].split(",") if item.strip()) if found is not None else None


def _row(value: Any, row: int) -> Any:
    """One row of every tensor in a batch."""
    match value:
        case torch.Tensor():
            return value[row % value.shape[0]] if value.dim() else value
        case tuple() | list():
            return type(value)(_row(item, row) for item in value)
        case dict():
            return {key: _row(item, row) for key, item in value.items()}
    return value


def _nothing() -> None: ...


def usage_at_top(space: Namespace, name: str) -> Usage:
    """How the statements of a script's top level use one of its names."""
    reader = Reader(_nothing, None, 2)
    reader.index = Indexed(space.tree)
    found = Usage()
    reader.follow(name, found)
    return found


def image_options(space: Namespace) -> Tensor | None:
    """An image of the size that the script's options state, or None."""
    for value in list(space.globals.values()):
        if isinstance(value, (type, nn.Module)) or not hasattr(value, "__dict__"):
            continue
        options = vars(value)
        height = next((options[key] for key in HEIGHTS if type(options.get(key)) is int), None)
        side = next((options[key] for key in SIDES if type(options.get(key)) is int), None)
        channels = next((options[key] for key in CHANNELS if type(options.get(key)) is int), 3)
        width = options.get("img_width", options.get("hr_width", height))
        if height is not None and isinstance(width, int):
            return Tensor((names.BATCH, channels, height, width))
        if side is not None:
            return Tensor((names.BATCH, channels, side, side))
    return None


def channels_in(space: Namespace) -> int:
    """The channels of images, as the script's options state them, or as usual."""
    image = image_options(space)
    return image.shape[1] if image is not None else 3


def recipes_in(space: Namespace) -> list[Recipe]:
    """The models that the script has made, with inputs that fit them."""
    found: list[Recipe] = []
    for name, value in list(space.globals.items()):
        if isinstance(value, nn.Module) and not isinstance(value, (nn.modules.loss._Loss, type)):
            results, _ = inputs_for(value, 0.3)
            with torch.no_grad():
                first = next(results, None)
            if first is not None:
                found.append(Recipe(name, lambda value=value: value, first.arguments, first.value))  # type: ignore[misc]
    return found


def is_loader(space: Namespace, name: str) -> bool:
    """Whether a name is bound to a `DataLoader(...)`, whatever it is called."""
    for step in space.binding.get(name, ()):
        match step.node:
            case ast.Assign(value=ast.Call(func=ast.Name(id=kind) | ast.Attribute(attr=kind))) if kind == "DataLoader":
                return True
    return False


def fallback(space: Namespace, name: str, choice: int = 0, complaint: str = "") -> Any:
    """A stand-in for a top-level name whose statement failed: for loaders, batches. None for other names."""
    if DATASETS.search(names.snake(name)):
        return LazyItems(space, name, choice, complaint)
    if world.LOADERS.search(names.snake(name)) or is_loader(space, name):
        return LazyBatches(space, name, choice, complaint)
    if world.LOGS.search(names.snake(name)):
        return Quiet()
    return None
