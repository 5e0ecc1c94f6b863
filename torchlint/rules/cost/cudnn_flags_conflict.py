"""Settings that tell cuDNN to be deterministic and to choose its algorithms by timing.

With `benchmark = True`, cuDNN measures its algorithms at the first use of each input size and takes the fastest.
Which one that is may change from run to run, and with it the last digits of every result, so `deterministic` does
not give what it was set for: repeatable runs.

Set `benchmark = False` where runs must be repeatable, or drop `deterministic` where speed matters.

No claim: the choice is made by cuDNN, on a device.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL609", "cudnn-flags-conflict", Severity.WARNING, fix=Safety.SHOW, triggers=("benchmark",))
CLAIM = None
BENCHMARK, DETERMINISTIC = "torch.backends.cudnn.benchmark", "torch.backends.cudnn.deterministic"

EXAMPLES = [
    Example(
        bad="""
        import random
        import torch


        def seed_everything(seed):
            random.seed(seed)
            torch.manual_seed(seed)
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = True  #!


        seed_everything(0)
        """,
        good="""
        import random
        import torch


        def seed_everything(seed):
            random.seed(seed)
            torch.manual_seed(seed)
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False


        seed_everything(0)
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        import torch.backends.cudnn as cudnn

        cudnn.benchmark = True  #!
        torch.use_deterministic_algorithms(True, warn_only=True)
        """,
        good="""
        import torch
        import torch.backends.cudnn as cudnn

        cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch.backends import cudnn


    def setup(seed, fast):
        if seed is not None:
            cudnn.deterministic = True
            cudnn.benchmark = False
        else:
            cudnn.benchmark = True
        torch.use_deterministic_algorithms(False)


    def quick():
        cudnn.benchmark = True
        cudnn.deterministic = False


    def late():
        cudnn.benchmark = True
        cudnn.deterministic = True
        cudnn.benchmark = False
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """benchmark = True in a function that asks for determinism as well."""
    settings = list(flags(model))
    for node, name, value in settings:
        if name != BENCHMARK or value is not True:
            continue
        mine = [s for s in settings if model.owner(s[0]) is model.owner(node) and together(model, s[0], node)]
        undone = any(n == BENCHMARK and v is not True and model.position(s) > model.position(node) for s, n, v in mine)
        last = [v for _, n, v in mine if n == DETERMINISTIC]
        if last and last[-1] is True and not undone:
            fix = None
            if isinstance(node, ast.Assign):
                fix = edits.repair("Do not benchmark", edits.replace(model, node.value, "False"))
            yield Hit(node, "`benchmark` undoes `deterministic`; set it to False for repeatable runs", fix)


def flags(model: FileModel) -> Iterator[tuple[ast.stmt, str, object]]:
    """(statement, flag, value) of everything that sets one of the two, in source order."""
    for node in model.nodes(ast.Assign, ast.Call):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    name = model.name_of(target)
                    if name in (BENCHMARK, DETERMINISTIC):
                        yield node, name, model.value(value).const
            case ast.Call(args=[flag, *_]) if model.name_of(node.func) == "torch.use_deterministic_algorithms":
                yield model.statement(node), DETERMINISTIC, model.value(flag).const


def together(model: FileModel, one: ast.AST, other: ast.AST) -> bool:
    """Whether two statements can both run: they are not in different arms of one `if`."""
    return not model.place(one).excludes(model.place(other))
