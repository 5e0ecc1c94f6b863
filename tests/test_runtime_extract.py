"""Loading one name of a file: only what it needs runs, and what is missing explains itself."""
from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
import textwrap
import traceback
import typing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from runtime_check import outline
from runtime_check.extract import Namespace, target_at
from runtime_check.placeholder import Missing, MissingError


def space(text: str, path: str = "case_under_test.py", **files: str) -> Namespace:
    """A namespace of a text that is on no disk."""
    return Namespace(textwrap.dedent(text).lstrip("\n"), path)


def project(tmp_path: Path, main: str, **files: str) -> Namespace:
    """A namespace of `main.py` in a folder with other files; `__` in a name is a path separator."""
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in {"main": main, **files}.items():
        file = tmp_path / (name.replace("__", "/").replace("/init", "/__init__") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    path = tmp_path / "main.py"
    return Namespace(path.read_text(), str(path))


# What runs


def test_only_the_needed_statements_run() -> None:
    ns = space("""
        import math
        LOG = []
        LOG.append("list")
        SIZE = 2 * math.floor(2.5)
        raise SystemExit("the rest of the file must not run")
        def area(n=SIZE):
            return n * SIZE
    """)
    assert ns.resolve("area")() == 16  # type: ignore[operator]
    assert "LOG" not in ns.globals


def test_a_name_is_prepared_by_the_statements_that_belong_to_it() -> None:
    ns = space("""
        config = {}
        config["width"] = 3
        config.update(depth=2)
        config.run()
        layers = []
        for size in (1, 2):
            layers.append(size)
    """)
    assert ns.get("config") == {"width": 3, "depth": 2}
    assert ns.get("layers") == [1, 2]


def test_redefinitions_run_in_order_and_each_sees_what_came_before() -> None:
    ns = space("""
        rate = 1
        first = rate
        rate = rate + 1
        second = rate
        def step(): return "old"
        kept = step()
        def step(): return "new"
    """)
    assert [ns.get(name) for name in ("first", "second", "rate", "kept")] == [1, 2, 2, "old"]
    assert ns.get("step")() == "new"  # type: ignore[operator]


def test_names_are_bound_by_every_kind_of_statement() -> None:
    ns = space("""
        import contextlib
        a, (b, *c) = 1, (2, 3, 4)
        for d in range(3): pass
        with contextlib.nullcontext(5) as e: f = 6
        try:
            g = undefined_thing
        except NameError:
            g = 7
        if (h := 8) > 1: i = 9
        while True:
            j = 10
            break
        k: int = 11
        match a:
            case 1 as l: pass
    """)
    assert [ns.get(name) for name in "abcdefghijkl"] == [1, 2, [3, 4], 2, 5, 6, 7, 8, 9, 10, 11, 1]


def test_class_bodies_find_globals_and_decorators_belong_to_the_name() -> None:
    ns = space("""
        from dataclasses import dataclass, field
        WIDTH = 4
        REGISTRY = {}
        def register(cls):
            REGISTRY[cls.__name__] = cls
            return cls
        @register
        @dataclass
        class Config:
            width: int = WIDTH
            parts: list = field(default_factory=list)
            class Inner:
                depth = WIDTH * 2
        def make():
            class Local:
                size = WIDTH
            return Local.size
    """)
    config: Any = ns.get("Config")
    assert dataclasses.asdict(config()) == {"width": 4, "parts": []}
    assert config.Inner.depth == 8
    assert ns.get("REGISTRY") == {"Config": config}
    assert ns.get("make")() == 4  # type: ignore[operator]


def test_the_main_block_is_not_run_but_its_names_can_be_asked_for() -> None:
    ns = space("""
        def scale(x): return x * factor
        if __name__ == "__main__":
            factor = 3
            raise SystemExit("the program itself")
    """)
    assert ns.get("scale")(2) == 6  # type: ignore[operator]
    assert ns.globals["__name__"] == "case_under_test"


def test_a_name_that_nothing_binds_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="absent"):
        space("x = 1").get("absent")


