"""Small rules for tests of the machinery around rules. At module level, so that processes can share them."""
from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from torchlint.builtin import BUILTIN
from torchlint.findings import Confidence, Edit, Safety, Severity
from torchlint.model import FileModel
from torchlint.rule import Hit, Meta, Repair, Rule

DOC = "A call that tests look for.\n\nWhy it matters.\n\nWhat to do.\n"


def _calls(model: FileModel, name: str) -> Iterator[ast.Call]:
    for call in model.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == name:
            yield call


def _item(model: FileModel) -> Iterator[Hit]:
    for call in _calls(model, "item"):
        span = model.span(call)
        edit = Edit(span, f"{ast.unparse(call.func.value)}.tolist()")
        yield Hit(call, "`.item()` is called", Repair("Call `.tolist()`", (edit,)))


def _cpu(model: FileModel) -> Iterator[Hit]:
    for call in _calls(model, "cpu"):
        yield Hit(call, "`.cpu()` is called", confidence=Confidence.LIKELY)


def _cuda(model: FileModel) -> Iterator[Hit]:
    for call in _calls(model, "cuda"):
        yield Hit(call, "`.cuda()` is called")


def _raises(model: FileModel) -> Iterator[Hit]:
    for call in _calls(model, "item"):
        yield Hit(call, "seen before the failure")
        raise KeyError("no\nsuch key")


def _dies(model: FileModel) -> Iterator[Hit]:
    if "die_here" in model.source.text:
        os._exit(3)
    return iter(())


def _rule(meta: Meta, check: object) -> Rule:
    return Rule(meta, check, DOC, "api", __name__)  # type: ignore[arg-type]


ITEM = _rule(Meta("TL901", "item-call", Severity.WARNING, fix=Safety.SAFE, aliases=("TOR999",)), _item)
CPU = _rule(Meta("TL902", "cpu-call", Severity.ERROR, stable=False), _cpu)
CUDA = _rule(Meta("TL911", "cuda-call", Severity.ADVICE, default=False, triggers=(".cuda",)), _cuda)
OLD = _rule(Meta("TL912", "old-item-call", Severity.ADVICE, torch=">=1.8,<2.0"), _item)
RAISES = _rule(Meta("TL921", "failing-rule", Severity.ERROR), _raises)
DIES = _rule(Meta("TL922", "dying-rule", Severity.ERROR), _dies)

RULES = (*BUILTIN, ITEM, CPU, CUDA)
