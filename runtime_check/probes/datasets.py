"""Reading datasets: stored data that a read changes, random numbers that workers repeat."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes import values
from runtime_check.probes.bench import Bench, Program, Run, Way, contrast, doubtful
from runtime_check.trace import caught, seed_everything

DEPTH = 6
MOST_ARRAYS = 200
MOST = 8  # items read in one pass
WORKERS = 2


@dataclass
class Reading:
    """Datasets of a run, and what reading them again showed."""

    run: Run
    items: list[tuple[Any, Any]] = field(default_factory=list)  # dataset, index
    loaders: list[Any] = field(default_factory=list)
    read: int = 0
    random: list[str] = field(default_factory=list)  # parts of items that are drawn anew
    repeated: list[str] = field(default_factory=list)  # of them, those that workers repeat
    plain: int = 0  # distinct values of the first such part without workers
    worked: int = 0  # and with workers


def at_statement(reading: Reading, frame: FrameType) -> None:
    """Notes the dataset and the index of a `__getitem__`, or the dataset alone."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    dataset = frame.f_locals.get(names[0]) if names else None
    if hasattr(type(dataset), "__getitem__") and not isinstance(dataset, (list, tuple, dict, str)):
        index = frame.f_locals.get(names[1]) if code.co_name == "__getitem__" and len(names) > 1 else 0
        if all(dataset is not other for other, _ in reading.items):
            reading.items.append((dataset, index))


@contextmanager
def loaders_seen(reading: Reading) -> Iterator[None]:
    """Notes every data loader that is made."""
    create = DataLoader.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        reading.loaders.append(self)

    DataLoader.__init__ = init
    try:
        yield
    finally:
        DataLoader.__init__ = create


def measure(bench: Bench, program: Program, way: Way, again: Any) -> Reading:
    """Runs a program, then `again(reading)` on the datasets seen."""
    reading = Reading(Run(way.label))
    reading.run = bench.run(
        program, way, loaders_seen(reading), after=lambda frame, index: at_statement(reading, frame)
    )
    again(reading)
    return reading


# -- what is stored ------------------------------------------------------------------------------


@dataclass
class Stored:
    """Whether reading an item changes what its dataset holds."""

    run: Run
    reads: int = 0
    changed: int = 0
    gap: values.Gap | None = None
    varied: int = 0  # tensors and arrays that were given other values before a read
    reread: list[str] = field(default_factory=list)  # parts of an item that differ when it is read again
    items: int = 0  # parts of that item
    odd: str = ""  # the kind of an index that is no number, as which a loader gives


