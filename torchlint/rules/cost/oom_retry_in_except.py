"""Work retried inside the handler of an out-of-memory error.

While an `except` block runs, the exception is alive, and its traceback holds the frames in which it was raised with
all their local tensors. The memory that has just run out cannot be freed before the block ends, so neither
`empty_cache()` nor a smaller batch helps there.

Set a flag in the handler and retry after the block.

No claim: memory cannot be made to run out on purpose without harm.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Severity
from torchlint.model import FileModel, Kind
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL614", "oom-retry-in-except", Severity.WARNING, triggers=("RuntimeError", "OutOfMemoryError"))
CLAIM = None
OOM = {"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)


        def run(batch):
            try:
                return model(batch)
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                return torch.cat([model(part) for part in batch.chunk(2)])  #!


        print(run(torch.ones(4, 3)))
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)


        def run(batch):
            failed = False
            try:
                return model(batch)
            except torch.cuda.OutOfMemoryError:
                failed = True
            if failed:
                torch.cuda.empty_cache()
                return torch.cat([model(part) for part in batch.chunk(2)])


        print(run(torch.ones(4, 3)))
        """,
    ),
]

CLEAN = [
    """
    import torch

    model = torch.nn.Linear(3, 1)


    def run(batch, log):
        try:
            log("start")
            return model(batch)
        except torch.cuda.OutOfMemoryError:
            log("out of memory")
            torch.cuda.empty_cache()
        try:
            return model(batch)
        except RuntimeError:
            return model(batch.contiguous())
        try:
            return model(batch)
        except torch.OutOfMemoryError:
            return model.cpu()(batch.to("cpu")), model(batch.cpu())
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Handlers for exhausted memory that call the same model or function as the `try` block."""
    for block in model.nodes(ast.Try):
        if not isinstance(block, ast.Try):
            continue
        tried = {ast.dump(call.func) for call in calls(block.body) if works(model, call)}
        for handler in block.handlers:
            if not tried or not for_memory(model, handler) or goes_to_host(handler):
                continue
            again = next((c for c in calls(handler.body) if ast.dump(c.func) in tried), None)
            if again is not None:
                yield Hit(
                    again, "the exception still holds the memory here; retry after the `except` block",
                    confidence=Confidence.LIKELY)


def calls(body: list[ast.stmt]) -> list[ast.Call]:
    """All calls in some statements."""
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]


def goes_to_host(handler: ast.ExceptHandler) -> bool:
    """Whether the retry is made on the CPU, which has other memory."""
    return any(
        getattr(node, "value", None) == "cpu" or (isinstance(node, ast.Attribute) and node.attr == "cpu")
        for statement in handler.body for node in ast.walk(statement))


def works(model: FileModel, call: ast.Call) -> bool:
    """Whether a call runs a model, or a function or method of the project."""
    value = model.value(call.func)
    return value.kind is Kind.MODULE or value.func is not None


def for_memory(model: FileModel, handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for exhausted memory: by its type, or a RuntimeError asked for these words."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {model.name_of(kind) for kind in kinds}
    if names & OOM:
        return True
    words = [node.value for statement in handler.body for node in ast.walk(statement)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "builtins.RuntimeError" in names and any("out of memory" in word for word in words)
