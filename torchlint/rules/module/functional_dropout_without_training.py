"""Functional dropout in a Module that does not follow the module's mode.

`F.dropout` is a plain function: it cannot see `model.eval()`, and its `training` argument is True by default.
`F.scaled_dot_product_attention(dropout_p=p)` has no such argument at all. Without `self.training` both drop
values during evaluation, so the same input gives another output each time.

Pass `training=self.training`, or use `nn.Dropout`. The rule is silent under `if self.training`, where p is 0,
and where a comment says that dropout stays on, as for Monte-Carlo dropout.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.precedence import OR
from torchlint.model import FileModel, FunctionInfo, Value
from torchlint.model.held import comment_says
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL411", "functional-dropout-without-training", Severity.ERROR, fix=Safety.UNSAFE,
            triggers=("dropout", "scaled_dot"))
CLAIM = OutputsDiffer()
F = "torch.nn.functional."
FUNCTIONS = {F + name for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")}
ATTENTION = F + "scaled_dot_product_attention"
ON_PURPOSE = ("monte", "mc drop", "always", "on purpose", "also at", "even at", "even in", "at inference",
              "in eval", "stays on")

EXAMPLES = [
    Example(
        bad="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Clicks(nn.Module):
            def __init__(self, size=64, p=0.5):
                super().__init__()
                self.first = nn.Linear(size, size)
                self.last = nn.Linear(size, 1)
                self.p = p

            def hidden(self, x):
                return F.dropout(self.first(x).relu(), p=self.p)  #!

            def forward(self, x):
                return self.last(self.hidden(x))


        model = Clicks().eval()
        x = torch.ones(1, 64)
        print((model(x) - model(x)).abs().max())
        """,
        good="""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F


        class Clicks(nn.Module):
            def __init__(self, size=64, p=0.5):
                super().__init__()
                self.first = nn.Linear(size, size)
                self.last = nn.Linear(size, 1)
                self.p = p

            def hidden(self, x):
                return F.dropout(self.first(x).relu(), p=self.p, training=self.training)

            def forward(self, x):
                return self.last(self.hidden(x))


        model = Clicks().eval()
        x = torch.ones(1, 64)
        print((model(x) - model(x)).abs().max())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn
        from torch.nn.functional import scaled_dot_product_attention


        class Attention(nn.Module):
            def __init__(self, size=16, dropout=0.5):
                super().__init__()
                self.qkv = nn.Linear(size, 3 * size)
                self.dropout = dropout

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, dim=-1)
                return scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)  #!


        model = Attention().eval()
        x = torch.ones(1, 8, 16)
        print((model(x) - model(x)).abs().max())
        """,
        good="""
        import torch
        from torch import nn
        from torch.nn.functional import scaled_dot_product_attention


        class Attention(nn.Module):
            def __init__(self, size=16, dropout=0.5):
                super().__init__()
                self.qkv = nn.Linear(size, 3 * size)
                self.dropout = dropout

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, dim=-1)
                return scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)


        model = Attention().eval()
        x = torch.ones(1, 8, 16)
        print((model(x) - model(x)).abs().max())
        """,
    ),
]

