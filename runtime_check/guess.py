"""Candidates for one argument, best first: from its default, annotation, use in the code, and name."""
from __future__ import annotations

import collections.abc
import enum
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from runtime_check import clock, names, spaces
from runtime_check.layers import PassThrough, Settings, as_used, of_name
from runtime_check.placeholder import Missing
from runtime_check.specs import OMIT, Const, Made, Seq, Spec, Table, Tensor
from runtime_check.usage import DEPTH, Usage, usage

LOOKING = 0.5
NOTHING = inspect.Parameter.empty


@dataclass(frozen=True)
class Asked:
    """One parameter: what is known about it."""

    name: str
    hint: Any
    use: Usage
    default: Any = NOTHING

    @property
    def required(self) -> bool:
        return self.default is NOTHING


class Guesser:
    """Candidates for the parameters of one function; `owner` is the class if it is a method."""

    def __init__(self, function: Callable[..., Any], owner: type | None = None, depth: int = 3) -> None:
        self.function, self.owner, self.depth = function, owner, depth
        self.globals: Any = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__globals__", {})
        self.signature = inspect.signature(function)
        self.hints = hints_of(function)
        self.spent = 0.0  # seconds spent on reading code; following calls may load other files

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters that a caller fills."""
        found = list(self.signature.parameters.values())
        if self.owner is not None and found and found[0].name in ("self", "cls", "mcs"):
            found = found[1:]
        return found

    def asked(self, parameter: inspect.Parameter) -> Asked:
        """All that is known about a parameter."""
        started = clock.now()
        use = usage(self.function, parameter.name, self.owner, DEPTH if self.spent < LOOKING else 1)
        self.spent += clock.now() - started
        return Asked(parameter.name, self.hints.get(parameter.name), use, parameter.default)

    def values(self, asked: Asked) -> list[Spec]:
        """Candidates for a constructor argument. A default is tried as it is, then made small."""
        if not asked.required:
            small = names.smaller(asked.name, asked.default)
            extra: list[Spec] = [Const(small)] if small is not asked.default and small != asked.default else []
            if asked.default is None:
                extra += list(self._by_all(asked))[:2]
            return [OMIT, *extra]
        found = list(dict.fromkeys(self._by_all(asked)))
        return found or [Const(names.WIDTH)]

    def _by_all(self, asked: Asked) -> Iterator[Spec]:
        yield from self.by_hint(asked.hint, asked)
        yield from self.by_use(asked)
        yield from self.by_name(asked)

    # From the annotation

    def by_hint(self, hint: Any, asked: Asked) -> Iterator[Spec]:
        """Candidates that an annotation allows."""
        if hint is None or hint is Any or isinstance(hint, (str, Missing, typing.TypeVar)):
            return
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            for part in args:
                if part is not type(None):
                    yield from self.by_hint(part, asked)
            if type(None) in args:
                yield Const(None)
        elif origin is typing.Literal:
            yield from map(Const, args)
        elif origin is typing.Annotated:
            yield from self.by_hint(args[0], asked)
        elif origin in (list, tuple, collections.abc.Sequence, collections.abc.Iterable, set) or hint in (list, tuple):
            yield from self.sequence(origin or hint, args, asked)
        elif origin in (dict, collections.abc.Mapping) or hint is dict:
            yield self.table(asked)
        elif origin is type:
            yield from self.factories(asked)
        elif origin is collections.abc.Callable or hint is collections.abc.Callable:
            if args and args[-1] is float:  # a schedule
                yield Const(small_number)
            yield from self.callables(asked)
        elif isinstance(hint, type):
            yield from self.by_class(hint, asked)

    def by_class(self, hint: type, asked: Asked) -> Iterator[Spec]:
        """Candidates of a plain class."""
        if hint is bool:
            first = names.flag(asked.name)
            yield from (Const(first), Const(not first))
        elif hint is int:
            value = names.number(asked.name)
            yield Const(names.WIDTH if value is None or 0 < value < 1 else int(value))
        elif hint is float:
            value = names.number(asked.name)
            yield Const(float(value) if value is not None and value <= 4 else 1.0)
        elif hint is str:
            yield from self.strings(asked)
        elif issubclass(hint, torch.Tensor):
            yield Tensor((names.WIDTH,))
        elif issubclass(hint, enum.Enum):
            yield from map(Const, hint)
        elif hint is torch.device or hint is torch.dtype:
            yield Const(torch.device("cpu") if hint is torch.device else torch.float32)
        elif hint is nn.ModuleList:
            yield Made("nn.ModuleList([nn.Identity(), nn.Identity()])",
                       lambda: nn.ModuleList([PassThrough(), PassThrough()]))
        elif hint is nn.Module:
            yield from self.modules(asked)
        elif re.match(r"gym(nasium)?\.spaces\.", f"{hint.__module__}."):
            yield from self.spaces(names.snake(asked.name), hint.__name__)
        elif hint not in (object, type, types.NoneType):
            yield from self.instances(hint)

    def instances(self, hint: type) -> Iterator[Spec]:
        """An object of a class of the project or of a library, made with small values."""
        if self.depth <= 0 or inspect.isabstract(hint) or hint.__module__ == "builtins":
            return
        yield Made(f"{hint.__name__}(...)", partial(make_instance, hint, self.depth - 1))

    # From the code

    def by_use(self, asked: Asked) -> Iterator[Spec]:
        """Candidates from what the code does with the value."""
        use = asked.use
        if use.is_string:
            yield from self.strings(asked)
        if names.CONFIGS.search(names.snake(asked.name)) and (use.attributes or use.keys or use.roles):
            yield from self.configs(asked)
        elif use.keys:
            yield self.table(asked)
        elif use.is_object and not use.calls and not use.is_tensor:
            if use.methods & {"parameters", "named_parameters", "state_dict", "modules", "eval", "train", "children",
                              "get_classifier", "reset_classifier"}:
                yield from self.modules(asked)
            elif use.attributes:
                yield from self.configs(asked)
        if use.ranged:
            value = names.number(asked.name)
            yield Const(value if isinstance(value, int) and value < names.WIDTH else 2)
        if use.calls:
            yield from self.callables(asked)
        if use.element is not None or use.length or use.unpacked or use.splatted:
            yield from self.sequence(list, (), asked)
        for kind in (bool, int, float):
            if kind.__name__ in use.types:
                yield from self.by_class(kind, asked)
        if use.types & {"list", "tuple"}:
            yield from self.by_name(asked)
        if use.truth and not (use.arithmetic or use.calls or use.roles or use.equals or use.element):
            first = names.flag(asked.name)
            yield from (Const(first), Const(not first))
        for callee, parameter in use.roles:
            yield from self.role(callee, parameter, asked)

    def role(self, callee: Any, parameter: str, asked: Asked) -> Iterator[Spec]:
        """What the function or class that the value is handed to wants there."""
        module = str(getattr(callee, "__module__", ""))
        if not module.startswith("torch") or self.depth <= 0:
            return
        value = names.number(parameter)
        own = names.number(asked.name)
        if value is not None and (own is None or type(own) is not type(value)):
            yield Const(value)

    # From the name

    def by_name(self, asked: Asked) -> Iterator[Spec]:
        """Candidates from the name alone."""
        text = names.snake(asked.name)
        if names.ACTIVATIONS.search(text):
            yield from (Made("nn.ReLU()", nn.ReLU), Const(nn.ReLU), Const("relu"))
        elif names.NORMS.search(text):
            yield from (Const(nn.LayerNorm), Const(nn.BatchNorm2d), Const("layer_norm"), Const(False))
        elif re.search(r"(observation|obs|action|act)_?space$", text):
            yield from self.spaces(text)
        elif text in ("device", "dtype"):
            yield Const(torch.device("cpu") if text == "device" else torch.float32)
        elif names.is_flag(text):
            yield from (Const(names.flag(text)), Const(not names.flag(text)))
        elif names.MODULES.search(asked.name) and not asked.use.arithmetic:
            yield from self.modules(asked)
        elif names.CONFIGS.search(text) and not asked.use.arithmetic:
            yield from self.configs(asked)
        elif names.STRINGS.search(text) and not asked.use.arithmetic:
            yield from self.strings(asked)
        found = names.number(asked.name)
        if found is not None:
            yield Const(found)
            if text.endswith("s") and isinstance(found, int) and not text.endswith(("layers", "heads", "blocks")):
                yield Const([found, found])
        yield Const(names.WIDTH)

    def spaces(self, text: str, wanted: str = "") -> Iterator[Spec]:
        """Spaces of reinforcement learning: of their package, or of ours if it is not there."""
        kinds, package = spaces.KINDS, "gymnasium"
        for name in ("gymnasium", "gym"):
            try:
                kinds, package = vars(importlib.import_module(f"{name}.spaces")), name
                break
            except Exception:
                continue
        first = "Discrete" if text.startswith("act") else "Box"
        made = spaces.examples(kinds, package)
        for kind in sorted(made, key=lambda kind: (kind != wanted, kind != first, kind not in ("Box", "Discrete"))):
            yield from (Made(label, make) for label, make in made[kind])

    def strings(self, asked: Asked) -> Iterator[Spec]:
        """The strings that the code compares the value with; else plausible ones."""
        words = [item for item in asked.use.equals if isinstance(item, str)]
        yield from (Const(item) for item in words if item not in ("none", "None", ""))
        text = names.snake(asked.name)
        if names.ACTIVATIONS.search(text):
            yield from map(Const, ("relu", "gelu"))
        elif names.NORMS.search(text):
            yield from map(Const, ("batch", "bn", "layer_norm"))
        else:
            yield from map(Const, ("mean", "default"))

    def sequence(self, kind: Any, args: tuple[Any, ...], asked: Asked) -> Iterator[Spec]:
        """A short list or tuple of what its elements are."""
        box = tuple if kind is tuple else list
        if kind is tuple and args and args[-1] is not Ellipsis:
            inner = [self.first(Asked(asked.name, item, Usage())) for item in args]
            yield Seq(tuple(inner), tuple)
            return
        element = asked.use.element or Usage()
        hint = args[0] if args else None
        single = asked.name.rstrip("s") if not asked.name.endswith("ss") else asked.name
        item = Asked(single, hint, element)
        first = self.first(item)
        count = asked.use.unpacked or 2
        yield Seq((first,) * count, box)
        if not isinstance(first, Const) or not isinstance(first.value, int):
            return
        for more in (3, 4, 1):
            yield Seq((first,) * more, box)

    def first(self, asked: Asked) -> Spec:
        """The best single candidate."""
        return next(self._by_all(asked), Const(names.WIDTH))

    def table(self, asked: Asked) -> Spec:
        """A dictionary with the keys that the code reads."""
        keys = {key: self.first(Asked(key, None, use)) for key, use in asked.use.keys.items()}
        return Table(tuple(keys.items()))

    # Objects

    def modules(self, asked: Asked) -> Iterator[Spec]:
        """A layer: one that keeps shapes, a real linear one."""
        extra = asked.use.attributes.keys() | asked.use.methods
        if asked.use.called_early:
            yield from self.factories(asked)
        if extra & {"weight", "in_features", "out_features"}:
            yield Made(f"nn.Linear({names.WIDTH}, {names.WIDTH})", lambda: nn.Linear(names.WIDTH, names.WIDTH))
        yield Made("a layer that passes its input through", PassThrough)
        yield Made(f"nn.Linear({names.WIDTH}, {names.WIDTH})", lambda: nn.Linear(names.WIDTH, names.WIDTH))

    def callables(self, asked: Asked) -> Iterator[Spec]:
        """Something to call: a class when the constructor calls it, else a function or layer."""
        if asked.use.called_early:
            yield from self.factories(asked)
        text = names.snake(asked.name)
        if names.ACTIVATIONS.search(text):
            yield Made("nn.ReLU()", nn.ReLU)
        yield Made("a layer that passes its input through", PassThrough)

    def factories(self, asked: Asked) -> Iterator[Spec]:
        """Classes to make layers of: a class of the file whose name fits, a standard one, one that fits anything."""
        text = names.snake(asked.name)
        if names.ACTIVATIONS.search(text):
            yield from (Const(nn.ReLU), Const(nn.GELU))
        if names.NORMS.search(text):
            yield from (Const(nn.LayerNorm), Const(nn.BatchNorm2d))
        for cls in self.classes_like(text):
            yield Const(cls)
        yield Const(PassThrough)

    def classes_like(self, text: str) -> Iterator[type]:
        """Module classes of the function's file whose name holds the parameter's main word."""
        space = getattr(self.globals, "space", None)
        word = max(text.split("_"), key=len)
        if space is None or len(word) < 4:
            return
        for name in sorted(space.names()):
            if word in names.snake(name) and name != getattr(self.owner, "__name__", "") and name[:1].isupper():
                try:
                    value = space.get(name)
                except Exception:
                    continue
                if isinstance(value, type) and issubclass(value, nn.Module):
                    yield value

    def configs(self, asked: Asked) -> Iterator[Spec]:
        """A configuration: the file's own class for it, else an object with guessed attributes."""
        for cls in self.config_classes(asked):
            yield Made(f"{cls.__name__}(...)", partial(make_instance, cls, self.depth - 1))
        guarded = frozenset(asked.use.guarded)
        yield Made("a configuration with guessed attributes", partial(settings_for, asked.use, guarded))

    def config_classes(self, asked: Asked) -> list[type]:
        """Configuration classes that the function's file binds, the best name match first."""
        space = getattr(self.globals, "space", None)
        if space is None or self.depth <= 0:
            return []
        own = names.snake(getattr(self.owner, "__name__", "") or self.function.__name__)
        wanted = ("config", "args", "arguments", "params", "hparams", "options", "settings", "cfg")
        found: list[tuple[int, str]] = []
        for name in space.names():
            if names.snake(name).endswith(wanted) and name[:1].isupper():
                stem = names.snake(name).removesuffix("config").strip("_")
                found.append((-_common(stem, own), name))
        classes = []
        for _, name in sorted(found)[:3]:
            try:
                value = space.get(name)
            except Exception:
                continue
            if isinstance(value, type):
                classes.append(value)
        return classes


