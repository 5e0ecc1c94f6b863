"""What code under test meets instead of the outside world: command lines, files and devices it lacks.

`surroundings` is entered around every run. It seeds the random generators, answers `argparse` with
defaults, keeps CUDA calls on the CPU where there is no GPU, and puts everything back at the end.
"""
from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from runtime_check import made_files, names
from runtime_check.onerank import first_of, one_rank

#: Functions of `torch.cuda` that are skipped where there is no GPU.
DONE_WITHOUT = ("synchronize", "set_device", "reset_peak_memory_stats", "manual_seed_all")
#: What functions of `torch.accelerator` give there: code that asks whether there is one does not come to them.
ACCELERATOR = {"current_accelerator": torch.device("cpu"), "set_device_index": None, "set_device_idx": None,
               "synchronize": None, "current_device_index": 0, "current_device_idx": 0}
#: What asks for GPUs is told where code finds itself to be one of several ranks.
SEEN = {"is_available": True, "device_count": 8, "current_device": 0}
#: Words of code that expects a GPU.
ON_GPU = re.compile(r"cuda|rank|nccl|gpu|accelerator", re.IGNORECASE)
#: Tensor types, which are those of the CPU there.
TYPES = ("FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ByteTensor", "BoolTensor")
#: Counts of things to go through, and how many are enough; fewer would not do for parts and batches of them.
COUNTS, FEW = re.compile(r"(^|_)(counts?|samples|items|examples|pictures|images|iterations|iters|steps|episodes)$"), 64
TO_READ = re.compile(r"resume|checkpoint|ckpt|pretrained|weights|(^|_)(load|file|data|dir|path|root|seed|rank)($|_)")
TRAINS = re.compile(r"train|fit|run|learn")  # commands of a script that rather are chosen
SIDES = re.compile(r"^(mask|tile|load|fine|scale|lr|hr|gt|face|input|target)_?size$")
CONFIGS = re.compile(r"([Cc]onfig|Args|Arguments|Options|Settings|HParams|SimpleNamespace)$")
#: What checkpoints hold beside the states of models and optimizers.
COUNTED, MEASURED = re.compile(r"epoch|step|iter"), re.compile(r"loss|acc|best|score|metric|prec|map$|lr$")
CLASSES, MOST_CLASSES = re.compile(r"class|categor|labels?$"), 100


def expects_gpu(text: str) -> bool:
    """Whether code speaks of GPUs."""
    return ON_GPU.search(text) is not None


def seed_all(seed: int) -> None:
    """Seeds `random`, numpy (if it is loaded) and torch."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def surroundings(path: str, seed: int = 0, *, small: int = 0, cuda: bool = False,
                 options: frozenset[str] = frozenset(), text: str = "", files: bool = False,
                 ranks: int = 1) -> Iterator[None]:
    """The world around one run of code from `path`. `small` shrinks the defaults of options, images to that
    many times the usual small side, `options` are those
    that are given though they are off by default; `cuda` says that the code speaks of CUDA, whose calls
    then stay on the CPU where there is none. With `files`, those that are not there are made as the `text` of
    the code speaks of them. With several `ranks`, the code finds itself to be the first of them."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    without_gpu = not torch.cuda.is_available()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [path]))
        stack.enter_context(mock.patch.object(os, "mkdir", _make_folder))
        parse = _parse_set(options, small) if options else _parse_small(small) if small else _parse_known_args
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse))
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "error", _error))
        stack.enter_context(mock.patch.object(pytree, "register_pytree_node", _registered(pytree.register_pytree_node)))
        if small:  # compiling takes longer than everything else together
            stack.enter_context(mock.patch.object(torch, "compile", _not_compiled))
        numpy = sys.modules.get("numpy")
        for name in ("memmap", "fromfile", "load", "loadtxt", "genfromtxt") if numpy is not None else ():
            stack.enter_context(mock.patch.object(numpy, name, _reader(numpy, name)))
        stack.enter_context(made_files.watching(text, making=files))
        if files:
            stack.enter_context(mock.patch.object(torch, "load", _load))
            for kind in (torch.nn.Module, torch.optim.Optimizer):
                stack.enter_context(mock.patch.object(kind, "load_state_dict", _loader(kind)))
            stack.enter_context(mock.patch.object(DataLoader, "__init__", _without_workers))
        stack.enter_context(one_rank() if ranks == 1 else first_of(ranks))
        for name, value in SEEN.items() if ranks > 1 else ():
            for place in (torch.cuda, getattr(torch, "accelerator", None)):
                if hasattr(place, name):
                    stack.enter_context(mock.patch.object(place, name, _for_users(getattr(place, name), value)))
        if cuda and without_gpu:
            for name in DONE_WITHOUT:
                stack.enter_context(mock.patch.object(torch.cuda, name, lambda *args, **kwargs: None))
            for name in TYPES:
                stack.enter_context(mock.patch.object(torch.cuda, name, getattr(torch, name)))
            for name, value in ACCELERATOR.items():
                if hasattr(torch, "accelerator") and hasattr(torch.accelerator, name):
                    given = _for_users(getattr(torch.accelerator, name), value)
                    stack.enter_context(mock.patch.object(torch.accelerator, name, given))
            stack.enter_context(OnCpu())
        seed_all(seed)
        torch.set_grad_enabled(True)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)