def test_future_annotations_and_docstrings_are_kept() -> None:
    ns = space('''
        """About this file."""
        from __future__ import annotations
        def f(x: NotDefinedAnywhere) -> None: ...
    ''')
    assert ns.get("f").__annotations__ == {"x": "NotDefinedAnywhere", "return": "None"}
    assert ns.globals["__doc__"] == "About this file."


def test_reset_forgets_values_and_keeps_definitions_and_pins() -> None:
    ns = space("""
        import torch
        net = torch.nn.Linear(1, 1)
        STEPS = 3
        class Net: ...
        def steps(): return STEPS
    """)
    net, cls = ns.get("net"), ns.get("Net")
    ns.pin("STEPS", 7)
    ns.reset()
    assert ns.get("net") is not net
    assert ns.get("Net") is cls
    assert ns.get("steps")() == 7  # type: ignore[operator]


# Places


def test_tracebacks_show_the_lines_of_the_user() -> None:
    ns = space("""
        import torch


        def broken(x):
            return x.view(3)
    """)
    with pytest.raises(RuntimeError) as caught:
        ns.get("broken")(torch.zeros(2))  # type: ignore[operator]
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == ("case_under_test.py", 5, "return x.view(3)")


@pytest.mark.parametrize(("line", "kind", "qualname"), [
    (1, "script", ""), (4, "class", "Net"), (5, "class", "Net"), (7, "method", "Net.forward"),
    (8, "method", "Net.forward"), (10, "method", "Net.forward"), (12, "class", "Net.Inner"), (15, "function", "train"),
    (19, "function", "fallback"), (21, "script", ""),
])
def test_target_at_a_line(line: int, kind: str, qualname: str) -> None:
    text = textwrap.dedent("""\
        import torch


        class Net(torch.nn.Module):
            width = 3

            @torch.no_grad()
            def forward(self, x):
                def inner():
                    return x
                return inner()
            class Inner:
                pass

        def train():
            pass

        if torch:
            def fallback(): pass
        if __name__ == "__main__":
            train()
    """)
    found = target_at(text, line)
    assert (found.kind, found.qualname, found.line) == (kind, qualname, line)
    assert found.first_line <= line <= found.last_line


# Imports


def test_a_missing_package_explains_itself_where_it_is_touched() -> None:
    ns = space("""
        import torch
        import package_that_is_not_there as gone
        from package_that_is_not_there.parts import Base, decorate

        @decorate(level=2)
        def plain(x):
            return x + 1

        class Net(Base):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(2, 2)
            def forward(self, x):
                return gone.scale(self.fc(x))
    """)
    assert ns.get("plain")(1) == 2  # type: ignore[operator]
    net: Any = ns.get("Net")
    assert isinstance(net(), torch.nn.Module)
    with pytest.raises(MissingError, match=r"`package_that_is_not_there` is not installed.*scale.*line 14 of case"):
        net()(torch.zeros(1, 2))
    assert any("not installed" in text for text in ns.skipped)


def test_placeholders_refuse_to_be_values() -> None:
    gone = Missing("gone", "the package `gone` is not installed")
    for use in (len, iter, float, bool, torch.as_tensor, lambda item: item + 1, lambda item: item < 1, torch.relu):
        with pytest.raises((MissingError, TypeError)):
            use(gone)  # type: ignore[operator]
    assert not isinstance(3, gone)  # type: ignore[arg-type]
    assert (gone | None) is not None


def test_an_import_that_the_file_guards_raises_as_it_should() -> None:
    ns = space("""
        try:
            import package_that_is_not_there
            HAS = True
        except ImportError:
            package_that_is_not_there = None
            HAS = False
        def inside():
            try:
                from package_that_is_not_there import x
            except ImportError:
                return "guarded"
    """)
    assert ns.get("HAS") is False
    assert ns.get("inside")() == "guarded"  # type: ignore[operator]


