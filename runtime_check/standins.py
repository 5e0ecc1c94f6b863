"""What code under test meets instead of the outside world: command lines, screens, devices it lacks.

`surroundings` is entered around every run. It seeds the random generators, answers `argparse` with
defaults, keeps plots off the screen and CUDA calls on the CPU where there is no GPU, and puts
everything back at the end.
"""
from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


def seed_all(seed: int) -> None:
    """Seeds `random`, numpy (if it is loaded) and torch."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def surroundings(path: str, seed: int = 0) -> Iterator[None]:
    """The world around one run of code from `path`."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [path]))
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_known_args", _parse_known_args))
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "error", _error))
        seed_all(seed)
        torch.set_grad_enabled(True)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)


_real_parse = argparse.ArgumentParser.parse_known_args


def _parse_known_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
    """Defaults for everything; a required argument without one gets a plausible value."""
    required = [action for action in self._actions if action.required and action.dest != "help"]
    for action in required:
        action.required = False
    positional = [action for action in self._actions if not action.option_strings]
    for action in positional:
        action.nargs = action.nargs if action.nargs in ("*", "?") else "?"
    found, rest = _real_parse(self, [] if args is None else args, namespace)
    for action in [*required, *positional]:
        if getattr(found, action.dest, None) is None and action.dest != argparse.SUPPRESS:
            setattr(found, action.dest, _plausible(action))
    return found, rest


def _plausible(action: argparse.Action) -> Any:
    if action.choices:
        return next(iter(action.choices))
    if action.type in (int, float):
        return action.type(1)
    return "example" if action.type in (None, str) else None


def _error(self: argparse.ArgumentParser, message: str) -> None:
    raise ValueError(f"the command line cannot be parsed: {message}")
