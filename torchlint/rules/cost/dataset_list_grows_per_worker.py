"""A dataset that keeps many Python objects, read by worker processes.

Workers are forked and share the parent's memory until somebody writes to it. Reading a Python object writes to it:
its reference count changes. So every page of a long list or dictionary is copied into every worker in the course of
an epoch, and memory grows to the number of workers times the size of the list.

Keep what is long in one array: a tensor, a numpy array, one string with offsets, or an Arrow table. Short lists do
not matter, which is why this is off unless it is asked for.

No claim: what counts is the memory of forked processes over an epoch of real data.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import ClassInfo, FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL617", "dataset-list-grows-per-worker", Severity.ADVICE, default=False, triggers=("num_workers",))
CLAIM = None
LOADER = "torch.utils.data.DataLoader"
READERS = {"json.load", "json.loads", "pickle.load", "os.listdir", "glob.glob", "builtins.sorted", "builtins.list"}
LINES = {"readlines", "splitlines", "to_dict", "tolist", "split"}

EXAMPLES = [
    Example(
        bad="""
        import json

        from torch.utils.data import DataLoader, Dataset


        class Captions(Dataset):
            def __init__(self, path):
                with open(path) as file:
                    self.rows = json.load(file)  #!

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                return self.rows[index]["text"]


        def loader(path):
            return DataLoader(Captions(path), batch_size=32, num_workers=8)
        """,
        good="""
        import json

        import numpy as np
        from torch.utils.data import DataLoader, Dataset


        class Captions(Dataset):
            def __init__(self, path):
                with open(path) as file:
                    self.rows = np.array([row["text"] for row in json.load(file)])

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                return str(self.rows[index])


        def loader(path):
            return DataLoader(Captions(path), batch_size=32, num_workers=8)
        """,
    ),
]

CLEAN = [
    """
    import json

    import torch
    from torch.utils.data import DataLoader, Dataset


    class Numbers(Dataset):
        def __init__(self, path):
            with open(path) as file:
                rows = json.load(file)
            self.rows = torch.tensor(rows)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]


    class InProcess(Dataset):
        def __init__(self, path):
            with open(path) as file:
                self.rows = file.readlines()

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]


    def loaders(path):
        return DataLoader(Numbers(path), num_workers=8), DataLoader(InProcess(path), num_workers=0)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Lists and dictionaries of datasets that this file reads with workers."""
    seen: set[ast.AST] = set()
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) != LOADER or not has_workers(model, call) or not call.args:
            continue
        cls = model.value(call.args[0]).cls
        for node in long_lists(cls) if cls is not None and cls.model is model else ():
            if node not in seen:
                seen.add(node)
                yield Hit(
                    node, "every worker copies this list as it reads it; keep it as an array or tensor",
                    confidence=Confidence.LIKELY)


def has_workers(model: FileModel, call: ast.Call) -> bool:
    """Whether a loader is given a number of workers that is not surely zero."""
    given = next((k.value for k in call.keywords if k.arg == "num_workers"), None)
    return given is not None and model.value(given).const != 0


def long_lists(cls: ClassInfo) -> Iterator[ast.AST]:
    """Statements of `__init__` that store what was read from a file, item by item, and `__getitem__` indexes."""
    getter, model = cls.method("__getitem__"), cls.model
    if getter is None:
        return
    used = {node.value.attr for node in getter.own_nodes
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)}
    for name in sorted(used & set(cls.stores)):
        for method, statement, value in cls.stores[name]:
            if method is not None and method.name == "__init__" and is_long(model, value):
                yield statement


def is_long(model: FileModel, value: ast.expr | None) -> bool:
    """Whether an expression makes a list or dictionary as long as the data."""
    match value:
        case ast.ListComp(elt=elt) | ast.DictComp(value=elt):
            return not model.value(elt).is_tensor and model.value(elt).kind is not Kind.NUMBER
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in LINES:
            return True
        case ast.Call(func=func):
            return model.name_of(func) in READERS
    return False
