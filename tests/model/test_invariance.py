"""What must not change an answer: names, import style, comments, hints, a function around, the order of questions."""
from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import ask
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchlint.files import Source
from torchlint.model import FileModel, Value

PROGRAMS = ask.all_programs()
IDS = [program.title.replace(" ", "-") for program in PROGRAMS]
Change = Callable[[ast.Module], ast.Module]


def facts_of(value: Value) -> set[str]:
    """What is compared; where a definition stands (in its dotted name) is not."""
    words = ask.describe(value)
    if value.cls is not None or value.func is not None:
        words.discard(f"name={value.name}")
    return words


def changed(model: FileModel, path: Path, change: Change) -> Iterator[tuple[ast.expr, FileModel, ast.expr]]:
    """Each expression that survives a change, with the changed file's model and the same expression there.

    The changed tree is written out and read again; nodes find each other by a mark that `deepcopy` keeps.
    """
    nodes = list(ast.walk(model.tree))
    for number, node in enumerate(nodes):
        node.mark = number  # type: ignore[attr-defined]
    tree = ast.fix_missing_locations(change(copy.deepcopy(model.tree)))
    text = ast.unparse(tree)
    new = FileModel(Source(str(path), text), model.project.__class__([path.parent]))
    for marked, node in zip(ast.walk(tree), ast.walk(new.tree), strict=True):
        assert type(marked) is type(node)
        if isinstance(node, ast.expr) and hasattr(marked, "mark"):
            yield nodes[marked.mark], new, node  # type: ignore[misc]


def differences(model: FileModel, path: Path, change: Change) -> list[str]:
    """Expressions whose answer is another one after a change."""
    found = []
    for old, new_model, new in changed(model, path, change):
        before, after = facts_of(model.value(old)), facts_of(new_model.value(new))
        if before != after:
            found.append(f"{old.lineno}: {ast.unparse(old)}: {sorted(before - after)} became {sorted(after - before)}")
    return found


class Renamed(ast.NodeTransformer):
    """Other names for variables and imports."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.names.get(node.arg, node.arg)
        self.generic_visit(node)
        return node


def words_elsewhere(tree: ast.Module) -> set[str]:
    """Names that mean something besides a variable: attributes, keywords, strings, definitions, patterns."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.update(text.translate(str.maketrans(".,[]", "    ")).split())
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.update(n.id for s in node.body if isinstance(s, (ast.Assign, ast.AnnAssign))
                         for n in ast.walk(s) if isinstance(n, ast.Name))
    return found


def rename_variables(tree: ast.Module) -> ast.Module:
    """`x` becomes `x_other`, wherever only variables have that name."""
    imported = {alias.asname or alias.name.split(".")[0] for node in ast.walk(tree)
                if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    names = {name: f"{name}_other" for name in bound - imported - words_elsewhere(tree) if not name.startswith("__")}
    return Renamed(names).visit(tree)


def alias_imports(tree: ast.Module) -> ast.Module:
    """`import torch` becomes `import torch as torch_other`."""
    rebound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    rebound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} | strings(tree)
    dotted = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import)
              for alias in node.names if "." in alias.name}
    names = {}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or getattr(node, "module", "") == "__future__":
            continue
        for alias in node.names:
            local = alias.asname or alias.name
            if local != "*" and local not in rebound | dotted and "." not in local:
                alias.asname = names[local] = f"{local}_other"
    return Renamed(names).visit(tree)


def strings(tree: ast.Module) -> set[str]:
    """Words in strings: annotations may be among them."""
    return {word for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for word in node.value.replace(".", " ").replace("[", " ").replace("]", " ").split()}


MODULES = {"torch.nn", "torch.optim", "torch.nn.functional", "torch.optim.lr_scheduler", "torch.distributed"}


