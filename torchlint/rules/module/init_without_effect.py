"""An initialisation that never reaches the parameter.

`for p in model.parameters(): p = torch.zeros_like(p)` binds the loop variable to a new tensor; the module still holds
the old Parameter. `clone()`, arithmetic and indexing with a list or mask make a copy as well, so an in-place call on
their result, such as `nn.init.zeros_(layer.weight.clone())`, changes memory that is thrown away.

Write in place into the Parameter itself: `nn.init.zeros_(p)`, or `p.copy_(value)` under `torch.no_grad()`; assign
`layer.weight[mask] = value` by item. A new tensor that is used afterwards is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NoEffect
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel, Kind, Value
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL425", "init-without-effect", Severity.ERROR, fix=Safety.UNSAFE,
            triggers=("parameters(", "weight", "bias", "modules(", "Parameter", "children("))
CLAIM = NoEffect()
INIT = "torch.nn.init."
# Methods whose result is never a view of the receiver.
COPYING = {"clone", "repeat", "double", "half", "bfloat16", "mul", "add", "sub", "div", "abs", "clamp", "pow", "exp",
           "masked_select", "index_select", "tile", "repeat_interleave", "new_tensor", "new_zeros"}
COPIES = {"torch.clone", "torch.tensor", "copy.deepcopy", "copy.copy", "torch.mul", "torch.add", "torch.index_select"}
STEPS = 6  # calls looked through on the way to the parameter

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        for p in model.parameters():
            p = torch.zeros_like(p)  #!
        print(model(torch.ones(1, 4)))
        """,
        good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        for p in model.parameters():
            p.detach().copy_(torch.zeros_like(p))
        print(model(torch.ones(1, 4)))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.table = nn.Embedding(8, size)
                self.reset()

            def reset(self):
                nn.init.orthogonal_(self.hidden.weight.clone())  #!
                self.table.weight.data[[0, 3]].fill_(0.0)  #!

            def forward(self, x):
                return self.hidden(self.table(x))


        print(Net()(torch.tensor([0, 1])))
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.hidden = nn.Linear(size, size)
                self.table = nn.Embedding(8, size)
                self.reset()

            def reset(self):
                nn.init.orthogonal_(self.hidden.weight)
                self.table.weight.detach()[[0, 3]] = 0.0

            def forward(self, x):
                return self.hidden(self.table(x))


        print(Net()(torch.tensor([0, 1])))
        """,
    ),
    Example(
        bad="""
        import torch
        import torch.nn as nn


        def init_weights(m):
            if isinstance(m, nn.Linear):
                w = m.weight
                w = nn.init.xavier_uniform_(torch.empty_like(w))  #!


        def step(model, lr=0.1):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if p.grad is not None:
                        p = p - lr * p.grad  #!


        model = nn.Linear(4, 1)
        model.apply(init_weights)
        model(torch.ones(2, 4)).sum().backward()
        step(model)
        """,
        good="""
        import torch
        import torch.nn as nn


        def init_weights(m):
            if isinstance(m, nn.Linear):
                w = m.weight
                w.detach().copy_(nn.init.xavier_uniform_(torch.empty_like(w)))


        def step(model, lr=0.1):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if p.grad is not None:
                        p.detach().copy_(p - lr * p.grad)


        model = nn.Linear(4, 1)
        model.apply(init_weights)
        model(torch.ones(2, 4)).sum().backward()
        step(model)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.key = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            bias = self.key.bias
            if bias is None:
                bias = torch.zeros(2)
            return self.key(x)


    Net()(torch.ones(1, 2))
    """,
    """
    import copy

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    norms, fresh = [], []
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p = nn.init.xavier_uniform_(p)
        else:
            p = p.detach().zero_()
    for p in model.parameters():
        p = p.detach() * 2
        norms.append(p.norm())
    for p in model.parameters():
        p = nn.Parameter(torch.zeros_like(p))
        fresh.append(p)
    with torch.no_grad():
        for p in model.parameters():
            p *= 0.5
            p[:1].zero_()
            p.view(-1)[0].fill_(1.0)
            p.data.flatten()[:1].fill_(0)
    for layer in model.children():
        layer = layer.to(torch.float32)
    for layer in model:
        layer = nn.utils.spectral_norm(layer)
    wrapped = {}
    for name, layer in model.named_children():
        if name == "0":
            layer = nn.Sequential(layer, nn.ReLU())
        else:
            layer = nn.Sequential(layer)
        wrapped[name] = layer

    weight = model[0].weight
    total = weight.sum()
    weight = torch.zeros_like(weight)
    print(weight, total)
    start = nn.init.normal_(model[0].weight.clone())
    other = copy.deepcopy(model[0].weight)
    nn.init.zeros_(other)
    nn.init.zeros_(model[0].weight.data)
    nn.init.zeros_(model[0].weight[:1])
    print(start, other)
    """,
    """
    import torch
    from torch import nn


    def reset(net: nn.Module, make, keys):
        for p in net.parameters():
            p = make(p)
        for i, p in enumerate(net.parameters()):
            if i > 2:
                p = p.sum()
            print(p)
        state = {}
        for key, p in net.named_parameters():
            p = p.detach().clone()
            state[key] = p
        weight = net.weight
        if keys:
            weight = torch.zeros_like(weight)

            def use():
                return weight

            return use
        return state
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Names of parameters and layers that are bound anew for nothing, and in-place calls on copies of parameters."""
    for assign in model.nodes(ast.Assign):
        match assign.targets:
            case [ast.Name(id=name)]:
                held = held_before(model, assign, name)
                if held is not None and fresh(model, assign.value) and unread(model, assign, name) and not in_its_place(
                        model, assign, name):
                    what = "module" if held.kind is Kind.MODULE else "parameter"
                    yield Hit(assign, f"this binds `{name}` to a new object; the {what} stays as it is; work in place",
                              copied_into(model, assign, name) if what == "parameter" else None, confidence=held.sure)
    for stmt in model.nodes(ast.Expr):
        target = changed_in_place(model, stmt.value)
        if target is not None and (of := copied_parameter(model, target)) is not None:
            yield Hit(stmt, "this changes a copy that is thrown away, not the parameter; work on the parameter itself",
                      without_clone(model, target) or by_item(model, stmt), confidence=of.sure)


def held_before(model: FileModel, assign: ast.Assign, name: str) -> Value | None:
    """The parameter or layer that a local name stands for until the statement binds it anew."""
    owner = model.owner(assign)
    for node in model.scope_of(owner).bindings.get(name, ()):
        match node:
            case ast.For(target=target) if node in model.place(assign).loops:
                value = next((model.value(n) for n in ast.walk(target) if isinstance(n, ast.Name) and n.id == name),
                             None)
                if value is not None and (is_parameter(value) or value.kind is Kind.MODULE):
                    return value
            case ast.Assign(value=ast.Attribute() as source) if model.position(node) < model.position(assign):
                value = model.value(source)
                if is_parameter(value) and model.place(node).loops == model.place(assign).loops:
                    return value
    return None


def in_its_place(model: FileModel, assign: ast.Assign, name: str) -> bool:
    """Whether a name is bound anew because there is no parameter: `if bias is None: bias = torch.zeros(3)`."""
    for test, _ in model.place(assign).guards:
        match test:
            case ast.If(test=ast.Compare(left=ast.Name(id=left), ops=[ast.Is()], comparators=[ast.Constant(
                    value=None)])) if left == name:
                return True
    return False


def is_parameter(value: Value) -> bool:
    """Whether a value is a Parameter of a module."""
    return value.is_tensor and value.role == "parameter"


def fresh(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression makes a new tensor or layer, and does nothing else."""
    value = model.value(expr)
    if value.kind is Kind.MODULE:
        return isinstance(expr, ast.Call) and model.value(expr.func).kind is Kind.CLASS
    if not value.is_tensor or (is_parameter(value) and value.site is not expr):
        return False
    if not isinstance(expr, (ast.Call, ast.BinOp, ast.UnaryOp)):
        return False
    return all(harmless(model, node) for node in ast.walk(expr) if isinstance(node, ast.Call)) and (
        not isinstance(expr, ast.Call) or makes_new(model, expr))


