"""What users say themselves about making their objects: factories in the configuration, marked functions.

    [tool.torchlint.confirm.factories]
    "pkg.net:Net" = "tests/factories.py:make_net"

    @runtime_check.example_for(Net)
    def small_net():
        return Net(4), torch.randn(2, 4)

A factory takes nothing. For a Module or another class it returns an instance, or a tuple of an instance
and the arguments of a call of it. For a function, method or autograd Function it returns the arguments:
a tuple, a dictionary of named ones, or a single value. Those of a Function are the ones of its `apply`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runtime_check.elsewhere import alias_of, files_with
from runtime_check.extract import Namespace, Target
from runtime_check.functions import Example, has_setup
from runtime_check.made import there_and_back
from runtime_check.nearby import is_module
from runtime_check.slices import Arguments

MARK = "example_for"
FILES = 4  # other files with marked functions that are looked at


@dataclass(frozen=True)
class Hint:
    """A factory, and what it is a factory of: `Net`, `Net.step`, `train`."""

    label: str
    qualname: str
    make: Callable[[], Any]


def hints_for(space: Namespace, qualname: str) -> Iterator[Hint]:
    """The user's factories for a class, function or method of a file: the exact ones, then those of its class."""
    found = [*configured(space), *marked(space, qualname.partition(".")[0])]
    for name in dict.fromkeys([qualname, qualname.partition(".")[0]]):
        yield from (hint for hint in found if hint.qualname == name)


def configured(space: Namespace) -> Iterator[Hint]:
    """Factories of the configuration for names of this file."""
    for name, place in space.loader.factories:
        module, _, qualname = name.partition(":")
        path, _, function = place.rpartition(":")
        if is_module(space.path, module):
            yield Hint(f"{os.path.basename(path)}:{function}()", qualname, partial(called, space, path, function))


def called(space: Namespace, path: str, function: str) -> Any:
    """What a factory of another file of the project returns."""
    factory: Any = space.loader.space(path).resolve(function)
    return factory()


def marked(space: Namespace, name: str) -> Iterator[Hint]:
    """Functions marked with `example_for(name)`, in this file and in others of the project.

    A file that names the thing as `"pkg.net:Net"` need not import it.
    """
    yield from marked_in(space, space, name, name)
    paths = (path for path in files_with(space, name) if MARK in read(path))
    for path in itertools.islice(paths, FILES):
        try:
            other = space.loader.space(path)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        yield from marked_in(space, other, alias_of(space, other, name), name)


def marked_in(space: Namespace, other: Namespace, alias: str, name: str) -> Iterator[Hint]:
    """Marked functions of one file for a thing of `space`; `alias` is what the file calls it, if it imports it."""
    for node in other.tree.body:
        if isinstance(node, ast.FunctionDef):
            for module, said in map(marking, node.decorator_list):
                known = name if module and is_module(space.path, module) else alias
                if said and known and (said == known or said.startswith(f"{known}.")):
                    label = f"{os.path.basename(other.path)}:{node.name}()"
                    yield Hint(label, name + said.removeprefix(known), partial(called, space, other.path, node.name))


def marking(decorator: ast.expr) -> tuple[str, str]:
    """Module and name of what a decorator says that the function is an example for; empty where it says none."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[target]) if name == MARK:
            said = target.value if isinstance(target, ast.Constant) else ast.unparse(target)
            module, _, qualname = str(said).rpartition(":")
            return module, qualname
    return "", ""


def read(path: str) -> str:
    """The text of a file; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class HintError(TypeError):
    """A factory that fails, or gives something else: the user is to mend it, and nothing is guessed in its place."""


def given(hint: Hint, space: Namespace, target: Target) -> Arguments:
    """The receiver and the arguments of a call of the target, as a factory says. HintError if it does not."""
    try:
        value = hint.make()
    except Exception as error:
        raise HintError(f"{hint.label} raises {type(error).__name__}: {error}") from error
    holder = space.resolve(hint.qualname)
    if isinstance(holder, type) and not issubclass(holder, torch.autograd.Function):
        made, *rest = value if isinstance(value, tuple) else (value,)
        if not isinstance(made, holder):
            raise HintError(f"{hint.label} gives no {holder.__name__}")
        return Arguments(made, *(spread(rest[0]) if len(rest) == 1 else (tuple(rest), {})))
    if isinstance(holder, type):
        return Arguments(None, applied_to(hint, holder, value), {})
    return Arguments(None, *spread(value))


def applied_to(hint: Hint, function: Any, value: Any) -> tuple[Any, ...]:
    """The arguments of `apply` that a factory gives, alone or after the Function. HintError if it takes others."""
    match value:
        case (None, tuple() as arguments):
            value = arguments
        case (first, tuple() as arguments) if first == function or first == function.apply:
            value = arguments
    given = value if isinstance(value, tuple) else (value,)
    wanted = list(inspect.signature(function.forward).parameters.values())[0 if has_setup(function) else 1 :]
    try:
        inspect.Signature(wanted).bind(*given)
    except TypeError as error:
        names = ", ".join(str(parameter) for parameter in wanted)
        raise HintError(
            f"{hint.label} gives {len(given)} of the arguments of {function.__name__}.apply, ({names}): {error}"
        ) from None
    return given


def spread(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments out of a tuple, dictionary or single value."""
    if isinstance(value, tuple):
        return value, {}
    return ((), value) if isinstance(value, dict) else ((value,), {})


def run(hint: Hint, space: Namespace, target: Target) -> Any:
    """Calls the target, or the instance that leads to it, as a factory says."""
    arguments = given(hint, space, target)
    if arguments.receiver is None:
        function: Any = space.resolve(hint.qualname)
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            return there_and_back(Example(hint.label, lambda: arguments.args, function))
        return function(*arguments.args, **arguments.kwargs)
    if arguments.args or arguments.kwargs:
        return arguments.receiver(*arguments.args, **arguments.kwargs)
    name = target.qualname.partition(".")[2]
    return arguments.receiver if name in ("", "__init__", "forward") else getattr(arguments.receiver, name)()


def instance(hint: Hint, space: Namespace, target: Target) -> Any:
    """The instance that a factory makes."""
    return given(hint, space, target).receiver
