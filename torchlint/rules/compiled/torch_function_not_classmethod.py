"""A tensor subclass whose __torch_function__ is a plain method.

torch calls `__torch_function__` on the class: it decides for all arguments of a call, of which several may be
instances, and for functions that have no instance at all. A plain method still works, with a warning, because
torch binds it to one of the arguments; that is to be removed.

Make it a classmethod that takes `cls`. Modes (`TorchFunctionMode`) are another thing: theirs is a plain method.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL805", "torch-function-not-classmethod", Severity.ERROR, fix=Safety.SAFE, triggers=("__torch_function__",))
CLAIM = Warns("as a plain method is deprecated")
NAME = "__torch_function__"

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Logged(torch.Tensor):
            def __torch_function__(self, func, types, args=(), kwargs=None):  #!
                return super().__torch_function__(func, types, args, kwargs or {})


        x = torch.ones(2).as_subclass(Logged)
        print(torch.add(x, 1).sum())
        """,
        good="""
        import torch


        class Logged(torch.Tensor):
            @classmethod
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})


        x = torch.ones(2).as_subclass(Logged)
        print(torch.add(x, 1).sum())
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.overrides import TorchFunctionMode


    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))


    class Right(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)


    class Off(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl


    class Wrapper:
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return NotImplemented


    with Mode():
        torch.ones(2).as_subclass(Right).sum()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Plain `__torch_function__` methods of subclasses of Tensor."""
    for cls in model.classes:
        method = cls.methods.get(NAME)
        if method is None or method.is_classmethod or method.is_static or not is_tensor(cls):
            continue
        yield Hit(
            method.node, "torch calls this on the class; decorate it with `@classmethod`", decorated(model, method))


def is_tensor(cls: ClassInfo) -> bool:
    """Whether a class is surely a subclass of Tensor."""
    return cls.is_a("torch.Tensor") or cls.is_a("torch.nn.Parameter")


def decorated(model: FileModel, method: FunctionInfo) -> Repair | None:
    """The decorator, where the body uses its first argument for nothing that only an instance has."""
    if method.decorators or not isinstance(method.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if method.self_name and model.uses(method.self_name, method.node):
        return None
    return edits.repair("Make it a classmethod", edits.add_decorator(model, method.node, "classmethod"))
