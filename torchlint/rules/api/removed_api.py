"""A name that torch no longer has.

Names that were deprecated for some releases are taken away: the import or the attribute fails, the call raises an
error that says so, or an argument is no longer accepted. Code that is seldom run keeps such names for years.

Use what took their place. Sometimes it returns something else or takes its arguments in another order; the fix is
offered where the new call is exactly what was meant. What counts is the torch that the project is for: `torch-version`
of the configuration, else what its requirements allow, else the current release. Code that tries both names, or
looks at the version first, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes.modernise import modernised
from torchlint.model import FileModel
from torchlint.model.old_names import old_uses
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL901", "removed-api", Severity.ERROR, fix=Safety.SAFE, aliases=("TOR001", "TOR004"),
    triggers=("torch", "functorch"))
CLAIM = Raises(
    "RuntimeError|TypeError|AttributeError|ImportError|ModuleNotFoundError",
    "now removed|unexpected keyword|no attribute|cannot import|No module named|return_complex|no longer|deprecated")

EXAMPLES = [
    Example(
        bad="""
        import torch


        def fit(a, b):
            weights, _ = torch.solve(b, a)  #!
            return weights


        print(fit(torch.eye(2), torch.ones(2, 1)))
        """,
        good="""
        import torch


        def fit(a, b):
            weights = torch.linalg.solve(a, b)
            return weights


        print(fit(torch.eye(2), torch.ones(2, 1)))
        """,
    ),
    Example(
        bad="""
        import torch

        covariance = torch.eye(3)
        values, vectors = torch.symeig(covariance, eigenvectors=True)  #!
        smallest = torch.symeig(covariance)[0].min()  #!
        rank = torch.matrix_rank(covariance, 1e-3)  #!
        """,
        good="""
        import torch

        covariance = torch.eye(3)
        values, vectors = torch.linalg.eigh(covariance, UPLO="U")
        smallest = torch.linalg.eigvalsh(covariance, UPLO="U").min()
        rank = torch.linalg.matrix_rank(covariance, 1e-3)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.optim import lr_scheduler

        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3, verbose=False)  #!
        scheduler.step(1.0)
        """,
        good="""
        import torch
        from torch.optim import lr_scheduler

        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
        scheduler.step(1.0)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch._six import string_classes  #!


        def collate(batch):
            return batch if isinstance(batch[0], string_classes) else torch.stack(batch)


        print(collate([torch.ones(1)]))
        """,
        good="""
        import torch


        def collate(batch):
            return batch if isinstance(batch[0], (str, bytes)) else torch.stack(batch)


        print(collate([torch.ones(1)]))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    import torch.autograd.variable
    from torch.autograd import variable

    engine = torch.autograd.variable.Variable._execution_engine
    assert variable.Variable is torch.autograd.Variable
    """,
    """
    import torch

    try:
        from torch._six import string_classes
    except ImportError:
        string_classes = str

    if hasattr(torch, "solve"):
        torch.solve(torch.ones(2, 1), torch.eye(2))
    if torch.__version__ < "1.8":
        torch.symeig(torch.eye(2))


    class Solver:
        def solve(self, b, a):
            return torch.linalg.solve(a, b)


    Solver().solve(torch.ones(2, 1), torch.eye(2))
    torch.linalg.eig(torch.eye(2))
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=0.1), 1)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Uses of names and arguments that the project's torch does not have."""
    for use in old_uses(model):
        if use.removed:
            row = use.row
            gone = f"`{row.argument.partition('=')[0]}` of " if row.kind == "argument" else ""
            if row.kind == "missing":
                message = f"`{row.name}` needs `{row.argument}` since torch {row.removed}"
            else:
                message = f"{gone}`{row.name}` is gone since torch {row.removed}"
            yield Hit(use.node, message + advice(row.replacement, row.name, row.differs), modernised(model, use),
                      confidence=use.sure)


def advice(replacement: str, name: str, differs: str) -> str:
    """What to do instead."""
    told = f"; use `{replacement}`" if replacement and replacement != name else ""
    if differs:
        told += f" ({differs})" if told else f"; {differs}"
    return told
