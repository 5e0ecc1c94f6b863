"""What a run results in, as flat values that two runs can be compared by."""

from __future__ import annotations

import ast
import math
import random
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from runtime_check.probes.bench import RUNS, Bench, Program, Run, Way
from runtime_check.probes.targets import stores, value_of
from runtime_check.trace import Enough, OutOfTime, Watcher

DEPTH = 8
MOST = 2000
VISITED = 5000  # objects that are looked at in one value
CALLS = 6  # of the flagged function, and executions of the statement, whose values are kept
PATIENCE = 1.5  # seconds for which a run of a part of a file goes on after the flagged statement
RELATIVE, ABSOLUTE = 1e-4, 1e-6


@dataclass
class Result:
    """The values of a run by path."""

    run: Run
    values: dict[str, object] = field(default_factory=dict)
    passing: dict[str, object] = field(default_factory=dict)  # stored by the flagged statement, each time
    recording: set[str] = field(default_factory=set)  # paths of the values that require a gradient
    executions: int = 0
    start: int = 0  # where the random generators stood before the flagged statement was run first

    @property
    def usable(self) -> bool:
        """Whether the run went as far as it was meant to."""
        return isinstance(self.run.error, (type(None), Enough, OutOfTime)) and not self.run.stopped

    @property
    def all(self) -> dict[str, object]:
        """All values."""
        return {**self.values, **self.passing}


@dataclass(frozen=True)
class Gap:
    """Two values that differ."""

    path: str
    one: str
    other: str
    size: float  # relative; infinite where kinds, shapes or texts differ


class Looks:
    """How many more objects are looked at: those that many others refer to are met again and again.

    `recording` are the paths of the tensors seen that require a gradient.
    """

    def __init__(self, most: int, whole: Looks | None = None, recording: set[str] | None = None) -> None:
        self.most, self.whole = most, whole
        self.recording: set[str] = set() if recording is None else recording

    def over(self) -> bool:
        """Whether it was enough; counts one more."""
        self.most -= 1
        return self.most < 0 or (self.whole is not None and self.whole.over())


def flat(value: object, path: str = "", depth: int = 0, looks: Looks | None = None) -> Iterator[tuple[str, object]]:
    """Tensors, numbers and texts in a value, by path. Modules give their state, other objects nothing."""
    looks = looks or Looks(VISITED)
    if depth > DEPTH or looks.over():
        return
    match value:
        case torch.Tensor():
            yield path, value.detach().clone()
            if value.requires_grad:
                looks.recording.add(path)
            if value.is_leaf and value.grad is not None:
                yield f"{path}.grad", value.grad.detach().clone()
        case None:
            return
        case bool() | int() | float() | complex() | str():
            yield path, value
        case torch.nn.Module():
            yield from state_of(value, path, looks.recording)
        case dict():
            for key, item in value.items():
                yield from flat(item, f"{path}[{key!r}]", depth + 1, looks)
        case list() | tuple():
            for index, item in enumerate(value):
                yield from flat(item, f"{path}[{index}]", depth + 1, looks)
        case _ if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            try:
                yield path, torch.as_tensor(value).clone()
            except (TypeError, ValueError, RuntimeError):
                return
        case _ if hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
            for name, item in list(vars(value).items()):
                yield from flat(item, f"{path}.{name}", depth + 1, looks)


def state_of(module: torch.nn.Module, path: str, recording: set[str]) -> Iterator[tuple[str, object]]:
    """Parameters, buffers and mode of a module; nothing of one that was never initialised."""
    try:
        named = [*module.named_parameters(), *module.named_buffers()]
    except AttributeError:
        return
    yield f"{path}.training", module.training
    for name, tensor in named:
        yield from flat(tensor, f"{path}.{name}", 0, Looks(VISITED, recording=recording))


def collect(
    value: object, program: Program, way: Way, output: str, recording: set[str] | None = None
) -> dict[str, object]:
    """The values of a run: a program's globals and what it printed, or what a call returned."""
    found: dict[str, object] = {}
    if program.whole and isinstance(value, dict) and value.get("__name__") == "__main__":
        names = value
    elif way.kind == "script":
        names = dict(program.space.globals)
    else:
        names = {}
    if names:
        whole = Looks(20 * VISITED, recording=recording)
        for name, item in names.items():
            if not name.startswith("__") and not isinstance(item, types.ModuleType):
                found.update(flat(item, name, 0, Looks(VISITED, whole, whole.recording)))
    else:
        found.update(flat(value, "result", 0, Looks(VISITED, recording=recording)))
    if output:
        found["printed text"] = output
    return dict(list(found.items())[:MOST])


