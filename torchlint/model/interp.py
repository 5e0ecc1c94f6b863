"""Statements: a function's body is followed once in order, loops twice, branches joined.

The second pass over a loop sees what the first one left, with attached values marked as carried.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence, Set
from typing import TYPE_CHECKING, Any

from torchlint.model import evaluate
from torchlint.model.contexts import enter_context, exit_context
from torchlint.model.events import Event, Flow, LoopState
from torchlint.model.functions import FunctionInfo
from torchlint.model.narrow import assume, matched
from torchlint.model.values import NONE, UNKNOWN, Kind, Value, join, join_all

if TYPE_CHECKING:
    from torchlint.model import FileModel

Env = dict[str, Value]
MAX_DEPTH = 3  # calls followed into helpers of helpers
MAX_STEPS = 20_000  # statements followed for one function, helpers included
MAX_LOOP_DEPTH = 3  # deeper loops are followed once


class Budget:
    """How many statements may still be followed, shared by a function and the helpers it calls."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.steps = steps


class Run:
    """One pass over one body. `env` is None where the code cannot be reached."""

    def __init__(self, model: FileModel, *, env: Env, grad: bool | None, depth: int = 0, budget: Budget | None = None,
                 active: tuple[ast.AST, ...] = (), outer: Run | None = None) -> None:
        self.model = model
        self.env: Env | None = env
        self.grad = grad
        self.depth = depth
        self.budget = budget if budget is not None else Budget()
        self.active = active
        self.outer = outer  # the run that called this one
        self.owner = model.function_info(active[-1])  # also stands for a file's own code
        self.flow = Flow(grad_before=grad)
        self.loops: tuple[ast.AST, ...] = ()
        self.guards: tuple[tuple[ast.AST, bool], ...] = ()
        self.breaks: list[list[Env]] = []
        self.continues: list[list[Env]] = []
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        self.exit_env: Env | None = None  # what holds where the function returns

    # -- results ------------------------------------------------------------------------------

    def record(self, node: ast.AST, value: Value) -> Value:
        """Note what an expression evaluates to; a second visit joins."""
        known = self.flow.values.setdefault(node, value)
        if known is not value:
            self.flow.values[node] = join(known, value)
        return value

    def event(self, what: str, node: ast.AST, target: Value = UNKNOWN, **rest: object) -> None:
        """Note that something happens here."""
        self.flow.events.append(Event(
            what, node, target, loops=self.loops, guards=self.guards, grad=self.grad, inner=node,
            depth=self.depth, **rest))  # type: ignore[arg-type]

    # -- names and paths ----------------------------------------------------------------------

    def get(self, path: str) -> Value | None:
        """What a name or dotted path holds here, if it was bound on the way."""
        return self.env.get(path) if self.env is not None else None

    def set(self, path: str, value: Value) -> None:
        """Bind a name or path; what was known of its parts is forgotten."""
        if self.env is None:
            return
        self.forget_parts(path)
        self.env[path] = value

    def forget_parts(self, path: str) -> None:
        """Forget what was known of the attributes and items of a name."""
        if self.env is None:
            return
        attribute, member = path + ".", path + "["
        stale = [key for key in self.env if key.startswith((attribute, member))]
        for key in stale:
            del self.env[key]

    # -- statements ---------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Follow statements in order, as far as they can be reached."""
        for statement in statements:
            if self.env is None or self.budget.steps <= 0:
                return
            self.budget.steps -= 1
            self.flow.grad_modes[statement] = self.grad
            handler = HANDLERS.get(type(statement))
            if handler is not None:
                handler(self, statement)

    def branch(self, env: Env | None, statements: Sequence[ast.stmt], guard: tuple[ast.AST, bool] | None) -> Env | None:
        """Follow statements from `env`; returns what holds after them."""
        before, self.env = self.guards, env
        if guard is not None:
            self.guards = (*before, guard)
        self.block(statements)
        self.guards = before
        return self.env


