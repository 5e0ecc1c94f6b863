"""Code or weights taken from elsewhere without a check.

`torch.hub.load` downloads a repository and runs its `hubconf.py`; without `trust_repo` an unknown one is run after a
question that a script cannot answer. Weights from a URL are whatever that server sends today, unless their hash is
checked. `torch.package` runs code from the archive, and `load_library` runs the library.

Pass `trust_repo` as a decision, pin the repository to a commit, pass `check_hash=True` (the file name holds the
hash) or `hash_prefix`, and load packages and libraries from places that others cannot write to.

No claim: showing it would need the network.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL912", "unsafe-hub", Severity.WARNING,
    triggers=("hub", "load_state_dict_from_url", "download_url_to_file", "PackageImporter", "load_library"))
CLAIM = None
URL = ("torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url")
LIBRARY = ("torch.ops.load_library", "torch.classes.load_library")

EXAMPLES = [
    Example(
        bad="""
        import torch


        def build(url):
            net = torch.hub.load("someone/nets", "small", pretrained=True)  #!
            net.load_state_dict(torch.hub.load_state_dict_from_url(url))  #!
            return net
        """,
        good="""
        import torch


        def build(url):
            net = torch.hub.load("someone/nets:0f3c2d1", "small", trust_repo="check", pretrained=True)
            net.load_state_dict(torch.hub.load_state_dict_from_url(url, check_hash=True))
            return net
        """,
    ),
    Example(
        bad="""
        import torch
        from torch.package import PackageImporter


        def restore(path, library):
            torch.ops.load_library(library)  #!
            return PackageImporter(path).load_pickle("model", "model.pkl")  #!
        """,
        good="""
        import torch


        def restore(path):
            torch.ops.load_library("/opt/ours/libops.so")
            return torch.load(path)
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch.hub import load_state_dict_from_url

    HERE = "/opt/ours/nets"


    def fine(url, path, options):
        torch.hub.load(HERE, "small", source="local")
        torch.hub.load("someone/nets", "small", trust_repo=True)
        torch.hub.load("someone/nets", "small", **options)
        load_state_dict_from_url(url, progress=False, check_hash=True)
        torch.hub.download_url_to_file(url, path, "0f3c2d1a")
        torch.hub.list("someone/nets", trust_repo=True)
        torch.ops.load_library("/opt/ours/libops.so")
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls that fetch or run what others made."""
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name.startswith("torch."):
            message = risk(model, call, name)
            if message:
                yield Hit(call, message)


def risk(model: FileModel, call: ast.Call, name: str) -> str:
    """What a call does unchecked; "" for nothing."""
    given = {k.arg: k.value for k in call.keywords}
    if None in given:
        return ""
    if name == "torch.hub.load":
        local = "source" in given and model.value(given["source"]).const == "local"
        if not local and "trust_repo" not in given:
            return "this runs code from a repository; decide with `trust_repo=` and pin a commit"
    elif name in URL:
        hashed = "check_hash" in given and model.value(given["check_hash"]).const is not False
        if not hashed and len(call.args) < 5:
            return "this loads whatever the server sends; pass `check_hash=True`"
    elif name == "torch.hub.download_url_to_file":
        if "hash_prefix" not in given and len(call.args) < 3:
            return "this keeps whatever the server sends; pass `hash_prefix=`"
    elif name == "torch.package.PackageImporter":
        return "this runs code from the archive; load weights with `torch.load` instead"
    elif name in LIBRARY and call.args and not is_own_path(model, call.args[0]):
        return "this runs the library at a path that others may choose; use a fixed path"
    return ""


def is_own_path(model: FileModel, expr: ast.expr) -> bool:
    """Whether a path is written in the program, or made from where the program is."""
    if isinstance(model.value(expr).const, str):
        return True
    names = [node for node in ast.walk(expr) if isinstance(node, ast.Name)]
    function = model.place(expr).function
    params = {arg.arg for arg in model.function_info(function).params} if function is not None else set()
    return not any(node.id in params for node in names)
