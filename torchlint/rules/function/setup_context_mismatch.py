"""A Function whose forward takes `ctx` although it defines `setup_context`, or the reverse.

There are two interfaces: `forward(ctx, *args)` alone, or `forward(*args)` with `setup_context(ctx, inputs,
output)`. torch looks only at whether `setup_context` exists and calls forward accordingly, so a mixture hands
every argument to the wrong parameter.

Take `ctx` out of forward where `setup_context` does the saving, or merge `setup_context` into forward.
"""
from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.model.autograd import apply_counts, mixes_interfaces
from torchlint.rule import Example, Hit, Meta

META = Meta("TL312", "setup-context-mismatch", Severity.ERROR, triggers=("Function",))
CLAIM = Raises("Exception", "argument|parameter|attribute")

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):  #!
                return x * factor

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.factor = inputs[1]

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, 2.0).sum().backward()
        """,
        good="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(x, factor):
                return x * factor

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.factor = inputs[1]

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.factor, None


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, 2.0).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Double(Function):
            @staticmethod
            def forward(x):  #!
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        Double.apply(x).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Double(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        Double.apply(x).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch


    class New(torch.autograd.Function):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None


    class Old(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x + 0

        @staticmethod
        def backward(_, grad):
            return grad


    class Self(torch.autograd.Function):
        @staticmethod
        def forward(self, x):
            self.save_for_backward(x)
            return x + 0

        @staticmethod
        def backward(self, grad):
            return grad


    class Rest(torch.autograd.Function):
        @staticmethod
        def forward(*args):
            return args[1] + 0

        @staticmethod
        def backward(ctx, grad):
            return grad


    x = torch.ones(1, requires_grad=True)
    for cls in (Old, Self, Rest):
        cls.apply(x).backward()
    New.apply(x, 2).backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Forward methods whose first parameter does not fit the interface."""
    for cls in model.classes:
        forward = cls.methods.get("forward")
        if not cls.is_function or forward is None or not forward.is_static or forward.args.vararg is not None:
            continue
        first = forward.params[0].arg if forward.params else ""
        if cls.method("setup_context") is not None:
            if mixes_interfaces(cls, forward):
                yield Hit(forward.node, f"with `setup_context`, forward gets no `{first}`; take it out")
        elif apply_counts(cls) == {len(forward.params)} and not forward.args.defaults:
            yield Hit(forward.node, "forward gets `ctx` first; add it, or define `setup_context`")