def merge(left: Env | None, right: Env | None) -> Env | None:
    """What holds where two ways meet. A path bound on one way only stays, as what may be."""
    if left is None or right is None:
        return left if right is None else right
    if left is right:
        return left
    found: Env = {}
    for name, value in left.items():
        other = right.get(name)
        if other is None:
            if "." not in name and "[" not in name:
                found[name] = value
        else:
            found[name] = value if value is other else join(value, other)
    for name, value in right.items():
        if name not in left and "." not in name and "[" not in name:
            found[name] = value
    return found


def run_if(run: Run, node: ast.If) -> None:
    """Both arms, each under what the test says of names."""
    evaluate.expr(run, node.test)
    assert run.env is not None
    base = run.env
    grad = run.grad
    yes, no = assume(run, node.test, base)
    after_yes = run.branch(yes, node.body, (node, True)) if yes is not None else None
    grad_yes, run.grad = run.grad, grad
    after_no = run.branch(no, node.orelse, (node, False)) if no is not None else None
    if after_no is None:
        run.grad = grad_yes
    elif after_yes is not None and grad_yes is not run.grad:
        run.grad = None
    run.env = merge(after_yes, after_no)


def run_loop(run: Run, node: ast.For | ast.AsyncFor | ast.While) -> None:
    """The body twice: the second pass starts from what the first one left, if it reads any of that."""
    iterated = UNKNOWN
    if isinstance(node, ast.While):
        evaluate.expr(run, node.test)
    else:
        iterated = evaluate.expr(run, node.iter)
    assert run.env is not None
    state = LoopState(head=dict(run.env), iterated=iterated)
    run.flow.loops[node] = state
    first_event = len(run.flow.events)
    made = frozenset(run.flow.made)
    outer = run.loops
    grad = run.grad
    passes = 2 if len(outer) < MAX_LOOP_DEPTH else 1
    exits: list[Env] = []
    start: Env = run.env
    end: Env | None = None
    changed: Env = {}
    for number in range(passes):
        if number:
            del run.flow.events[first_event:]
            start = carry(start, changed, node, run.flow.made - made)
        run.loops = (*outer, node)
        run.env = dict(start)
        run.breaks.append([])
        run.continues.append([])
        bind_loop_target(run, node, iterated)
        run.block(node.body)
        for early in run.continues.pop():
            run.env = merge(run.env, early)
        exits = run.breaks.pop()
        run.loops = outer
        end = run.env
        if end is None or number + 1 == passes:
            break
        changed = differing(start, end)
        if run.grad is grad and run.model.is_anew(changed, node, run.owner.node):
            break
    state.end = end or {}
    finish_loop(run, node, merge(state.head, end) if end is not None else state.head, exits)


def bind_loop_target(run: Run, node: ast.For | ast.AsyncFor | ast.While, iterated: Value) -> None:
    """Bind the loop variable to what the iterable gives."""
    if isinstance(node, ast.While):
        return
    evaluate.assign(run, node.target, evaluate.item_of(run, iterated, node.iter))


def finish_loop(run: Run, node: ast.For | ast.AsyncFor | ast.While, after: Env | None, exits: list[Env]) -> None:
    """What holds after a loop: the normal end through `else`, or any break."""
    endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)
    run.env = None if endless else after
    if run.env is not None:
        run.block(node.orelse)
    for early in exits:
        run.env = merge(run.env, early)
    if run.env is None and endless and not exits:
        run.env = None


def differing(start: Env, end: Env) -> Env:
    """What a pass over a loop's body has changed."""
    return {
        name: value
        for name, value in end.items()
        if (before := start.get(name)) is not value and (before is None or before != value)
    }


def carry(start: Env, changed: Env, loop: ast.AST, made: Set[Hashable]) -> Env:
    """The second pass' start: what the first pass changed is marked as made by an earlier iteration."""
    found = dict(start)
    for name, value in changed.items():
        before = start.get(name)
        marked = mark_carried(value, loop, made)
        if before is None:
            found[name] = marked
        else:
            joined = join(before, marked)
            # An attached value left by the body matters although the first iteration had none.
            if marked.attached and joined.is_tensor:
                joined = joined.but(grad=marked.grad, carried=joined.carried | marked.carried)
                joined = joined.but(graph=joined.graph | marked.graph)
            found[name] = joined
    return found


