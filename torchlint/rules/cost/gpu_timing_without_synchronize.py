"""Device work timed by a host clock that does not wait for it.

Calls on an accelerator return as soon as the kernels are queued. A host clock read around them measures how long
queueing took, not how long the work takes: times come out far too small, and whatever happens to wait next gets
the blame.

Call `torch.cuda.synchronize()` before reading the clock, or use `torch.cuda.Event` pairs. Code that reads a value
(`.item()`, `.cpu()`) at the end of the timed part has waited already. Nothing is reported in files that never
mention an accelerator.

No claim: without an accelerator nothing is asynchronous, so a CPU run has nothing to measure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.imports import spell
from torchlint.model import Event, FileModel, Flow, Kind
from torchlint.model.environment import mentions_device
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL603", "gpu-timing-without-synchronize", Severity.WARNING, fix=Safety.UNSAFE,
    triggers=("time(", "perf_counter", "monotonic"),
)
CLAIM = None
CLOCKS = {
    "time.time", "time.perf_counter", "time.monotonic", "time.process_time", "time.time_ns", "time.perf_counter_ns",
    "timeit.default_timer",
}
READING = {"cpu", "item", "tolist", "numpy"}
WAITING = {"synchronize", "elapsed_time", "wait", "current_stream"}

EXAMPLES = [
    Example(
        bad="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)
        batch = torch.ones(2, 3, device=device)
        start = time.perf_counter()
        model(batch)
        print(time.perf_counter() - start)  #!
        """,
        good="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)
        batch = torch.ones(2, 3, device=device)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        model(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(time.perf_counter() - start)
        """,
    ),
    Example(
        bad="""
        import time
        import torch


        def measure(model, batch):
            begin = time.time()
            for _ in range(10):
                model(batch)
            end = time.time()
            return (end - begin) / 10  #!


        net = torch.nn.Linear(3, 1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        print(measure(net.to(device), torch.ones(2, 3, device=device)))
        """,
        good="""
        import time
        import torch


        def measure(model, batch):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            begin = time.time()
            for _ in range(10):
                model(batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            end = time.time()
            return (end - begin) / 10


        net = torch.nn.Linear(3, 1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        print(measure(net.to(device), torch.ones(2, 3, device=device)))
        """,
    ),
    Example(
        bad="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)


        def measure(batch, twice):
            start = time.time()
            if twice:
                model(batch + model(batch))
                end = time.time()
            else:
                model(batch)
                end = time.time()
            return end - start  #!


        print(measure(torch.ones(2, 3, device=device), False))
        """,
        good="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)


        def measure(batch, twice):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.time()
            if twice:
                model(batch + model(batch))
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                end = time.time()
            else:
                model(batch)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                end = time.time()
            return end - start


        print(measure(torch.ones(2, 3, device=device), False))
        """,
    ),
    Example(
        bad="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)


        def measure(batch, twice):
            start = time.time()
            if twice:
                model(batch + model(batch))
                return time.time() - start  #!
            model(batch)
            return time.time() - start  #!


        print(measure(torch.ones(2, 3, device=device), False))
        """,
        good="""
        import time
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(3, 1).to(device)


        def measure(batch, twice):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.time()
            if twice:
                model(batch + model(batch))
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                return time.time() - start
            model(batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return time.time() - start


        print(measure(torch.ones(2, 3, device=device), False))
        """,
    ),
]

CLEAN = [
    """
    import time
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(3, 1).to(device)


    def sync():
        if torch.cuda.is_available():
            torch.cuda.synchronize()


    def measure(batch):
        sync()
        start = time.time()
        model(batch)
        sync()
        return time.time() - start


    def read(batch):
        start = time.time()
        value = model(batch).sum().item()
        return time.time() - start, value


    def host(path):
        start = time.time()
        data = open(path).read()
        return time.time() - start, data
    """,
    """
    import time
    import torch

    model = torch.nn.Linear(3, 1)
    start = time.time()
    model(torch.ones(2, 3))
    print(time.time() - start)
    """,
    """
    import time
    import torch

    net = torch.nn.Linear(3, 1)
    net.to("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.time()
    value = net(torch.ones(2, 3, device=net.weight.device)).sum().item()
    end = time.time()
    net(torch.ones(2, 3, device=net.weight.device))
    print(end - begin, value)
    """,
    """
    import time

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch.nn.Linear(2, 1).to(device)
    start = time.time()
    out = net(torch.ones(1, 2, device=device)).cpu()
    end = time.time()
    print(end - start)
    """,
    """
    import time

    import torch
    from exporters import write

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch.nn.Linear(2, 1).to(device)
    start = time.time()
    out = net(torch.ones(1, 2, device=device))
    write(net, out)
    print(time.time() - start)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Differences of clock readings around device work."""
    if not mentions_device(model):
        return
    for node in model.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Sub):
            continue
        found = [(start, end) for start in readings(model, node, node.right) for end in readings(model, node, node.left)
                 if isinstance(start, ast.Assign) and not model.place(start).excludes(model.place(end))
                 and works_unwaited(model, start, end)]
        if found:
            yield Hit(
                node, "the clock is read before the device has finished; call `synchronize()` first",
                wait_first(model, found), confidence=Confidence.LIKELY)


def is_clock(model: FileModel, expr: ast.expr) -> bool:
    """Whether an expression reads a host clock."""
    return isinstance(expr, ast.Call) and model.name_of(expr.func) in CLOCKS


def readings(model: FileModel, node: ast.BinOp, side: ast.expr) -> list[ast.Assign | ast.Call]:
    """Where the clock was read for a side of a difference: there, or in the statement that bound its name last.

    These are several where the arms of an `if` each read it.
    """
    if isinstance(side, ast.Call) and is_clock(model, side):
        return [side]
    if not isinstance(side, ast.Name):
        return []
    made = [assign for assign in model.nodes(ast.Assign)
            if isinstance(assign.targets[0], ast.Name) and assign.targets[0].id == side.id
            and model.owner(assign) is model.owner(node) and model.position(assign) < model.position(node)
            and not model.place(assign).excludes(model.place(node))]
    last: list[ast.Assign | ast.Call] = []
    for assign in sorted(made, key=model.position, reverse=True):
        if last and not all(model.place(assign).excludes(model.place(other)) for other in last):
            break
        last.append(assign)
    return last[::-1] if all(isinstance(a, ast.Assign) and is_clock(model, a.value) for a in last) else []


def works_unwaited(model: FileModel, start: ast.stmt, end: ast.AST) -> bool:
    """Whether a model works between two places and nothing waits for it afterwards."""
    flow = model.flow(model.owner(end))
    working = False
    low, high = model.position(start), model.position(end)
    if waits_every_time(model, flow, start, end):
        return False
    for event in flow.events:
        if not model.has(event.node) or not low < model.position(event.node) < high:
            continue
        if model.place(event.node).excludes(model.place(end)):
            continue
        if event.what in ("call", "backward") or (event.what == "step" and event.target.known):
            working = not read_at_once(model, event.node)
        elif event.what in ("host_read", "save", "collective") or waits(event.name, event.inner) or may_read(event):
            working = False
    return working


def may_read(event: Event) -> bool:
    """Whether code that cannot be seen gets a tensor or the model, and so may wait for it."""
    return event.what == "unknown_call" and any(arg.is_tensor or arg.kind is Kind.MODULE for arg in event.args)


def read_at_once(model: FileModel, node: ast.AST) -> bool:
    """Whether what a call gives is read back in the same expression: `model(x).cpu()`."""
    return any(isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr in READING
               for up in (*model.ancestors(node),) if isinstance(up, ast.expr))


def waits_every_time(model: FileModel, flow: Flow, start: ast.stmt, end: ast.AST) -> bool:
    """Whether iterations are timed that each read a value: then at most one iteration's work is not counted."""
    outer = set(model.place(start).loops)
    inside = set(model.place(end).loops) - outer
    for event in flow.events:
        if event.what == "host_read" and model.has(event.node) and set(event.loops) - outer:
            rolling = bool(inside & set(event.loops))
            if rolling or model.position(start) < model.position(event.node) < model.position(end):
                return True
    return False


def waits(name: str, node: ast.AST | None) -> bool:
    """Whether a call that cannot be seen into waits for the device by its name."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in WAITING
    return name.rpartition(".")[2] in WAITING


def wait_first(model: FileModel, found: list[tuple[ast.Assign, ast.Assign | ast.Call]]) -> Repair | None:
    """synchronize() before all readings."""
    name = spell(model, "torch.cuda", at=found[0][0])
    if name is None or any(is_inline(model, model.statement(end), end) for _, end in found):
        return None
    text = f"if {name.text}.is_available():\n    {name.text}.synchronize()"
    places = dict.fromkeys(model.statement(reading) for pair in found for reading in pair)
    return edits.repair(
        "Wait for the device", *(edits.insert_before(model, place, text) for place in places
                                 if not waits_before(model, place)), imports=name.imports)


def waits_before(model: FileModel, statement: ast.stmt) -> bool:
    """Whether the statement in front waits: another measurement starts at the same reading."""
    for _, block in ast.iter_fields(model.parent(statement) or statement):
        if isinstance(block, list) and statement in block and block.index(statement):
            return any(isinstance(node, ast.Attribute) and node.attr == "synchronize"
                       for node in ast.walk(block[block.index(statement) - 1]))
    return False


def is_inline(model: FileModel, statement: ast.stmt, node: ast.AST) -> bool:
    """Whether the work happens in the statement that reads the clock, so that nothing can be put between."""
    return any(
        isinstance(part, ast.Call) and model.value(part.func).kind is Kind.MODULE for part in ast.walk(statement)
    ) or isinstance(statement, (ast.For, ast.While, ast.If, ast.With))
