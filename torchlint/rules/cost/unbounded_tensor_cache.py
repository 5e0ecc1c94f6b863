"""A cache of tensors that nothing ever empties.

A dictionary at module level or on an object lives as long as the process. If its key is new in most calls (an id, a
shape, a position, a step), each call leaves a tensor behind, on whatever device it was made, and memory is freed
only at the end.

Give the cache a limit (`lru_cache(maxsize=8)`, dropping the oldest entry), keep only the last one, or clear it once
per epoch. A cache by device or dtype has a limit of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import MemoryGrows
from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, FunctionInfo
from torchlint.rule import Example, Hit, Meta

META = Meta("TL616", "unbounded-tensor-cache", Severity.WARNING, stable=False, triggers=("cache", "= {}", "dict("))
CLAIM = MemoryGrows()
SHRINKING = {"pop", "popitem", "clear", "move_to_end"}
NEW_EACH_TIME = {"step", "t", "i", "idx", "index", "n", "length", "seq_len", "seqlen", "size", "iteration", "batch_idx",
                 "num_steps", "height", "width", "h", "w", "timestep", "position", "key_len", "max_len"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        STEPS = 4
        MASKS = {}


        def causal_mask(x):
            n = x.shape[0]
            if n not in MASKS:
                MASKS[n] = torch.ones(n, n).tril()  #!
            return MASKS[n]


        for step in range(STEPS):
            causal_mask(torch.ones(200 - step))
        """,
        good="""
        import torch

        STEPS = 4
        MASKS = {}


        def causal_mask(x):
            n = x.shape[0]
            if n not in MASKS:
                MASKS.clear()
                MASKS[n] = torch.ones(n, n).tril()
            return MASKS[n]


        for step in range(STEPS):
            causal_mask(torch.ones(200 - step))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        STEPS = 4


        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(50, 50)
                self.seen = {}

            @torch.no_grad()
            def forward(self, x):
                key = x.data_ptr()
                if key not in self.seen:
                    self.seen[key] = self.layer(x)  #!
                return self.seen[key]


        net = Encoder()
        batches = [torch.ones(60, 50) for _ in range(STEPS)]
        for step in range(STEPS):
            net(batches[step])
        """,
        good="""
        import torch
        from torch import nn

        STEPS = 4


        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(50, 50)

            @torch.no_grad()
            def forward(self, x):
                return self.layer(x)


        net = Encoder()
        batches = [torch.ones(60, 50) for _ in range(STEPS)]
        for step in range(STEPS):
            net(batches[step])
        """,
    ),
]

CLEAN = [
    """
    import torch

    BY_DEVICE = {}
    LIMITED = {}


    def table(x):
        if x.device not in BY_DEVICE:
            BY_DEVICE[x.device] = torch.arange(8, device=x.device)
            BY_DEVICE[(x.dtype, x.device)] = torch.ones(8)
        return BY_DEVICE[x.device]


    def limited(n):
        if len(LIMITED) > 8:
            LIMITED.clear()
        LIMITED[n] = torch.ones(n)
        return LIMITED[n]


    def local(xs):
        out = {}
        for i, x in enumerate(xs):
            out[i] = torch.ones(i) + x
        return out
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Entries of long-lived dictionaries under keys that are new in most calls."""
    for assign in model.nodes(ast.Assign):
        match assign:
            case ast.Assign(targets=[ast.Subscript(value=holder, slice=key) as target], value=value):
                function = model.function(assign)
                if function is None or not model.value(value).is_tensor or not is_new(model, key):
                    continue
                if lives_on(model, holder, function) and not shrinks(model, holder):
                    yield Hit(
                        target, "this cache keeps a tensor for every new key; give it a limit",
                        confidence=Confidence.LIKELY)


def is_new(model: FileModel, key: ast.expr, depth: int = 0) -> bool:
    """Whether a key is likely another one in most calls: an id, a shape, a position, a count."""
    match key:
        case ast.Call(func=ast.Name(id="id" | "hash") | ast.Attribute(attr="data_ptr" | "item" | "size")):
            return True
        case ast.Call(args=args):
            return any(is_new(model, arg, depth) for arg in args)
        case ast.Attribute(attr=attr):
            return attr == "shape"
        case ast.Subscript(value=value):
            return is_new(model, value, depth)
        case ast.Tuple(elts=elts):
            return any(is_new(model, elt, depth) for elt in elts)
        case ast.BinOp(left=left, right=right):
            return is_new(model, left, depth) or is_new(model, right, depth)
        case ast.JoinedStr(values=values):
            return any(isinstance(v, ast.FormattedValue) and is_new(model, v.value, depth) for v in values)
        case ast.Name(id=name):
            if model.value(key).is_tensor or name in NEW_EACH_TIME:
                return True
            return depth < 2 and any(is_new(model, value, depth + 1) for value in assigned(model, key))
    return False


def assigned(model: FileModel, name: ast.Name) -> list[ast.expr]:
    """What is assigned to a local name."""
    for scope in model.scopes(name):
        if name.id in scope.bindings:
            return [node.value for node in scope.bindings[name.id] if isinstance(node, ast.Assign)]
    return []


def lives_on(model: FileModel, holder: ast.expr, function: FunctionInfo) -> bool:
    """Whether a dictionary outlives the call: it is made at module level, or by `__init__` on the object."""
    match holder:
        case ast.Name(id=name):
            made = model.scope_of(model.tree).bindings.get(name, [])
            local = name in model.scope_of(function.node).bindings
            return not local and len(made) == 1 and isinstance(made[0], (ast.Assign, ast.AnnAssign)) and is_dict(
                model, made[0].value)
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == function.self_name and function.name not in (
                "__init__", "reset", "setup"):
            stores = function.cls.stores.get(attr, []) if function.cls is not None else []
            return len(stores) == 1 and is_dict(model, stores[0][2])
    return False


def is_dict(model: FileModel, expr: ast.expr | None) -> bool:
    """Whether an expression makes a dictionary that is empty at first."""
    match expr:
        case ast.Dict(keys=[]):
            return True
        case ast.Call(func=func, args=[]):
            return model.name_of(func) in ("builtins.dict", "collections.OrderedDict")
    return False


def shrinks(model: FileModel, holder: ast.expr) -> bool:
    """Whether anything in the file takes entries away, counts them, or hands the dictionary on."""
    text = ast.unparse(holder)
    for node in model.nodes(ast.Call, ast.Delete):
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in SHRINKING:
                if ast.unparse(base).endswith(text.rpartition(".")[2]):
                    return True
            case ast.Call(args=args) if any(ast.unparse(arg) == text for arg in args):
                return True
            case ast.Delete(targets=targets) if any(text in ast.unparse(target) for target in targets):
                return True
    return False
