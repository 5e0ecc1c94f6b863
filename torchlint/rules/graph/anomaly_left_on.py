"""Anomaly detection that is switched on for every run.

`set_detect_anomaly(True)` stores a stack trace for every operation of every forward and checks every gradient
for NaN. It is made for finding one fault, and makes training several times slower for as long as it is on.

Remove it when the fault is found, or put it behind a flag.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import Slower
from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL213", "anomaly-left-on", Severity.WARNING, fix=Safety.UNSAFE, triggers=("anomaly",))
CLAIM = Slower()
SWITCHES = {"torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly",
            "torch.autograd.anomaly_mode.set_detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        torch.autograd.set_detect_anomaly(True)  #!
        x = torch.ones(3, requires_grad=True)
        for _ in range(200):
            (x * 2).sum().backward()
        """,
        good="""
        import torch

        x = torch.ones(3, requires_grad=True)
        for _ in range(200):
            (x * 2).sum().backward()
        """,
    ),
]

CLEAN = [
    """
    import os

    import torch

    if os.environ.get("DEBUG"):
        torch.autograd.set_detect_anomaly(True)
    torch.autograd.set_detect_anomaly(False)


    def run(debug):
        torch.autograd.set_detect_anomaly(debug)


    def test_nothing():
        with torch.autograd.detect_anomaly():
            pass
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Switches that are on without any condition, outside tests."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) in SWITCHES and turned_on(model, call):
            yield Hit(call, "anomaly detection slows down every step; remove it, or put it behind a flag",
                      removed(model, call))


def turned_on(model: FileModel, call: ast.Call) -> bool:
    """A literal True (or nothing, for the context manager) that no condition or test guards."""
    place = model.place(call)
    info = model.function(call)
    if (place.guards and not place.main_guard) or (info is not None and "test" in info.name.lower()):
        return False
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    literal = [arg for arg in given if isinstance(arg, ast.Constant) and arg.value is True]
    return bool(literal) or (not given and model.name_of(call.func).endswith(".detect_anomaly"))


def removed(model: FileModel, call: ast.Call) -> Repair | None:
    """Remove a statement of its own; a block stays for the user to unwrap."""
    statement = model.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        return None
    return edits.repair("Remove it", edits.remove(model, statement))