def test_project_files_are_loaded_on_demand(tmp_path: Path) -> None:
    ns = project(
        tmp_path,
        """
        from model import Net
        import helpers.sizes as sizes
        from helpers import *
        def build(): return Net(sizes.WIDTH), double(2)
        """,
        model="""
        import torch
        raise_later = 1 / 0
        class Net(torch.nn.Linear):
            def __init__(self, width): super().__init__(width, 1)
        """,
        helpers__init="from .maths import double\n",
        helpers__maths="def double(x): return 2 * x\nprint(undefined)\n",
        helpers__sizes="WIDTH = 5\n",
    )
    net, four = ns.get("build")()  # type: ignore[operator]
    assert (net.in_features, four) == (5, 4)
    assert type(net).__module__ == "model"


def test_relative_imports_packages_and_the_src_layout(tmp_path: Path) -> None:
    project(tmp_path, "", src__pkg__init="", src__pkg__base="class Base: value = 1\n",
            src__pkg__sub__init="from ..base import Base\n",
            src__pkg__sub__leaf="""
            from . import Base
            from ..base import Base as Again
            from pkg.base import Base as Third
            import pkg.base
            same = Base is Again is Third is pkg.base.Base
            """)
    path = tmp_path / "src/pkg/sub/leaf.py"
    ns = Namespace(path.read_text(), str(path))
    assert ns.get("same") is True
    assert ns.globals["__name__"] == "pkg.sub.leaf"


def test_circular_imports_are_no_problem(tmp_path: Path) -> None:
    ns = project(tmp_path, "import one\ndef f(): return one.a()\n",
                 one="import two\ndef a(): return two.b()\nC = 3\n", two="import one\ndef b(): return one.C\n")
    assert ns.get("f")() == 3  # type: ignore[operator]


def test_the_text_given_wins_over_the_file(tmp_path: Path) -> None:
    project(tmp_path, "value = 1\n", other="import main\ndef f(): return main.value\n")
    ns = Namespace("import other\nvalue = 2\ndef g(): return other.f()\n", str(tmp_path / "main.py"))
    assert ns.get("g")() == 2  # type: ignore[operator]


def test_objects_can_be_pickled_and_annotations_resolved() -> None:
    ns = space("""
        from __future__ import annotations
        from dataclasses import dataclass
        from typing import ClassVar
        @dataclass
        class Point:
            kinds: ClassVar[list] = []
            x: Number = 0
        Number = int
    """, path="picklable_case.py")
    point: Any = ns.get("Point")
    assert pickle.loads(pickle.dumps(point(3))) == point(3)
    assert typing.get_type_hints(point)["x"] is int
    assert sys.modules["picklable_case"].Point is point  # type: ignore[attr-defined]


def test_a_statement_that_fails_becomes_a_placeholder_and_asking_for_it_raises() -> None:
    ns = space("""
        table = open("no/such/file.csv").read()
        def rows(): return len(table)
        def other(): return 1
    """)
    assert ns.get("other")() == 1  # type: ignore[operator]
    with pytest.raises(MissingError, match=r"line 1 of case_under_test.py could not run \(FileNotFoundError"):
        ns.get("rows")()  # type: ignore[operator]
    with pytest.raises(FileNotFoundError):
        ns.get("table")


def test_decorators_that_fail_are_left_out() -> None:
    ns = space("""
        def picky(function): raise ValueError("no")
        @picky
        def f(): return 1
    """)
    assert ns.get("f")() == 1  # type: ignore[operator]
    assert ns.skipped == ["the decorators of `f` were left out (ValueError: no)"]


def test_syntax_errors_are_the_callers_to_handle() -> None:
    with pytest.raises(SyntaxError):
        space("def broken(:\n")


