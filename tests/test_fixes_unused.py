"""Imports of torch that fixes leave without a use go with them, and no others."""
from __future__ import annotations

from pathlib import Path

import pytest

from torchlint.files import Source
from torchlint.fixes import unused
from torchlint.fixes.layout import layout


@pytest.fixture(autouse=True)
def forget():
    unused._importers.cache_clear()


def after(text: str, old: str = "old(1)", new: str = "1", path: str = "<text>") -> str:
    """The text with one replacement, and without the imports that it leaves unused."""
    source = Source(path, text)
    place = layout(source)
    start = text.rindex(old)
    return place.apply(unused.without_unused(source, [place.edit(start, start + len(old), new)]))


@pytest.mark.parametrize(("text", "expected"), [
    ("import torch\nfrom torch.nn import old\nold(1)\n", "import torch\n1\n"),
    ("import torch\nfrom torch.nn import fresh as old\nold(1)\n", "import torch\n1\n"),
    ("import torch.nn.functional as old\nold(1)\n", "1\n"),
    ("'''doc'''\nfrom torch.nn import old\n\nold(1)\n", "'''doc'''\n\n1\n"),
    ("from torch.nn import old\n\nold(1)\n", "1\n"),
    ("from torch.nn import a, old, b\nold(1)\n", "from torch.nn import a, b\n1\n"),
    ("from torch.nn import old, a\nold(1)\n", "from torch.nn import a\n1\n"),
    ("from torch.nn import a, old\nold(1)\n", "from torch.nn import a\n1\n"),
    ("from torch.nn import (\n    a,\n    old,\n    b,\n)\nold(1)\n", "from torch.nn import (\n    a,\n    b,\n)\n1\n"),
    ("from torch.nn import (\n    a,\n    old,\n)\nold(1)\n", "from torch.nn import (\n    a,\n)\n1\n"),
    ("from torch.nn import (\n    old,\n    a\n)\nold(1)\n", "from torch.nn import (\n    a\n)\n1\n"),
    ("from torch.nn import (a, old)\r\nold(1)\r\n", "from torch.nn import (a)\r\n1\r\n"),
])
def test_what_nothing_reads_any_more_is_not_imported(text, expected):
    assert after(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("def f():\n    from torch.nn import old\n\n    old(1)\n", "def f():\n    1\n"),
    ("def f():\n    if x:\n        from torch.nn import old\n        y\n    old(1)\n",
     "def f():\n    if x:\n        y\n    1\n"),
    ("def g():\n    from torch.nn import old\n    old(2)\ndef f():\n    from torch.nn import old\n    old(1)\n",
     "def g():\n    from torch.nn import old\n    old(2)\ndef f():\n    1\n"),
    ("class A:\n    def f(self):\n        from torch.nn import old\n        old(1)\n        y\n",
     "class A:\n    def f(self):\n        1\n        y\n"),
])
def test_imports_in_functions_go_away_too(text, expected):
    assert after(text) == expected


@pytest.mark.parametrize("text", [
    "def f():\n    from torch.nn import old\n    def g():\n        old(2)\n    old(1)\n",
    "def f():\n    if x:\n        from torch.nn import old\n    old(1)\n",
    "def f():\n    try:\n        from torch.nn import old\n        y\n    finally:\n        z\n    old(1)\n",
    "def f():\n    global old\n    from torch.nn import old\n    old(1)\n",
    "if x:\n    from torch.nn import old\n    y\nold(1)\n",
    "class A:\n    from torch.nn import old\n    y\n    old(1)\n",
    "from torch.nn import old\nold(2)\nold(1)\n",
    "from torch.nn import old\nx: 'old'\nold(1)\n",
    "from torch.nn import old\n__all__ = ['old']\nold(1)\n",
    "from torch.nn import old  # a reason\nold(1)\n",
    "from torch.nn import old; x\nold(1)\n",
    "from torch.nn import old\nfrom torch.nn import old\nold(1)\n",
    "try:\n    from torch.nn import old\nexcept ImportError:\n    pass\nold(1)\n",
    "from mine import old\nold(1)\n",
    "from .torch import old\nold(1)\n",
    "from torch.onnx import old\nold(1)\n",
    "from torch.nn import *\nold(1)\n",
    "import torch.old\nold(1)\n",
    "from torch.nn import never_read\nold(1)\n",
    "from torch.nn import (\n    old,  # a reason\n)\nold(1)\n",
])
def test_all_other_imports_stay(text):
    assert after(text) == "1".join(text.rsplit("old(1)", 1))


