"""How a file spells a name of torch, and where imports go that it lacks."""
from __future__ import annotations

import ast

import pytest

from torchlint.files import Source
from torchlint.fixes.imports import Spelled, import_edits, spell
from torchlint.fixes.layout import layout
from torchlint.model import FileModel


def spelled(text: str, dotted: str) -> Spelled | None:
    """How `dotted` is written where the name HERE stands."""
    model = FileModel(Source("t.py", text))
    here = next(node for node in model.nodes(ast.Name) if node.id == "HERE")
    return spell(model, dotted, here)


@pytest.mark.parametrize(("text", "dotted", "expected"), [
    ("import torch\nHERE\n", "torch.no_grad", "torch.no_grad"),
    ("import torch as T\nHERE\n", "torch.no_grad", "T.no_grad"),
    ("from torch import no_grad\nHERE\n", "torch.no_grad", "no_grad"),
    ("from torch import no_grad as ng\nHERE\n", "torch.no_grad", "ng"),
    ("import torch.nn as nn\nHERE\n", "torch.nn.ModuleList", "nn.ModuleList"),
    ("import torch\nfrom torch import nn\nHERE\n", "torch.nn.ModuleList", "nn.ModuleList"),
    ("import torch\nHERE\n", "torch.nn.ModuleList", "torch.nn.ModuleList"),
    ("import torch.nn\nHERE\n", "torch.no_grad", "torch.no_grad"),
    ("import torch.nn.functional as F\nHERE\n", "torch.nn.functional.dropout", "F.dropout"),
    ("def f():\n    import torch as T\n    HERE\n", "torch.no_grad", "T.no_grad"),
    ("import torch\ndef f():\n    HERE\n", "torch.no_grad", "torch.no_grad"),
    ("def f():\n    HERE\nimport torch\n", "torch.no_grad", "torch.no_grad"),
    ("import torch\nclass A:\n    torch = 1\n    def f(self):\n        HERE\n", "torch.no_grad",
     "torch.no_grad"),
    ("import torch\nimport torch.nn.functional\nHERE\n", "torch.nn.functional.relu",
     "torch.nn.functional.relu"),
    ("try:\n    import torch\nexcept ImportError:\n    raise\nHERE\n", "torch.no_grad", "torch.no_grad"),
    ("if a:\n    import torch\n    HERE\n", "torch.no_grad", "torch.no_grad"),
    ("import math\nHERE\n", "math.log", "math.log"),
    ("import torch.utils.checkpoint\nHERE\n", "torch.utils.checkpoint.checkpoint",
     "torch.utils.checkpoint.checkpoint"),
])
def test_the_files_own_imports_are_used(text, dotted, expected):
    assert spelled(text, dotted) == Spelled(expected)


@pytest.mark.parametrize(("text", "dotted", "expected", "added"), [
    ("import os\nHERE\n", "torch.no_grad", "torch.no_grad", "import torch"),
    ("from torch.nn import Module\nHERE\n", "torch.no_grad", "torch.no_grad", "import torch"),
    ("from torch.nn import Module\nHERE\n", "torch.nn.ModuleList", "ModuleList",
     "from torch.nn import ModuleList"),
    ("from torch import Tensor\nHERE\n", "torch.no_grad", "no_grad", "from torch import no_grad"),
    ("def g():\n    import torch\ndef f():\n    HERE\n", "torch.no_grad", "torch.no_grad", "import torch"),
    ("import typing as t\nif t.TYPE_CHECKING:\n    from torch import no_grad\nHERE\n", "torch.no_grad",
     "torch.no_grad", "import torch"),
    ("if a:\n    from torch import no_grad as ng\nHERE\n", "torch.no_grad", "torch.no_grad", "import torch"),
    ("import torch\ndef f(torch):\n    HERE\n", "torch.no_grad", "no_grad", "from torch import no_grad"),
    ("import torch\ndef f(torch, no_grad):\n    HERE\n", "torch.no_grad", None, None),
    ("import torch\ndef f():\n    [HERE for torch in x]\n", "torch.no_grad", "no_grad",
     "from torch import no_grad"),
    ("import torch\ntorch = None\nHERE\n", "torch.no_grad", "no_grad", "from torch import no_grad"),
    ("from torch import nn\ndef f(nn):\n    HERE\n", "torch.nn.Linear", "torch.nn.Linear", "import torch"),
    ("HERE\n", "math.log", "math.log", "import math"),
    ("HERE\n", "torch.autograd.function.once_differentiable", "torch.autograd.function.once_differentiable",
     "import torch"),
    ("from torch.autograd.function import Function\nHERE\n", "torch.autograd.function.once_differentiable",
     "once_differentiable", "from torch.autograd.function import once_differentiable"),
    ("import torch\nHERE\n", "torch.utils.checkpoint.checkpoint", "checkpoint",
     "from torch.utils.checkpoint import checkpoint"),
])
def test_an_import_is_added_where_none_is_visible(text, dotted, expected, added):
    found = spelled(text, dotted)
    if expected is None:
        assert found is None
    else:
        assert found == Spelled(expected, (added,))


