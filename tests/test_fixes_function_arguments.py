"""Arguments that instances of old Functions keep become arguments of `forward`, where all uses are in sight."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import torchlint
from torchlint.config import Options

SCALE = dedent("""
    import torch


    class Scale(torch.autograd.Function):
        def __init__(self, factor, limit=8.0):
            super().__init__()
            self.factor = float(factor)
            self.limit = limit

        def forward(self, x):
            self.save_for_backward(x)
            return (x * self.factor).clamp(max=self.limit)

        def backward(self, grad):
            x, = self.saved_tensors
            return grad * self.factor * (x * self.factor < 8.0)


    x = torch.tensor([1.0, 5.0], requires_grad=True)
    Scale(2)(x).sum().backward()
    print(x.grad.tolist())
    """).lstrip("\n")
FIXED = dedent("""
    import torch


    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor, limit=8.0):
            ctx.factor = float(factor)
            ctx.save_for_backward(x)
            return (x * ctx.factor).clamp(max=limit)

        @staticmethod
        def backward(ctx, grad):
            x, = ctx.saved_tensors
            return grad * ctx.factor * (x * ctx.factor < 8.0), None, None


    x = torch.tensor([1.0, 5.0], requires_grad=True)
    Scale.apply(x, 2).sum().backward()
    print(x.grad.tolist())
    """).lstrip("\n")


def fixed(text: str, path: str = "<text>") -> str:
    return torchlint.fix_source(text, path, Options(select=("TL301", "TL302"), preview=True), unsafe=True)


def test_arguments_move_to_forward() -> None:
    assert fixed(SCALE) == FIXED
    assert fixed(FIXED) == FIXED


def test_what_comes_out_runs(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(fixed(SCALE))
    done = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[2.0, 0.0]\n", done.stderr


@pytest.mark.parametrize(("call", "expected"), [
    ("Scale(2, 3)(x)", "Scale.apply(x, 2, 3)"), ("Scale(limit=3, factor=2)(x)", "Scale.apply(x, 2, 3)"),
    ("Scale(factor=k)(x + 1)", "Scale.apply(x + 1, k)"), ("Scale(2)(\n    x,\n)", "Scale.apply(\n    x,\n    2,\n)"),
])
def test_calls(call: str, expected: str) -> None:
    assert fixed(SCALE.replace("Scale(2)(x)", call)) == FIXED.replace("Scale.apply(x, 2)", expected)


def test_several_inputs_and_a_default_that_backward_needs_not() -> None:
    text = dedent("""
        import torch


        class Add(torch.autograd.Function):
            def __init__(self, weight: float = 1.0):
                self.weight = weight

            def forward(self, a, b):
                return a + b * self.weight

            def backward(self, grad):
                return grad, grad


        x = torch.ones(1, requires_grad=True)
        Add()(x, x).backward()
        """)
    after = fixed(text)
    assert "    def forward(ctx, a, b, weight: float = 1.0):\n        return a + b * weight\n" in after
    assert "return grad, grad, None\n" in after and "Add.apply(x, x).backward()" in after


@pytest.mark.parametrize(("old", "new"), [
    ("Scale(2)(x)", "Scale(*y)(x)"),
    ("Scale(2)(x)", "Scale(2)(*x)"),
    ("Scale(2)(x)", "Scale(torch.ones(2))(x)"),
    ("Scale(2)(x).sum()", "f = Scale(2)\nf(x).sum()"),
    ("print(x.grad.tolist())", "other = Scale"),
    ("print(x.grad.tolist())", "class Twice(Scale): pass"),
    ("self.limit = limit", "self.limit = limit\n        print(limit)"),
    ("def forward(self, x)", "def forward(self, *x)"),
    ("def forward(self, x):", "def forward(self, x):\n        factor = 1"),
    ("return grad * self.factor * (x * self.factor < 8.0)", "return (grad, None)"),
    ("    def backward", "    def helper(self):\n        return self.factor\n\n    def backward"),
])
def test_where_a_use_is_not_in_sight_nothing_moves(old: str, new: str) -> None:
    assert "def __init__" in fixed(SCALE.replace(old, new))


def test_a_class_that_another_file_takes_stays(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SCALE)
    (tmp_path / "b.py").write_text("from a import Scale\n")
    assert fixed(SCALE, str(tmp_path / "a.py")) == SCALE