def _for_users(real: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """A function that gives a value to the code under test, and to torch itself what it really gives."""

    def give(*args: Any, **options: Any) -> Any:
        asks = str(sys._getframe(1).f_globals.get("__name__"))
        return real(*args, **options) if asks.startswith("torch.") else value

    return give


_real_mkdir = os.mkdir


def _make_folder(path: Any, mode: int = 0o777, **options: Any) -> None:
    """Makes a folder; one that an earlier run of the same code has made is no fault of the code."""
    try:
        _real_mkdir(path, mode, **options)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _registered(register: Callable[..., None]) -> Callable[..., None]:
    """Registers a class of containers once: code that is read anew has forgotten that it has done so."""

    def once(cls: type, *args: Any, **kwargs: Any) -> None:
        if cls not in pytree.SUPPORTED_NODES:
            register(cls, *args, **kwargs)

    return once


def _not_compiled(model: Any = None, **options: object) -> Any:
    return model if model is not None else lambda function: function


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Turns CUDA devices in calls of torch functions into the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        place = {torch.Tensor.to: 1, torch._C._nn._parse_to: 0, torch.device: 0}.get(func)
        if place is not None and len(args) > place and type(args[place]) is int:
            args = (*args[:place], "cpu", *args[place + 1 :])  # the number of a GPU
        named = {key: _cpu(value) for key, value in (kwargs or {}).items()}
        if type(named.get("device")) is int:
            named["device"] = "cpu"
        return func(*(_cpu(value) for value in args), **named)


def _cpu(value: Any) -> Any:
    match value:
        case torch.device(type="cuda"):
            return torch.device("cpu")
        case str() if value == "cuda" or value.startswith("cuda:"):
            return "cpu"
    return value


_real_parse = argparse.ArgumentParser.parse_known_args


def _parse_known_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
    """Defaults for everything; a required argument without one gets a plausible value."""
    required = [action for action in self._actions if action.required and action.dest != "help"]
    for action in required:
        action.required = False
    groups = [group for group in self._mutually_exclusive_groups if group.required]
    for group in groups:
        group.required = False
    commands = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
    positional = [action for action in self._actions if not action.option_strings and action not in commands]
    for action in positional:
        action.nargs = action.nargs if action.nargs in ("*", "?") else "?"
    found, rest = _real_parse(self, [] if args is None else args, namespace)
    for group in groups:
        _fill_one(group._group_actions, found)
    for action in [*required, *positional]:
        if getattr(found, action.dest, None) is None and action.dest != argparse.SUPPRESS and action not in commands:
            setattr(found, action.dest, _plausible(action))
    for action in commands if not args else ():
        _fill_command(action, found)
    return found, rest


def _fill_one(actions: list[argparse.Action], found: argparse.Namespace) -> None:
    """One of several options that exclude each other gets a value if none has one; rather not one of a file to read."""
    if all(getattr(found, action.dest, None) == action.default for action in actions):
        action = min(actions, key=lambda one: TO_READ.search(names.snake(one.dest)) is not None)
        setattr(found, action.dest, action.const if action.nargs == 0 else _plausible(action))


def _fill_command(action: argparse._SubParsersAction[Any], found: argparse.Namespace) -> None:
    """One command of several is chosen, rather one that trains, and its own options get values."""
    if not action.choices:
        return
    name = min(action.choices, key=lambda one: TRAINS.search(one) is None)
    own, _ = action.choices[name].parse_known_args([])
    given = {} if action.dest == argparse.SUPPRESS else {action.dest: name}
    for key, value in {**vars(own), **given}.items():
        setattr(found, key, value)


def _parse_small(scale: int) -> Callable[..., Any]:
    """As above, with small sizes and counts."""

    def parse(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        found, rest = _parse_known_args(self, args, namespace)
        sides = {name: value for name, value in vars(found).items() if _is_side(name, value)}
        parts = max([value // (names.IMAGE * scale) for value in sides.values()], default=1)
        for name, value in vars(found).items():
            together = name in sides and parts > 1 and value % parts == 0
            setattr(found, name, value // parts if together else smaller(name, value, scale))
        return found, rest

    return parse


def _is_side(name: str, value: Any) -> bool:
    """Whether an option is the side of an image or of a part of it: such sizes are made smaller together."""
    text = names.snake(name)
    return type(value) is int and (names.number(text) == names.IMAGE or SIDES.search(text) is not None)


def _parse_set(options: frozenset[str], scale: int) -> Callable[..., Any]:
    """As above, with some options given that are off by default."""
    parse_small = _parse_small(max(scale, 1))

    def parse(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        found, rest = parse_small(self, args, namespace)
        for action in self._actions:
            if action.dest not in options or getattr(found, action.dest, True):
                continue
            if action.nargs == 0:
                value = action.const
            elif action.type in (int, float):
                value = action.type(names.number(action.dest) or 1)
            else:
                value = _plausible(action)
            setattr(found, action.dest, value)
        return found, rest

    return parse


def asked_for(tree: ast.Module, *, files: bool = False) -> frozenset[str]:
    """Names on which `if` statements of a script depend, which may be options; those of files to be read on demand."""
    tests = [node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp))]
    inner = [item for test in tests for item in ast.walk(test)]
    found = {item.attr for item in inner if isinstance(item, ast.Attribute)}
    found |= {item.id for item in inner if isinstance(item, ast.Name)}
    return frozenset(name for name in found if files or not TO_READ.search(names.snake(name)))


def smaller(name: str, value: Any, scale: int = 1) -> Any:
    """A stated value made small where it is a size; a number of classes stays, since the labels have it too.

    The side of an image becomes `scale` times as large as a small one.
    """
    if scale > 1 and _is_side(name, value):
        return min(value, names.IMAGE * scale)
    if type(value) is int and value <= MOST_CLASSES and CLASSES.search(names.snake(name)):
        return value
    if type(value) is int and value > FEW and COUNTS.search(names.snake(name)):
        return FEW
    return names.smaller(name, value)


def _plausible(action: argparse.Action) -> Any:
    if action.choices:
        return next(iter(action.choices))
    compared = made_files.compared_with(action.dest)
    if compared and action.type in (None, str):
        return compared
    listed = re.findall(r"[\w-]+", action.help or "") if "|" in (action.help or "") else []
    if listed:
        return "fake" if "fake" in listed else listed[0]
    if action.type in (int, float):
        return action.type(1)
    return "example" if action.type in (None, str) else None


def _error(self: argparse.ArgumentParser, message: str) -> None:
    raise ValueError(f"the command line cannot be parsed: {message}")


_real_init = DataLoader.__init__


def _without_workers(self: Any, *args: Any, **options: Any) -> None:
    """A loader that loads in this process: starting others takes longer than all else, and hides their errors."""
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
        options.pop(name, None)
    if len(args) > 5:
        args = (*args[:5], 0, *args[6:])
    elif "num_workers" in options:
        options["num_workers"] = 0
    _real_init(self, *args, **options)


_real_load = torch.load


def _load(file: Any, *args: Any, **options: Any) -> Any:
    """`torch.load`; a file that does not exist is one of a model as it is now."""
    return Saved() if made_files.absent(file) else _real_load(file, *args, **options)


def _loader(kind: Any) -> Callable[..., Any]:
    """`load_state_dict` of a class of objects that stay as they are where there is no state."""
    real = kind.load_state_dict

    def load(self: Any, state: Any, *args: Any, **options: Any) -> Any:
        return None if isinstance(state, Saved) else real(self, state, *args, **options)

    return load


class Saved(dict[str, Any]):
    """What is read from a file of tensors that does not exist: counts of nothing done, states that change nothing.

    Where it is used as an array, it is a table of random numbers.
    """

    def __getitem__(self, key: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if isinstance(key, str) or numpy is None:
            return super().__getitem__(key)
        return numpy.random.rand(FEW, names.WIDTH)[key]

    def __missing__(self, key: object) -> Any:
        name = names.snake(str(key))
        return 0 if COUNTED.search(name) else 0.0 if MEASURED.search(name) else Saved()

    def get(self, key: str, default: Any = None) -> Any:
        return default if default is not None else self[key]


def _reader(numpy: Any, name: str) -> Any:
    """A numpy reader that gives random numbers for a file that does not exist."""
    real = getattr(numpy, name)

    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        if made_files.absent(file) and "w" not in str(kwargs.get("mode", "")):
            dtype = numpy.dtype(kwargs.get("dtype") or (args[0] if args and name != "load" else "float32"))
            if name.endswith("txt"):
                return numpy.random.rand(FEW, made_files.columns()).astype(dtype)
            if dtype.kind in "iu":
                return numpy.random.randint(0, names.VOCABULARY, 4096).astype(dtype)
            return numpy.random.rand(64, names.WIDTH).astype(dtype)
        return real(file, *args, **kwargs)

    return read


def is_heavy(tree: ast.Module) -> bool:
    """Whether a script states sizes that take long on a CPU: options or constants far above the small ones."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*_, ast.Constant(value=str() as name)]):
                values = [item.value for item in node.keywords if item.arg == "default"]
                pairs = [(name.lstrip("-"), item) for item in values]
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pairs = [(name, value)]
            case _:
                continue
        for name, value in pairs:
            number = value.value if isinstance(value, ast.Constant) else None
            if type(number) is int and number >= 128 and smaller(name, number) != number:
                return True
    return False


def smaller_constant(node: ast.stmt, scale: int = 1) -> ast.stmt:
    """`n_layer = 12` and `Config(n_layer=12)` with small numbers in their place; any other statement as it is."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as value)):
            small = smaller(name, value, scale)
            if small != value:
                return ast.copy_location(ast.Assign(node.targets, ast.copy_location(ast.Constant(small), node)), node)
        case ast.Assign(value=ast.Call(func=ast.Name() | ast.Attribute() as func, keywords=keywords)):
            if CONFIGS.search(ast.unparse(func)) and any(_has_size(item) for item in keywords):
                made = copy.deepcopy(node)
                for item in made.value.keywords:  # type: ignore[attr-defined]
                    if _has_size(item):
                        item.value.value = smaller(item.arg, item.value.value, scale)
                return made
    return node


def _has_size(item: ast.keyword) -> bool:
    """Whether an argument states a size that can be made smaller."""
    value = item.value.value if isinstance(item.value, ast.Constant) else None
    return item.arg is not None and type(value) is int and smaller(item.arg, value) != value
