"""A `__getitem__` that changes the stored data in place.

Indexing a tensor with an integer or a slice gives a view, and indexing a list gives the stored object itself.
An in-place operation on it writes into the dataset: the sample is normalised once more at every epoch, and
with workers each process drifts on its own copy.

Compute a new value (`x = x - x.mean()`), or clone before changing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint import knowledge
from torchlint.claims import NoEffect
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.precedence import POWER
from torchlint.model import ClassInfo, FileModel, FunctionInfo, Kind, Value, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL525", "dataset-mutated-in-getitem", Severity.ERROR, fix=Safety.UNSAFE, triggers=("__getitem__",)
)
CLAIM = NoEffect()
ARRAY_WORDS = {"mean", "std", "sum", "max", "min", "abs", "shape", "norm", "median", "amax", "amin", "unsqueeze", "var"}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch.utils.data import Dataset


        class Clips(Dataset):
            def __init__(self, clips):
                self.clips = clips

            def __len__(self):
                return len(self.clips)

            def __getitem__(self, index):
                clip = self.clips[index]
                clip -= clip.mean()  #!
                return clip


        data = Clips(torch.arange(12.0).reshape(3, 4))
        first, again = data[0].clone(), data[0]
        """,
        good="""
        import torch
        from torch.utils.data import Dataset


        class Clips(Dataset):
            def __init__(self, clips):
                self.clips = clips

            def __len__(self):
                return len(self.clips)

            def __getitem__(self, index):
                clip = self.clips[index]
                clip = clip - clip.mean()
                return clip


        data = Clips(torch.arange(12.0).reshape(3, 4))
        first, again = data[0].clone(), data[0]
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import Dataset


        class Images(Dataset):
            def __init__(self, n):
                self.images = torch.ones(n, 3, 4)
                self.labels = torch.zeros(n)

            def __len__(self):
                return len(self.labels)

            def __getitem__(self, index):
                image, label = self.images[index], self.labels[index]
                image[0] = 0  #!
                image.mul_(0.5)
                return image, label


        data = Images(3)
        first, again = data[0][0].clone(), data[0][0]
        """,
        good="""
        import torch
        from torch.utils.data import Dataset


        class Images(Dataset):
            def __init__(self, n):
                self.images = torch.ones(n, 3, 4)
                self.labels = torch.zeros(n)

            def __len__(self):
                return len(self.labels)

            def __getitem__(self, index):
                image, label = self.images[index].clone(), self.labels[index]
                image[0] = 0
                image.mul_(0.5)
                return image, label


        data = Images(3)
        first, again = data[0][0].clone(), data[0][0]
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import Dataset


        class Graphs(Dataset):
            def __init__(self, n):
                self.samples = [{"x": torch.arange(6.0).view(3, 2), "y": i} for i in range(n)]

            def __len__(self):
                return len(self.samples)

            def __getitem__(self, index):
                sample = self.samples[index]
                sample["x"] *= 2  #!
                return sample


        data = Graphs(3)
        first, again = data[0]["x"].clone(), data[0]["x"]
        """,
        good="""
        import torch
        from torch.utils.data import Dataset


        class Graphs(Dataset):
            def __init__(self, n):
                self.samples = [{"x": torch.arange(6.0).view(3, 2), "y": i} for i in range(n)]

            def __len__(self):
                return len(self.samples)

            def __getitem__(self, index):
                sample = self.samples[index]
                return {"x": sample["x"] * 2, "y": sample["y"]}


        data = Graphs(3)
        first, again = data[0]["x"].clone(), data[0]["x"]
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import Dataset


        class Images(Dataset):
            def __init__(self, n):
                self.images = torch.ones(n, 3, 4)

            def __len__(self):
                return len(self.images)

            def __getitem__(self, index):
                image = self.images[index].view(-1)
                return image.sub_(0.5).div_(0.2)  #!


        data = Images(3)
        first, again = data[0].clone(), data[0]
        """,
        good="""
        import torch
        from torch.utils.data import Dataset


        class Images(Dataset):
            def __init__(self, n):
                self.images = torch.ones(n, 3, 4)

            def __len__(self):
                return len(self.images)

            def __getitem__(self, index):
                image = self.images[index].view(-1)
                return image.sub(0.5).div_(0.2)


        data = Images(3)
        first, again = data[0].clone(), data[0]
        """,
        fixed=False,
    ),
    Example(
        bad="""
        import torch
        from torch.utils.data import Dataset


        class Pairs(Dataset):
            def __init__(self, n):
                self.pairs = [(torch.arange(3.0), i) for i in range(n)]
                self.scale = 255

            def __len__(self):
                return len(self.pairs)

            def __getitem__(self, index):
                image, label = self.pairs[index]
                return self.scaled(image), label

            def scaled(self, image):
                image /= self.scale  #!
                return image


        data = Pairs(3)
        first, again = data[1][0].clone(), data[1][0]
        """,
        good="""
        import torch
        from torch.utils.data import Dataset


        class Pairs(Dataset):
            def __init__(self, n):
                self.pairs = [(torch.arange(3.0), i) for i in range(n)]
                self.scale = 255

            def __len__(self):
                return len(self.pairs)

            def __getitem__(self, index):
                image, label = self.pairs[index]
                return self.scaled(image), label

            def scaled(self, image):
                image = image / self.scale
                return image


        data = Pairs(3)
        first, again = data[1][0].clone(), data[1][0]
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.utils.data import Dataset


    class Clips(Dataset):
        def __init__(self, clips, ages, mask):
            self.clips = clips
            self.ages = ages
            self.mask = mask
            self.hits = {}

        def __getitem__(self, index):
            clip = self.clips[index].clone()
            clip -= clip.mean()
            other = self.clips[index] - self.clips[index].mean()
            other *= 2
            picked = self.clips[index][self.mask]
            picked += picked.max()
            age = self.ages[index]
            age += 1
            name = self.clips[index]
            name = name.float().unsqueeze(0)
            self.hits[index] = 1
            return clip, other, age, picked, name
    """,
    """
    import torch


    class Board:
        def __init__(self):
            self.cells = torch.zeros(3, 3)

        def __getitem__(self, index):
            row = self.cells[index]
            row += row.mean()
            return row
    """,
    """
    import torch
    from torch.utils.data import Dataset


    class Pairs(Dataset):
        def __init__(self):
            self.data = torch.ones(4, 3)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            both = torch.tensor([index, 0])
            x = self.data[both]
            x[:, 0] = 0
            return x


    Pairs()[1]
    """,
    """
    import copy

    import torch
    from torch.utils.data import Dataset


    class Kept(Dataset):
        def __init__(self, path, dataset):
            self.file = path
            self.dataset = dataset
            self.items = [{"x": torch.ones(3)}] * 4
            self.cache, self.seen, self.hits = torch.zeros(4, 3), set(), torch.zeros(4)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.hits[index] += 1
            if index not in self.seen:
                self.cache[index] = torch.ones(3)
                self.seen.add(index)
            x = self.file["x"][index]
            x -= x.mean()
            y, label = self.dataset[index]
            y -= y.mean()
            item, other = copy.deepcopy(self.items[index]), dict(self.items[index])
            item["x"] *= 2
            other["x"] = other["x"] / 2
            return x, y, item["x"], other["x"], self.cache[index]
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """The first change of each name that stands for stored data."""
    for cls in model.classes:
        method = cls.methods.get("__getitem__")
        if method is None or cls.kind is not Kind.DATASET or not method.self_name:
            continue
        done: set[object] = set()
        for statement, keys in (*in_kept_tensors(model, cls, method), *changes(model, cls, method)):
            if done.isdisjoint((statement, *keys)):
                yield Hit(
                    statement,
                    "this changes the stored data, anew in every epoch; work on a copy",
                    out_of_place(model, statement),
                    confidence=Confidence.LIKELY,
                )
            done.update((statement, *keys))


def in_kept_tensors(
    model: FileModel, cls: ClassInfo, method: FunctionInfo
) -> Iterator[tuple[ast.stmt, tuple[object, ...]]]:
    """In-place changes of tensors that share memory with what the dataset keeps, in helpers too."""
    kept = {storage for base in cls.project_mro for name in base.stores for storage in storages(cls.attr(name))}
    for event in model.flow(method.node).of("inplace"):
        statement = model.statement(training.place_of(model, event))
        if event.target.storage in kept - set(method.own_nodes) and not keeps_record(method, statement):
            yield statement, (event.target.storage, event.path)


def made_here(method: FunctionInfo) -> set[str]:
    """The attributes that a method sets itself: data that are made when first asked for."""
    return {target.attr for node in method.own_nodes if isinstance(node, ast.Assign) for target in node.targets
            if isinstance(target, ast.Attribute)}


def storages(value: Value) -> Iterator[object]:
    """The memory of a tensor, or of the tensors in a container."""
    if value.storage is not None:
        yield value.storage
    for part in value.parts():
        if part is not value:
            yield from storages(part)


def keeps_record(method: FunctionInfo, statement: ast.stmt) -> bool:
    """Whether a statement fills a cache, `self.seen[i] = x`, or counts in an attribute that is not read otherwise."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute())]):
            return True
        case ast.AugAssign(target=ast.Subscript(value=ast.Attribute(attr=attr) as counted)):
            return not any(isinstance(node, ast.Attribute) and node.attr == attr and node is not counted
                           for node in method.own_nodes)
    return False


def changes(model: FileModel, cls: ClassInfo, method: FunctionInfo) -> Iterator[tuple[ast.stmt, tuple[object, ...]]]:
    """In-place changes in the method of names that are stored data at that point, in order."""
    stored: dict[str, bool] = {}  # name -> it holds stored data
    arrays = array_names(model, method)
    for node in method.own_nodes:
        if isinstance(node, ast.stmt):
            for base in changed_by_calls(model, node):
                if is_stored(model, cls, method, base, stored):
                    yield node, (ast.unparse(base),)
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                for target, value in zip(names, values, strict=True):
                    if isinstance(target, ast.Name):
                        stored[target.id] = is_stored(model, cls, method, value, stored)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                members = is_member(model, cls, value) and is_stored(model, cls, method, value, stored)
                stored.update((target.id, members) for target in names if isinstance(target, ast.Name))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                stored[name] = is_stored(model, cls, method, value, stored)
            case ast.AugAssign(target=ast.Name(id=name)) if stored.get(name):
                if name in arrays or is_array(model, node.target):
                    yield node, (name,)
            case ast.AugAssign(target=ast.Subscript(value=ast.Attribute()) as target):
                path = ast.unparse(target)
                if is_stored(model, cls, method, target, stored) and (path in arrays or is_array(model, target)):
                    if not keeps_record(method, node):
                        yield node, (path,)
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name))) if stored.get(name) and name in arrays:
                yield node, (name,)
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str()))):
                if stored.get(name) and held_in_list(model, cls, method, name):
                    yield node, (name,)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name) as base) as target], value=value) if (
                stored.get(name)
            ):
                again = builds_on(target, value) and held_in_list(model, cls, method, name)
                if name in arrays or is_array(model, base) or (again and not model.place(node).guards):
                    yield node, (name,)