def measure(
    bench: Bench, program: Program, way: Way, *watches: Any, limit: int = CALLS, after: Watcher | None = None
) -> Result:
    """Runs a program and collects values: its result, what the flagged function returned, and what the
    flagged statement stored. A part of a file is run for `limit` executions only.
    """
    result = Result(Run(way.label))
    kept: list[object] = []
    calls = 0
    targets = [
        list({unwrapped(node): node for node in (*stores(program.text, spot), *others)}.items())
        for spot, others in zip(program.spots, flagged_stores(bench, program), strict=True)
    ]

    def returned(name: str, value: object) -> None:
        nonlocal calls
        calls += 1
        if calls <= CALLS:
            looks = Looks(VISITED, recording=result.recording)
            result.values.update(flat(value, f"value {calls} returned by {name}", 0, looks))

    def begin(frame: FrameType, index: int) -> None:
        if not result.start:
            result.start = drawn()

    def stored(frame: FrameType, index: int) -> None:
        if after is not None:
            after(frame, index)
        result.executions += 1
        for name, target in targets[index] if result.executions <= CALLS else ():
            with suppress(LookupError):
                path = f"{name} after execution {result.executions}"
                result.passing.update(flat(value_of(target, frame)[0], path))

    result.run = bench.run(
        program,
        way,
        *watches,
        inspect=kept.append,
        returned=returned,
        before=begin,
        after=stored,
        limit=RUNS if program.whole else limit,
        patience=math.inf if program.whole else PATIENCE,
    )
    if kept:
        result.values.update(collect(kept[0], program, way, result.run.output, result.recording))
    return result


def flagged_stores(bench: Bench, program: Program) -> list[list[ast.expr]]:
    """For each watched statement of a program, what the flagged one stores into: the correction may write elsewhere."""
    found = [stores(bench.flagged.text, spot) for spot in bench.flagged.spots]
    return found if len(found) == len(program.spots) else [[] for _ in program.spots]


def unwrapped(node: ast.expr) -> str:
    """What a stored value is called, `.data` or not."""
    return ast.unparse(node).removesuffix(".data")


def drawn() -> int:
    """Where the random generators stand, as one number."""
    state = bytes(torch.get_rng_state().tolist())  # without numpy, which need not be there
    return hash((state, random.getstate()))


def gaps(one: dict[str, object], other: dict[str, object], *, exact: bool = False) -> list[Gap]:
    """Where two results differ; values that only one of them has are left out."""
    return [gap for path in one if path in other if (gap := compare(path, one[path], other[path], exact))]


def steady(bench: Bench, found: list[Gap], result: Result, *, exact: bool = False) -> list[Gap]:
    """Of gaps between the flagged and the corrected program those that two flagged runs do not show as well.

    What the second run did not come to, in the time that is left, is not known to be steady.
    """
    if not found or bench.way is None:
        return found
    again = measure(bench, bench.flagged, bench.way).all
    noise = {gap.path for gap in gaps(result.all, again, exact=exact)}
    return [gap for gap in found if gap.path in again and gap.path not in noise]


def compare(path: str, a: object, b: object, exact: bool) -> Gap | None:
    """The gap between two values, or None."""
    match a, b:
        case torch.Tensor(), torch.Tensor():
            return compare_tensors(path, a, b, exact)
        case (bool(), bool()) | (str(), str()):
            return None if a == b else Gap(path, brief(a), brief(b), math.inf)
        case ((int() | float() | complex()), (int() | float() | complex())):
            return compare_tensors(path, torch.tensor(a), torch.tensor(b), exact)
    return None if a is b or a == b else Gap(path, brief(a), brief(b), math.inf)


def compare_tensors(path: str, a: torch.Tensor, b: torch.Tensor, exact: bool) -> Gap | None:
    """The gap between two tensors: shape, dtype, where they are finite, values."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return Gap(path, shape(a), shape(b), math.inf)
    if not a.numel() or torch.equal(a, b):
        return None
    x = a.to(torch.complex128 if a.is_complex() else torch.float64)
    y = b.to(x.dtype)
    finite = torch.isfinite(x)
    if not torch.equal(finite, torch.isfinite(y)) or not torch.equal(x.isnan(), y.isnan()):
        return Gap(path, special(a), special(b), math.inf)
    if not torch.equal(x[~finite].nan_to_num(), y[~finite].nan_to_num()):
        return Gap(path, special(a), special(b), math.inf)  # infinities of another sign
    x, y = x[finite], y[finite]
    if not x.numel() or torch.equal(x, y):
        return None
    far, size = float((x - y).abs().max()), max(float(x.abs().max()), float(y.abs().max()))
    if not exact and far <= RELATIVE * size + ABSOLUTE:
        return None
    return Gap(path, number(a), number(b), far / size if size else math.inf)


def shape(tensor: torch.Tensor) -> str:
    """Shape and dtype."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def number(tensor: torch.Tensor) -> str:
    """The value of one element, or the norm of more."""
    if tensor.numel() == 1:
        return f"{tensor.item():.6g}" if tensor.is_floating_point() else str(tensor.item())
    return f"norm {float(torch.linalg.vector_norm(tensor.to(torch.complex128))):.6g}"


def special(tensor: torch.Tensor) -> str:
    """The value of one element, or how many of more are no finite numbers."""
    if tensor.numel() == 1:
        return number(tensor)
    parts = [f"{tensor.numel() - int(torch.isfinite(tensor).sum())} of {tensor.numel()} not finite"]
    real = tensor.real if tensor.is_complex() else tensor
    for name, found in (("NaN", real.isnan()), ("inf", real.isposinf()), ("-inf", real.isneginf())):
        if bool(found.any()):
            parts.append(f"{int(found.sum())} {name}")
    return ", ".join(parts)


def brief(value: object) -> str:
    """A value on one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"
