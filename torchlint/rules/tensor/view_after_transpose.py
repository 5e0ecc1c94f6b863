"""A view that merges dimensions which a transpose has pulled apart.

`transpose` and `permute` change strides, not memory. `view` can only describe what lies in memory already, and
two dimensions that are no longer neighbours there cannot become one: "view size is not compatible with input
tensor's size and stride".

Use `reshape`, which copies when it must, or `.contiguous()` first. Splitting a transposed dimension, or merging
dimensions that stayed together, is a legal view.
"""
from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, ranks
from torchlint.rule import Example, Hit, Meta

META = Meta("TL106", "view-after-transpose", Severity.ERROR, fix=Safety.SAFE, triggers=("view",))
CLAIM = Raises("RuntimeError", "view size is not compatible")

EXAMPLES = [
    Example(
        bad="""
        import torch

        x = torch.randn(2, 3, 4, 5)
        y = x.transpose(1, 2).view(2, 4, 15)  #!
        z = x.permute(0, 2, 3, 1)
        z = z.view(2, 60)  #!
        """,
        good="""
        import torch

        x = torch.randn(2, 3, 4, 5)
        y = x.transpose(1, 2).reshape(2, 4, 15)
        z = x.permute(0, 2, 3, 1)
        z = z.reshape(2, 60)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv = nn.Linear(8, 24)

            def forward(self, x):
                b, n, d = x.shape
                q, k, v = self.qkv(x).view(b, n, 3, 2, 4).unbind(2)
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
                out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
                return out.transpose(1, 2).view(b, n, d)  #!


        Attention()(torch.ones(2, 5, 8))
        """,
        good="""
        import torch
        from torch import nn


        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv = nn.Linear(8, 24)

            def forward(self, x):
                b, n, d = x.shape
                q, k, v = self.qkv(x).view(b, n, 3, 2, 4).unbind(2)
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
                out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
                return out.transpose(1, 2).reshape(b, n, d)


        Attention()(torch.ones(2, 5, 8))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads = heads
                self.qkv = nn.Linear(width, 3 * width)

            def forward(self, x):
                b, t, d = x.shape
                q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
                y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
                return y.transpose(1, 2).view(b, t, d)  #!


        print(Attention(8, 2)(torch.ones(2, 3, 8)).shape)
        """,
        good="""
        import torch
        from torch import nn


        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads = heads
                self.qkv = nn.Linear(width, 3 * width)

            def forward(self, x):
                b, t, d = x.shape
                q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
                y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
                return y.transpose(1, 2).reshape(b, t, d)


        print(Attention(8, 2)(torch.ones(2, 3, 8)).shape)
        """,
    ),
]

CLEAN = [
    """
    import torch

    x = torch.randn(2, 3, 4, 6)
    x.permute(0, 2, 3, 1).view(2, 24, 3)
    x.transpose(1, 2).contiguous().view(2, 4, 18)
    x.transpose(1, 2).view(2, 4, 3, 2, 3)
    x.transpose(1, 2).view(2, 4, 3, 6)
    torch.randn(2, 3, 4).transpose(1, 2).view(2, 4, 3)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Views of transposed tensors that need more merges than their strides allow."""
    for call in model.nodes(ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(value=receiver, attr="view") as method, args=args) if args:
                wanted = ranks.size_count(args)
                order = permutation(model, receiver)
                if wanted is None or order is None or len(order) - wanted <= mergeable(order):
                    continue
                yield Hit(call, "a view cannot merge dimensions that were transposed apart; use `reshape`",
                          edits.repair("Use reshape", edits.rename_attribute(model, method, "reshape")),
                          confidence=min(model.value(receiver).sure, Confidence.LIKELY))


def permutation(model: FileModel, expr: ast.expr) -> list[int] | None:
    """The order of memory dimensions that an expression's transpose leaves; None if it cannot be told."""
    site = model.value(expr).site
    node = site if isinstance(expr, ast.Name) and isinstance(site, ast.expr) and model.holds(site) else expr
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr="permute"), args=args) if ranks.in_order(model, base):
            dims = literals(args[0].elts if len(args) == 1 and isinstance(args[0], ast.Tuple) else args)
            return [d % len(dims) for d in dims] if dims else None
        case ast.Call(func=ast.Attribute(value=base, attr="transpose" | "swapaxes"), args=[one, two]):
            pair, count = literals([one, two]), ranks.rank(model, base)
            if pair and count is not None and ranks.in_order(model, base) and max(map(abs, pair)) <= count:
                order = list(range(count))
                i, j = pair[0] % count, pair[1] % count
                order[i], order[j] = order[j], order[i]
                return order
    return None


def literals(args: list[ast.expr]) -> list[int]:
    """The integers that are written; [] if something else is."""
    found = []
    for arg in args:
        try:
            value = ast.literal_eval(arg)
        except ValueError:
            return []
        if not isinstance(value, int):
            return []
        found.append(value)
    return found


def mergeable(order: list[int]) -> int:
    """How many neighbours still follow one another in memory."""
    return sum(second == first + 1 for first, second in itertools.pairwise(order))