def mark_carried(value: Value, loop: ast.AST, made: Set[Hashable], depth: int = 0) -> Value:
    """Mark a value and its parts, with the operations `made` in the loop, as coming from an earlier iteration."""
    if value.is_tensor:
        graph = frozenset(("earlier", node) if node in made else node for node in value.graph)
        return value.but(carried=value.carried | {loop}, ident=(value.ident, loop), graph=graph)
    if depth < 2 and (value.elements or value.item is not None or value.fields):
        return value.but(
            elements=None if value.elements is None else tuple(
                mark_carried(v, loop, made, depth + 1) for v in value.elements),
            item=None if value.item is None else mark_carried(value.item, loop, made, depth + 1),
            fields=tuple((key, mark_carried(v, loop, made, depth + 1)) for key, v in value.fields))
    return value


def run_with(run: Run, node: ast.With | ast.AsyncWith) -> None:
    """Grad mode and autocast regions end with the block."""
    grad = run.grad
    for item in node.items:
        value = evaluate.expr(run, item.context_expr)
        given = enter_context(run, item.context_expr, value)
        if item.optional_vars is not None:
            evaluate.assign(run, item.optional_vars, given)
    run.block(node.body)
    exit_context(run, node, grad)


def run_try(run: Run, node: ast.Try) -> None:
    """Handlers start from any point of the body: what both its ends agree on."""
    assert run.env is not None
    before = dict(run.env)
    grad, returned = run.grad, len(run.returned)
    run.block(node.body)
    if run.env is not None:
        run.block(node.orelse)
    after: Env | None = run.env
    grad_after = run.grad
    for handler in node.handlers:
        run.grad = grad
        start: Env = (merge(dict(before), after) if after is not None else None) or dict(before)
        if handler.name:
            start[handler.name] = Value(Kind.INSTANCE, name="builtins.Exception")
        after = merge(after, run.branch(start, handler.body, (handler, True)))
    run.grad = grad_after
    run.env = after
    if node.finalbody:
        ended = run.env is None
        if ended:
            run.env = before
        given = len(run.returned)
        run.block(node.finalbody)
        if run.env is None:
            del run.returned[returned:given]  # a `return` here takes their place
        if ended:
            run.env = None


def run_match(run: Run, node: ast.Match) -> None:
    """Every case, from the same start."""
    subject = evaluate.expr(run, node.subject)
    assert run.env is not None
    base, grad = run.env, run.grad
    after: Env | None = dict(base)
    for case in node.cases:
        start = dict(base)
        start.update(matched(run, case.pattern, subject))
        run.grad = grad
        if case.guard is not None:
            run.env = start
            evaluate.expr(run, case.guard)
        after = merge(after, run.branch(start, case.body, (case, True)))
    run.env = after


def run_return(run: Run, node: ast.Return) -> None:
    """Note what is returned; nothing after it is reached."""
    value = evaluate.expr(run, node.value) if node.value is not None else NONE
    run.returned.append(value)
    run.flow.return_values.append((node, value))
    run.exit_env = merge(run.exit_env, run.env)
    run.env = None


def run_jump(run: Run, node: ast.Break | ast.Continue) -> None:
    """Remember what holds where the loop is left or goes on."""
    stack = run.breaks if isinstance(node, ast.Break) else run.continues
    if stack and run.env is not None:
        stack[-1].append(run.env)
    run.env = None


def run_raise(run: Run, node: ast.Raise | ast.Assert) -> None:
    """`raise` ends the way; `assert` tells what holds after it."""
    if isinstance(node, ast.Raise):
        if node.exc is not None:
            evaluate.expr(run, node.exc)
        run.env = None
        return
    evaluate.expr(run, node.test)
    assert run.env is not None
    run.env = assume(run, node.test, run.env)[0]


def run_assign(run: Run, node: ast.Assign) -> None:
    """`a = b = value`."""
    value = evaluate.expr(run, node.value)
    for target in node.targets:
        evaluate.assign(run, target, value, node.value)