def holder(frame: FrameType) -> object:
    """The object whose method a frame runs."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def index_of(frame: FrameType) -> object:
    """The index that a `__getitem__` was given; 0 in other functions."""
    code = frame.f_code
    if code.co_name != "__getitem__" or code.co_argcount < 2:
        return 0
    return frame.f_locals.get(code.co_varnames[1])


def is_many(index: object) -> bool:
    """Whether an index is a tensor of several numbers."""
    return isinstance(index, torch.Tensor) and index.dim() > 0


def arrays(value: object, depth: int = 0) -> Iterator[Any]:
    """The tensors and arrays that an object holds."""
    if isinstance(value, torch.Tensor) or (type(value).__module__ == "numpy" and hasattr(value, "dtype")):
        yield value
    elif isinstance(value, torch.nn.Module) or depth > DEPTH:
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays(item, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
        yield from arrays(vars(value), depth + 1)


def vary(value: object, *, constant: bool) -> int:
    """Gives the real numbers and pixels that an object holds other values; how many tensors and arrays that are.

    `constant` leaves those alone whose values differ: they are such as the program makes them.
    """
    count = 0
    for array in itertools.islice(arrays(value), MOST_ARRAYS):
        try:
            data = torch.as_tensor(array).detach()  # the same memory
            if not data.numel() or (constant and bool((data != data.reshape(-1)[0]).any())):
                continue
            if data.is_floating_point():
                data.add_(torch.rand_like(data) + 0.1) if constant else data.copy_(both_signs(data))
            elif data.dtype is torch.uint8:
                data.copy_(torch.randint(256, data.shape))
            else:
                continue
        except (TypeError, ValueError, RuntimeError):
            continue
        count += 1
    return count


def both_signs(data: torch.Tensor) -> torch.Tensor:
    """Numbers of some size for a tensor, every second of them negative."""
    sign = 1 - 2 * (torch.arange(data.numel()) % 2)
    return (sign.reshape(data.shape) * (2 + 3 * torch.rand(data.shape))).to(data.dtype)


def read_again(stored: Stored, dataset: Any, index: Any) -> None:
    """Reads an item twice with the random generators in one state, and notes what differs."""
    items = []
    with caught():
        for _ in range(2):
            seed_everything(1)
            try:
                items.append(dict(values.flat(dataset[index], "item")))
            except Exception:
                return
    stored.items = len(items[0])
    stored.reread = [gap.path for gap in values.gaps(*items)]


def measure_stored(bench: Bench, program: Program, way: Way, *, vary_all: bool | None = None) -> Stored:
    """Runs a program; compares the dataset before and after each execution of the flagged statement.

    `vary_all` says whether the dataset is given other values beforehand, all of it or, if False, what holds one
    value throughout: zeros stay zeros, whatever they are multiplied with. What is no more than rounding is no change.
    """
    stored = Stored(Run(way.label))
    before: dict[FrameType, dict[str, object]] = {}
    first: list[tuple[Any, Any]] = []

    def begin(frame: FrameType, index: int) -> None:
        asked = index_of(frame)
        stored.odd = stored.odd or ("" if hasattr(asked, "__index__") and not is_many(asked) else type(asked).__name__)
        if vary_all is not None:
            stored.varied += vary(holder(frame), constant=not vary_all)
        before[frame] = dict(values.flat(holder(frame), "dataset"))

    def end(frame: FrameType, index: int) -> None:
        found = values.gaps(before.pop(frame, {}), dict(values.flat(holder(frame), "dataset")))
        stored.reads += 1
        stored.changed += bool(found)
        stored.gap = stored.gap or (found[0] if found else None)
        if found and not first and frame.f_code.co_name == "__getitem__":
            first.append((holder(frame), index_of(frame)))

    stored.run = bench.run(program, way, before=begin, after=end)
    for dataset, index in first:
        read_again(stored, dataset, index)
    return stored


def probe_item(bench: Bench) -> Outcome:
    """Confirmed when reading an item changes the stored data, and with the correction does not."""
    return contrast(
        bench,
        lambda program, way: measure_stored(bench, program, way),
        lambda bad, good: judge_item(bench, bad, good),
    )


def judge_item(bench: Bench, bad: Stored, good: Stored | None) -> Outcome:
    """The outcome of reading items: of the data that the program makes, or of what stands in for data there."""
    if not bad.reads:
        return doubtful(bad.run, "the flagged line did not run to its end")
    if bad.gap is not None or bench.way is None:
        return judge_change(bench, bad, good)
    other = bench.same(bench.way) if bench.corrected is not None else None
    again = measure_stored(bench, bench.flagged, bench.way, vary_all=False)
    if again.gap is not None and (again.reread or not again.items):
        better = None if other is None or bench.corrected is None else measure_stored(
            bench, bench.corrected, other, vary_all=False)
        return judge_change(bench, again, better)
    if bench.way.made_up and bad.odd:
        return cannot_tell(f"the item was asked for with a made-up {bad.odd}, and a loader gives a number")
    return judge_unchanged(bad, measure_stored(bench, bench.flagged, bench.way, vary_all=True))


def judge_unchanged(bad: Stored, varied: Stored) -> Outcome:
    """The outcome where the stored data stays as it is with the values that the program makes."""
    rows = (Evidence("reads that change the stored data", str(bad.changed), "reads", str(bad.reads)),)
    if not varied.varied:
        return cannot_tell("nothing stored changes here, and it holds no real numbers that could be varied", rows)
    if varied.gap is not None:
        why = "reading changes none of the values that the program stores; of other values it would change some"
        row = Evidence("reads that change the stored data, given other values", str(varied.changed), "reads",
                       str(varied.reads))
        return cannot_tell(why, (*rows, row))
    row = Evidence("stored tensors and arrays that were given other values", str(varied.varied), "changed", "0")
    return Outcome(Verdict.REFUTED, "reading an item leaves the stored data as it is", (*rows, row))


def judge_change(bench: Bench, bad: Stored, good: Stored | None) -> Outcome:
    """The outcome where reading changes the stored data."""
    rows = [Evidence("reads that change the stored data", str(bad.changed), "reads", str(bad.reads))]
    if bad.gap is None:
        return cannot_tell("nothing stored changes here", rows)
    if bad.varied:
        rows.append(Evidence("stored tensors and arrays that were given other values", str(bad.varied),
                             "changes to the values as they are", "none"))
    rows.append(Evidence(f"{bad.gap.path} before the read", bad.gap.one, "after it", bad.gap.other))
    if good is not None and good.reads:
        rows.append(Evidence("reads that change the stored data", str(bad.changed), bench.against, str(good.changed)))
        if good.changed:
            return cannot_tell("reading changes the stored data in the corrected program as well", rows)
    why = f"reading an item changes {bad.gap.path}, which the dataset keeps"
    if bad.reread:
        rows.append(Evidence("parts of an item that differ in the next read", str(len(bad.reread)), "parts",
                             str(bad.items)))
        why = f"reading an item changes {bad.gap.path}: the next read gives another {bad.reread[0]}"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows))


# -- workers ------------------------------------------------------------------------------------


def epoch(dataset: Any, init: Any, workers: int) -> dict[str, list[str]]:
    """The values of one pass over a dataset by their place in an item."""
    found: dict[str, list[str]] = {}
    loader = DataLoader(dataset, batch_size=1, num_workers=workers, worker_init_fn=init)
    for number, item in enumerate(loader):
        if number >= MOST:
            break
        for path, value in values.flat(item, "item"):
            found.setdefault(path, []).append(str(value))
    return found


def with_workers(reading: Reading) -> None:
    """Reads the first dataset twice without workers, to see what is random, and once with workers."""
    sources = [(loader.dataset, loader.worker_init_fn) for loader in reading.loaders]
    sources += [(dataset, None) for dataset, _ in reading.items]
    sources = [(dataset, init) for dataset, init in sources if not isinstance(dataset, IterableDataset)]
    for dataset, init in sources[:1]:
        seed_everything(1)
        one, two = epoch(dataset, None, 0), epoch(dataset, None, 0)
        seed_everything(1)
        first = epoch(dataset, init, WORKERS)
        reading.read = len(next(iter(one.values()), []))
        reading.random = [path for path in one if one[path] != two.get(path)]
        for path in reading.random:
            distinct, before = len(set(first.get(path, ()))), len(set(one[path]))
            if distinct < before:
                reading.repeated.append(path)
                reading.plain, reading.worked = before, distinct


def probe_workers(bench: Bench) -> Outcome:
    """Confirmed when workers repeat random values that one process does not repeat."""
    return contrast(
        bench,
        lambda program, way: measure(bench, program, way, with_workers),
        lambda bad, good: judge_workers(bench, bad, good),
        reached=lambda reading: reading.run.reached or bool(reading.loaders),
    )


def judge_workers(bench: Bench, bad: Reading, good: Reading | None) -> Outcome:
    """The outcome of reading with workers."""
    if not bad.read:
        return doubtful(bad.run, "no dataset was found that a loader could read")
    if not bad.random:
        return cannot_tell("no part of an item is drawn at random, so nothing can repeat")
    if not bad.repeated:
        row = Evidence("random parts that workers repeat", "0", "random parts", str(len(bad.random)))
        return Outcome(Verdict.REFUTED, f"{WORKERS} workers draw different values", (row,))
    rows = [
        Evidence(
            f"different values of {bad.repeated[0]} in {bad.read} items with {WORKERS} workers",
            str(bad.worked),
            "in one process",
            str(bad.plain),
        ),
        Evidence("random parts that repeat", str(len(bad.repeated)), "random parts", str(len(bad.random))),
    ]
    if good is not None and good.read:
        rows.append(
            Evidence("random parts that repeat", str(len(bad.repeated)), bench.against, str(len(good.repeated)))
        )
        if len(good.repeated) >= len(bad.repeated):
            return cannot_tell("they repeat in the corrected program as well", rows)
    return Outcome(Verdict.CONFIRMED, f"with {WORKERS} workers the random values of items repeat", tuple(rows))


# -- samplers -----------------------------------------------------------------------------------


@dataclass
class Orders:
    """The orders in which distributed samplers gave indices, pass by pass."""

    run: Run
    seen: list[tuple[int, ...]] = field(default_factory=list)
    possible: set[tuple[int, ...]] = field(default_factory=set)  # with another epoch set each time


@contextmanager
def orders_seen(orders: Orders) -> Iterator[None]:
    """Notes every pass over a shuffling sampler."""
    plain = DistributedSampler.__iter__

    def passed(self: Any) -> Iterator[Any]:
        order = tuple(plain(self))
        if self.shuffle:
            orders.seen.append(order)
            epoch = self.epoch
            for number in range(len(orders.seen)):
                self.epoch = number
                orders.possible.add(tuple(plain(self)))
            self.epoch = epoch
        return iter(order)

    DistributedSampler.__iter__ = passed
    try:
        yield
    finally:
        DistributedSampler.__iter__ = plain


def measure_orders(bench: Bench, program: Program, way: Way) -> Orders:
    """Runs a program and notes the orders of its samplers."""
    orders = Orders(Run(way.label))
    orders.run = bench.run(program, way, orders_seen(orders))
    return orders


def probe_sampler(bench: Bench) -> Outcome:
    """Confirmed when every pass has the order of the first, which another epoch would change."""
    return contrast(
        bench,
        lambda program, way: measure_orders(bench, program, way),
        lambda bad, good: judge_orders(bench, bad, good),
    )


def judge_orders(bench: Bench, bad: Orders, good: Orders | None) -> Outcome:
    """The outcome of comparing passes."""
    passes, different = len(bad.seen), len(set(bad.seen))
    if passes < 2:
        return doubtful(bad.run, f"a shuffling DistributedSampler was passed over {passes} times, too few to compare")
    rows = [Evidence(f"orders in {passes} passes", str(different), "with set_epoch", str(len(bad.possible)))]
    if different > 1:
        return Outcome(Verdict.REFUTED, "the order changes from pass to pass", tuple(rows))
    if len(bad.possible) < 2:
        return cannot_tell("another epoch would not change the order of so few items", rows)
    if good is not None and len(good.seen) > 1:
        rows.append(Evidence(f"orders in {passes} passes", str(different), bench.against, str(len(set(good.seen)))))
        if len(set(good.seen)) == 1:
            return cannot_tell("so it is in the corrected program", rows)
    return Outcome(Verdict.CONFIRMED, f"each of {passes} passes gives the items in one and the same order", tuple(rows))
