"""A device written into the code of a model or a library.

`.cuda()` and `"cuda:0"` inside a Module decide for every caller: the code fails on a machine without that device, and
puts tensors on the first GPU in a process that was given another one. Moving the model with `.to(device)` does not
change what its `forward` says.

Take the device from a tensor that is there (`x.device`), register what has to move with the model as a buffer, or let
the caller pass it. Scripts may decide; so may code that asks first whether the device is there.

No claim: it fails on some machines and not on others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL804", "hardcoded-device", Severity.ADVICE, triggers=("cuda",))
CLAIM = None
DEVICE = re.compile(r"cuda(:\d+)?")
ASKED = re.compile(r"cuda|gpu|available|device", re.IGNORECASE)
TESTS = re.compile(r"(^|[/\\])(tests?[/\\]|test_|conftest)|_test\.py$")

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        class Noise(nn.Module):
            def forward(self, x):
                noise = torch.randn(x.shape).cuda()  #!
                return x + noise


        Noise()(torch.ones(3))
        """,
        good="""
        import torch
        from torch import nn


        class Noise(nn.Module):
            def forward(self, x):
                noise = torch.randn(x.shape, device=x.device)
                return x + noise


        Noise()(torch.ones(3))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Positions(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.table = nn.Embedding(16, width)

            def forward(self, x):
                index = torch.arange(x.size(1), device="cuda:0")  #!
                return x + self.table(index)


        Positions(4)(torch.ones(1, 2, 4))
        """,
        good="""
        import torch
        from torch import nn


        class Positions(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.table = nn.Embedding(16, width)

            def forward(self, x):
                index = torch.arange(x.size(1), device=x.device)
                return x + self.table(index)


        Positions(4)(torch.ones(1, 2, 4))
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Fine(nn.Module):
        def __init__(self, device="cuda"):
            super().__init__()
            self.where = device
            self.on_gpu = torch.cuda.is_available()
            self.all = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
            self.fast = device == torch.device("cuda") or torch.device(device).type == torch.device("cuda").type
            self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        def forward(self, x, mask):
            if x.is_cuda:
                mask = mask.cuda()
            if x.device.type == "cuda":
                torch.cuda.synchronize()
            with torch.autocast("cuda"):
                return x.to(self.where) + mask


    def main():
        net = Fine().cuda()
        net(torch.ones(2, device="cuda"), torch.ones(2))


    if __name__ == "__main__":
        main()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """CUDA named inside Modules, and inside functions of files that are no scripts."""
    if TESTS.search(model.source.path):
        return
    library = is_library(model)
    for call in model.nodes(ast.Call):
        function = model.function(call)
        cls = model.class_of(call)
        if function is None or not (library or (cls is not None and cls.is_module)):
            continue
        node = names_cuda(model, call)
        if node is not None and not asked(model, call):
            yield Hit(
                node, "this runs on the first CUDA device or not at all; take the device from a tensor or the caller",
                confidence=Confidence.LIKELY)


def is_library(model: FileModel) -> bool:
    """Whether a file only defines things: nothing at its top level is run."""
    return all(
        isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
                          ast.AnnAssign, ast.Try))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in model.tree.body)


def names_cuda(model: FileModel, call: ast.Call) -> ast.AST | None:
    """What to report of a call that moves to, or makes something on, a CUDA device written there."""
    match call:
        case ast.Call(func=ast.Attribute(value=receiver, attr="cuda"), args=args):
            fixed = not args or isinstance(args[0], ast.Constant)
            return call if fixed and not call.keywords and model.value(receiver).kind in (
                Kind.TENSOR, Kind.MODULE) else None
        case ast.Call(func=ast.Attribute(value=receiver, attr="to"), args=[first, *_]) if is_cuda(first):
            return call if model.value(receiver).kind in (Kind.TENSOR, Kind.MODULE) else None
    name = model.name_of(call.func)
    if name == "torch.device" and len(call.args) == 1 and not call.keywords and is_cuda(call.args[0]):
        compared = isinstance(model.parent(call), (ast.Attribute, ast.Compare))  # `device("cuda").type`
        return None if compared else call
    if name.startswith("torch.") and not name.startswith(("torch.amp.", "torch.cuda.", "torch.profiler.")):
        given = next((k.value for k in call.keywords if k.arg == "device"), None)
        return call if given is not None and is_cuda(given) else None
    return None


def is_cuda(expr: ast.expr) -> bool:
    """Whether an expression is the text "cuda" or "cuda:0"."""
    return isinstance(expr, ast.Constant) and isinstance(expr.value, str) and DEVICE.fullmatch(expr.value) is not None


def asked(model: FileModel, node: ast.AST) -> bool:
    """Whether a test around or in front of a place asks for the device, or the code tries."""
    place = model.place(node)
    tests = [guard.test for guard, _ in place.guards if isinstance(guard, (ast.If, ast.While))]
    tests += [parent.test for parent in model.ancestors(node) if isinstance(parent, ast.IfExp)]
    function = model.function(node)
    for one in function.own_nodes if function is not None else []:
        if isinstance(one, (ast.Assert, ast.If)) and model.position(one) < model.position(node):
            leaves = isinstance(one, ast.Assert) or isinstance(one.body[-1], (ast.Return, ast.Raise))
            tests += [one.test] if leaves else []
    return bool(place.tries) or any(
        ASKED.search(word) for test in tests for part in ast.walk(test)
        for word in [getattr(part, "id", None) or getattr(part, "attr", None) or getattr(part, "value", "")]
        if isinstance(word, str))
