"""Corrected programs for findings without a fix: the rule's advice, applied to the flagged statement.

These texts are only ever run and compared, never offered to the user as a fix.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from runtime_check.collected import collected

Place = tuple[int, int]  # line from 1, byte from 0, as in `ast`
Change = Callable[[ast.stmt, Place], "ast.stmt | list[ast.stmt] | None"]


def advised(code: str, text: str, first: int, last: int, column: int = 1) -> str | None:
    """The text with the advice of rule `code` applied to the statement on lines first..last, or None.

    `column` is where the finding begins in its line, counted from 1.
    """
    change = ADVICE.get(code)
    if change is None:
        return rewritten(code, text, first, last)
    line = text.splitlines()[first - 1] if first <= text.count("\n") + 1 else ""
    place = first, len(line[: column - 1].encode())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno == first and (node.end_lineno or first) >= last:
            new = change(node, place)
            if new is None:
                continue
            return splice(text, node, new if isinstance(new, list) else [new])
    return None


def rewritten(code: str, text: str, first: int, last: int) -> str | None:
    """The text with advice followed that changes more than the flagged statement, or None if there is none."""
    change = REWRITES.get(code)
    tree = ast.parse(text) if change is not None else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno == first and (node.end_lineno or first) >= last:
            new = change(text, tree, node) if change is not None else None
            if new is not None:
                return new
    return None


def splice(text: str, old: ast.stmt, new: list[ast.stmt]) -> str:
    """The text with one statement replaced, its indentation kept. Other lines stay as they are."""
    lines = text.splitlines(keepends=True)
    first, last = lines[old.lineno - 1].encode(), lines[(old.end_lineno or old.lineno) - 1].encode()
    head, tail = first[: old.col_offset].decode(), last[old.end_col_offset :].decode()
    indent = head[: len(head) - len(head.lstrip())]
    body = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in new)
    replaced = head + body.replace("\n", "\n" + indent) + tail
    return "".join([*lines[: old.lineno - 1], replaced, *lines[old.end_lineno or old.lineno :]])


class DataToDetach(ast.NodeTransformer):
    """`x.data` becomes `x.detach()`: the same values, and autograd's version check sees the change."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "data":
            return node
        self.changed = True
        return ast.Call(ast.Attribute(node.value, "detach", ast.Load()), [], [])


