"""A Python loop that does arithmetic on one element of a tensor after the other.

Every access by index makes a tensor, and every operation on it goes through the whole dispatcher (and on a device
launches a kernel) for a single number. A loop over a thousand elements costs a thousand times that, where one
operation on the whole tensor costs it once. With gradients on, the graph gets nodes for every element as well.

Write it as an operation on whole tensors. Loops in which a step needs the result of the one before, over layers or
over things of different sizes are not meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import Slower
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta("TL604", "elementwise-python-loop", Severity.WARNING, triggers=("for ",))
CLAIM = Slower()
FEW = 8  # passes that cost nothing worth mentioning
SIMPLE = {"abs", "exp", "log", "sqrt", "pow", "item", "float", "sum", "mean", "clamp", "sigmoid", "tanh", "relu", "min",
          "max", "square", "dot", "norm", "long", "int", "double", "squeeze", "neg", "sign", "detach"}
BUILTINS = {"builtins.float", "builtins.int", "builtins.abs", "builtins.min", "builtins.max", "builtins.pow"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        SIZE = 3000


        def smoothed(x, target):
            loss = torch.zeros_like(x)
            for i in range(x.shape[0]):  #!
                loss[i] = (x[i] - target[i]) ** 2 + 0.1 * x[i]
            return loss


        smoothed(torch.ones(SIZE), torch.zeros(SIZE))
        """,
        good="""
        import torch

        SIZE = 3000


        def smoothed(x, target):
            return (x - target) ** 2 + 0.1 * x


        smoothed(torch.ones(SIZE), torch.zeros(SIZE))
        """,
    ),
    Example(
        bad="""
        import torch

        scores = torch.rand(50, 60)
        weights = torch.rand(60)
        total = 0.0
        for i in range(scores.size(0)):  #!
            for j in range(scores.size(1)):
                total += scores[i, j] * weights[j]
        print(total)
        """,
        good="""
        import torch

        scores = torch.rand(50, 60)
        weights = torch.rand(60)
        total = (scores * weights).sum()
        print(total)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Loss(nn.Module):
        def fooled(self, scores):
            loss = 0
            for score in scores:
                score = score.float()
                loss += torch.mean((1 - score) ** 2)
            return loss

        def forward(self, scores):
            return self.fooled(scores)


    print(Loss()([torch.ones(2), torch.ones(3)]))
    tokens = torch.arange(20)
    rows = [[] for _ in range(tokens.size(0))]
    for i in range(tokens.size(0)):
        rows[i].append(tokens[i])
    """,
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])

        def forward(self, x):
            for i in range(len(self.layers)):
                x = self.layers[i](x)
            return x


    def running(x, boxes):
        total = torch.zeros_like(x)
        for i in range(1, x.shape[0]):
            total[i] = total[i - 1] * 0.9 + x[i]
        state = torch.zeros(2)
        states = []
        for t in range(x.size(0)):
            state = torch.tanh(state + x[t])
            states.append(state)
        for c in range(3):
            x[c] = x[c] * 2
        for i in range(len(boxes)):
            boxes[i] = boxes[i] + 1
        return total, states, boxes


    running(torch.ones(4, 2), [1, 2])
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Loops over the elements of a tensor in which nothing but arithmetic on elements happens."""
    inside: set[ast.AST] = set()
    for loop in model.nodes(ast.For):
        if loop in inside:
            continue
        variables = counted(loop) or members(model, loop)
        if variables and over_tensor(model, loop) and all_elementwise(model, loop.body, variables):
            inside |= set(ast.walk(loop))
            yield Hit(
                loop, "each pass works on one element or row of a tensor; write it for whole tensors",
                confidence=Confidence.LIKELY)


def counted(loop: ast.For) -> frozenset[str]:
    """The loop variable of a loop over `range` with a plain start."""
    match loop:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[*_]), orelse=[]):
            return frozenset({name})
    return frozenset()


def members(model: FileModel, loop: ast.For) -> frozenset[str]:
    """The loop variable of a loop over what surely is a tensor: an argument of a forward may as well be a list."""
    if not isinstance(loop.target, ast.Name) or not isinstance(loop.iter, ast.Name):
        return frozenset()
    value = model.value(loop.iter)
    if value.is_tensor and (value.sure is Confidence.SURE or isinstance(value.site, ast.expr)):
        return frozenset({loop.target.id})
    return frozenset()


def over_tensor(model: FileModel, loop: ast.For) -> bool:
    """Whether the number of passes is a size of a tensor: of this loop, or of a loop that is all its body."""
    if members(model, loop):
        return True
    if isinstance(loop.iter, ast.Call) and loop.iter.args:
        last = loop.iter.args[min(1, len(loop.iter.args) - 1)]
        if is_size(model, last) or (isinstance(model.value(last).const, int) and model.value(last).const > FEW):
            return True
    return any(isinstance(inner, ast.For) and over_tensor(model, inner) for inner in loop.body[:1])


def is_size(model: FileModel, expr: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is the size of a tensor's dimension, directly or through a name."""
    match expr:
        case ast.Subscript(value=ast.Attribute(value=base, attr="shape")):
            return model.value(base).is_tensor
        case ast.Call(func=ast.Attribute(value=base, attr="size" | "numel")):
            return model.value(base).is_tensor
        case ast.Call(func=ast.Name(id="len"), args=[base]):
            return model.value(base).is_tensor
        case ast.Name(id=name) if depth < 2:
            for scope in model.scopes(expr):
                if name in scope.bindings:
                    return all(from_shape(model, node, name, depth) for node in scope.bindings[name])
    return False


