"""Several devices driven by one process.

`nn.DataParallel` copies the model to every device in each forward pass, splits the batch from one Python process and
gathers all outputs on the first device. It is slower than DistributedDataParallel even on one machine, keeps only the
first copy's buffers, and torch develops it no further.

Use `DistributedDataParallel` with one process per device. For a quick look at inference on several devices it will do.

No claim: there is nothing to see without several devices.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta("TL710", "data-parallel", Severity.ADVICE, triggers=("DataParallel", "data_parallel"))
CLAIM = None
OLD = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn


        def build(devices):
            model = nn.Linear(4, 2).to(devices[0])
            model = nn.DataParallel(model, device_ids=devices)  #!
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        """,
        good="""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        def build(device):
            model = nn.Linear(4, 2).to(device)
            model = DistributedDataParallel(model, device_ids=[device])
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        """,
    ),
    Example(
        bad="""
        from torch.nn.parallel import DataParallel


        class Trainer:
            def __init__(self, model):
                self.model = DataParallel(model)  #!
        """,
        good="""
        from torch.nn.parallel import DistributedDataParallel


        class Trainer:
            def __init__(self, model):
                self.model = DistributedDataParallel(model)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    def unwrapped(model):
        if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
            return model.module
        return model


    class DataParallel:
        pass


    DataParallel()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Modules wrapped in DataParallel."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) in OLD:
            yield Hit(call, "one process drives all devices; use `DistributedDataParallel`")