def test_a_name_comes_from_the_star_import_that_has_it(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from .pool import *\nfrom .old import *\n")
    (package / "pool.py").write_text("def add_pool():\n    return 'pooled'\n")
    (package / "old.py").write_text("from pkg import add_pool\n\n\ndef old_pool():\n    return add_pool()\n")
    (package / "net.py").write_text("from pkg import add_pool, old_pool\n")
    space = Namespace((package / "net.py").read_text(), str(package / "net.py"))
    assert space.resolve("add_pool")() == "pooled"  # type: ignore[operator]
    assert space.resolve("old_pool")() == "pooled"  # type: ignore[operator]


def test_all_names_of_a_project_module_can_be_looked_through(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "kinds.py").write_text("class Mean: ...\nclass Sum: ...\nBROKEN = absent\n")
    text = "import pkg.kinds as kinds\ndef found(here):\n    return {**vars(kinds), **vars()}\n"
    path = tmp_path / "pkg" / "use.py"
    path.write_text(text)
    names = Namespace(text, str(path)).get("found")(1)
    assert {"Mean", "Sum", "here"} <= names.keys()


def test_what_a_file_changes_elsewhere_is_there_when_its_functions_run() -> None:
    made = space("""
        import collections
        def once(self):
            return 1
        def make():
            return collections.UserDict()
        collections.UserDict.once_more = once
    """).get("make")
    try:
        assert made().once_more() == 1  # type: ignore[operator]
    finally:
        del collections.UserDict.once_more  # type: ignore[attr-defined]


def test_decorators_that_only_write_documentation_do_not_run() -> None:
    found = space("""
        def auto_docstring(function):
            raise RuntimeError("documentation is being written")
        def add_docstrings(text):
            raise RuntimeError(text)
        @auto_docstring
        class Net:
            @add_docstrings("more")
            def forward(self):
                return 2
    """)
    assert found.get("Net")().forward() == 2  # type: ignore[operator]
    assert not found.skipped


def test_modules_that_are_imported_by_name_are_loaded_on_demand_too(tmp_path: Path) -> None:
    made = project(tmp_path, """
        import importlib
        def get(name):
            return importlib.import_module(f".{name}", "late_pkg").VALUE
    """, late_pkg__init="", late_pkg__part="import absent_package\nVALUE = 3\n").get("get")
    assert made("part") == 3  # type: ignore[operator]


# Again


class Interrupted(BaseException):
    """As a time limit is: no error that code under test may catch."""


def test_what_was_interrupted_is_loaded_by_the_next_reading(tmp_path: Path) -> None:
    ns = project(tmp_path, """
        from parts import Base
        from names import *
        class Net(Base):
            size = SIZE
    """, parts="""
        def slowly():
            hook()
        class Base:
            made = slowly()
    """, names="SIZE = 4\n")

    def stop() -> None:
        raise Interrupted

    parts = ns.loader.space(str(tmp_path / "parts.py"))
    parts.pin("hook", stop)
    with pytest.raises(Interrupted):
        ns.resolve("Net")
    parts.pin("hook", lambda: None)
    net: Any = ns.resolve("Net")
    assert (net.__mro__[1].__name__, net.size) == ("Base", 4)


def test_a_name_made_of_an_import_of_the_same_name_is_there_in_every_run(tmp_path: Path) -> None:
    ns = project(tmp_path, """
        from table import TABLE
        TABLE.update(b=2)
        TABLE = dict(c=3, **TABLE)
        def keys():
            return sorted(TABLE)
    """, table="TABLE = dict(a=1)\n")
    keys: Any = ns.resolve("keys")
    assert keys() == ["a", "b", "c"]
    for space_ in ns.loader.spaces.values():
        space_.reset()
    assert keys() == ["a", "b", "c"]


def test_a_decorated_name_stays_the_object_that_others_know() -> None:
    ns = space("""
        class Net: ...
        Net = register(Net)
    """)
    ns.pin("register", lambda cls: cls)
    first = ns.get("Net")
    ns.reset()
    assert ns.get("Net") is first


def test_the_texts_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "_known", {})
    monkeypatch.setattr(outline, "MOST", 20)
    first = outline.outline("x = 1  # 4567", "a.py")
    assert outline.outline("x = 1  # 4567", "a.py") is first
    outline.outline("x = 2  # 4567", "a.py")  # too much for both
    assert [text for _, text in outline._known] == ["x = 2  # 4567"]
    outline.outline("x = 3", "b.py")
    outline.outline("x = 2  # 4567", "a.py")
    outline.outline("x = 4", "c.py")
    assert outline.paths() == ("a.py", "c.py")