def builds_on(target: ast.Subscript, value: ast.expr) -> bool:
    """Whether a member is computed from what it was: `sample["x"] = sample["x"] / 255`, once more at every call."""
    path = ast.unparse(target)
    return isinstance(value, ast.BinOp) and any(
        isinstance(side, ast.Subscript) and ast.unparse(side) == path for side in (value.left, value.right))


def held_in_list(model: FileModel, cls: ClassInfo, method: FunctionInfo, name: str) -> bool:
    """Whether a name stands for a member of a list or dict of the dataset: other containers may make it anew."""
    return any(is_member(model, cls, node.value) for node in method.own_nodes if isinstance(node, ast.Assign)
               and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name)


def is_member(model: FileModel, cls: ClassInfo, value: ast.expr) -> bool:
    """Whether an expression takes something out of a list, tuple or dict that the dataset keeps."""
    match value:
        case ast.Subscript(value=ast.Attribute(attr=attr)):
            return cls.attr(attr).kind in (Kind.LIST, Kind.TUPLE, Kind.DICT)
    return False


def changed_by_calls(model: FileModel, statement: ast.stmt) -> Iterator[ast.expr]:
    """What calls in a statement change: `x` in `y = x.view(-1).sub_(m).div_(s)` or `np.exp(x, out=x)`."""
    inner = (*getattr(statement, "body", ()), *getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ()))
    parts = (part for child in ast.iter_child_nodes(statement) if child not in inner for part in ast.walk(child))
    for part in parts:
        match part:
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if writes(attr):
                while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and shares(base.func.attr):
                    base = base.func.value
                yield base
            case ast.Call(func=func, keywords=keywords) if model.name_of(func).startswith(("numpy.", "torch.")):
                yield from (keyword.value for keyword in keywords if keyword.arg == "out")