def test_a_comment_is_no_use():
    text = "from torch.nn import old\n# old is old\nold(1)\n"
    assert after(text) == "# old is old\n1\n"


@pytest.mark.parametrize("new", ["torch.nn.old(1)", "torch . old"])
def test_an_attribute_of_that_name_is_no_use(new):
    text = "import torch\nfrom torch.cuda.amp import old\nold(1)\n"
    assert after(text, new=new) == f"import torch\n{new}\n"
    kept = "import torch\nfrom torch.cuda.amp import old\nf(**old)\nold(1)\n"
    assert after(kept, new=new) == kept.replace("old(1)", new)


def both(text: str, more: str) -> str:
    """The text after `old` gives way to `new`, which an edit adds to the import."""
    source = Source("<text>", text)
    place = layout(source)
    use, last = text.rindex("old"), text.index("|")
    clean = Source("<text>", text.replace("|", ""))
    place = layout(clean)
    edits = [place.edit(last, last, more), place.edit(use - 1, use + 2, "new")]
    return place.apply(unused.without_unused(clean, edits))


@pytest.mark.parametrize(("text", "more", "expected"), [
    ("from torch.nn import old|\nold\n", ", new", "from torch.nn import new\nnew\n"),
    ("from torch.nn import a, old|\nold\n", ", new", "from torch.nn import a, new\nnew\n"),
    ("from torch.nn import old, a|\nold\n", ", new", "from torch.nn import a, new\nnew\n"),
    ("from torch.nn import (\n    old,|\n)\nold\n", "\n    new,", "from torch.nn import (\n    new,\n)\nnew\n"),
    ("from torch.nn import (\n    a,\n    old,|\n)\nold\n", "\n    new,",
     "from torch.nn import (\n    a,\n    new,\n)\nnew\n"),
])
def test_a_name_takes_the_place_of_another(text, more, expected):
    assert both(text, more) == expected


@pytest.mark.parametrize(("name", "other", "stays"), [
    ("a.py", "from a import *\nold(2)\n", True),
    ("a.py", "from a import (\n    old,\n)\n", True),
    ("a.py", "import a\na.old(2)\n", True),
    ("a.py", "from a import thing\n", False),
    ("a.py", "from elsewhere import old\n", False),
    ("__init__.py", "", True),
])
def test_what_another_file_may_take_stays(tmp_path: Path, name, other, stays):
    text = "import torch\nfrom torch.nn import old\nold(1)\n"
    (tmp_path / name).write_text(text)
    (tmp_path / "other.py").write_text(other)
    assert ("from torch.nn" in after(text, path=str(tmp_path / name))) == stays


def test_in_too_large_a_project_imports_stay(tmp_path: Path, monkeypatch):
    text = "import torch\nfrom torch.nn import old\nold(1)\n"
    (tmp_path / "a.py").write_text(text)
    monkeypatch.setattr(unused, "_MOST", 0)
    assert "from torch.nn" in after(text, path=str(tmp_path / "a.py"))


def test_the_project_is_the_folder_that_something_marks(tmp_path: Path):
    package = tmp_path / "src" / "package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (package / "a.py").write_text("")
    (tmp_path / "user.py").write_text("from package.inner.a import *\nold(1)\n")
    text = "import torch\nfrom torch.nn import old\nold(1)\n"
    assert "from torch.nn" in after(text, path=str(package / "a.py"))
