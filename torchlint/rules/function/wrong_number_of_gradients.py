"""A backward that does not return one gradient for each argument of forward.

`.apply` records one edge for every argument of `forward` except `ctx`, tensors or not, and the engine wants
a value for each edge. Too few values, or a surplus one that is not None, end in "returned an incorrect
number of gradients" when backward runs.

Return None for arguments that need no gradient, in the order of forward's parameters. Surplus None values at
the end are accepted. The rule counts only what is written out: starred values and unknown tuples are skipped.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Raises
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.precedence import ATOM, text_level
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value
from torchlint.model.autograd import apply_counts, mixes_interfaces
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL303", "wrong-number-of-gradients", Severity.ERROR, fix=Safety.UNSAFE, triggers=("backward",))
CLAIM = Raises("RuntimeError", "incorrect number of gradients")

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, strength):
                ctx.strength = strength
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.strength  #!


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, 0.5).sum().backward()
        """,
        good="""
        import torch


        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, strength):
                ctx.strength = strength
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.strength, None


        x = torch.ones(3, requires_grad=True)
        Scale.apply(x, 0.5).sum().backward()
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        class Linear(Function):
            @staticmethod
            def forward(ctx, x, weight, bias=None):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                if not ctx.needs_input_grad[1]:
                    return grad @ weight.t(), None, None
                return grad @ weight.t(), x.t() @ grad  #!


        x = torch.ones(2, 3, requires_grad=True)
        weight = torch.ones(3, 1, requires_grad=True)
        Linear.apply(x, weight, None).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function


        class Linear(Function):
            @staticmethod
            def forward(ctx, x, weight, bias=None):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                if not ctx.needs_input_grad[1]:
                    return grad @ weight.t(), None, None
                return grad @ weight.t(), x.t() @ grad, None


        x = torch.ones(2, 3, requires_grad=True)
        weight = torch.ones(3, 1, requires_grad=True)
        Linear.apply(x, weight, None).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function


    class Nearest(Function):
        @staticmethod
        def forward(ctx, points, centers, k):
            found = torch.cdist(centers, points).topk(k, largest=False).indices
            ctx.mark_non_differentiable(found)
            return found

        @staticmethod
        def backward(ctx, grad=None):
            return ()


    Nearest.apply(torch.ones(3, 2, requires_grad=True), torch.ones(1, 2), 1)
    """,
    """
    import torch


    def grads(ctx, grad):
        return grad, None


    class Surplus(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.k, None, None


    class Helped(Surplus):
        @staticmethod
        def backward(ctx, grad):
            return grads(ctx, grad)


    class Many(torch.autograd.Function):
        @staticmethod
        def forward(ctx, flag, *tensors):
            ctx.n = len(tensors)
            return sum(tensors)

        @staticmethod
        def backward(ctx, grad):
            return (None,) + (grad,) * ctx.n


    class Setup(torch.autograd.Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.k = inputs[1]

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.k, None


    class Listed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a, b):
            return x + 0

        @staticmethod
        def backward(ctx, grad):
            found = [grad]
            for _ in range(2):
                found.append(None)
            return tuple(found)


    class Abstract(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            return x

        @staticmethod
        def backward(ctx, grad):
            raise NotImplementedError


    class Padded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k=2):
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.k


    x = torch.ones(2, requires_grad=True)
    for out in (Surplus.apply(x, 2), Helped.apply(x, 2), Many.apply(True, x, x), Setup.apply(x, 2),
                Listed.apply(x, 1, 2), Padded.apply(x)):
        out.sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Return statements of backward whose number of values does not fit forward's parameters."""
    for cls in model.classes:
        backward = cls.methods.get("backward") if cls.is_function else None
        forward = cls.method("forward") if backward is not None else None
        if backward is None or forward is None or backward.is_classmethod or never_runs(cls, forward):
            continue
        expected = arguments(cls, forward)
        if expected is None:
            continue
        least, most = expected
        for node, value in model.flow(backward.node).return_values:
            count = written(node, value) if not starred(backward, node) else None
            if count is None or node not in backward.own_nodes:
                continue
            given, surplus = count
            if given < least:
                told = f"backward gives {amount(given)} for {amount(least, 'argument')} of forward; return one for each"
                yield Hit(node, told, pad(model, node) if least - given == 1 and not is_saved(forward) else None)
            elif surplus > most:
                told = f"backward gives {amount(surplus)} for {amount(most, 'argument')} of forward; drop the rest"
                yield Hit(node, told)