def _common(left: str, right: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as objects where they can be resolved, else as written."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    try:
        return typing.get_type_hints(plain, include_extras=True)
    except Exception:
        pass
    found: dict[str, Any] = {}
    scope = getattr(plain, "__globals__", {})
    for name, value in getattr(plain, "__annotations__", {}).items():
        if isinstance(value, str):
            try:
                value = eval(value, scope)  # the annotation of code that is being run anyway
            except Exception:
                continue
        found[name] = value
    return found


def small_number(*args: object) -> float:
    """A schedule that always says the same."""
    return 0.01


def settings_for(use: Usage, guarded: frozenset[str]) -> Settings:
    """A configuration object whose attributes fit what the code does with them."""
    values: dict[str, Any] = {}
    for name, inner in use.attributes.items():
        if inner.is_string and inner.equals:
            values[name] = next((item for item in inner.equals if isinstance(item, str) and item), "example")
        elif inner.attributes and not inner.is_tensor:
            values[name] = settings_for(inner, guarded)
        elif inner.truth and not (inner.arithmetic or inner.roles or inner.calls):
            values[name] = names.flag(name)
        elif inner.element is not None or inner.length:
            value = of_name(name.rstrip("s"))
            values[name] = [value, value]
    return Settings(guarded - values.keys(), **values)


def init_of(cls: type) -> Callable[..., Any]:
    """The constructor of a class, as a plain function."""
    found: Callable[..., Any] = vars(next(item for item in cls.__mro__ if "__init__" in vars(item)))["__init__"]
    return found


def make_instance(cls: type, depth: int = 1) -> Any:
    """An object of a class with small values for its sizes. Raises what the class raises."""
    create: Callable[..., Any] = cls
    try:
        guesser = Guesser(init_of(cls), cls, depth)
        parameters = guesser.parameters()
    except (TypeError, ValueError):
        return create()
    kwargs: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for item in parameters:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            continue
        if item.default is not NOTHING:
            small = names.smaller(item.name, item.default)
            if small != item.default:
                kwargs[item.name] = small
            if item.default is None and item.name.endswith("_config") and cls.__name__.endswith("Config"):
                parts[item.name] = dict(names.PART)  # as configurations of whole models take their parts
        else:
            kwargs[item.name] = guesser.values(guesser.asked(item))[0].make()
    required = {name: value for name, value in kwargs.items() if guesser.signature.parameters[name].default is NOTHING}
    for chosen in ({**kwargs, **parts}, kwargs) if parts else (kwargs,):
        try:
            return as_used(create(**chosen))
        except Exception:
            continue
    return as_used(create(**required))
