"""What is not parsed cannot hold a finding."""
from __future__ import annotations

from pathlib import Path

import pytest

from torchlint.files import Source, read_source
from torchlint.gate import imports, worth_parsing
from torchlint.project import Project


def worth(folder: Path, name: str, **files: str) -> bool:
    """Whether the file `name` is let through; `files` are its texts and those of its neighbours."""
    for stem, text in files.items():
        path = folder / (stem.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = read_source(folder / f"{name}.py")
    return worth_parsing(Source(str(folder / f"{name}.py"), source.text), Project([folder]))


@pytest.mark.parametrize("text", [
    "import torch", "from lightning import LightningModule", "import lightning as L", "import os, accelerate",
    "if 1: import accelerate", "import os; import accelerate", "import os,\\\n  accelerate",
    "x = 1\rimport timm", "import os\r\nfrom timm.layers import x", "def f():\n\timport transformers",
    "def step(loss, opt):\n    loss.backward()", "# in C:\\data\\\nimport accelerate", "from\x0ctimm import x",
    "def freeze(m):\n    for p in m.parameters():\n        p.require_grad = False",
    "m.load_state_dict(s, strict=False)",
])
def test_what_speaks_of_torch_is_let_through(tmp_path: Path, text: str) -> None:
    assert worth(tmp_path, "a", a=text)


@pytest.mark.parametrize("text", [
    "", "import os, sys", "from os.path import join  # net", "imports = 1", "import mpmath\nx[0] = 1", "import b",
    "from . import b", "from b import (f,  # net :)\n    g)",
])
def test_what_leads_nowhere_is_not(tmp_path: Path, text: str) -> None:
    assert not worth(tmp_path, "a", a=text, b="import os\nfrom a import c\n\n\ndef f(): ...\n")


@pytest.mark.parametrize("text", [
    "import net", "from net import Net", "import pkg.net", "from pkg import net", "from pkg.net import *",
    "from pkg import (other,  # :)\n    net)", "import b", "from pkg import middle", "from .pkg import net",
    "def f():\n    from pkg import net as n",
])
def test_imports_are_followed(tmp_path: Path, text: str) -> None:
    """At any remove, through cycles."""
    assert worth(tmp_path, "a", a=text, net="import torch\n", b="import c\nimport a\n", c="import b\nimport net\n",
                 pkg____init__="", pkg__net="from torch import nn\n", pkg__middle="from .net import Net\n",
                 pkg__other="x = 1\n")


def test_an_answer_about_one_file_holds_for_the_others(tmp_path: Path) -> None:
    """Files on the way, and files of a cycle, are answered from what is known."""
    texts = {"a": "import b", "b": "import c", "c": "import a\nimport d", "d": "import torch", "e": "import f",
             "f": "import e"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    project = Project([tmp_path])
    answers = [worth_parsing(Source(str(tmp_path / f"{name}.py"), texts[name]), project) for name in "afbecd"]
    assert answers == [True, False, True, False, True, True]


def test_imports_are_found_by_pattern() -> None:
    text = "import os.path as p, sys\nfrom a.b import c\nfrom .. import d\nfrom .e import (f as g,\n    h)\n"
    assert imports(text) == {(0, "os.path"), (0, "sys"), (0, "a.b"), (0, "a.b.c"), (2, ""), (2, "d"), (1, "e"),
                             (1, "e.f"), (1, "e.h")}