def makes_new(model: FileModel, call: ast.Call) -> bool:
    """Whether a call's result shares no memory with the parameters that go in."""
    name = model.name_of(call.func)
    if name.startswith(INIT):
        return bool(call.args) and fresh(model, call.args[0])
    if name == "torch.nn.Parameter":
        return bool(call.args) and fresh(model, call.args[0])
    value = model.value(call)
    sources = [model.value(node) for node in ast.walk(call) if isinstance(node, (ast.Name, ast.Attribute))]
    shared = {source.storage for source in sources if source.is_tensor}
    return value.storage is not None and value.storage not in shared


def harmless(model: FileModel, call: ast.Call) -> bool:
    """Whether a call changes none of its arguments: a function of torch or method of a tensor, not in place."""
    name = model.name_of(call.func)
    if name.startswith(INIT):
        return bool(call.args) and fresh(model, call.args[0])
    if name.startswith(("torch.", "math.", "builtins.")):
        return not name.endswith("_") and not any(keyword.arg in ("out", "inplace") for keyword in call.keywords)
    match call.func:
        case ast.Attribute(value=receiver, attr=attr):
            known = model.value(receiver).is_tensor and knowledge.method(attr) is not None
            return known and (not attr.endswith("_") or attr == "requires_grad_")
    return False


def unread(model: FileModel, assign: ast.Assign, name: str) -> bool:
    """Whether nothing reads the name after the statement: not in the loop's body, nor behind it, nor in closures."""
    owner = model.owner(assign)
    if owner is model.tree and not model.place(assign).loops:
        return False  # other files may import it
    inside = {id(node) for node in ast.walk(assign)}
    here = model.position(assign)
    for use in model.uses(name, owner):
        if id(use) in inside or model.place(use).excludes(model.place(assign)):
            continue
        if model.position(use) > here and not bound_between(model, use, assign, name):
            return False
        if model.owner(use) is not owner:
            return False
    scope = model.scope_of(owner)
    return name not in scope.nonlocals


