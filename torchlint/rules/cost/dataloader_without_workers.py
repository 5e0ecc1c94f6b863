"""A DataLoader that reads its data in the training process.

Without workers the loader reads and transforms each batch when the loop asks for it, and the device has nothing to
do meanwhile.

Set `num_workers` (a few per device, as the number of cores allows). For small data that is in memory already,
worker processes cost more than they save: this rule has to be asked for.

No claim: whether workers pay depends on the data and the machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL618", "dataloader-without-workers", Severity.ADVICE, default=False, aliases=("TOR401",),
    triggers=("DataLoader",))
CLAIM = None
POSITION = 5  # of num_workers among the arguments

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        data = TensorDataset(torch.ones(4, 2))
        train = DataLoader(data, batch_size=2, shuffle=True)  #!
        test = DataLoader(data, num_workers=0)  #!
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        data = TensorDataset(torch.ones(4, 2))
        train = DataLoader(data, batch_size=2, shuffle=True, num_workers=2)
        test = DataLoader(data, num_workers=2)
        """,
    ),
]

CLEAN = [
    """
    from torch.utils.data import DataLoader


    class Mine:
        def DataLoader(self, data):
            return data


    def load(data, workers, options):
        Mine().DataLoader(data)
        DataLoader(data, 1, True, None, None, 4)
        return DataLoader(data, num_workers=workers), DataLoader(data, **options)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """DataLoader calls whose num_workers is missing or zero."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != "torch.utils.data.DataLoader":
            continue
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            continue
        given = next((k.value for k in call.keywords if k.arg == "num_workers"), None)
        if given is None and len(call.args) > POSITION:
            given = call.args[POSITION]
        value = None if given is None else model.value(given).const
        if given is None or (value == 0 and not isinstance(value, bool)):
            yield Hit(call, "batches are read while the device waits; set `num_workers`")
