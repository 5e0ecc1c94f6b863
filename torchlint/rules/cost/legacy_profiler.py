"""Profiling with autograd's own profiler.

`torch.autograd.profiler.profile` records operators from where it is entered to where it is left, and nothing else:
no schedule that skips the first slow steps, no traces for TensorBoard, no activities of other devices. Around a whole
training loop it keeps every event in memory until the end.

Use `torch.profiler.profile`, with a `schedule` where it goes around a loop. For a few operators the old one will do.

No claim: it is about what one can see, not about what the program does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import FileModel
from torchlint.model.old_names import old_uses
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL615", "legacy-profiler", Severity.ADVICE, fix=Safety.SHOW, triggers=("profiler",))
CLAIM = None
OLD = "torch.autograd.profiler.profile"
KEPT = {"record_shapes", "profile_memory", "with_stack", "with_flops"}  # both profilers take these

EXAMPLES = [
    Example(
        bad="""
        import torch

        with torch.autograd.profiler.profile(record_shapes=True) as prof:  #!
            torch.ones(3) + 1
        print(prof.key_averages())
        """,
        good="""
        import torch

        with torch.profiler.profile(record_shapes=True) as prof:
            torch.ones(3) + 1
        print(prof.key_averages())
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.autograd import profiler

        profile = profiler.profile(enabled=True)  #!
        with profile:
            torch.ones(3) + 1
        """,
        good="""
        import torch
        from torch.profiler import profile

        with profile():
            torch.ones(3) + 1
        """,
    ),
]

CLEAN = [
    """
    import cProfile
    import torch
    from torch import profiler
    from torch.autograd.profiler import record_function

    with profiler.profile() as prof:
        with record_function("step"):
            torch.ones(3) + 1
    with torch.autograd.profiler.emit_nvtx(enabled=False):
        torch.ones(3) + 1
    cProfile.Profile()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of the old profiler of which no argument is reported as deprecated already."""
    reported = {use.node for use in old_uses(model)}
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == OLD and call not in reported:
            yield Hit(call, "this profiler is the old one; use `torch.profiler.profile`", renewed(model, call))


def renewed(model: FileModel, call: ast.Call) -> Repair | None:
    """The new profiler, where it takes the same arguments."""
    spelled = spell(model, "torch.profiler.profile", at=call)
    if spelled is None or call.args or {k.arg for k in call.keywords} - KEPT:
        return None
    return edits.repair(
        "Use torch.profiler", edits.replace_callee(model, call, spelled.text), imports=spelled.imports)
