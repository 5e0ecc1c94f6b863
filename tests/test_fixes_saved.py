"""Attributes of ctx that become saved tensors, and factories that make tensors in place."""
from __future__ import annotations

import ast

import pytest
from test_edits import model_of
from test_fixes_codemods import made

from torchlint.findings import Safety
from torchlint.fixes.factory import factory_device
from torchlint.fixes.saved import ctx_to_save_for_backward


def function(forward: str, backward: str, more: str = "") -> str:
    def body(text: str) -> str:
        return "".join(f"        {line}\n" for line in text.split("\n"))

    return (
        "from torch.autograd import Function\n\n\nclass F(Function):\n"
        f"    @staticmethod\n    def forward(ctx, x, w):\n{body(forward)}"
        f"\n    @staticmethod\n    def backward(ctx, g):\n{body(backward)}{more}"
    )


CASES = [
    # one output
    ("y = x.exp()\nctx.y = y\nreturn y", "return g * ctx.y",
     ["y"], "y = x.exp()\nctx.save_for_backward(y)\nreturn y", "(y,) = ctx.saved_tensors\nreturn g * y"),
    # two, with a comment and a docstring
    ("ctx.x = x  # input\nctx.w = w\nreturn x * w", "'''doc'''\nreturn g * ctx.w, g * ctx.x",
     ["w", "x"], "# input\nctx.save_for_backward(x, w)\nreturn x * w",
     "'''doc'''\nx, w = ctx.saved_tensors\nreturn g * w, g * x"),
    # another name than the value's, used twice
    ("ctx.inp = x\nreturn x * x", "return g * ctx.inp + ctx.inp",
     ["inp"], "ctx.save_for_backward(x)\nreturn x * x", "(inp,) = ctx.saved_tensors\nreturn g * inp + inp"),
    # a call that is there already
    ("ctx.save_for_backward(w)\nctx.x = x\nreturn x * w", "w, = ctx.saved_tensors\nreturn g * w, g * ctx.x",
     ["x"], "ctx.save_for_backward(w, x)\nreturn x * w", "w, x = ctx.saved_tensors\nreturn g * w, g * x"),
    # backward has a name for it already
    ("ctx.x = x\nreturn x * x", "me = ctx.x\nreturn 2 * g * me",
     ["x"], "ctx.save_for_backward(x)\nreturn x * x", "(me,) = ctx.saved_tensors\nreturn 2 * g * me"),
    ("ctx.save_for_backward(w)\nctx.x = x\nreturn x * w", "(w,) = ctx.saved_tensors\nx = ctx.x\nreturn g * w, g * x",
     ["x"], "ctx.save_for_backward(w, x)\nreturn x * w", "(w, x) = ctx.saved_tensors\nreturn g * w, g * x"),
    ("ctx.x = x\ny = x * w\nctx.save_for_backward(\n    w,\n    y,\n)\nreturn y",
     "(w, y) = ctx.saved_tensors\nreturn g * w, g * ctx.x",
     ["x"], "y = x * w\nctx.save_for_backward(\n    w,\n    y,\n    x,\n)\nreturn y",
     "(w, y, x) = ctx.saved_tensors\nreturn g * w, g * x"),
    # other attributes stay
    ("ctx.n = 3\nctx.x = x\nreturn x * 3", "return g * ctx.n * ctx.x",
     ["x"], "ctx.n = 3\nctx.save_for_backward(x)\nreturn x * 3",
     "(x,) = ctx.saved_tensors\nreturn g * ctx.n * x"),
]


@pytest.mark.parametrize(("forward", "backward", "names", "new_forward", "new_backward"), CASES)
def test_attributes_become_saved_tensors(forward, backward, names, new_forward, new_backward):
    model = model_of(function(forward, backward))
    one, two = model.nodes(ast.FunctionDef)
    repair = ctx_to_save_for_backward(model, one, two, names)
    assert made(model, repair) == function(new_forward, new_backward)


