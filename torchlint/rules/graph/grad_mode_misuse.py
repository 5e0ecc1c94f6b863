"""A grad mode that is not entered, or never left.

`torch.no_grad()` makes a context manager and does nothing until it is entered by `with` or as a decorator.
`with torch.no_grad:` names the class and is a TypeError. `torch.set_grad_enabled(False)` as a statement acts at
once and stays: everything after the function runs without gradients.

Write `with torch.no_grad():`. `@torch.no_grad` without parentheses works.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Either, ModeLeaks, NoEffect, Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL211", "grad-mode-misuse", Severity.ERROR, fix=Safety.SAFE, triggers=("grad", "inference_mode"))
CLAIM = Either((
    Raises("TypeError|AttributeError", "context manager protocol|__enter__"), ModeLeaks(), NoEffect()))
MODES = {"torch.no_grad", "torch.inference_mode", "torch.enable_grad"}

EXAMPLES = [
    Example(
        bad="""
        import torch


        def evaluate(net, x):
            with torch.no_grad:  #!
                return net(x)


        evaluate(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
        good="""
        import torch


        def evaluate(net, x):
            with torch.no_grad():
                return net(x)


        evaluate(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
    ),
    Example(
        bad="""
        import torch


        def measure(net, x):
            torch.no_grad()  #!
            return net(x)


        measure(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
        good="""
        import torch


        def measure(net, x):
            with torch.no_grad():
                return net(x)


        measure(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch


        def test(net, x):
            torch.set_grad_enabled(False)  #!
            return net(x)


        test(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
        good="""
        import torch


        def test(net, x):
            with torch.set_grad_enabled(False):
                return net(x)


        test(torch.nn.Linear(2, 1), torch.ones(1, 2))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch

    torch.set_grad_enabled(False)


    @torch.no_grad
    def evaluate(net, x):
        return net(x)


    def test(net, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        out = net(x)
        torch.set_grad_enabled(before)
        guard = torch.no_grad()
        with guard:
            return out
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Modes as `with` items without a call, as bare statements, and switched off for good in a function."""
    blocks: list[ast.With | ast.AsyncWith] = [*model.nodes(ast.With), *model.nodes(ast.AsyncWith)]
    for block in blocks:
        for item in block.items:
            if model.name_of(item.context_expr) in MODES:
                yield Hit(item.context_expr, "a grad mode must be called to be entered; add `()`",
                          edits.repair("Call it", edits.replace(
                              model, item.context_expr, edits.source_of(model, item.context_expr) + "()")))
    for statement in model.nodes(ast.Expr):
        match statement.value:
            case ast.Call(func=func) as call if model.name_of(func) in MODES:
                yield Hit(call, "a grad mode that is not entered does nothing; use it with `with`")
            case ast.Call(func=func, args=[ast.Constant(value=False)]) as call if (
                    model.name_of(func) == "torch.set_grad_enabled" and never_restored(model, call)):
                yield Hit(call, "gradients stay off after this function; use `with torch.no_grad():`")


def never_restored(model: FileModel, call: ast.Call) -> bool:
    """Whether the function (or the class around it) never sets the mode again."""
    info = model.function(call)
    if info is None or info.name in ("main", "__enter__", "setup"):
        return False
    return not any(other is not call and model.name_of(other.func) == "torch.set_grad_enabled"
                   and model.place(other).class_ is model.place(call).class_ for other in model.nodes(ast.Call))
