"""Random state that every DataLoader worker gets a copy of.

Workers are forked or spawned with a pickled copy of the dataset. torch seeds its own generator, `random` and
`numpy.random` anew in every worker and epoch, but not a Generator object that the dataset holds: each worker
starts from the same state, so the same "random" numbers appear once per worker, and again in every epoch. A
`worker_init_fn` that seeds with a constant does the same to the global state.

Use the global functions, or make the generator in the worker from `torch.utils.data.get_worker_info().seed`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.model.evaluate import path_of
from torchlint.model.held import reached
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL524", "dataloader-worker-seed", Severity.WARNING,
    triggers=("default_rng", "RandomState", "Random(", "Generator", "worker_init_fn"),
)
CLAIM = OutputsDiffer()
SEEDS = {"numpy.random.seed", "random.seed", "torch.manual_seed", "torch.random.manual_seed"}

EXAMPLES = [
    Example(
        bad="""
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __init__(self, n=4):
                self.n = n
                self.rng = np.random.default_rng(0)  #!

            def __len__(self):
                return self.n

            def __getitem__(self, index):
                return torch.tensor(self.rng.normal())


        values = [float(v) for batch in DataLoader(Noisy(), num_workers=2) for v in batch]
        """,
        good="""
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __init__(self, n=4):
                self.n = n

            def __len__(self):
                return self.n

            def __getitem__(self, index):
                return torch.tensor(np.random.normal())


        values = [float(v) for batch in DataLoader(Noisy(), num_workers=2) for v in batch]
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return torch.tensor(np.random.normal())


        def init(worker):
            np.random.seed(0)  #!


        loader = DataLoader(Noisy(), num_workers=2, worker_init_fn=init)
        values = [float(v) for batch in loader for v in batch]
        """,
        good="""
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return torch.tensor(np.random.normal())


        def init(worker):
            np.random.seed(worker)


        loader = DataLoader(Noisy(), num_workers=2, worker_init_fn=init)
        values = [float(v) for batch in loader for v in batch]
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __init__(self, data):
                self.data = data
                self.noise = torch.Generator().manual_seed(0)  #!

            def __len__(self):
                return len(self.data)

            def __getitem__(self, index):
                return self.data[index] + torch.rand(3, generator=self.noise)


        if __name__ == "__main__":
            for batch in DataLoader(Noisy(torch.zeros(4, 3)), batch_size=1, num_workers=2):
                print(batch)
        """,
        good="""
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Noisy(Dataset):
            def __init__(self, data):
                self.data = data

            def __len__(self):
                return len(self.data)

            def __getitem__(self, index):
                return self.data[index] + torch.rand(3)


        if __name__ == "__main__":
            for batch in DataLoader(Noisy(torch.zeros(4, 3)), batch_size=1, num_workers=2):
                print(batch)
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Shuffled(Dataset):
        def __init__(self, n):
            self.rng = np.random.default_rng(0)
            self.order = self.rng.permutation(n)

        def __getitem__(self, index):
            return self.order[index]


    class Alone(Dataset):
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return self.rng.normal()


    class Reseeded(Dataset):
        def __init__(self):
            self.rng = np.random.RandomState(0)

        def __getitem__(self, index):
            self.rng.seed(index)
            return self.rng.normal()


    class Split(Dataset):
        def __init__(self):
            self.rng = None

        def __getitem__(self, index):
            if self.rng is None:
                self.rng = np.random.default_rng(torch.utils.data.get_worker_info().seed)
            return self.rng.normal()


    loader = DataLoader(Alone(), batch_size=1)
    """,
    """
    import random
    import torch
    from torch.utils.data import DataLoader


    def init(worker):
        random.seed(torch.initial_seed() % 2**32 + worker)


    def main(data):
        torch.manual_seed(0)
        return DataLoader(data, num_workers=2, worker_init_fn=init)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Generators held by datasets and drawn from per item, and constant seeds in worker_init_fn."""
    for cls in model.classes:
        if cls.kind is Kind.DATASET and not reseeded(model, cls) and not without_workers(model, cls):
            yield from held_generators(model, cls)
    for call in loader_calls(model):
        for keyword in call.keywords:
            if keyword.arg == "worker_init_fn":
                yield from constant_seeds(model, keyword.value)


def loader_calls(model: FileModel) -> list[ast.Call]:
    """The calls that make a DataLoader."""
    return [call for call in model.nodes(ast.Call) if model.name_of(call.func) == "torch.utils.data.DataLoader"]


def held_generators(model: FileModel, cls: ClassInfo) -> Iterator[Hit]:
    """Stores of generator objects made before the workers start, that `__getitem__` draws from."""
    readers = [cls.method(name) for name in reached(cls, "__getitem__", "__iter__", "__getitems__")]
    drawn = {
        path.partition(".")[2]
        for method in readers if method is not None
        for path in method.used_methods
        if path.startswith(f"{method.self_name}.")
    }
    drawn |= {
        keyword.value.attr
        for method in readers if method is not None for call in method.calls for keyword in call.keywords
        if keyword.arg == "generator" and isinstance(keyword.value, ast.Attribute)
        and path_of(keyword.value.value) == method.self_name
    }
    seeded = {
        path.partition(".")[2] for each in cls.project_mro for method in each.methods.values()
        for path, names in method.used_methods.items() if names & {"seed", "manual_seed", "setstate"}
    }
    for name, stores in cls.stores.items():
        if name in seeded:
            continue
        for method, statement, value in stores:
            early = method is None or method.name == "__init__"
            if name in drawn and early and value is not None and model.value(value).kind is Kind.RNG:
                yield Hit(
                    statement,
                    f"every worker gets a copy of `{name}` and draws the same numbers; seed per worker",
                    confidence=Confidence.LIKELY,
                )


def reseeded(model: FileModel, cls: ClassInfo) -> bool:
    """Whether the class asks which worker it is in, or something outside sets an attribute of it anew."""
    names = {
        model.name_of(call.func).rpartition(".")[2]
        for each in cls.project_mro for method in each.methods.values() for call in method.calls
    }
    return "get_worker_info" in names or any(
        k.arg == "worker_init_fn" for call in loader_calls(model) for k in call.keywords
    )


def without_workers(model: FileModel, cls: ClassInfo) -> bool:
    """Whether every loader of this dataset that the file makes runs in the main process."""
    loaders = [
        call for call in loader_calls(model)
        if call.args and model.value(call.args[0]).cls is cls
    ]

    def alone(call: ast.Call) -> bool:
        workers = [k.value for k in call.keywords if k.arg == "num_workers"]
        starred = any(k.arg is None for k in call.keywords) or len(call.args) > 5
        return not starred and all(isinstance(w, ast.Constant) and w.value == 0 for w in workers)

    return bool(loaders) and all(alone(call) for call in loaders)


def constant_seeds(model: FileModel, expr: ast.expr) -> Iterator[Hit]:
    """Calls in a worker_init_fn that seed a global generator with a literal."""
    value = model.value(expr)
    if value.func is None or value.func.model is not model:
        return
    for call in value.func.calls:
        if model.name_of(call.func) in SEEDS and call.args and isinstance(call.args[0], ast.Constant):
            yield Hit(call, "every worker starts from the same seed; add the worker's number")