def never_runs(cls: ClassInfo, forward: FunctionInfo) -> bool:
    """Whether all that forward returns is marked as not differentiable, so that torch never calls backward."""
    marking = [forward, cls.method("setup_context")]
    marked = {node.id for function in marking if function is not None for call in function.own_nodes
              if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
              and call.func.attr == "mark_non_differentiable" for node in call.args if isinstance(node, ast.Name)}
    given = [node.value for node in forward.own_nodes if isinstance(node, ast.Return)]
    parts = [part for value in given for part in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return bool(parts) and all(isinstance(part, ast.Name) and part.id in marked for part in parts)


def amount(number: int, word: str = "gradient") -> str:
    """`1 gradient`, `2 gradients`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def is_saved(forward: FunctionInfo) -> bool:
    """Whether forward saves its last argument for backward: the missing gradient is another one's, then."""
    last = forward.params[-1].arg
    return any(isinstance(arg, ast.Name) and arg.id == last for call in forward.calls
               if isinstance(call.func, ast.Attribute) and call.func.attr == "save_for_backward" for arg in call.args)


def arguments(cls: ClassInfo, forward: FunctionInfo) -> tuple[int, int] | None:
    """(least, most) number of arguments that `.apply` passes; None if that cannot be told."""
    if forward.args.vararg is not None or forward.args.kwonlyargs or forward.args.kwarg is not None:
        return None
    if any(not name.startswith(("builtins.", "torch.")) for name in forward.decorators):
        return None
    if mixes_interfaces(cls, forward):
        return None  # another fault, without which the count would be right
    most = len(forward.params) - (0 if cls.method("setup_context") is not None else 1)
    most -= 1 if forward.is_classmethod else 0
    least = most - len(forward.args.defaults)
    if forward.args.defaults:  # how many are left to their defaults depends on the call
        counts = apply_counts(cls)
        least, most = (min(counts), max(counts)) if counts else (least, most)
    return (least, most) if most > 0 else None


def written(node: ast.Return, value: Value) -> tuple[int, int] | None:
    """(all values, values up to the last that is not None) that a return statement surely gives."""
    match node.value:
        case ast.Tuple(elts=elts):
            if any(isinstance(elt, ast.Starred) for elt in elts):
                return None
            last = max((i + 1 for i, elt in enumerate(elts) if not is_none(elt)), default=0)
            return len(elts), last
        case None:
            return None
    if value.kind is Kind.TUPLE and value.elements is not None and isinstance(node.value, ast.Name):
        return len(value.elements), 0
    return (1, 1) if value.kind is Kind.TENSOR else None


def starred(backward: FunctionInfo, node: ast.Return) -> bool:
    """Whether the gradients that backward was given are returned as they are: `*grads`."""
    vararg = backward.args.vararg
    return vararg is not None and any(isinstance(n, ast.Name) and n.id == vararg.arg for n in ast.walk(node))


def is_none(node: ast.expr) -> bool:
    """A literal None, or something that may be None."""
    return not isinstance(node, (ast.BinOp, ast.Call)) or (
        isinstance(node, ast.Constant) and node.value is None)


def pad(model: FileModel, node: ast.Return) -> Repair | None:
    """One more None at the end."""
    if node.value is None:
        return None
    text = edits.source_of(model, node.value)
    if isinstance(node.value, ast.Tuple) and text_level(text)[0] >= ATOM:  # and not `(a), (b)`
        text = text[1:-1].rstrip().rstrip(",")
        return edits.repair("Return None for the last argument", edits.replace(model, node.value, f"({text}, None)"))
    return edits.repair("Return None for the last argument", edits.replace(model, node.value, f"{text}, None"))
