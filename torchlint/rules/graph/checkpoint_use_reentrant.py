"""A `checkpoint(...)` that does not say which implementation it wants.

Without `use_reentrant` torch takes the old, reentrant implementation and warns that the default will change.
The old one needs an input that requires grad, ignores gradients of tensors that are not passed in, and does not
work with `autograd.grad`.

Pass `use_reentrant=False`, which has none of these limits.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Warns
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL219", "checkpoint-use-reentrant", Severity.WARNING, fix=Safety.UNSAFE, aliases=("TOR003",),
            triggers=("checkpoint",))
CLAIM = Warns("use_reentrant")
NAMES = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint

        layer = nn.Linear(2, 2)
        x = torch.ones(1, 2, requires_grad=True)
        checkpoint(layer, x).sum().backward()  #!
        """,
        good="""
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint

        layer = nn.Linear(2, 2)
        x = torch.ones(1, 2, requires_grad=True)
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.utils.checkpoint import checkpoint


    def run(f, x, **options):
        return checkpoint(f, x, **options)


    run(torch.exp, torch.ones(1, requires_grad=True), use_reentrant=False)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of checkpoint without the argument and without `**options`."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) in NAMES and not any(k.arg in ("use_reentrant", None) for k in call.keywords):
            yield Hit(call, "reentrant checkpointing is an old default; pass `use_reentrant=False`",
                      edits.repair("Say which one", edits.add_keyword_argument(model, call, "use_reentrant=False")))