def bound_between(model: FileModel, use: ast.Name, assign: ast.Assign, name: str) -> bool:
    """Whether a later loop or unguarded statement around or before the use binds the name again."""
    for node in model.scope_of(model.owner(assign)).bindings.get(name, ()):
        if node is assign or model.position(node) <= model.position(assign):
            continue
        match node:
            case ast.For() if any(up is node for up in model.ancestors(use)) and node.iter is not use:
                return True
            case ast.Assign() if model.position(node) < model.position(use):
                if model.place(node) is model.place(assign) and not any(n is use for n in ast.walk(node)):
                    return True
    return False


def changed_in_place(model: FileModel, expr: ast.expr) -> ast.expr | None:
    """What a statement changes in place: the argument of an `nn.init` function or the receiver of `x.zero_()`."""
    match expr:
        case ast.Call(func=func, args=[first, *_]) if model.name_of(func).startswith(INIT):
            return first
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)):
            if attr.endswith("_") and not attr.endswith("__") and knowledge.method(attr) is not None:
                return receiver if attr not in ("requires_grad_", "detach_", "retain_grad_") else None
    return None


def copied_parameter(model: FileModel, expr: ast.expr) -> Value | None:
    """The parameter that a throw-away expression copies; None if the expression shares its memory, or is kept."""
    copied = False
    for _ in range(STEPS):
        value = model.value(expr)
        match expr:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if model.value(inner).is_tensor:
                copied = copied or attr in COPYING
                expr = inner
            case ast.Call(func=func, args=[inner, *_]) if model.name_of(func) in COPIES:
                copied, expr = True, inner
            case ast.BinOp(left=left, right=right):
                copied = True
                expr = left if model.value(left).is_tensor else right
            case ast.Subscript(value=inner, slice=index):
                copied = copied or gathers(model, index)
                expr = inner
            case ast.Attribute(value=inner, attr="data" | "T" | "mT") if model.value(inner).is_tensor:
                expr = inner
            case ast.Name(id=name) if not copied and (made := only_use(model, expr, name)) is not None:
                expr = made
            case ast.Name() | ast.Attribute():
                return value if copied and is_parameter(value) else None
            case _:
                return None
    return None


def only_use(model: FileModel, use: ast.Name, name: str) -> ast.expr | None:
    """What a local name was bound to, where this is its only use."""
    owner = model.owner(use)
    bound = model.scope_of(owner).bindings.get(name, [])
    if owner is model.tree or len(bound) != 1 or len(model.uses(name, owner)) != 1:
        return None
    return bound[0].value if isinstance(bound[0], ast.Assign) else None


def gathers(model: FileModel, index: ast.expr) -> bool:
    """Whether indexing with this copies: a list, or a tensor of indices or a mask, anywhere in the index."""
    if isinstance(index, ast.Tuple):
        return any(gathers(model, part) for part in index.elts)
    if isinstance(index, ast.List):
        return True
    value = model.value(index)
    return value.kind is Kind.LIST or (value.is_tensor and isinstance(index, (ast.Compare, ast.Name, ast.Attribute))
                                       and value.role != "input")


def copied_into(model: FileModel, assign: ast.Assign, name: str) -> Repair | None:
    """`p = new` -> `p.detach().copy_(new)`, which writes into the memory that the module holds."""
    text = f"{name}.detach().copy_({edits.source_of(model, assign.value)})"
    return edits.repair("Write into the parameter", edits.replace(model, assign, text))


def without_clone(model: FileModel, target: ast.expr) -> Repair | None:
    """`nn.init.zeros_(w.clone())` -> `nn.init.zeros_(w)`, and `w.clone().zero_()` -> `w.detach().zero_()`."""
    match target:
        case ast.Call(func=ast.Attribute(value=inner, attr="clone"), args=[]):
            if any(isinstance(node, ast.Attribute) and node.attr == "data" for node in ast.walk(inner)):
                return None
            last = inner.func.attr if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) else ""
            if last == "detach" or isinstance(model.parent(target), ast.Call):
                return edits.repair("Work on the parameter", edits.drop_method_call(model, target))
            text = f"{edits.operand(model, inner)}.detach()"
            return edits.repair("Work on the parameter", edits.replace(model, target, text))
    return None


def by_item(model: FileModel, stmt: ast.Expr) -> Repair | None:
    """`w[rows].zero_()` -> `w.detach()[rows] = 0`: item assignment writes into the memory of `w`."""
    match stmt.value:
        case ast.Call(func=ast.Attribute(value=ast.Subscript(value=base, slice=index), attr="zero_"), args=[]):
            value = "0"
        case ast.Call(func=ast.Attribute(value=ast.Subscript(value=base, slice=index), attr="fill_"), args=[one]):
            value = edits.source_of(model, one)
        case _:
            return None
    if isinstance(base, ast.Attribute) and base.attr == "data":
        base = base.value
    if not isinstance(base, (ast.Name, ast.Attribute)) or isinstance(index, ast.Tuple):
        return None
    text = f"{edits.source_of(model, base)}.detach()[{edits.source_of(model, index)}] = {value}"
    return edits.repair("Assign the items", edits.replace(model, stmt, text))