def run_annotated(run: Run, node: ast.AnnAssign) -> None:
    """`name: annotation = value`; the annotation speaks where the value says nothing."""
    value = evaluate.expr(run, node.value) if node.value is not None else UNKNOWN
    if not value.known or (value.kind is Kind.NONE):
        said = run.model.annotation_value(node.annotation, node)
        value = said if said.known else value
    if node.value is not None:
        evaluate.assign(run, node.target, value, node.value)


def run_augmented(run: Run, node: ast.AugAssign) -> None:
    """`target op= value`."""
    evaluate.augmented(run, node)


def run_expression(run: Run, node: ast.Expr) -> None:
    """An expression for its effect."""
    evaluate.expr(run, node.value)


def run_delete(run: Run, node: ast.Delete) -> None:
    """`del name`."""
    for target in node.targets:
        path = evaluate.path_of(target)
        if path and run.env is not None:
            run.forget_parts(path)
            run.env.pop(path, None)


def run_definition(run: Run, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    """Decorators and defaults are evaluated here; the body is not run. A class body's own code is."""
    for decorator in node.decorator_list:
        evaluate.expr(run, decorator)
    if isinstance(node, ast.ClassDef):
        for base in node.bases:
            evaluate.expr(run, base)
        outer = run.env
        run.env = dict(outer or {})
        run.block(node.body)
        run.env = outer
        value = Value(Kind.CLASS, name=run.model.class_info(node).dotted, cls=run.model.class_info(node), ident=node)
    else:
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            evaluate.expr(run, default)
        info = run.model.function_info(node)
        value = Value(Kind.FUNCTION, name=info.dotted, func=info, ident=node)
    run.set(node.name, value)


HANDLERS: dict[type[ast.AST], Callable[[Run, Any], None]] = {
    ast.If: run_if, ast.For: run_loop, ast.AsyncFor: run_loop, ast.While: run_loop, ast.With: run_with,
    ast.AsyncWith: run_with, ast.Try: run_try, ast.Match: run_match, ast.Return: run_return, ast.Break: run_jump,
    ast.Continue: run_jump, ast.Raise: run_raise, ast.Assert: run_raise, ast.Assign: run_assign,
    ast.AnnAssign: run_annotated, ast.AugAssign: run_augmented, ast.Expr: run_expression, ast.Delete: run_delete,
    ast.FunctionDef: run_definition, ast.AsyncFunctionDef: run_definition, ast.ClassDef: run_definition,
}
if hasattr(ast, "TryStar"):
    HANDLERS[ast.TryStar] = run_try


def analyse(model: FileModel, node: ast.AST) -> Flow:
    """Follow a function (or lambda, or the module's own code) with nothing known but its own file."""
    if isinstance(node, ast.Module):
        run = Run(model, env={}, grad=True, active=(node,))
        model.begins(node, run.flow)
        run.block(node.body)
        return finish(run)
    info = model.function_info(node)
    grad = info.declared_grad
    if grad is None:
        grad = not info.called_without_grad
    env = {arg.arg: info.entry_value(arg) for arg in (*info.params, *info.args.kwonlyargs)}
    for rest in (info.args.vararg, info.args.kwarg):
        if rest is not None:
            env[rest.arg] = Value(Kind.TUPLE if rest is info.args.vararg else Kind.DICT, ident=rest)
    run = Run(model, env=env, grad=grad, active=(node,))
    model.begins(node, run.flow)
    flow = follow(run, info)
    model.session.work += MAX_STEPS - run.budget.steps
    return flow


def follow(run: Run, info: FunctionInfo) -> Flow:
    """Follow a function's body from the run's environment."""
    body = info.node.body  # type: ignore[attr-defined]
    if isinstance(body, list):
        run.block(body)
    else:
        run.returned.append(evaluate.expr(run, body))
        run.env = None
    return finish(run)


def finish(run: Run) -> Flow:
    """Close the flow: what is returned, and what holds at the end."""
    flow = run.flow
    if run.env is not None and run.returned:
        run.returned.append(NONE)
    flow.end = merge(run.exit_env, run.env) or {}
    flow.returns = join_all(run.returned) if run.returned else NONE if run.env is not None else UNKNOWN
    flow.yields = join_all(run.yielded)
    flow.grad_after = run.grad
    return flow
