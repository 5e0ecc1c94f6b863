"""The rewriter of imports: if it changed nothing, the tests that use it would test nothing."""
from __future__ import annotations

import ast

import pytest
from import_styles import STYLES, rewritten

PROGRAM = '''\
"""数 docstring."""
from __future__ import annotations

import os, torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch import optim as o


class Net(nn.Module):
    """数"""

    def __init__(self, sum):
        super().__init__()
        self.数 = nn.Linear(torch.ones(3).numel(), 3, dtype=torch.float32)

    @torch.no_grad()
    def forward(self, x):
        import torch.autograd as autograd
        return F.relu(x), f"{torch.sum(x)}", autograd.Function


torch.backends.cudnn.benchmark = True
loader = DataLoader(torch, o.SGD, torch.Tensor.add_)
'''
EXPECTED = {
    "as": """\
import os
T.nn.Module
T.nn.Linear(T.ones(3).numel(), 3, dtype=T.float32)
@T.no_grad()
pass
return T.nn.functional.relu(x), f"{T.sum(x)}", T.autograd.Function
T.backends.cudnn.benchmark = True
loader = T.utils.data.DataLoader(T, T.optim.SGD, T.Tensor.add_)
import torch as T
""",
    "from": """\
import os
class Net(Module)
Linear(ones(3).numel(), 3, dtype=float32)
@no_grad()
pass
return relu(x), f"{sum_(x)}", Function
cudnn.benchmark = True
loader = DataLoader(torch, SGD, Tensor.add_)
from torch import sum as sum_
from torch.optim import SGD
from torch.backends import cudnn
from torch import Tensor
from torch.utils.data import DataLoader
import torch
""",
    "from-as": """\
class Net(my_Module)
my_Linear(my_ones(3).numel(), 3, dtype=my_float32)
return my_relu(x), f"{my_sum(x)}", my_Function
my_cudnn.benchmark = True
loader = my_DataLoader(torch, my_SGD, my_Tensor.add_)
from torch.nn import Linear as my_Linear
""",
}


@pytest.mark.parametrize("style", STYLES)
def test_every_use_is_rewritten(style):
    text = rewritten(PROGRAM, style)
    ast.parse(text)
    for line in EXPECTED[style].splitlines():
        assert line in text
    assert "nn.Linear(torch" not in text
    assert text.index("__future__") < text.index("torch")


@pytest.mark.parametrize("style", STYLES)
def test_programs_without_top_level_imports(style):
    text = rewritten('"""Doc."""\ndef f():\n    import torch\n    return torch.ones(1)\n', style)
    assert ast.get_docstring(ast.parse(text)) == "Doc."
    assert "    pass\n" in text
    assert rewritten("x = 1\n", style) == "x = 1\n"


@pytest.mark.parametrize(
    "source",
    ["from torch import *\nones(1)\n", "import torch\ntorch = 1\n", "import torch.nn as F\nF = F.relu\n"],
)
def test_what_cannot_be_rewritten_is_an_error(source):
    with pytest.raises(ValueError):
        rewritten(source, "as")


def test_a_name_that_is_taken_gets_another():
    text = rewritten("import torch\nT = 1\nones = 2\nprint(T, ones, torch.ones(3))\n", "from")
    assert "from torch import ones as ones_" in text and "print(T, ones, ones_(3))" in text
    assert "import torch as th" in rewritten("import torch\nT = 1\nprint(torch.ones(3))\n", "as")


def test_two_things_of_one_name_stay_apart():
    text = rewritten("import torch\nimport torch.nn.functional as F\ntorch.softmax(F.softmax(1))\n", "from")
    assert "softmax(softmax_(1))" in text
