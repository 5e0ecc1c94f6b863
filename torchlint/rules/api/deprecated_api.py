"""A name or argument that torch deprecates.

Deprecated names still work, most of them with a warning at each call, and are taken away some releases later.
Often the replacement is also the better function: faster, numerically safer, or right where the old one was not.

Use what takes its place. The fix is offered where the arguments map exactly; where the new function returns
something else, look at its documentation. What counts is the torch that the project is for: `torch-version` of the
configuration, else what its requirements allow, else the current release. Names about which torch itself says
nothing yet are advice.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes.modernise import modernised
from torchlint.knowledge import Deprecated
from torchlint.model import FileModel
from torchlint.model.old_names import old_uses
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL902", "deprecated-api", Severity.WARNING, also=(Severity.ADVICE,), fix=Safety.SAFE, aliases=("TOR101", "TOR103"),
    triggers=("torch", "functorch"))
CLAIM = Warns()
LOUD = ("UserWarning", "FutureWarning")  # DeprecationWarning is hidden from most users

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.eye(3)
        lower = torch.cholesky(x)  #!
        product = torch.chain_matmul(x, lower, x)  #!
        """,
        good="""
        import torch

        x = torch.eye(3)
        lower = torch.linalg.cholesky(x)
        product = torch.linalg.multi_dot([x, lower, x])
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.cuda.amp import GradScaler

        scaler = GradScaler(enabled=False)  #!
        with torch.cuda.amp.autocast(enabled=False):  #!
            print(torch.ones(2) @ torch.ones(2), scaler)
        """,
        good="""
        import torch

        scaler = torch.amp.GradScaler("cuda", enabled=False)
        with torch.amp.autocast("cuda", enabled=False):
            print(torch.ones(2) @ torch.ones(2), scaler)
        """,
    ),
    Example(
        bad="""
        import torch

        torch.set_warn_always(True)
        average, gradient = torch.zeros(2), torch.ones(2)
        average.mul_(0.9).add_(0.1, gradient)  #!
        average.addcmul_(0.1, gradient, gradient)  #!
        """,
        good="""
        import torch

        torch.set_warn_always(True)
        average, gradient = torch.zeros(2), torch.ones(2)
        average.mul_(0.9).add_(gradient, alpha=0.1)
        average.addcmul_(gradient, gradient, value=0.1)
        """,
    ),
    Example(
        bad="""
        import torch

        rows, columns = torch.meshgrid(torch.arange(2), torch.arange(3))  #!
        """,
        good="""
        import torch

        rows, columns = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        layer = nn.utils.weight_norm(nn.Linear(2, 2))  #!
        with torch.backends.cuda.sdp_kernel(enable_flash=False):  #!
            print(layer(torch.ones(1, 2)))
        """,
        good="""
        import torch
        from torch import nn
        from torch.nn.attention import SDPBackend, sdpa_kernel

        layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
            print(layer(torch.ones(1, 2)))
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    x = torch.eye(3)
    torch.linalg.qr(x)
    torch.linalg.norm(x)
    torch.add(x, x, alpha=2)
    x.add_(x)
    torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([x], lr=0.1), 1)
    scheduler.step()


    class Tools:
        def cholesky(self, matrix):
            return torch.linalg.cholesky(matrix)

        def range(self, n):
            return range(n)


    Tools().cholesky(x)
    net = nn.Linear(3, 3)


    def root(kernel, points):
        from linear_operator import to_linear_operator

        return kernel(points).cholesky(), to_linear_operator(net(points)).cholesky()


    if torch.__version__ >= "2.4":
        scaler = torch.amp.GradScaler("cuda")
    else:
        scaler = torch.cuda.amp.GradScaler()
    """,
    """
    import torch

    try:
        from torch import vmap
    except ImportError:
        from functorch import vmap

    print(vmap(torch.sum)(torch.ones(2, 3)))
    """,
    """
    import torch
    from torch import nn

    normalized = nn.utils.weight_norm
    if hasattr(nn.utils.parametrizations, "weight_norm"):
        normalized = nn.utils.parametrizations.weight_norm
    print(normalized(nn.Linear(2, 2))(torch.ones(1, 2)))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Uses of names and arguments that the project's torch has, and deprecates."""
    for use in old_uses(model):
        if not use.removed:
            quiet = use.row.observed and use.row.observed not in LOUD
            yield Hit(
                use.node, told(use.row), modernised(model, use), Severity.ADVICE if quiet else None, use.sure)


def told(row: Deprecated) -> str:
    """What is deprecated since when, and what to do."""
    since = f" since torch {row.since}" if row.since != "1.8" else ""
    instead = f"; use `{row.replacement}`" if row.replacement and row.replacement != row.name else ""
    differs = f" ({row.differs})" if row.differs and instead else f"; {row.differs}" if row.differs else ""
    match row.kind:
        case "signature":
            return f"this order of `{row.name.removeprefix('torch.Tensor.')}`'s arguments is deprecated; tensors first"
        case "missing":
            added = "; pass " + ", ".join(f"`{name}={text}`" for name, text in row.adds) if row.adds else ""
            return f"`{row.name}` without `{row.argument}` is deprecated{since}{added}"
        case "argument" | "value":
            new = row.moves[0].place if row.moves else None
            renamed = f"; use `{new}`" if isinstance(new, str) else differs
            return f"`{row.argument}` of `{row.name}` is deprecated{since}{renamed}"
    return f"`{row.name}` is deprecated{since}{instead}{differs}"
