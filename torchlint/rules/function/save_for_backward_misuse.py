"""Tensors saved with `save_for_backward` in a way that backward cannot read.

`ctx.save_for_backward(...)` stores one tuple: a second call replaces the first, it takes tensors and None only,
and `ctx.saved_tensors` is a tuple again, also of one. What does not fit shows as a TypeError when forward returns,
or as a wrong number of values when backward unpacks them.

Save all tensors in one call, keep sizes, numbers and lists as attributes of `ctx`, and unpack as many as were
saved. One call per branch is fine.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind
from torchlint.model.saving import Saving, exclusive, saved_by, saved_reads
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL306", "save-for-backward-misuse", Severity.ERROR, fix=Safety.UNSAFE,
            triggers=("save_for_backward", "saved_tensors"))
CLAIM = Raises("TypeError|ValueError|IndexError|AttributeError",
               "values to unpack|can only save variables|index out of range|'tuple'|converted to an index")
# Values that are never tensors.
OTHERS = {
    Kind.NUMBER: "number", Kind.STRING: "string", Kind.SIZE: "size", Kind.LIST: "list", Kind.TUPLE: "tuple",
    Kind.DICT: "dict", Kind.SET: "set", Kind.NDARRAY: "numpy array", Kind.DTYPE: "dtype", Kind.DEVICE: "device",
    Kind.MODULE: "module", Kind.FUNCTION: "function", Kind.STATE_DICT: "dict",
}

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a)
                ctx.save_for_backward(b)  #!
                return a * b

            @staticmethod
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad * b, grad * a


        a = torch.ones(2, requires_grad=True)
        b = torch.ones(2, requires_grad=True)
        Product.apply(a, b).sum().backward()
        """,
        good="""
        import torch


        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a * b

            @staticmethod
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad * b, grad * a


        a = torch.ones(2, requires_grad=True)
        b = torch.ones(2, requires_grad=True)
        Product.apply(a, b).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Power(Function):
            @staticmethod
            def forward(ctx, x, exponent):
                ctx.save_for_backward(x, exponent)  #!
                return x ** exponent

            @staticmethod
            def backward(ctx, grad):
                x, exponent = ctx.saved_tensors
                return grad * exponent * x ** (exponent - 1), None


        x = torch.ones(3, requires_grad=True)
        Power.apply(x, 3).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Power(Function):
            @staticmethod
            def forward(ctx, x, exponent):
                ctx.save_for_backward(x)
                ctx.exponent = exponent
                return x ** exponent

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * ctx.exponent * x ** (ctx.exponent - 1), None


        x = torch.ones(3, requires_grad=True)
        Power.apply(x, 3).sum().backward()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Linear(Function):
            @staticmethod
            def forward(ctx, x, weight, bias):
                ctx.save_for_backward(x, weight, bias)
                return x @ weight + bias

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors  #!
                return grad @ weight.t(), x.t() @ grad, grad.sum(0)


        x = torch.ones(2, 3)
        weight = torch.ones(3, 1, requires_grad=True)
        bias = torch.zeros(1, requires_grad=True)
        Linear.apply(x, weight, bias).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Linear(Function):
            @staticmethod
            def forward(ctx, x, weight, bias):
                ctx.save_for_backward(x, weight)
                return x @ weight + bias

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight.t(), x.t() @ grad, grad.sum(0)


        x = torch.ones(2, 3)
        weight = torch.ones(3, 1, requires_grad=True)
        bias = torch.zeros(1, requires_grad=True)
        Linear.apply(x, weight, bias).sum().backward()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                x = ctx.saved_tensors  #!
                return 2.0 * grad * x


        x = torch.ones(3, requires_grad=True)
        Square.apply(x).sum().backward()
        """,
        good="""
        import torch


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 2.0 * grad * x


        x = torch.ones(3, requires_grad=True)
        Square.apply(x).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function


    class Branches(Function):
        @staticmethod
        def forward(ctx, x, weight=None, keep=True):
            ctx.shape = x.shape
            if weight is None:
                ctx.save_for_backward(x)
                return x * 2
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            if len(ctx.saved_tensors) == 1:
                (x,) = ctx.saved_tensors
                return grad * 2, None, None
            x, weight = ctx.saved_tensors
            return grad * weight, grad * x, None


    class More(Function):
        @staticmethod
        def forward(ctx, x, y, flag):
            ctx.save_for_backward(x)
            if flag:
                ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, grad):
            x, *rest = ctx.saved_tensors
            saved = ctx.saved_tensors
            total = sum(t.sum() for t in saved)
            return grad * saved[0] * len(saved) + total, grad * x, None


    class Lists(Function):
        @staticmethod
        def forward(ctx, scale, *tensors):
            ctx.scale = scale
            ctx.save_for_backward(*tensors, None)
            return sum(tensors)

        @staticmethod
        def backward(ctx, grad):
            first, second, none = ctx.saved_tensors
            return None, grad * first, grad * second


    def keep(ctx, x):
        ctx.save_for_backward(x)


    class Helped(Function):
        @staticmethod
        def forward(ctx, x):
            keep(ctx, x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 + 0 * x


    class Setup(Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.k = inputs
            ctx.save_for_backward(x, output)

        @staticmethod
        def backward(ctx, grad):
            x, output = ctx.saved_tensors
            return grad * ctx.k, None


    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for out in (Branches.apply(x), Branches.apply(x, y), More.apply(x, y, True), Lists.apply(1.0, x, y),
                Helped.apply(x), Setup.apply(x, 2)):
        out.sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """What the classes of a file save, against what torch takes and what their backward reads."""
    for cls in model.classes:
        if not cls.is_function:
            continue
        saving = saved_by(cls)
        mine = [call for call in saving.calls if model.holds(call)]
        lost = [hit for call in mine for hit in replaced(model, saving, call)]
        yield from lost
        for call in mine:
            yield from not_tensors(model, call)
        backward = cls.methods.get("backward")
        if not lost and backward is not None and backward.params and saving.counts is not None:
            yield from misread(model, cls, backward, saving)


def replaced(model: FileModel, saving: Saving, call: ast.Call) -> Iterator[Hit]:
    """A call that comes after another one and does not save again what that one saved."""
    for other in saving.calls:
        if other is call or not model.holds(other) or model.owner(other) is not model.owner(call):
            continue
        again = {ast.dump(arg) for arg in call.args}
        lost = [arg for arg in other.args if ast.dump(arg) not in again]
        if lost and model.position(other) < model.position(call) and not exclusive(model, other, call):
            yield Hit(call, "this replaces the tensors saved before; save all of them in one call",
                      merge(model, other, call))
            return


def merge(model: FileModel, first: ast.Call, second: ast.Call) -> Repair | None:
    """One call with the arguments of both."""
    one, two = model.statement(first), model.statement(second)
    block = edits.siblings(model, one)
    if two not in block or not isinstance(one, ast.Expr) or not isinstance(two, ast.Expr):
        return None
    names = {n.id for arg in first.args for n in ast.walk(arg) if isinstance(n, ast.Name)}
    between = block[block.index(one) : block.index(two)]
    if any(isinstance(n, ast.Name) and n.id in names and not isinstance(n.ctx, ast.Load)
           for stmt in between for n in ast.walk(stmt)):
        return None
    args = ", ".join(edits.source_of(model, arg) for arg in (*first.args, *second.args))
    text = f"{edits.source_of(model, second.func)}({args})"
    return edits.repair("Save all in one call", edits.remove(model, one), edits.replace(model, second, text))


def not_tensors(model: FileModel, call: ast.Call) -> Iterator[Hit]:
    """Arguments that torch refuses."""
    for arg in call.args:
        value = model.value(arg)
        word = OTHERS.get(value.kind)
        if isinstance(arg, ast.Starred) or word is None or value.optional or guessed(model, arg):
            continue
        yield Hit(call, f"save_for_backward takes tensors, not a {word}; set it on `ctx` instead",
                  confidence=value.sure)
        return


def guessed(model: FileModel, arg: ast.expr) -> bool:
    """Whether the kind of a parameter is only that of its default, which a tensor may take the place of."""
    method = model.function(arg)
    if method is None or not isinstance(arg, ast.Name) or method.call_sites:
        return False
    param = next((p for p in (*method.params, *method.args.kwonlyargs) if p.arg == arg.id), None)
    return param is not None and param.annotation is None and model.value(arg).sure is not Confidence.SURE


def misread(model: FileModel, cls: ClassInfo, backward: FunctionInfo, saving: Saving) -> Iterator[Hit]:
    """Places of backward that take another number of tensors than were saved, or the tuple for a tensor."""
    counts = saving.counts or set()
    most = max(counts, default=0)
    for read in saved_reads(model, cls, backward):
        if read.wanted is not None and read.wanted not in counts:
            said = "none are" if most == 0 else "one is" if most == 1 else f"{most} are"
            yield Hit(read.node, f"backward unpacks {read.wanted} saved tensors, but {said} saved; make them agree",
                      confidence=Confidence.LIKELY)
        elif read.least > most:
            yield Hit(read.node, f"backward reads saved tensor {read.least - 1}, but {most} are saved; save it as well",
                      confidence=Confidence.LIKELY)
        elif read.as_tensor is not None:
            repair = None
            if counts == {1}:
                text = edits.source_of(model, read.as_tensor)
                text = f"({text},)" if isinstance(read.as_tensor, ast.Name) else f"{text}[0]"
                repair = edits.repair("Unpack the tuple", edits.replace(model, read.as_tensor, text))
            yield Hit(read.node, "`ctx.saved_tensors` is a tuple, also of one tensor; unpack it: `(x,) = ...`", repair)
