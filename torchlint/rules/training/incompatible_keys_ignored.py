"""A lenient load of weights whose outcome nobody looks at.

`load_state_dict(state, strict=False)` loads what fits and returns the keys that did not. With a prefix too many
or too few, such as the "module." that DataParallel adds, it loads nothing at all and still succeeds: the model
keeps its random weights.

Look at the result: print it, or assert that `missing_keys` holds only what is meant to be new. Better still,
strip the prefix and load strictly.

No claim: whether keys are lost depends on the file that is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.fixes.reorder import given_by, overlap, used_by
from torchlint.model import FileModel, Kind, Value
from torchlint.rule import Example, Hit, Meta

META = Meta("TL530", "incompatible-keys-ignored", Severity.ADVICE, also=(Severity.WARNING,),
            default=False, triggers=("load_state_dict",))
CLAIM = None

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        state = {"module.weight": torch.ones(1, 3)}
        model.load_state_dict(state, strict=False)  #!
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        state = {"module.weight": torch.ones(1, 3)}
        print(model.load_state_dict(state, strict=False))
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn

        trained = nn.DataParallel(nn.Linear(3, 1))
        model = nn.Linear(3, 1)
        _ = model.load_state_dict(trained.state_dict(), False)  #!
        """,
        good="""
        import torch
        from torch import nn

        trained = nn.DataParallel(nn.Linear(3, 1))
        model = nn.Linear(3, 1)
        model.load_state_dict(trained.module.state_dict())
        """,
    ),
]

CLEAN = [
    """
    import torch


    def load(model, state, strict):
        model.load_state_dict(state)
        model.load_state_dict(state, strict=strict)
        missing, unexpected = model.load_state_dict(state, strict=False)
        result = model.load_state_dict(state, strict=False)
        assert not result.unexpected_keys
        for shard in state["shards"]:
            part = torch.load(shard)
            model.load_state_dict(part, strict=False)
        return missing, model.load_state_dict(state, strict=False)


    class Net(torch.nn.Linear):
        def load_state_dict(self, state, strict=True):
            return super().load_state_dict(state, strict=False)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """load_state_dict calls with strict=False whose result is dropped."""
    for call in model.calls_named("load_state_dict"):
        if not isinstance(call.func, ast.Attribute) or not lenient(call) or not dropped(model, call):
            continue
        receiver = model.value(call.func.value)
        if receiver.kind is not Kind.MODULE or in_parts(model, call):
            continue
        lost = prefixed(model.value(call.args[0]), receiver) if call.args else False
        yield Hit(
            call,
            "the keys carry a \"module.\" prefix, so nothing is loaded; strip it and load strictly"
            if lost
            else "keys that do not fit are passed over in silence; look at what this returns",
            severity=Severity.WARNING if lost else None,
            confidence=receiver.sure,
        )


def lenient(call: ast.Call) -> bool:
    """Whether `strict` is literally False."""
    flags = [k.value for k in call.keywords if k.arg == "strict"] or call.args[1:2]
    return any(isinstance(flag, ast.Constant) and flag.value is False for flag in flags)


def dropped(model: FileModel, call: ast.Call) -> bool:
    """Whether the result goes nowhere, or to a name that is never read."""
    match model.parent(call):
        case ast.Expr():
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value) as stmt if value is call:
            return not model.uses(name, model.place(stmt).function or model.tree)
    return False


def in_parts(model: FileModel, call: ast.Call) -> bool:
    """Whether a loop loads one file after the other, each of which is meant to hold some of the keys."""
    used = used_by(call.args[0]) if call.args else set()
    return any(overlap(given_by(model.statement(loop)), used) for loop in model.place(call).loops)


def prefixed(state: Value, receiver: Value) -> bool:
    """Whether the keys surely begin with "module." and the receiver's do not."""
    if receiver.kind is not Kind.MODULE or "wrapper" in receiver.facts:
        return False
    if state.kind is Kind.STATE_DICT and state.bound is not None:
        return "wrapper" in state.bound.facts
    keys = [key for key, _ in state.fields]
    return bool(keys) and all(isinstance(key, str) and key.startswith("module.") for key in keys)
