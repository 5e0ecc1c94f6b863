"""An iterator over parameters that is used up before it is used again.

`model.parameters()` returns a generator, and so do `filter`, `chain` and generator expressions over it. Whoever
iterates first empties it: the optimizer, a sum, a clip. The second user sees no parameters at all, so clipping
clips nothing and a count is zero, mostly without an error.

Keep a list, `params = list(model.parameters())`, or call `parameters()` again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import FileModel, Kind
from torchlint.model.tree import COMPREHENSIONS, FUNCTIONS, LOOPS
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL511", "exhausted-parameter-generator", Severity.ERROR, fix=Safety.SAFE, triggers=("parameters",))
CLAIM = NoEffect()
HARMLESS = {"builtins.next", "builtins.print", "builtins.isinstance", "builtins.type", "builtins.id"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        params = model.parameters()
        optimizer = torch.optim.SGD(params, lr=0.1)
        model(torch.ones(2, 3)).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_(params, 0.1)  #!
        optimizer.step()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        params = list(model.parameters())
        optimizer = torch.optim.SGD(params, lr=0.1)
        model(torch.ones(2, 3)).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_(params, 0.1)
        optimizer.step()
        """,
    ),
    Example(
        bad="""
        import torch


        def shrink(params, limit):
            total = sum(p.grad.pow(2).sum() for p in params)
            for p in params:  #!
                p.grad.mul_(limit / total)


        model = torch.nn.Linear(3, 1)
        model(torch.ones(2, 3)).pow(2).sum().backward()
        shrink(model.parameters(), 0.1)
        """,
        good="""
        import torch


        def shrink(params, limit):
            params = list(params)
            total = sum(p.grad.pow(2).sum() for p in params)
            for p in params:
                p.grad.mul_(limit / total)


        model = torch.nn.Linear(3, 1)
        model(torch.ones(2, 3)).pow(2).sum().backward()
        shrink(model.parameters(), 0.1)
        """,
    ),
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        trainable = filter(lambda p: p.requires_grad, model.parameters())
        print(sum(p.numel() for p in trainable))
        optimizer = torch.optim.SGD(list(trainable) + [torch.zeros(1, requires_grad=True)], lr=0.1)  #!
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        trainable = list(filter(lambda p: p.requires_grad, model.parameters()))
        print(sum(p.numel() for p in trainable))
        optimizer = torch.optim.SGD(list(trainable) + [torch.zeros(1, requires_grad=True)], lr=0.1)
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)
    params = model.parameters()
    params = list(params)
    optimizer = torch.optim.SGD(params, lr=0.1)
    torch.nn.utils.clip_grad_norm_(params, 0.1)
    """,
    """
    import torch


    def make(model, name):
        params = model.parameters()
        if name == "sgd":
            return torch.optim.SGD(params, lr=0.1)
        elif name == "adam":
            return torch.optim.Adam(params)
        return torch.optim.AdamW(params)


    make(torch.nn.Linear(1, 1), "sgd")
    """,
    """
    import torch

    model = torch.nn.Linear(3, 1)
    params = model.parameters()
    device = next(params).device
    total = sum(p.numel() for p in model.parameters())
    for _ in range(2):
        params = model.parameters()
        for p in params:
            print(p.shape, device, total)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Names that hold a parameter iterator and are consumed twice."""
    groups: dict[tuple[ast.AST, str, object], list[ast.Name]] = {}
    for name in model.nodes(ast.Name):
        if not isinstance(name.ctx, ast.Load) or not may_consume(model, name):
            continue
        value = model.value(name)
        if value.kind is Kind.PARAMETERS and value.ident is not None:
            groups.setdefault((model.owner(name), name.id, value.ident), []).append(name)
    for (owner, _, _), uses in groups.items():
        again = second_use(model, owner, uses)
        if again is not None:
            sure = model.value(again).sure
            message = f"`{again.id}` was used up before, so there is nothing left here; keep a list"
            yield Hit(again, message, keep_list(model, owner, again), confidence=sure)


def may_consume(model: FileModel, name: ast.Name) -> bool:
    """Whether the place of a name iterates over it or hands it to something that may."""
    parent = model.parent(name)
    match parent:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) | ast.comprehension(iter=iterated):
            return iterated is name
        case ast.Call(func=func):
            return func is not name and model.name_of(func) not in HARMLESS
        case ast.Starred():
            return True
        case ast.keyword():
            return True
    return False


def second_use(model: FileModel, owner: ast.AST, uses: list[ast.Name]) -> ast.Name | None:
    """A use that comes when another one has emptied the iterator."""
    uses.sort(key=model.position)
    for number, use in enumerate(uses):
        for earlier in uses[:number]:
            if not exclusive(model, earlier, use):
                return use
        if in_deeper_loop(model, owner, use):
            return use
    return None


def in_deeper_loop(model: FileModel, owner: ast.AST, use: ast.Name) -> bool:
    """Whether the use is repeated by a loop in which the name is not bound again."""
    loops = model.place(use).loops
    statement = model.statement(use)
    if isinstance(statement, ast.For) and statement.iter is use:
        loops = model.place(statement).loops
    if not loops or leaves(statement):
        return False
    bound = [n for n in ast.walk(loops[-1]) if isinstance(n, ast.Name) and n.id == use.id
             and isinstance(n.ctx, ast.Store)]
    return not bound and not any(leaves(s) for s in getattr(loops[-1], "body", []))


def leaves(statement: ast.stmt) -> bool:
    """Whether a statement ends its block for good."""
    return isinstance(statement, (ast.Return, ast.Raise, ast.Break))


def exclusive(model: FileModel, first: ast.Name, second: ast.Name) -> bool:
    """Whether the second use never follows the first: other arm of an `if`, or the first one's arm leaves."""
    if leaves(model.statement(first)) and model.statement(first) is not model.statement(second):
        return True
    arms = dict(model.place(second).guards)
    for test, arm in model.place(first).guards:
        if test in arms and arms[test] is not arm:
            return True
        block = test.body if arm else test.orelse  # type: ignore[attr-defined]
        if test not in arms and block and isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            return True
    return in_lambda(model, first) or in_lambda(model, second)


def in_lambda(model: FileModel, node: ast.AST) -> bool:
    """Whether a node's code runs later than it stands."""
    for parent in model.ancestors(node):
        if isinstance(parent, ast.Lambda):
            return True
        if isinstance(parent, (*FUNCTIONS, *LOOPS, *COMPREHENSIONS)):
            return False
    return False


def keep_list(model: FileModel, owner: ast.AST, use: ast.Name) -> Repair | None:
    """A list where the name is bound, or where the function that returns the iterator makes it."""
    scope = model.scope_of(owner)
    bound = scope.bindings.get(use.id, [])
    made = model.value(use).site
    match bound:
        case [ast.Assign(targets=[ast.Name()], value=value)]:
            return as_list(model, value)
        case [ast.arg(arg=name)] if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = f"{name} = list({name})"
            return edits.repair("Keep a list", edits.insert_first_in_body(model, owner, text))
    if isinstance(made, (ast.GeneratorExp, ast.Call)) and model.has(made):
        return as_list(model, made)
    return None


def as_list(model: FileModel, made: ast.expr) -> Repair | None:
    """`list(...)` around an iterator; brackets for a generator expression."""
    if isinstance(made, ast.GeneratorExp):
        return edits.repair("Keep a list", edits.generator_to_list(model, made))
    return edits.repair("Keep a list", edits.replace(model, made, f"list({source_of(model, made)})"))