ADDED = [
    ("import os\nx = 1\n", "import torch", "import os\nimport torch\nx = 1\n"),
    ("x = 1\n", "import torch", "import torch\n\nx = 1\n"),
    ("", "import torch", "import torch\n"),
    ("# only this", "import torch", "# only this\nimport torch"),
    ("'''doc'''\n\nx = 1\n", "import torch", "'''doc'''\n\nimport torch\n\nx = 1\n"),
    ("'''doc'''\nx = 1\n", "import torch", "'''doc'''\n\nimport torch\n\nx = 1\n"),
    ("'''doc'''\n", "import torch", "'''doc'''\n\nimport torch\n"),
    ("'''doc'''", "import torch", "'''doc'''\n\nimport torch"),
    ("#!/bin/python\n# -*- coding: utf-8 -*-\nx = 1\n", "import torch",
     "#!/bin/python\n# -*- coding: utf-8 -*-\nimport torch\n\nx = 1\n"),
    ("from __future__ import annotations\nx = 1\n", "import torch",
     "from __future__ import annotations\n\nimport torch\n\nx = 1\n"),
    ("'''doc'''\nfrom __future__ import annotations\nimport os\n", "import torch",
     "'''doc'''\nfrom __future__ import annotations\nimport os\nimport torch\n"),
    ("import os\nfrom torch import nn\n", "import torch", "import os\nimport torch\nfrom torch import nn\n"),
    ("import torch\nimport os\n", "from torch import nn", "import torch\nfrom torch import nn\nimport os\n"),
    ("import torch\nimport torch\n", "import torch", None),
    ("from torch import nn, optim\n", "from torch import nn", None),
    ("from torch import nn\n", "from torch import optim", "from torch import nn, optim\n"),
    ("from torch import nn  # why\n", "from torch import optim", "from torch import nn, optim  # why\n"),
    ("from torch import (\n    nn,\n    cuda,  # why\n)\n", "from torch import optim",
     "from torch import (\n    nn,\n    cuda,  # why\n    optim,\n)\n"),
    ("from torch import (\n    nn,\n    cuda\n)\n", "from torch import optim",
     "from torch import (\n    nn,\n    cuda,\n    optim\n)\n"),
    ("from torch import (nn as n)\n", "from torch import optim", "from torch import (nn as n, optim)\n"),
    ("from torch import *\n", "from torch import optim", "from torch import *\nfrom torch import optim\n"),
    ("from .torch import nn\n", "from torch import nn", "from .torch import nn\nfrom torch import nn\n"),
    ("import os; import sys\nx = 1\n", "import torch", "import os; import sys\nimport torch\nx = 1\n"),
    ("if TYPE_CHECKING:\n    import torch\n", "import torch",
     "import torch\n\nif TYPE_CHECKING:\n    import torch\n"),
    ("import os\r\nx = 1\r\n", "import torch", "import os\r\nimport torch\r\nx = 1\r\n"),
    ("import os", "import torch", "import os\nimport torch"),
    ("import os\n\nx = 1\nimport torch\n", "import torch", None),
    ("import os\n\n@d\ndef f(): pass\n", "import torch", "import os\nimport torch\n\n@d\ndef f(): pass\n"),
    ("@d\ndef f(): pass\n", "import torch", "import torch\n\n@d\ndef f(): pass\n"),
    ("import argparse\n\nimport torch\n", "import copy", "import argparse\nimport copy\n\nimport torch\n"),
    ("import argparse\nimport os\nfrom pathlib import Path\n\nimport torch\nx = 1\n", "import copy",
     "import argparse\nimport copy\nimport os\nfrom pathlib import Path\n\nimport torch\nx = 1\n"),
    ("import os\n\nimport torch\n", "import copy", "import copy\nimport os\n\nimport torch\n"),
    ("from pathlib import Path\nimport torch\n", "import copy",
     "from pathlib import Path\nimport copy\nimport torch\n"),
    ("import torch\nimport os\nx = 1\n", "import copy", "import torch\nimport os\nimport copy\nx = 1\n"),
    ("\fimport os\n", "import torch", "\fimport os\nimport torch\n"),
]


@pytest.mark.parametrize(("text", "added", "expected"), ADDED)
def test_imports_are_added_beside_the_others(text, added, expected):
    source = Source("t.py", text)
    made = import_edits(source, (added, added))
    if expected is None:
        assert made == ()
        return
    fixed = layout(source).apply(made)
    assert fixed == expected
    ast.parse(fixed)
    assert import_edits(Source("t.py", fixed), (added,)) == ()