@pytest.mark.parametrize(("forward", "backward", "more"), [
    ("ctx.x = x.exp()\nreturn x", "return g * ctx.x", ""),
    ("if w:\n    ctx.x = x\nreturn x", "return g * ctx.x", ""),
    ("ctx.x = x\nctx.x = w\nreturn x", "return g * ctx.x", ""),
    ("ctx.x = x\nreturn ctx.x", "return g * ctx.x", ""),
    ("ctx.x = x\nx = x + 1\nctx.save_for_backward(w)\nreturn x", "w, = ctx.saved_tensors\nreturn g * ctx.x", ""),
    ("ctx.x = x\nreturn x", "x = 1\nreturn g * ctx.x", ""),
    ("ctx.x = x\nreturn x", "ctx.x = 1\nreturn g", ""),
    ("ctx.x = x\nreturn x", "return g * ctx.x", "\n    def f(ctx):\n        return ctx.x\n"),
    ("ctx.save_for_backward(w)\nctx.x = x\nreturn x", "saved = ctx.saved_tensors\nreturn g * ctx.x", ""),
    ("ctx.save_for_backward(w)\nctx.x = x\nreturn x", "a = ctx.x\nw, = ctx.saved_tensors\nreturn g * a", ""),
    ("ctx.save_for_backward(w)\ny = x + 1\nctx.x = y\nreturn x", "w, = ctx.saved_tensors\nreturn g * ctx.x", ""),
    ("ctx.save_for_backward(*w)\nctx.x = x\nreturn x", "w, = ctx.saved_tensors\nreturn g * ctx.x", ""),
    ("if w:\n    ctx.save_for_backward(w)\nctx.x = x\nreturn x", "w, = ctx.saved_tensors\nreturn g * ctx.x", ""),
])
def test_what_cannot_be_moved_is_left(forward, backward, more):
    model = model_of(function(forward, backward, more))
    one, two = model.nodes(ast.FunctionDef)[:2]
    assert ctx_to_save_for_backward(model, one, two, ["x"]) is None


FACTORIES = [
    ("torch.zeros(3).to(device)", "torch.zeros(3, device=device)", Safety.SAFE),
    ("torch.zeros(3).to('cuda')", "torch.zeros(3, device='cuda')", Safety.SAFE),
    ("torch.zeros(3).to(torch.half)", "torch.zeros(3, dtype=torch.half)", Safety.SAFE),
    ("torch.zeros(3).to(device, torch.half)", "torch.zeros(3, device=device, dtype=torch.half)", Safety.SAFE),
    ("torch.zeros(3).to(device=other)", "torch.zeros(3, device=other)", Safety.SAFE),
    ("torch.ones(3).cuda()", "torch.ones(3, device='cuda')", Safety.SAFE),
    ("torch.ones(3).half()", "torch.ones(3, dtype=torch.half)", Safety.SAFE),
    ("torch.arange(3).to(device)", "torch.arange(3, device=device)", Safety.SAFE),
    ("torch.randn(3).to(device)", "torch.randn(3, device=device)", Safety.UNSAFE),
    ("torch.zeros(\n    3,\n    4,\n).to(device)", "torch.zeros(\n    3,\n    4,\n    device=device,\n)", Safety.SAFE),
    ("torch.arange(3).half()", None, None),
    ("torch.zeros(3, device='cpu').to(device)", None, None),
    ("torch.zeros(3, **kw).to(device)", None, None),
    ("torch.zeros(3).to(unknown)", None, None),
    ("torch.zeros(3).to(device, non_blocking=True)", None, None),
    ("torch.from_numpy(3).to(device)", None, None),
    ("torch.zeros(3).cuda(1)", None, None),
    ("torch.randn(3, generator=g).to(device)", None, None),
    ("torch.zeros(3, generator=g).half()", "torch.zeros(3, generator=g, dtype=torch.half)", Safety.SAFE),
    ("x.to(device)", None, None),
]


@pytest.mark.parametrize(("text", "expected", "safety"), FACTORIES)
def test_factory_device(text, expected, safety):
    head = "import torch\ndevice = torch.device('cpu')\n"
    model = model_of(f"{head}y = {text}\n")
    call = model.tree.body[-1].value
    repair = factory_device(model, call)
    if expected is None:
        assert repair is None
    else:
        assert made(model, repair) == f"{head}y = {expected}\n"
        assert repair is not None and repair.safety is safety