def from_shape(model: FileModel, node: ast.AST, name: str, depth: int) -> bool:
    """Whether a statement gives a name the size of a tensor: `n = x.size(0)`, `b, n = x.shape`."""
    match node:
        case ast.Assign(targets=[ast.Name()], value=value):
            return is_size(model, value, depth + 1)
        case ast.Assign(targets=[ast.Tuple()], value=ast.Attribute(value=base, attr="shape")):
            return model.value(base).is_tensor
        case ast.Assign(targets=[ast.Tuple()], value=ast.Call(func=ast.Attribute(value=base, attr="size"), args=[])):
            return model.value(base).is_tensor
    return False


def all_elementwise(model: FileModel, body: list[ast.stmt], variables: frozenset[str]) -> bool:
    """Whether every statement is element-wise; names that the body gives such values to count as elements."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(
                    left=ast.Name(id=left), op=ast.Add(), right=value)) if left == name:
                if not arithmetic(model, value, variables) or not uses_elements(model, value, variables):
                    return False
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if not arithmetic(model, value, variables) or not uses_elements(model, value, variables):
                    return False
                variables |= {name}
            case _:
                if not elementwise(model, statement, variables):
                    return False
    return True


def elementwise(model: FileModel, statement: ast.stmt, variables: frozenset[str]) -> bool:
    """Whether a statement only computes with elements at the loop's indices, and depends on no other pass."""
    match statement:
        case ast.For(body=body) if counted(statement):
            return all_elementwise(model, body, variables | counted(statement))
        case ast.If(test=ast.Compare(left=left, comparators=[right]), body=body, orelse=orelse):
            return arithmetic(model, left, variables) and arithmetic(model, right, variables) and all_elementwise(
                model, [*body, *orelse], variables)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=holder, attr="append"), args=[value])):
            own = any(isinstance(n, ast.Name) and n.id in variables for n in ast.walk(holder))  # a list for each pass
            return not own and model.value(holder).kind is Kind.LIST and arithmetic(
                model, value, variables) and uses_elements(model, value, variables)
        case ast.Assign(targets=[ast.Subscript() as target], value=value):
            return element(model, target, variables) and not reads(value, target) and arithmetic(
                model, value, variables)
        case ast.AugAssign(target=ast.Subscript() as target, value=value):
            return element(model, target, variables) and not reads(value, target) and arithmetic(
                model, value, variables)
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add() | ast.Sub(), value=value):
            own = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))
            return not own and arithmetic(model, value, variables) and uses_elements(model, value, variables)
    return False


def element(model: FileModel, node: ast.Subscript, variables: frozenset[str]) -> bool:
    """Whether a subscript picks the element of a tensor at the loop's own indices."""
    if not model.value(node.value).is_tensor:
        return False
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    used = False
    for index in indices:
        match index:
            case ast.Name(id=name) if name in variables and not model.value(index).is_tensor:
                used = True
            case ast.Constant() | ast.Slice(lower=None, upper=None):
                pass
            case ast.Name():
                if model.value(index).is_tensor:
                    return False
            case _:
                return False
    return used


def reads(value: ast.expr, target: ast.Subscript) -> bool:
    """Whether an expression reads what is written, at other places than the one that is written."""
    whole = ast.unparse(target.value)
    same = ast.unparse(target)
    inner = [n for n in ast.walk(value) if isinstance(n, ast.Subscript) and ast.unparse(n.value) == whole]
    if any(ast.unparse(n) != same for n in inner):
        return True
    names = sum(ast.unparse(n) == whole for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute)))
    return names > len(inner)


def arithmetic(model: FileModel, expr: ast.expr, variables: frozenset[str]) -> bool:
    """Whether an expression is made of elements, numbers and element-wise operations only."""
    match expr:
        case ast.Constant(value=int() | float()):
            return True
        case ast.BinOp(left=left, right=right):
            return arithmetic(model, left, variables) and arithmetic(model, right, variables)
        case ast.UnaryOp(operand=operand):
            return arithmetic(model, operand, variables)
        case ast.Subscript():
            return element(model, expr, variables)
        case ast.Name(id=name):
            return name in variables or model.value(expr).kind is Kind.NUMBER
        case ast.Attribute():
            return model.value(expr).kind is Kind.NUMBER
        case ast.Call(func=ast.Attribute(value=base, attr=attr), args=args) if not model.name_of(expr.func):
            return attr in SIMPLE and all(arithmetic(model, part, variables) for part in (base, *args))
        case ast.Call(func=func, args=args, keywords=[]):
            name = model.name_of(func)
            known = name in BUILTINS or name.startswith("math.") or (
                knowledge.function(name) is not None and name.rpartition(".")[2] in SIMPLE)
            return known and all(arithmetic(model, arg, variables) for arg in args)
    return False


def uses_elements(model: FileModel, expr: ast.expr, variables: frozenset[str]) -> bool:
    """Whether an expression reads an element of a tensor."""
    return any(
        (isinstance(n, ast.Subscript) and element(model, n, variables))
        or (isinstance(n, ast.Name) and n.id in variables and model.value(n).is_tensor) for n in ast.walk(expr))
