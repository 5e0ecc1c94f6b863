"""Tensors made in one place or type and moved to another at once.

`torch.zeros(n).to(device)` fills memory on the host and copies it to the device, and the program waits for the
copy. A cast behind a factory makes the tensor twice as well.

Tell the factory: `torch.zeros(n, device=device)`. Random factories draw other numbers on a device than on the host,
so for them the change is not safe; `torch.from_numpy` has no such argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Equivalent
from torchlint.findings import Safety, Severity
from torchlint.fixes.factory import CASTS, factory_device, is_idle
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL605", "create-then-move", Severity.WARNING, fix=Safety.SAFE,
    triggers=("zeros", "ones", "empty", "eye", "full", "arange", "linspace", "logspace", "tensor", "rand", "randn",
              "randint", "randperm", "zeros_like", "ones_like", "rand_like", "randn_like"))
CLAIM = Equivalent()

EXAMPLES = [
    Example(
        bad="""
        import torch

        device = torch.device("cpu")
        mask = torch.zeros(2, 3).to(device)  #!
        print(mask.sum())
        """,
        good="""
        import torch

        device = torch.device("cpu")
        mask = torch.zeros(2, 3, device=device)
        print(mask.sum())
        """,
    ),
    Example(
        bad="""
        import torch

        x = torch.ones(2)
        steps = torch.arange(4).to(x.device)  #!
        print(steps.sum())
        """,
        good="""
        import torch

        x = torch.ones(2)
        steps = torch.arange(4, device=x.device)
        print(steps.sum())
        """,
    ),
    Example(
        bad="""
        import torch

        weights = torch.ones(3).double()  #!
        print(weights.sum())
        """,
        good="""
        import torch

        weights = torch.ones(3, dtype=torch.double)
        print(weights.sum())
        """,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch

    x = torch.ones(2)
    torch.from_numpy(np.ones(3)).to("cpu")
    torch.arange(0, 3).float()
    torch.tensor([1, 2]).to(x)
    torch.zeros(2, device="cpu").to("cpu")
    torch.zeros(2, device="cpu")
    torch.nn.Linear(2, 2).to("cpu")
    torch.zeros_like(torch.isnan(x)).bool()
    torch.ones_like(x.argmax(0)).long()
    x.to("cpu")
    torch.zeros(2).float().uniform_(0, 1)
    torch.tensor([len(x) + 1]).to("cpu")
    torch.ones(2, requires_grad=True).double()


    def move(where):
        return torch.zeros(2).to(where)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Conversions right behind a factory that could be arguments of it."""
    for call in model.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            if any(k.arg == "requires_grad" for k in call.func.value.keywords):
                continue  # the result is no leaf then: another fault, and another program afterwards
            if is_idle(model, call.func.value, call) and not converts(model.parent(call)):
                continue  # nothing is made anew
            fix = factory_device(model, call)
            if fix is not None:
                wanted = "`device=`" if call.func.attr in ("to", "cuda") else "`dtype=`"
                yield Hit(call, f"the tensor is made twice; pass {wanted} to the factory", fix)


def converts(node: ast.AST | None) -> bool:
    """Whether a conversion follows in the chain: `torch.zeros(2).float().to(device)`."""
    return isinstance(node, ast.Attribute) and (node.attr in ("to", "cuda", "cpu") or node.attr in CASTS)
