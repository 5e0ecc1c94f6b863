"""A view or reshape that names a tensor's sizes in another order, as if it moved its axes.

`view` and `reshape` never move an element: they cut the same row of numbers anew. A result of the wanted shape then
holds pixels of one channel in the place of another, or tokens of one head mixed with the next, and nothing fails;
the model merely learns badly.

Move axes with `permute` or `transpose`; split a size where it stands, `view(b, n, heads, d)`, and transpose after
that. Merging and splitting neighbours in order is what view is for.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.model.axes import Sizes, out_of_order, sizes_of, tokens
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL107", "view-instead-of-permute", Severity.ERROR, stable=False, fix=Safety.SHOW,
            triggers=("view", "reshape"))
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(3)

            def forward(self, x):
                b, c, h, w = x.shape
                x = x.view(b, h * w, c)  #!
                return self.norm(x)


        torch.manual_seed(0)
        print(Tokens()(torch.randn(2, 3, 4, 4)))
        """,
        good="""
        import torch
        from torch import nn


        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(3)

            def forward(self, x):
                b, c, h, w = x.shape
                x = x.flatten(2).transpose(1, 2)
                return self.norm(x)


        torch.manual_seed(0)
        print(Tokens()(torch.randn(2, 3, 4, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Heads(nn.Module):
            def __init__(self, dim=8, heads=2):
                super().__init__()
                self.heads = heads
                self.query = nn.Linear(dim, dim)

            def forward(self, x):
                batch, length, dim = x.size()
                q = self.query(x)
                q = q.view(batch, self.heads, length, dim // self.heads)  #!
                return (q @ q.transpose(-1, -2)).softmax(-1)


        torch.manual_seed(0)
        print(Heads()(torch.randn(2, 5, 8)))
        """,
        good="""
        import torch
        from torch import nn


        class Heads(nn.Module):
            def __init__(self, dim=8, heads=2):
                super().__init__()
                self.heads = heads
                self.query = nn.Linear(dim, dim)

            def forward(self, x):
                batch, length, dim = x.size()
                q = self.query(x)
                q = q.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
                return (q @ q.transpose(-1, -2)).softmax(-1)


        torch.manual_seed(0)
        print(Heads()(torch.randn(2, 5, 8)))
        """,
    ),
    Example(
        bad="""
        import torch


        def time_first(x):
            return x.reshape(x.size(1), x.size(0), x.size(2))  #!


        print(time_first(torch.arange(12.0).view(2, 3, 2)))
        """,
        good="""
        import torch


        def time_first(x):
            return x.permute(1, 0, 2)


        print(time_first(torch.arange(12.0).view(2, 3, 2)))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, groups=2):
            super().__init__()
            self.groups = groups
            self.heads = 2
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            b, c, h, w = x.shape
            y = x.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
            y = y.permute(0, 2, 3, 1).reshape(b, h * w, c)
            z = x.view(b * c, 1, h, w).view(b, c, -1)
            z = x.view(b, -1, h, w).view(1, b, c, h, w).reshape(b, -1)
            gram = x.view(c * b, w * h) @ x.view(b * c, -1).t()
            flat = x.reshape(b, c, h // 2, 2, w // 2, 2)
            swapped = x.transpose(1, 2)
            swapped = swapped.reshape(b, h, c * w)
            n = h * w
            q = self.qkv(y).view(b, n, 3, self.heads, c // self.heads)
            k = self.qkv(y).view(b, -1, 3 * c)
            width = x.shape[-1]
            rows = x.reshape(-1, width).view(-1)
            return z, gram, flat, swapped, q, k, rows


    def regroup(x, groups):
        b, n, d = x.shape
        x = x.view(-1, 2 * n, d)
        pairs = x.reshape(b, groups * x.shape[1] // 2, x.shape[2])
        b, n, d = pairs.shape
        return pairs.view(n, b, d)


    def merge(x, y):
        b, n, d = x.shape
        m = y.shape[1]
        both = torch.cat([x, y], 1).view(b, n + m, d)
        x = x.transpose(0, 1)
        return both, x.reshape(n, b, d), y.view(b, m, 1, d).expand(b, m, n, d)


    Net()(torch.randn(2, 4, 4, 4))
    merge(torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of view and reshape on a tensor whose sizes they name in another order."""
    for name in ("view", "reshape"):
        for call in model.calls_named(name):
            receiver, target = parts(model, call)
            if receiver is None or len(target) < 2:
                continue
            sizes = sizes_of(model, receiver)
            if sizes is None:
                continue
            found = tokens(model, target, sizes)
            if found is None:
                continue
            if whole(found, target) is not None:
                found = fill(found, target, sizes)
            if out_of_order(found, sizes.rank):
                yield Hit(call, f"`{name}` moves no element, it cuts rows anew; swap axes with `transpose`",
                          permuted(model, call, receiver, found, target, sizes), confidence=Confidence.LIKELY)


def parts(model: FileModel, call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """The tensor and the target sizes of a call; (None, []) if they cannot be seen."""
    match call:
        case ast.Call(func=ast.Attribute(value=receiver), args=args) if not model.name_of(receiver):
            pass
        case ast.Call(args=[receiver, *args]) if model.name_of(call.func) == "torch.reshape":
            pass
        case _:
            return None, []
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = args[0].elts
    if any(isinstance(arg, ast.Starred) for arg in args):
        return None, []
    return receiver, list(args)


def whole(found: list[int | None], target: list[ast.expr]) -> int | None:
    """The place of -1 among the target sizes, where each of them is one token."""
    if len(found) != len(target):
        return None
    return next((i for i, expr in enumerate(target) if isinstance(expr, ast.UnaryOp)), None)


def fill(found: list[int | None], target: list[ast.expr], sizes: Sizes) -> list[int | None]:
    """-1 stands for the sizes that are not named, where all others are the tensor's own."""
    place = whole(found, target)
    if place is None or sizes.rank is None or sizes.last_changed or found.count(None) != 1:
        return found
    missing = [axis for axis in range(sizes.rank) if axis not in found]
    return [*found[:place], *missing, *found[place + 1 :]]


def permuted(model: FileModel, call: ast.Call, receiver: ast.expr, found: list[int | None], target: list[ast.expr],
             sizes: Sizes) -> Repair | None:
    """The permute that was meant, where the target is all sizes in another order."""
    axes = [axis for axis in found if axis is not None]
    if sizes.last_changed or sorted(axes) != list(range(sizes.rank or len(axes))) or len(found) != len(target):
        return None
    if not isinstance(receiver, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return None
    return edits.repair("Use permute", edits.replace(
        model, call, f"{edits.source_of(model, receiver)}.permute({', '.join(map(str, axes))})"))
