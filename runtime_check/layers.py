"""Objects that stand for things only the caller of the code under test would know.

A layer that changes nothing about shapes, a configuration whose attributes are guessed by name, and
factories of such layers.
"""
from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from runtime_check import names


def of_name(name: str) -> Any:
    """A plain value for an attribute or option of this name."""
    if names.is_flag(name):
        return names.flag(name)
    if names.ACTIVATIONS.search(names.snake(name)):
        return "relu"
    if names.STRINGS.search(names.snake(name)):
        return "example"
    found = names.number(name)
    return names.WIDTH if found is None else found


#: Methods that prepare a layer for use; a layer with nothing to prepare does nothing.
PREPARATIONS = frozenset({
    "reset_parameters", "reset", "reset_classifier", "init_weights", "initialize", "init_parameters",
})


#: Methods that give the last layer of a model.
HEADS = re.compile(r"^get_(\w+_)?(classifier|head|fc)$")


def nothing(*args: object, **options: object) -> None:
    """Does nothing."""


class PassThrough(nn.Module):  # type: ignore[misc]
    """Stands for a layer that the code is given: returns its first input, scaled by a weight of one."""

    def __init__(self, *sizes: object, **options: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, first: Any = None, *more: object, **options: object) -> Any:
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            return first * self.weight.to(first.dtype)
        return first

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in PREPARATIONS:
                return nothing
            if HEADS.search(name):
                return lambda *args: nn.Linear(of_name("num_features"), of_name("num_classes"))
            if name.startswith("_") or type(of_name(name)) is not int or name in ("weight", "bias"):
                raise
            return of_name(name)  # `backbone.num_features`, `encoder.hidden_size`


class Settings:
    """A configuration: every attribute exists, with a value guessed from its name, and stays as it is set.

    `guarded` names are absent: the code reads them with a default or tests for them.
    """

    def __init__(self, guarded: frozenset[str] = frozenset(), **values: Any) -> None:
        self.__dict__.update(values)
        self.__dict__["_guarded"] = guarded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.__dict__["_guarded"]:
            raise AttributeError(name)
        value = Settings(self.__dict__["_guarded"]) if names.CONFIGS.search(name) else of_name(name)
        self.__dict__[name] = value
        return value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)

    def __repr__(self) -> str:
        inner = ", ".join(f"{key}={value!r}" for key, value in self.__dict__.items() if key != "_guarded")
        return f"Settings({inner})"


def linear(width: int = names.WIDTH) -> nn.Module:
    """A small real layer."""
    return nn.Linear(width, width)


def as_used(config: Any) -> Any:
    """A configuration as a model of transformers would complete it: with attention that needs no kernels."""
    if getattr(config, "_attn_implementation", "") is None:
        config._attn_implementation = "eager"
    return config