def other_import_style(tree: ast.Module) -> ast.Module:
    """`from torch import nn` becomes `import torch.nn as nn`, and the other way round."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "handlers", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [restyled(part) for part in block])
    return tree


def restyled(node: ast.AST) -> ast.AST:
    """The same import, spelled in the other way."""
    match node:
        case ast.ImportFrom(module=str(module), names=[ast.alias(name=name, asname=asname)], level=0):
            if f"{module}.{name}" in MODULES:
                return ast.Import([ast.alias(f"{module}.{name}", asname or name)])
        case ast.Import(names=[ast.alias(name=name, asname=str(asname))]) if name in MODULES:
            package, _, tail = name.rpartition(".")
            return ast.ImportFrom(package, [ast.alias(tail, asname)], 0)
    return node


def add_hints(tree: ast.Module) -> ast.Module:
    """Hints that promise nothing: `def f(x: object) -> object`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = node.returns or ast.Name("object", ast.Load())
            for arg in (*node.args.args, *node.args.kwonlyargs):
                arg.annotation = arg.annotation or ast.Name("object", ast.Load())
    return tree


def hint_variables(tree: ast.Module) -> ast.Module:
    """`x = 1` becomes `x: object = 1`."""

    class Hinted(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                return ast.AnnAssign(node.targets[0], ast.Name("object", ast.Load()), node.value, simple=1)
            return node

    return Hinted().visit(tree)


def wrap(tree: ast.Module) -> ast.Module:
    """All code in one function that is called."""
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    body = [s for s in tree.body if s not in future]
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(name="everything", args=arguments, body=body, decorator_list=[], type_params=[])
    call = ast.Expr(ast.Call(ast.Name("everything", ast.Load()), [], []))
    tree.body = [*future, function, call]
    return tree


CHANGES = (rename_variables, alias_imports, other_import_style, add_hints, hint_variables)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_answers_survive(program: ask.Program, change: Change, tmp_path: Path) -> None:
    model = ask.place(program, tmp_path)["main.py"]
    assert not differences(model, tmp_path / "main.py", change)


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_answers_survive_a_function_around(program: ask.Program, tmp_path: Path) -> None:
    """Kind and graph are the same; a variable of an outer function is less sure than one of the file."""
    model = ask.place(program, tmp_path)["main.py"]
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in model.nodes(ast.ImportFrom)):
        return  # Python allows star imports at the top only
    wrong = []
    for old, new_model, new in changed(model, tmp_path / "main.py", wrap):
        before, after = model.value(old), new_model.value(new)
        if (before.kind, before.grad, before.squash) != (after.kind, after.grad, after.squash):
            wrong.append(f"{old.lineno}: {ast.unparse(old)}: {before.kind} became {after.kind}, "
                         f"{before.grad} became {after.grad}")
    assert not wrong


def test_a_change_that_matters_is_seen(tmp_path: Path) -> None:
    """The partner of the tests above: a changed program gives differences."""
    program = ask.Program("two", (("main.py", "import torch\nx = torch.ones(1)\ny = x * 2\n"),))
    model = ask.place(program, tmp_path)["main.py"]

    def unknown(tree: ast.Module) -> ast.Module:
        return Renamed({"torch": "nothing"}).visit(tree)

    assert differences(model, tmp_path / "main.py", unknown)


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_comments_change_nothing(program: ask.Program, tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    model = ask.place(program, tmp_path)["main.py"]
    lines = []
    for line in ast.unparse(model.tree).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += [f"{indent}# torch.no_grad() x.backward()", f"{line}  # x = None"]
    new = FileModel(Source(str(path), "\n".join(lines) + "\n"), model.project.__class__([tmp_path]))
    for old, node in zip(ast.walk(model.tree), ast.walk(new.tree), strict=True):
        if isinstance(old, ast.expr):
            assert facts_of(model.value(old)) == facts_of(new.value(node)), ast.unparse(old)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.sampled_from(PROGRAMS), seed=st.integers(0, 2**16))
def test_the_order_of_questions_does_not_matter(
    program: ask.Program, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("order")
    first, second = ask.place(program, folder), ask.place(program, folder)
    spots = [(name, i) for name, model in first.items()
             for i in range(len(model.nodes(ast.Name, ast.Call, ast.Attribute)))]
    answers = {spot: facts_of(answer(first, spot)) for spot in spots}
    random.Random(seed).shuffle(spots)
    for spot in spots:
        assert facts_of(answer(second, spot)) == answers[spot], spot


def answer(models: dict[str, FileModel], spot: tuple[str, int]) -> Value:
    """The value of one numbered expression of one file."""
    model = models[spot[0]]
    return model.value(model.nodes(ast.Name, ast.Call, ast.Attribute)[spot[1]])
