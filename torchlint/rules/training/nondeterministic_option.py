"""Reproducible training asked for by the cuDNN flag alone.

`torch.backends.cudnn.deterministic = True` concerns convolutions and recurrent layers of cuDNN. Scatter, index,
interpolation and many backward kernels of torch itself still add in whatever order the threads arrive, so two
runs with the same seed drift apart.

Call `torch.use_deterministic_algorithms(True)`, which also raises where no deterministic kernel exists
(`warn_only=True` warns instead), and set CUBLAS_WORKSPACE_CONFIG. Leave it out if the speed matters more.

No claim: the difference shows on an accelerator, and there not in every run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL532", "nondeterministic-option", Severity.ADVICE, default=False, triggers=("deterministic",))
CLAIM = None
FLAG = "torch.backends.cudnn.deterministic"

EXAMPLES = [
    Example(
        bad="""
        import torch

        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = True  #!
        model = torch.nn.Linear(3, 1)
        model(torch.randn(2, 3)).sum().backward()
        """,
        good="""
        import torch

        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        model = torch.nn.Linear(3, 1)
        model(torch.randn(2, 3)).sum().backward()
        """,
    ),
    Example(
        bad="""
        import random

        import torch
        from torch.backends import cudnn


        def set_seed(seed):
            random.seed(seed)
            torch.manual_seed(seed)
            cudnn.benchmark, cudnn.deterministic = False, True  #!


        def main():
            set_seed(0)
            model = torch.nn.Linear(3, 1)
            model(torch.randn(2, 3)).sum().backward()


        main()
        """,
        good="""
        import random

        import torch
        from torch.backends import cudnn


        def set_seed(seed):
            random.seed(seed)
            torch.manual_seed(seed)
            cudnn.benchmark, cudnn.deterministic = False, True
            torch.use_deterministic_algorithms(True, warn_only=True)


        def main():
            set_seed(0)
            model = torch.nn.Linear(3, 1)
            model(torch.randn(2, 3)).sum().backward()


        main()
        """,
    ),
]

CLEAN = [
    """
    import torch

    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True
    torch.nn.Linear(3, 1)(torch.randn(2, 3)).sum().backward()
    """,
    """
    import torch


    def set_seed(seed):
        torch.manual_seed(seed)
        torch.backends.cudnn.deterministic = True
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The cuDNN flag set to True in files that train and never ask torch for deterministic algorithms."""
    wider = ("use_deterministic_algorithms", "set_deterministic_debug_mode", "set_deterministic")
    if not model.calls_named("backward") or any(model.calls_named(name) for name in wider):
        return
    for assign in model.nodes(ast.Assign):
        for target, value in pairs(assign):
            if isinstance(target, ast.Attribute) and model.name_of(target) == FLAG:
                if isinstance(value, ast.Constant) and value.value is True:
                    yield Hit(
                        target,
                        "this covers cuDNN only; `torch.use_deterministic_algorithms(True)` covers torch's kernels",
                    )


def pairs(assign: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with what each is given; tuples member by member."""
    for target in assign.targets:
        match target, assign.value:
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                yield from zip(names, values, strict=True)
            case _:
                yield target, assign.value
