"""Stand-ins for names that could not be imported or computed, which explain themselves when touched.

A placeholder may be named, called, decorated with and derived from while a file is loaded. As soon as
a real value is needed (a number, an iteration, a tensor operation) it raises `MissingError`, whose
text says what is missing, why, and on which line it was used.
"""
from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

#: Functions of the namespaces that own user files; used to name the line that touches a placeholder.
USER_FILES: set[str] = set()
#: What a decorator may be given.
DECORATED = (types.FunctionType, type, staticmethod, classmethod)
#: What happened to placeholders, oldest first; each text once.
TOUCHED: dict[str, None] = {}


def known(name: str) -> Any:
    """A small stand-in for a well-known name, or None."""
    from runtime_check.outside import known as look_up  # imports torch, which loading alone does not need

    return look_up(name)


class MissingError(RuntimeError):
    """A placeholder was used where a real value is needed."""


def user_line() -> str:
    """ "line 12 of net.py" for the innermost running line of user code, or an empty string."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name in USER_FILES:
            return f"line {frame.f_lineno} of {name.rpartition('/')[2]}"
        frame = frame.f_back
    return ""


class Missing:
    """Stands for `name`, which is not there because of `reason`."""

    def __init__(self, name: str, reason: str) -> None:
        self.__dict__.update(_name=name, _reason=reason, __name__=name.rpartition(".")[2], __qualname__=name)

    def _fail(self, what: str) -> NoReturn:
        place = user_line()
        text = f"{self._reason}; `{self._name}` {what}" + (f" on {place}" if place else "")
        TOUCHED[text] = None
        raise MissingError(text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        child = known(f"{self._name}.{name}")
        if child is None:
            child = Missing(f"{self._name}.{name}", self._reason)
        self.__dict__[name] = child
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator: the decorated object. On tensors or modules: an error. Else a placeholder."""
        if len(args) == 1 and not kwargs and isinstance(args[0], DECORATED):
            return args[0]
        if any(map(is_real_work, [*args, *kwargs.values()])):
            self._fail("was called with tensors")
        place = user_line()
        TOUCHED[f"{self._reason}; `{self._name}` was called" + (f" on {place}" if place else "")] = None
        return Missing(f"{self._name}()", self._reason)

    def __repr__(self) -> str:
        return f"Missing({self._name!r})"

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        place = user_line()
        TOUCHED[f"{self._reason}; `{self._name}` is a base class" + (f" on {place}" if place else "")] = None
        return (base_class(self._name),)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __getitem__(self, key: object) -> Missing:
        return Missing(f"{self._name}[...]", self._reason)

    def __setitem__(self, key: object, value: object) -> None: ...

    def __or__(self, other: object) -> Any:
        return Any  # `Missing | None` in an annotation

    __ror__ = __or__

    def __enter__(self) -> Missing:
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[Any]:
        self._fail("was iterated over")

    def __bool__(self) -> bool:
        self._fail("was tested for truth")

    def __len__(self) -> int:
        self._fail("was asked for its length")

    def __deepcopy__(self, memo: object) -> Missing:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for value in [*args, *(kwargs or {}).values()]:
            if isinstance(value, Missing):
                value._fail(f"was given to torch's `{getattr(func, '__name__', func)}`")
        raise MissingError("a placeholder was given to torch")


def _needs_value(what: str) -> Callable[..., NoReturn]:
    def method(self: Missing, *args: object) -> NoReturn:
        self._fail(what)

    return method


for _name in ("float", "int", "index", "complex", "array", "fspath"):
    setattr(Missing, f"__{_name}__", _needs_value("was used as a value"))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Missing, f"__{_name}__", _needs_value("was compared"))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "abs", "and", "xor"):
    setattr(Missing, f"__{_name}__", _needs_value("was computed with"))
    setattr(Missing, f"__r{_name}__", _needs_value("was computed with"))


def is_real_work(value: object) -> bool:
    """True for tensors, modules and containers of them: what no placeholder may swallow."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    match value:
        case list() | tuple():
            return any(map(is_real_work, value))
        case dict():
            return any(map(is_real_work, value.values()))
    return isinstance(value, (torch.Tensor, torch.nn.Module))


#: Whether the class that is being made looks like a Module; set by the namespace that makes it.
module_like = False


def base_class(name: str) -> type:
    """The class that stands for a missing base: a bare `nn.Module` where the subclass looks like one."""
    return _module_base(name) if module_like else _plain_base(name)


@functools.cache
def _plain_base(name: str) -> type:
    def __init__(self: object, *args: object, **kwargs: object) -> None: ...

    return type(name.rpartition(".")[2] or "Base", (), {
        "__init__": __init__, "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__doc__": f"Stands for `{name}`, which could not be imported.",
    })


@functools.cache
def _module_base(name: str) -> type:
    import torch

    def __init__(self: torch.nn.Module, *args: object, **kwargs: object) -> None:
        torch.nn.Module.__init__(self)
        if args and not isinstance(args[0], torch.nn.Module):
            self.config = args[0]  # what configuration-driven base classes keep

    def ignore(self: object, *args: object, **kwargs: object) -> None: ...

    members: dict[str, Any] = {
        "__init__": __init__, "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__doc__": f"Stands for `{name}`, which could not be imported.",
        # What training frameworks add to a Module and user code calls freely.
        "log": ignore, "log_dict": ignore, "save_hyperparameters": ignore, "post_init": ignore,
        "init_weights": ignore, "current_epoch": 0, "global_step": 0,
    }
    return type(name.rpartition(".")[2] or "Base", (torch.nn.Module,), members)
