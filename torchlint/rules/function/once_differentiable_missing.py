"""A backward that leaves autograd without saying that it can be differentiated only once.

With `create_graph=True` the body of backward is recorded like any other code. What passes `.detach()`, `.data`,
numpy, a `no_grad` block or a kernel of its own is a constant for that record: a gradient penalty or a Hessian
then lacks a term, without an error.

Decorate it with `@once_differentiable`, below `@staticmethod`: first gradients stay as they are, and a second
derivative raises. A backward made of differentiable operations needs no decorator.

No claim: the fix turns a second derivative that is silently wrong into an error; no gradient is right after it.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import ClassInfo, FileModel, FunctionInfo
from torchlint.model.autograd import context_of
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL309", "once-differentiable-missing", Severity.WARNING, fix=Safety.SAFE, triggers=("backward",))
CLAIM = None
ONCE = "torch.autograd.function.once_differentiable"
LEAVING = {"detach", "numpy"}
READING = {"item", "tolist"}  # of the gradient: of a saved tensor they mostly give sizes and indices
KERNELS = {"jit", "autotune", "heuristics"}  # decorators of triton and numba
NO_GRAD = {"torch.no_grad", "torch.inference_mode"}
GUARDS = {"_is_checkpoint_valid"}  # such a backward refuses what it cannot do itself
PLAIN = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout"}
COUNTING = {"size", "dim", "numel", "stride", "is_contiguous", "element_size", "data_ptr", "get_device", "type"}

EXAMPLES = [
    Example(
        bad="""
        import torch


        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x ** 3

            @staticmethod
            def backward(ctx, grad_output):  #!
                (x,) = ctx.saved_tensors
                return grad_output * 3 * x.detach() ** 2


        x = torch.ones(2, requires_grad=True)
        Cube.apply(x).sum().backward()
        """,
        good="""
        import torch


        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x ** 3

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, grad_output):
                (x,) = ctx.saved_tensors
                return grad_output * 3 * x.detach() ** 2


        x = torch.ones(2, requires_grad=True)
        Cube.apply(x).sum().backward()
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch
        from torch.autograd import Function


        class Filter(Function):
            @staticmethod
            def forward(ctx, image, kernel):
                ctx.save_for_backward(image, kernel)
                result = np.convolve(image.detach().numpy(), kernel.detach().numpy(), mode="valid")
                return torch.from_numpy(result)

            @staticmethod
            def backward(ctx, grad_output):  #!
                grad = grad_output.detach().numpy()
                image, kernel = ctx.saved_tensors
                full = np.convolve(grad, kernel.numpy()[::-1], mode="full")
                return torch.from_numpy(full), torch.from_numpy(np.convolve(image.numpy()[::-1], grad, mode="valid"))


        image = torch.randn(5, dtype=torch.float64, requires_grad=True)
        kernel = torch.randn(3, dtype=torch.float64, requires_grad=True)
        Filter.apply(image, kernel).sum().backward()
        """,
        good="""
        import numpy as np
        import torch
        from torch.autograd import Function
        from torch.autograd.function import once_differentiable


        class Filter(Function):
            @staticmethod
            def forward(ctx, image, kernel):
                ctx.save_for_backward(image, kernel)
                result = np.convolve(image.detach().numpy(), kernel.detach().numpy(), mode="valid")
                return torch.from_numpy(result)

            @staticmethod
            @once_differentiable
            def backward(ctx, grad_output):
                grad = grad_output.detach().numpy()
                image, kernel = ctx.saved_tensors
                full = np.convolve(grad, kernel.numpy()[::-1], mode="full")
                return torch.from_numpy(full), torch.from_numpy(np.convolve(image.numpy()[::-1], grad, mode="valid"))


        image = torch.randn(5, dtype=torch.float64, requires_grad=True)
        kernel = torch.randn(3, dtype=torch.float64, requires_grad=True)
        Filter.apply(image, kernel).sum().backward()
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import Function


        def gather_grad(grad, index, out):
            out.index_add_(0, index, grad)


        class Gather(Function):
            @staticmethod
            def forward(ctx, x, index):
                ctx.count = len(x)
                ctx.save_for_backward(index)
                return x[index]

            @staticmethod
            def backward(ctx, grad):  #!
                (index,) = ctx.saved_tensors
                grad_x = grad.new_zeros(ctx.count)
                gather_grad(grad.data.contiguous(), index, grad_x.data)
                return grad_x, None


        x = torch.ones(4, requires_grad=True)
        Gather.apply(x, torch.tensor([0, 0, 2])).sum().backward()
        """,
        good="""
        import torch
        from torch.autograd import Function
        from torch.autograd.function import once_differentiable


        def gather_grad(grad, index, out):
            out.index_add_(0, index, grad)


        class Gather(Function):
            @staticmethod
            def forward(ctx, x, index):
                ctx.count = len(x)
                ctx.save_for_backward(index)
                return x[index]

            @staticmethod
            @once_differentiable
            def backward(ctx, grad):
                (index,) = ctx.saved_tensors
                grad_x = grad.new_zeros(ctx.count)
                gather_grad(grad.data.contiguous(), index, grad_x.data)
                return grad_x, None


        x = torch.ones(4, requires_grad=True)
        Gather.apply(x, torch.tensor([0, 0, 2])).sum().backward()
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import torch
    from torch.autograd import Function
    from torch.autograd.function import once_differentiable


    class Pure(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            ctx.side = x.detach().numpy().shape
            return x * scale

        @staticmethod
        def backward(ctx, grad):
            x, scale = ctx.saved_tensors
            mask = x.detach() > 0
            rows = x.data.shape[0]
            if grad.sum().item() == 0:
                return None, None
            norm = float(grad.detach().norm())
            print(norm, rows)
            return grad * scale * mask, (grad * x).sum()


    class Marked(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            return grad.detach() * 2


    class Reverse(Function):
        @staticmethod
        def forward(ctx, x, strength):
            ctx.strength = strength
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -ctx.strength * grad, None


    x = torch.ones(3, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    Reverse.apply(Marked.apply(Pure.apply(x, scale)), 0.5).sum().backward()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards whose result depends on something that autograd cannot see."""
    for cls in model.classes:
        backward = cls.methods.get("backward") if cls.is_function else None
        if backward is None or not backward.is_static or any("once" in name for name in backward.decorators):
            continue
        how = leaves(model, cls, backward)
        if how:
            told = f"{how} hides this gradient's own derivative; add `@once_differentiable`"
            yield Hit(backward.node, told, mend(model, backward), confidence=Confidence.LIKELY)


def leaves(model: FileModel, cls: ClassInfo, backward: FunctionInfo) -> str:
    """What takes the gradient out of autograd on its way to the result; "" if nothing does."""
    context = context_of(cls, backward)
    if context is None or any(isinstance(n, ast.Attribute) and n.attr in GUARDS for n in backward.own_nodes):
        return ""
    if any(name in NO_GRAD for name in backward.decorators):
        return "`no_grad`"
    given = {arg.arg for arg in backward.params if arg is not context}
    inputs = tainted(backward, context.arg)
    outputs = returned_names(backward)
    for node in backward.own_nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[]) if name in LEAVING or (
                    name in READING and mentions(inner, given, context.arg) and not mentions(inner, {""}, context.arg)):
                found = f"`.{name}()`"
            case ast.Attribute(value=inner, attr="data", ctx=ast.Load()):
                found = "`.data`"
            case ast.Call(func=ast.Subscript(value=inner)) if is_kernel(model, inner):
                return "a kernel that autograd does not know"
            case ast.Return(value=ast.expr() as value) if mentions(value, inputs, context.arg) and off(model, node):
                return "`no_grad`"
            case _:
                continue
        if mentions(inner, inputs, context.arg) and reaches(model, node, outputs):
            return found
    return ""


def off(model: FileModel, node: ast.AST) -> bool:
    """Whether the innermost grad mode written around a statement is no_grad."""
    names = [model.name_of(item.func) for item in model.place(node).withs if isinstance(item, ast.Call)]
    modes = [name for name in names if name in NO_GRAD or name == "torch.enable_grad"]
    return bool(modes) and modes[-1] in NO_GRAD


def tainted(backward: FunctionInfo, context: str) -> set[str]:
    """Names that hold gradients and saved tensors, or what is computed from them."""
    found = {arg.arg for arg in backward.params if arg.arg != context}
    if backward.args.vararg is not None:
        found.add(backward.args.vararg.arg)
    for _ in range(2):  # what a loop's end hands to its start
        for node in backward.own_nodes:
            match node:
                case ast.Assign(targets=targets, value=value) if mentions(value, found, context):
                    found.update(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
                case ast.For(target=target, iter=value) if mentions(value, found, context):
                    found.update(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
    return found - {context}


def mentions(expr: ast.AST, names: set[str], context: str) -> bool:
    """Whether an expression is made of tensors that have a derivative."""
    match expr:
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == context:
            return attr == "saved_tensors"
        case ast.Attribute(attr=attr) if attr in PLAIN:
            return False
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in COUNTING or attr.startswith(("new_", "arg")):
            return False
        case ast.Call(func=ast.Attribute(attr=attr) | ast.Name(id=attr)) if attr.endswith("_like") or attr == "len":
            return False
        case ast.Compare():
            return False
        case ast.Name(id=name):
            return name in names
    return any(mentions(child, names, context) for child in ast.iter_child_nodes(expr))


def returned_names(backward: FunctionInfo) -> set[str]:
    """Names whose value goes into what is returned."""
    found: set[str] = set()
    for _ in range(3):
        for node in reversed(backward.own_nodes):
            match node:
                case ast.Return(value=ast.expr() as value):
                    found |= used_in(value)
                case ast.Assign(targets=targets, value=value):
                    if any(isinstance(n, ast.Name) and n.id in found for t in targets for n in ast.walk(t)):
                        found |= used_in(value)
                case ast.AugAssign(target=target, value=value):
                    if any(isinstance(n, ast.Name) and n.id in found for n in ast.walk(target)):
                        found |= used_in(value)
                case ast.Expr(value=ast.Call(args=args)) if any(used_in(arg) & found for arg in args):
                    found.update(name for arg in args for name in used_in(arg))
    return found


def used_in(expr: ast.AST) -> set[str]:
    """The names of an expression that count for its value, sizes, tests and indices aside."""
    match expr:
        case ast.Attribute(attr=attr) if attr in PLAIN:
            return set()
        case ast.Compare():
            return set()
        case ast.Subscript(value=value):
            return used_in(value)
        case ast.IfExp(body=body, orelse=orelse):
            return used_in(body) | used_in(orelse)
        case ast.Name(id=name):
            return {name}
    found: set[str] = set()
    for child in ast.iter_child_nodes(expr):
        found |= used_in(child)
    return found


def reaches(model: FileModel, node: ast.AST, outputs: set[str]) -> bool:
    """Whether an expression goes into what is returned, also through a call that writes into an output."""
    child, parent = node, model.parent(node)
    while parent is not None and not isinstance(parent, ast.stmt):
        match parent:
            case ast.Compare() | ast.comprehension() | ast.FormattedValue() | ast.Lambda():
                return False
            case ast.Attribute(attr=attr) if attr in PLAIN | COUNTING:
                return False
            case ast.Subscript(slice=index) if index is child:
                return False
            case ast.IfExp(test=test) if test is child:
                return False
            case ast.Call(func=ast.Name(id="float" | "int" | "len" | "bool" | "print" | "isinstance")):
                return False
        child, parent = parent, model.parent(parent)
    match parent:
        case ast.Return():
            return True
        case ast.Assign(targets=targets):
            return any(isinstance(n, ast.Name) and n.id in outputs for t in targets for n in ast.walk(t))
        case ast.AugAssign(target=target):
            return bool(used_in(target) & outputs)
        case ast.Expr(value=ast.Call() as call):
            written = [arg for arg in call.args if not any(n is node for n in ast.walk(arg))]
            return any(used_in(arg) & outputs for arg in written)
    return False


def is_kernel(model: FileModel, expr: ast.expr) -> bool:
    """`kernel[grid](...)`, where the kernel is compiled by triton or numba."""
    function = model.function_named(expr)
    return function is not None and any(name.rpartition(".")[2] in KERNELS for name in function.decorators)


def mend(model: FileModel, backward: FunctionInfo) -> Repair | None:
    """Add the decorator below the others."""
    name = spell(model, ONCE, at=backward.node)
    if name is None or not isinstance(backward.node, ast.FunctionDef):
        return None
    return edits.repair("Mark it as differentiable once",
                        edits.add_decorator(model, backward.node, name.text, inner=True), imports=name.imports)
