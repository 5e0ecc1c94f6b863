"""A recurrent layer without batch_first fed batch-first input.

`nn.RNN`, `nn.GRU` and `nn.LSTM` expect (time, batch, feature) unless they are made with `batch_first=True`. Given
(batch, time, feature) they run over the batch as if it were time: states flow from one sample into the next,
and nothing fails because both layouts have three dimensions.

Pass `batch_first=True`, or transpose the input and the output.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL426", "rnn-batch-first-missing", Severity.WARNING, stable=False, triggers=("GRU", "LSTM", "RNN"))
CLAIM = OutputsDiffer()
LAYERS = {"torch.nn.GRU", "torch.nn.LSTM", "torch.nn.RNN"}
EMBEDDINGS = ("torch.nn.Embedding", "torch.nn.functional.embedding")
BATCH_NAMES = {"b", "bs", "bsz", "bz", "batch", "batch_size", "n_batch", "batchsize", "nbatch", "num_batch"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(4, 8)  #!
                self.out = nn.Linear(8, 3)

            def forward(self, x):
                batch_size, steps, width = x.shape
                hidden, _ = self.rnn(x)
                return self.out(hidden)


        torch.manual_seed(0)
        net = Tagger()
        one = net(torch.ones(2, 5, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(4, 8, batch_first=True)
                self.out = nn.Linear(8, 3)

            def forward(self, x):
                batch_size, steps, width = x.shape
                hidden, _ = self.rnn(x)
                return self.out(hidden)


        torch.manual_seed(0)
        net = Tagger()
        one = net(torch.ones(2, 5, 4))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                self.gru = nn.GRU(input_size=4, hidden_size=8)  #!
                self.out = nn.Linear(8, 3)

            def forward(self, x):
                out, state = self.gru(x)
                return self.out(out[:, -1, :])


        torch.manual_seed(0)
        net = Classifier()
        one = net(torch.rand(5, 5, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                self.gru = nn.GRU(input_size=4, hidden_size=8, batch_first=True)
                self.out = nn.Linear(8, 3)

            def forward(self, x):
                out, state = self.gru(x)
                return self.out(out[:, -1, :])


        torch.manual_seed(0)
        net = Classifier()
        one = net(torch.rand(5, 5, 4))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, options):
            super().__init__()
            self.a = nn.GRU(4, 8)
            self.b = nn.GRU(4, 8, batch_first=True)
            self.c = nn.GRU(4, 8, **options)

        def forward(self, x):
            batch_size, steps, _ = x.shape
            time_major = x.transpose(0, 1)
            out, _ = self.a(time_major)
            last = out[-1]
            out = out.transpose(0, 1)
            also = out[:, -1]
            other, _ = self.b(x)
            more, _ = self.c(x)
            return last, also, other[:, -1], more

        def steps(self, x):
            steps, batch_size, _ = x.shape
            out, _ = self.a(x)
            return out[-1]
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of time-major layers whose input or output is treated as batch-major."""
    seen = set()
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) or not call.args:
            continue
        layer = model.value(call.func)
        if layer.kind is not Kind.MODULE or layer.name not in LAYERS or not isinstance(layer.site, ast.Call):
            continue
        if time_major(layer.site) and (batch_first_input(model, call) or batch_first_output(model, call)):
            place = layer.site if model.has(layer.site) else call
            if place not in seen:
                seen.add(place)
                yield Hit(
                    place,
                    "this runs over the batch as if it were time; pass `batch_first=True`",
                    confidence=Confidence.LIKELY,
                )


def time_major(site: ast.Call) -> bool:
    """Whether the layer was surely made without batch_first."""
    if any(k.arg is None for k in site.keywords) or any(isinstance(a, ast.Starred) for a in site.args):
        return False
    given = [k.value for k in site.keywords if k.arg == "batch_first"] + site.args[4:5]
    return all(isinstance(value, ast.Constant) and value.value is False for value in given)


def batch_first_input(model: FileModel, call: ast.Call) -> bool:
    """Whether the input's own shape was unpacked with the batch in front."""
    given = model.value(call.args[0])
    idents = {3: given.ident}  # number of dimensions -> of what
    match given.site:
        case ast.Call(func=func, args=[tokens]) if model.has(given.site) and model.value(func).name in EMBEDDINGS:
            idents[2] = model.value(tokens).ident
    for assign in model.nodes(ast.Assign):
        if model.owner(assign) is not model.owner(call) or model.position(assign) > model.position(call):
            continue
        match assign:
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), *_] as sizes)], value=shape):
                source, ident = shape_of(shape), idents.get(len(sizes))
                if source is not None and first.lower() in BATCH_NAMES and ident is not None:
                    if model.value(source).ident == ident:
                        return True
    return False


def shape_of(expr: ast.expr) -> ast.expr | None:
    """x of `x.shape` or `x.size()`."""
    match expr:
        case ast.Attribute(value=value, attr="shape"):
            return value
        case ast.Call(func=ast.Attribute(value=value, attr="size"), args=[]):
            return value
    return None


def batch_first_output(model: FileModel, call: ast.Call) -> bool:
    """Whether the last time step is taken from the second dimension of the output."""
    output = model.value(call)
    first = output.elements[0] if output.elements else None
    if first is None or first.ident is None:
        return False
    for node in model.nodes(ast.Subscript):
        match node:
            case ast.Subscript(
                value=base, slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), last, *_])
            ):
                minus_one = (
                    isinstance(last, ast.UnaryOp)
                    and isinstance(last.operand, ast.Constant)
                    and (last.operand.value == 1)
                )
                if minus_one and model.owner(node) is model.owner(call) and model.value(base).ident == first.ident:
                    return True
    return False