def writes(method: str) -> bool:
    """Whether a tensor method changes the values of the tensor itself."""
    entry = knowledge.method(method)
    return entry is not None and entry.inplace and method != "requires_grad_"


def shares(method: str) -> bool:
    """Whether a tensor method returns the tensor or a view."""
    entry = knowledge.method(method)
    return entry is not None and (entry.inplace or entry.view)


def is_stored(model: FileModel, cls: ClassInfo, method: FunctionInfo, value: ast.expr, stored: dict[str, bool]) -> bool:
    """`self.data`, `self.data[i]`, a basic slice of stored data, or another name for it."""
    match value:
        case ast.Name(id=name):
            return stored.get(name, False)
        case ast.Attribute(value=ast.Name(id=me), attr=attr):
            kept = any(attr in each.stores for each in cls.project_mro)
            own = me == method.self_name and kept and attr not in made_here(method)
            return own and cls.attr(attr).kind is not Kind.DATASET
        case ast.Subscript(value=inner, slice=index):
            if isinstance(index, ast.Constant) and isinstance(index.value, str):
                return model.value(inner).kind is Kind.DICT and is_stored(model, cls, method, inner, stored)
            picks = model.value(index).kind in (Kind.TENSOR, Kind.NDARRAY, Kind.LIST)  # that makes a copy
            basic = (isinstance(index, (ast.Name, ast.Constant, ast.Slice)) and not picks) or (
                isinstance(index, ast.Tuple) and all(isinstance(e, (ast.Slice, ast.Constant)) for e in index.elts)
            )
            return basic and is_stored(model, cls, method, inner, stored)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if shares(attr):
            return is_stored(model, cls, method, inner, stored)
    return False


def array_names(model: FileModel, method: FunctionInfo) -> set[str]:
    """Names that the method treats as arrays."""
    found = set()
    for path, attributes in method.used_methods.items():
        words = {attribute.removesuffix("()") for attribute in attributes}
        if words & ARRAY_WORDS or any(w.endswith("_") and knowledge.method(w) is not None for w in words):
            found.add(path)
    return found


def is_array(model: FileModel, node: ast.expr) -> bool:
    """Whether the model knows a value to be a tensor or array."""
    return model.value(node).kind in (Kind.TENSOR, Kind.NDARRAY)


def out_of_place(model: FileModel, statement: ast.stmt) -> Repair | None:
    """`x -= y` -> `x = x - (y)`: from here on the name holds a value of its own."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if type(op) in OPERATORS:
            text = f"{name} = {name} {OPERATORS[type(op)]} {edits.operand(model, value, POWER)}"
            return edits.repair("Make a new value", edits.replace(model, statement, text))
    return None