def detach_data(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of data-mutation."""
    change = DataToDetach()
    if isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef, ast.ClassDef)):
        return None
    new = change.visit(node)
    return new if change.changed and not whole_target(new) else None


def whole_target(node: ast.stmt) -> bool:
    """Whether a call would be assigned to: `x.detach() = y` is no Python."""
    match node:
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Call) for target in targets)
        case ast.AugAssign(target=ast.AST() as target):
            return isinstance(target, ast.Call)
    return False


def detached(value: ast.expr) -> ast.expr:
    """`value.detach()`."""
    return ast.Call(ast.Attribute(value, "detach", ast.Load()), [], [])


def detach_store(node: ast.stmt, place: Place) -> ast.stmt | list[ast.stmt] | None:
    """Advice of the rules about kept graphs: what is stored is detached first, or at once if it comes with others."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=elts)]):
            cut = "lambda v: v.detach() if hasattr(v, 'detach') else type(v)(part.detach() for part in v)"
            kept = [ast.unparse(elt) for elt in elts if isinstance(elt, ast.Attribute)]
            return [node, *(ast.parse(f"{text} = ({cut})({text})").body[0] for text in kept)]
        case ast.AugAssign() | ast.Assign() | ast.AnnAssign(value=ast.expr()):
            node.value = detached(node.value)  # type: ignore[arg-type]
            return node
        case ast.Expr(value=ast.Call(args=[*_, _] as args) as call):
            if not any(isinstance(arg, ast.Starred) for arg in args):
                call.args = [*args[:-1], *detach_parts(args[-1])]
                return node
    return None


def detach_parts(value: ast.expr) -> list[ast.expr]:
    """A stored value with its tensors detached; tuples and lists part by part."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            value.elts = [p for part in parts for p in detach_parts(part)]
            return [value]
        case ast.Constant():
            return [value]
    return [detached(value)]


def applied(method: str, *arguments: ast.expr) -> Callable[[ast.expr], ast.expr]:
    """A change of a value into `value.method(arguments)`."""
    return lambda value: ast.Call(ast.Attribute(value, method, ast.Load()), list(arguments), [])


def first_argument(change: Callable[[ast.expr], ast.expr]) -> Change:
    """Changes the first argument of the call at the finding, or the argument at the finding itself."""

    def apply(node: ast.stmt, place: Place) -> ast.stmt | None:
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and call.args]
        for call in calls:
            if (call.lineno, call.col_offset) == place:
                call.args[0] = change(call.args[0])
                return node
        for call in calls:
            for index, argument in enumerate(call.args):
                if (argument.lineno, argument.col_offset) == place:
                    call.args[index] = change(argument)
                    return node
        return None

    return apply


def keep_batch(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of squeeze-without-dim: every dimension of size 1 goes, but not the first."""

    class Squeeze(ast.NodeTransformer):
        changed = False

        def visit_Call(self, call: ast.Call) -> ast.AST:
            self.generic_visit(call)
            match call:
                case ast.Call(func=ast.Attribute(value=value, attr="squeeze"), args=[], keywords=[]):
                    self.changed = True
                    keep = ast.parse("lambda t: t.squeeze(tuple(range(1, t.dim())))", mode="eval").body
                    return ast.Call(keep, [value], [])
            return call

    squeeze = Squeeze()
    new: ast.stmt = squeeze.visit(node)
    return new if squeeze.changed else None


def evaluating(node: ast.stmt, place: Place) -> ast.stmt | list[ast.stmt] | None:
    """Advice of missing-eval and of eval-after-load-missing: `m.train()` becomes `m.eval()`, before a call of a model,
    or after what it has loaded, comes `.eval()`."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="train") as function, args=[])):
            function.attr = "eval"
            return node
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Attribute(value=model, attr="load_state_dict"), lineno=line, col_offset=start) if (
                line, start
            ) == place:
                return [node, ast.Expr(applied("eval")(model))]
            case ast.Call(func=ast.Name() | ast.Attribute() as model, lineno=line, col_offset=start):
                plain = not any(isinstance(part, ast.Call) for part in ast.walk(model))
                if plain and (line, start) == place:
                    return [ast.Expr(applied("eval")(model)), node]
    return None


def copies(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of shared-module-by-multiplication: `[layer] * n`, or a loop over it, becomes n copies of the layer."""
    copy = ast.parse("__import__('copy').deepcopy", mode="eval").body

    class Multiplied(ast.NodeTransformer):
        changed = False

        def visit_BinOp(self, product: ast.BinOp) -> ast.AST:
            self.generic_visit(product)
            match product:
                case ast.BinOp(left=ast.List(elts=[item]), op=ast.Mult(), right=count):
                    self.changed = True
                    times = ast.Call(ast.Name("range", ast.Load()), [count], [])
                    loop = ast.comprehension(ast.Name("_", ast.Store()), times, [], 0)
                    return ast.ListComp(ast.Call(copy, [item], []), [loop])
            return product

        def repeated(self, loop: ast.ListComp | ast.GeneratorExp) -> ast.AST:
            self.generic_visit(loop)
            targets = [part for clause in loop.generators for part in ast.walk(clause.target)]
            bound = {part.id for part in targets if isinstance(part, ast.Name)}
            used = {part.id for part in ast.walk(loop.elt) if isinstance(part, ast.Name)}
            if isinstance(loop.elt, (ast.Name, ast.Attribute)) and not used & bound:
                self.changed = True
                loop.elt = ast.Call(copy, [loop.elt], [])
            return loop

        def visit_ListComp(self, loop: ast.ListComp) -> ast.AST:
            return self.repeated(loop)

        def visit_GeneratorExp(self, loop: ast.GeneratorExp) -> ast.AST:
            return self.repeated(loop)

    multiplied = Multiplied()
    new: ast.stmt = multiplied.visit(node)
    return new if multiplied.changed else None


def entered(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of grad-mode-misuse for a mode that is made and not entered: it holds from here on."""
    match node:
        case ast.Expr(value=ast.Call(args=[], keywords=[])):
            return ast.parse("__import__('torch').set_grad_enabled(False)").body[0]
    return None


def left_out(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of rules about a statement that should not be there: nothing in its place."""
    return ast.Pass() if isinstance(node, (ast.Expr, ast.Assign)) else None


def with_keyword(name: str, value: bool) -> Change:
    """Gives the call at the finding a keyword argument."""

    def apply(node: ast.stmt, place: Place) -> ast.stmt | None:
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
        here = [call for call in calls if (call.lineno, call.col_offset) == place]
        for call in here or calls[:1]:
            call.keywords = [word for word in call.keywords if word.arg != name]
            call.keywords.append(ast.keyword(name, ast.Constant(value)))
            return node
        return None

    return apply


def under_no_grad(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of data-initialisation: the tensor itself is changed, under `torch.no_grad()`."""

    class Plain(ast.NodeTransformer):
        """`x.data` becomes `x`."""

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            return node.value if node.attr == "data" else node

    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Attribute(attr="data")))):
            mode = ast.parse("__import__('torch').no_grad()", mode="eval").body
            return ast.With([ast.withitem(mode)], [Plain().visit(node)])
    return None


def factory(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of tensor-constructor for values: `Tensor(data)` becomes `tensor(data)`, of the type that it has now."""
    for call in calls_at(node, place):
        match call.func:
            case ast.Attribute(attr="Tensor") | ast.Name(id="Tensor") if len(call.args) == 1 and not call.keywords:
                call.func = ast.parse("__import__('torch').tensor", mode="eval").body
                kind = ast.parse("__import__('torch').get_default_dtype()", mode="eval").body
                call.keywords.append(ast.keyword("dtype", kind))
                return node
    return None


def tensor_itself(node: ast.stmt, place: Place) -> ast.stmt | None:
    """Advice of autograd-variable where a gradient may be asked for: a cut tensor that is told whether it needs one."""
    for call in calls_at(node, place):
        match call:
            case ast.Call(args=[value], keywords=[ast.keyword(arg="requires_grad", value=flag)]):
                call.func = ast.Attribute(detached(value), "requires_grad_", ast.Load())
                call.args, call.keywords = [flag], []
                return node
    return None


def calls_at(node: ast.stmt, place: Place) -> list[ast.Call]:
    """The calls in a statement that begin at a place, outermost first."""
    return [
        call for call in ast.walk(node) if isinstance(call, ast.Call) and (call.lineno, call.col_offset) == place
    ]


ADVICE: dict[str, Change] = {
    "TL101": detach_data,
    "TL102": under_no_grad,
    "TL109": factory,
    "TL112": keep_batch,
    "TL201": detach_store,
    "TL203": detach_store,
    "TL211": entered,
    "TL218": detach_store,
    "TL412": copies,
    "TL426": with_keyword("batch_first", True),
    "TL502": left_out,
    "TL514": evaluating,
    "TL529": evaluating,
    "TL516": first_argument(applied("log")),
    "TL517": first_argument(applied("log_softmax", ast.Constant(1))),
    "TL518": first_argument(applied("logit")),
    "TL519": first_argument(applied("sigmoid")),
    "TL520": first_argument(applied("log")),
    "TL702": left_out,
    "TL904": with_keyword("weights_only", True),
    "TL905": tensor_itself,
}

REWRITES: dict[str, Callable[[str, ast.Module, ast.stmt], str | None]] = {"TL606": collected}