CLEAN = [
    """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Net(nn.Module):
        def __init__(self, p=0.5):
            super().__init__()
            self.p = p
            self.drop = nn.Dropout(p)

        def forward(self, x, training=False):
            x = F.dropout(x, self.p, self.training)
            x = F.dropout(x, p=self.p, training=training)
            x = F.dropout(F.dropout(x, p=0.0), 0.1, True)
            if self.training:
                x = F.dropout(x, p=0.1)
            p = self.p if self.training else 0.0
            x = F.dropout(x, p)
            if not self.training:
                return x
            return F.dropout(self.drop(x), p=self.p)

        def attend(self, q):
            p = 0.0
            if self.training:
                p = self.p
            q = F.scaled_dot_product_attention(q, q, q, dropout_p=p)
            q = F.scaled_dot_product_attention(q, q, q, dropout_p=(self.p if self.training else 0))
            q = F.scaled_dot_product_attention(q, q, q, dropout_p=self.p * self.training)
            return F.scaled_dot_product_attention(q, q, q)


    class Sampler(nn.Module):
        def forward(self, x):
            # Monte-Carlo dropout: stays on for sampling
            return F.dropout(x, p=0.5)


    def augment(x):
        return F.dropout(x, p=0.1)


    print(Net()(torch.ones(2)), Net().attend(torch.ones(1, 2, 2)), Sampler()(augment(torch.ones(2))))
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of functional dropout in methods of Modules that are not tied to the module's mode."""
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name not in FUNCTIONS and name != ATTENTION:
            continue
        cls, method = model.class_of(call), model.function(call)
        if cls is None or not cls.is_module or method is None or not method.self_name:
            continue
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            continue
        given = argument(call, 4, "dropout_p") if name == ATTENTION else argument(call, 1, "p")
        # whoever says `training=True` means it
        if given is None if name == ATTENTION else argument(call, 2, "training") is not None:
            continue
        if given is not None and (is_zero(model.value(given)) or follows_mode(model, method, call, given)):
            continue
        if under_mode(model, method, call) or comment_says(cls, model.statement(call), ON_PURPOSE):
            continue
        yield Hit(call, f"`{name.rpartition('.')[2]}` ignores eval(): make it depend on `self.training`",
                  follow(model, method, call, name, given))


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """What is passed for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position < len(call.args) else None


def is_zero(value: Value) -> bool:
    """A probability of nought."""
    return isinstance(value.const, (int, float)) and value.const == 0


def mentions_mode(node: ast.AST) -> bool:
    """Whether an expression reads `training` of anything."""
    return any((isinstance(n, ast.Attribute) and n.attr == "training") or (isinstance(n, ast.Name) and n.id in (
        "training", "train", "is_training")) for n in ast.walk(node))


def follows_mode(model: FileModel, method: FunctionInfo, call: ast.Call, given: ast.expr) -> bool:
    """Whether the probability depends on the mode: in the expression, or where the names in it are bound."""
    if mentions_mode(given):
        return True
    names = {n.id for n in ast.walk(given) if isinstance(n, ast.Name)} - {method.self_name}
    if any(arg.arg in names for arg in (*method.params, *method.args.kwonlyargs)):
        return True  # the caller decides
    for node in method.own_nodes:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if bound & names and (mentions_mode(node) or any(mentions_mode(test) for test in tests(model, node))):
                return True
    return False


def tests(model: FileModel, node: ast.AST) -> Iterator[ast.AST]:
    """The tests of the branches around a node."""
    for guard, _ in model.place(node).guards:
        yield getattr(guard, "test", guard)
    for outer in model.ancestors(node):
        if isinstance(outer, ast.IfExp):
            yield outer.test
        if isinstance(outer, ast.stmt):
            return


def under_mode(model: FileModel, method: FunctionInfo, call: ast.Call) -> bool:
    """Whether the call is only reached in one mode: under a test of it, or behind a return for the other."""
    if any(mentions_mode(test) for test in tests(model, call)):
        return True
    for node in method.own_nodes:
        if isinstance(node, ast.If) and mentions_mode(node.test) and model.position(node) < model.position(call) and (
                isinstance(node.body[-1], (ast.Return, ast.Raise))):
            return True
    return False


def follow(model: FileModel, method: FunctionInfo, call: ast.Call, name: str, given: ast.expr | None) -> Repair | None:
    """`training=self.training`, or `p if self.training else 0.0`."""
    mode = f"{method.self_name}.training"
    if name == ATTENTION:
        if given is None:
            return None
        text = f"{edits.operand(model, given, OR)} if {mode} else 0.0"
        return edits.repair(f"Use {mode}", edits.replace(model, given, text))
    return edits.repair(f"Use {mode}", edits.add_keyword_argument(model, call, f"training={mode}"))
