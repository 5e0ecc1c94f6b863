"""Edits of real code do to the syntax tree what they say, and nothing else.

The code is Python's own library. FIXES_FILES and FIXES_SEED choose more files or other nodes.
"""
from __future__ import annotations

import ast
import os
import random
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from torchlint.files import Source, UnreadableFile, read_source
from torchlint.fixes import edits
from torchlint.fixes.layout import layout
from torchlint.model import FileModel

COUNT = int(os.environ.get("FIXES_FILES", "8"))
SEED = int(os.environ.get("FIXES_SEED", "0"))
PER_FILE = 6  # nodes tried per file and operation
FOLDER = Path(os.environ.get("FIXES_FOLDER", sysconfig.get_path("stdlib")))


def corpus() -> list[Path]:
    """Some files of middle size, in an order that depends on the seed only."""
    inside = [p for p in sorted(FOLDER.rglob("*.py")) if "site-packages" not in p.relative_to(FOLDER).parts]
    found = [path for path in inside if 1_000 < path.stat().st_size < 60_000]
    random.Random(SEED).shuffle(found)
    return found[:COUNT]


def dumped(tree: ast.AST) -> str:
    return ast.dump(tree)


def swapped(tree: ast.Module, old: ast.AST, new: ast.AST | list[ast.AST]) -> str:
    """The dump of the tree with a node replaced, in the tree itself and back again."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                text = dumped(tree)
                setattr(parent, name, old)
                return text
            if isinstance(value, list) and any(item is old for item in value):
                news = new if isinstance(new, list) else [new]
                index = next(i for i, item in enumerate(value) if item is old)
                value[index : index + 1] = news
                text = dumped(tree)
                value[index : index + len(news)] = [old]
                return text
    raise AssertionError("the node is not in the tree")


class Case:
    """One file, and what has been tried in it."""

    def __init__(self, path: Path) -> None:
        self.source = Source(str(path), read_source(path).text)
        self.model = FileModel(self.source)
        self.random = random.Random(f"{path.name} {SEED}")
        self.made = 0

    def some(self, *kinds: type[ast.AST]) -> list[ast.AST]:
        nodes = [node for node in self.model.nodes(*kinds) if not edits.in_fstring(self.model, node)]
        return self.random.sample(nodes, min(PER_FILE, len(nodes)))

    def check(self, made: tuple, expected: str, node: ast.AST) -> None:
        """The edited text has the expected tree, and the same comments."""
        place = layout(self.source)
        text = place.apply(made)
        where = f"{self.source.path}:{node.lineno}\n{edits.source_of(self.model, node)}\n{made}"
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise AssertionError(f"{error}\n{where}") from None
        assert dumped(tree) == expected, where
        ranges = [place.offsets(edit.span) for edit in made]
        kept = [t.text for t in place.tokens if t.comment and not any(a <= t.start < b for a, b in ranges)]
        comments = [token.text for token in layout(Source("t.py", text)).tokens if token.comment]
        assert not Counter(kept) - Counter(comments), where
        self.made += 1


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


REPLACEABLE = (ast.Call, ast.Attribute, ast.Name, ast.BinOp, ast.Constant, ast.Subscript, ast.IfExp, ast.Compare)


def is_value(model: FileModel, node: ast.AST) -> bool:
    """Whether any expression may stand here: no target, no pattern, no decorator, no literal of a pattern."""
    for parent in model.ancestors(node):
        if isinstance(parent, (ast.pattern, ast.JoinedStr, ast.Delete)):
            return False
    parent = model.parent(node)
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and not (
        isinstance(parent, ast.Expr) or (isinstance(parent, (ast.AnnAssign, ast.AugAssign)) and parent.target is node))


def replacing(case: Case) -> None:
    for new in ("a if b else c", "-a", "a or b", "lambda: a", "(yield)", "not a", "a ** b", "a.b", "(a, b)"):
        for node in case.some(*REPLACEABLE):
            if is_value(case.model, node) and not ("yield" in new and not case.model.place(node).function):
                made = edits.replace(case.model, node, new)
                case.check(made, swapped(case.model.tree, node, expression(new)), node)


def detaching(case: Case) -> None:
    for node in case.some(*REPLACEABLE):
        if is_value(case.model, node):
            new = expression("x.detach()")
            new.func.value = node
            made = edits.append_method_call(case.model, node, ".detach()")
            case.check(made, swapped(case.model.tree, node, new), node)


def adding_arguments(case: Case) -> None:
    for call in case.some(ast.Call):
        made = edits.add_keyword_argument(case.model, call, "zz=1")
        old = list(call.keywords)
        index = next((i for i, keyword in enumerate(old) if keyword.arg is None), len(old))
        call.keywords.insert(index, expression("f(zz=1)").keywords[0])
        expected = dumped(case.model.tree)
        call.keywords[:] = old
        case.check(made, expected, call)


def removing_arguments(case: Case) -> None:
    for call in case.some(ast.Call):
        for argument in (*call.args, *call.keywords):
            made = edits.remove_argument(case.model, call, argument)
            group = call.args if argument in call.args else call.keywords
            old = list(group)
            group.remove(argument)
            expected = dumped(case.model.tree)
            group[:] = old
            case.check(made, expected, call)


def unwrapping(case: Case) -> None:
    for call in case.some(ast.Call):
        made = edits.unwrap_call(case.model, call)
        if made and len(call.args) == 1 and is_value(case.model, call):
            case.check(made, swapped(case.model.tree, call, call.args[0]), call)


SIMPLE = (ast.Expr, ast.Assign, ast.Return, ast.If, ast.For, ast.AugAssign, ast.FunctionDef, ast.With, ast.Try)


def movable(case: Case) -> list[ast.stmt]:
    """Statements before and after which another one may stand: no docstrings, no `elif`."""
    def fine(stmt):
        parent = case.model.parent(stmt)
        chained = isinstance(stmt, ast.If) and isinstance(parent, ast.If) and parent.orelse == [stmt]
        docstring = isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant)
        return not chained and not docstring
    return [stmt for stmt in case.some(*SIMPLE) if fine(stmt)]


def inserting(case: Case) -> None:
    new = ast.parse("new = '''\nx'''").body[0]
    for stmt in movable(case):
        text = "new = '''\nx'''"
        made = edits.insert_before(case.model, stmt, text)
        case.check(made, swapped(case.model.tree, stmt, [new, stmt]), stmt)
        made = edits.insert_after(case.model, stmt, text)
        case.check(made, swapped(case.model.tree, stmt, [stmt, new]), stmt)


def removing(case: Case) -> None:
    for stmt in movable(case):
        single = len(edits.siblings(case.model, stmt)) == 1 and not isinstance(case.model.parent(stmt), ast.Module)
        made = edits.remove(case.model, stmt)
        expected = swapped(case.model.tree, stmt, [ast.Pass()] if single else [])
        text = layout(case.source).apply(made)
        assert dumped(ast.parse(text)) == expected, (case.source.path, stmt.lineno)
        case.made += 1


def wrapping(case: Case) -> None:
    for stmt in movable(case):
        block = edits.siblings(case.model, stmt)
        index = block.index(stmt)
        run = block[index : index + 3]
        made = edits.wrap_in_with(case.model, run, "zz()", merge=False)
        if "\f" in edits.source_of(case.model, stmt):
            continue
        with_ = ast.parse("with zz(): pass").body[0]
        with_.body = run
        block[index : index + 3] = [with_]
        expected = dumped(case.model.tree)
        block[index : index + 1] = run
        case.check(made, expected, stmt)


def moving(case: Case) -> None:
    for stmt in movable(case):
        block = edits.siblings(case.model, stmt)
        index = block.index(stmt)
        target = block[0]
        if index == 0 or isinstance(target, (ast.Expr, ast.ImportFrom)):
            continue
        made = edits.move_statement(case.model, stmt, before=target)
        if made:
            block.insert(0, block.pop(index))
            expected = dumped(case.model.tree)
            block.insert(index, block.pop(0))
            case.check(made, expected, stmt)


def renaming(case: Case) -> None:
    for function in case.some(ast.FunctionDef):
        if not function.args.args:
            continue
        old = function.args.args[0].arg
        made = edits.rename_parameter(case.model, function, old, "zz_new")
        if made:
            text = layout(case.source).apply(made)
            assert dumped(ast.parse(text)).count("'zz_new'") == len(made)
            back = ast.unparse(ast.parse(text)).replace("zz_new", old)
            assert back == ast.unparse(case.model.tree), (case.source.path, function.lineno)
            case.made += 1


OPERATIONS = [replacing, detaching, adding_arguments, removing_arguments, unwrapping, inserting, removing,
              wrapping, moving, renaming]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_real_code(operation):
    total = 0
    for path in corpus():
        try:
            case = Case(path)
        except (SyntaxError, UnreadableFile, ValueError):
            continue
        operation(case)
        total += case.made
    assert total >= COUNT // 2, "too little was tried"