def test_a_from_import_that_would_get_too_long_gets_a_second_line():
    names = ", ".join(f"name_{number:02}" for number in range(8))
    source = Source("t.py", f"from torch import {names}\n")
    made = import_edits(source, ("from torch import no_grad", "import torch"))
    assert layout(source).apply(made) == (
        f"import torch\nfrom torch import {names}\nfrom torch import no_grad\n"
    )


def test_several_names_join_one_import():
    source = Source("t.py", "from torch import nn\n")
    made = import_edits(source, ("from torch import cuda", "from torch import optim as o"))
    assert layout(source).apply(made) == "from torch import nn, cuda, optim as o\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("import torch\nfrom torch import nn\ntorch.nn.init.ones_(x)\nHERE\n", "torch.nn.init.zeros_"),
    ("import torch\nfrom torch import nn\nnn.init.ones_(x)\nHERE\n", "nn.init.zeros_"),
    ("import torch\nfrom torch import nn\nHERE\n", "nn.init.zeros_"),
    ("import torch\nfrom torch import nn\nfrom torch.nn.init import zeros_\ntorch.nn.init.ones_(x)\nHERE\n", "zeros_"),
])
def test_a_module_is_reached_as_the_file_reaches_it(text, expected):
    assert spelled(text, "torch.nn.init.zeros_") == Spelled(expected)


@pytest.mark.parametrize(("text", "expected"), [
    ("import torch\nfrom torch.nn.init import ones_\nHERE\n",
     Spelled("zeros_", ("from torch.nn.init import zeros_",))),
    ("import torch\nfrom torch.nn.init import ones_\nzeros_ = 1\nHERE\n", Spelled("torch.nn.init.zeros_")),
    ("import torch\nfrom torch.nn.init import ones_\ntorch.nn.init.eye_(x)\nHERE\n", Spelled("torch.nn.init.zeros_")),
])
def test_names_that_a_file_takes_one_by_one_are_imported(text, expected):
    assert spelled(text, "torch.nn.init.zeros_") == expected


PLACES = [
    # no module of Python's own yet: above the others, apart from them where sections show
    ("import numpy\nimport torch\n", "import math", "import math\n\nimport numpy\nimport torch\n"),
    ("import torch\n", "import math", "import math\nimport torch\n"),
    ("import torch\nimport numpy\n", "import math", "import math\nimport torch\nimport numpy\n"),
    ("# a script\n\n# packages\nimport numpy\nimport torch\n", "import math",
     "# a script\n\nimport math\n\n# packages\nimport numpy\nimport torch\n"),
    ("\'\'\'doc\'\'\'\nimport numpy\nimport torch\n", "import math",
     "\'\'\'doc\'\'\'\nimport math\n\nimport numpy\nimport torch\n"),
    # sorted: all `import` before all `from`
    ("import os\nimport sys\n\nimport torch\nfrom torch.utils.data import Dataset\n",
     "from torch.utils.checkpoint import checkpoint",
     "import os\nimport sys\n\nimport torch\nfrom torch.utils.checkpoint import checkpoint\n"
     "from torch.utils.data import Dataset\n"),
    ("import os\n\nimport numpy\nimport transformers\nfrom torch import nn\n", "import torch",
     "import os\n\nimport numpy\nimport torch\nimport transformers\nfrom torch import nn\n"),
    ("import os\nimport sys\n\nfrom torch import nn\n", "import math",
     "import math\nimport os\nimport sys\n\nfrom torch import nn\n"),
    ("import os\nfrom typing import Any\n\nimport torch\n", "import sys",
     "import os\nimport sys\nfrom typing import Any\n\nimport torch\n"),
    # sorted by name alone
    ("import os\nfrom pathlib import Path\nimport sys\n\nfrom torch import nn\nimport zlib_\n", "import torch",
     "import os\nfrom pathlib import Path\nimport sys\n\nimport torch\nfrom torch import nn\nimport zlib_\n"),
    # relative ones stay apart
    ("import numpy\nimport torch\n\nfrom .a import b\n", "from torch.nn.init import ones_",
     "import numpy\nimport torch\nfrom torch.nn.init import ones_\n\nfrom .a import b\n"),
    # a comment belongs to the import below it
    ("import numpy\n# why\nimport zlib_\nfrom torch import nn\n", "import torch",
     "import numpy\nimport torch\n# why\nimport zlib_\nfrom torch import nn\n"),
    # in no order
    ("import torch\nimport os\nimport numpy\n", "import math", "import torch\nimport os\nimport numpy\nimport math\n"),
    ("import torch.nn as nn\nimport torch\n", "from torch.nn.init import ones_",
     "import torch.nn as nn\nimport torch\nfrom torch.nn.init import ones_\n"),
]


@pytest.mark.parametrize(("text", "statement", "expected"), PLACES)
def test_an_import_goes_where_the_order_of_the_file_has_it(text, statement, expected):
    source = Source("t.py", text + "\nx = 1\n")
    assert layout(source).apply(import_edits(source, [statement])) == expected + "\nx = 1\n"
