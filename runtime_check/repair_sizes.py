"""Repairs of shapes: sizes and ranks that an error text, or the failing layer, says are wrong."""
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from runtime_check import names
from runtime_check.blame import Context
from runtime_check.specs import Assignment, Const, Seq, Tensor

MOST_PAIRS = 4  # of tensors whose sizes may add up to another
LONGEST = 16_384  # steps of a sequence, such as samples of a sound
IMAGES = (32, 64, 28, 16, 224, 8, 96, 128, 256, 84, 48, 299)


def resize(context: Context, old: int, new: int, rank: int = 0) -> Iterator[Assignment]:
    """Every way to turn a size `old` of the tensor arguments into `new`: together first, then one by one."""
    if old == new or new <= 0 or new > 4096:
        return
    order = context.involved()
    having = [(name, spec) for name, spec in context.arguments.leaves()
              if old in spec.shape and (not rank or len(spec.shape) == rank)]
    having.sort(key=lambda pair: order.index(pair[0]))
    untouched = context.untouched()
    direct = [pair for pair in having if pair[0] in untouched]  # in the failing statement, and still what was passed
    for parameter in dict.fromkeys(name.partition("/")[0] for name, _ in direct):
        yield _together(context, [pair for pair in direct if pair[0].partition("/")[0] == parameter], old, new)
    blamed = set(context.blamed())
    first = [pair for pair in having if pair[0] in blamed]
    for group in (first, having):
        if group:
            yield _together(context, group, old, new)
    for name, spec in having:
        for position in [i for i, size in enumerate(spec.shape) if size == old][::-1]:
            shape = (*spec.shape[:position], new, *spec.shape[position + 1:])
            yield context.arguments.put(name, spec.resize(shape))
        if spec.shape.count(old) > 1:
            yield context.arguments.put(name, spec.resize(tuple(new if size == old else size for size in spec.shape)))


def _together(context: Context, group: list[tuple[str, Tensor]], old: int, new: int) -> Assignment:
    """Several tensors changed at once, such as those of one tuple."""
    changed = context.arguments
    for name, spec in group:
        changed = changed.put(name, spec.resize(_last_replaced(spec.shape, old, new)))
    return changed


def _last_replaced(shape: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """The last size `old` replaced; a pair at the end (an image) is replaced together."""
    if len(shape) >= 4 and shape[-1] == shape[-2] == old:
        return (*shape[:-2], new, new)
    position = max(i for i, size in enumerate(shape) if size == old)
    return (*shape[:position], new, *shape[position + 1:])


def either(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Two sizes that should agree: change the one or the other."""
    one, two = int(match[1]), int(match[2])
    yield from resize(context, one, two)
    yield from resize(context, two, one)


def got_wanted(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The first number is what there is, the second what is wanted."""
    yield from resize(context, int(match[1]), int(match[2]))
    yield from summed(context, int(match[1]), int(match[2]))
    yield from flattened(context, int(match[1]), int(match[2]))


def wanted_got(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The first number is what is wanted, the second what there is."""
    yield from resize(context, int(match[2]), int(match[1]))
    yield from summed(context, int(match[2]), int(match[1]))
    yield from flattened(context, int(match[2]), int(match[1]))


def matrices(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Matrix product: the inner sizes differ."""
    _, inner, wanted, last = map(int, match.groups())
    yield from resize(context, inner, wanted)
    yield from summed(context, inner, wanted)
    yield from flattened(context, inner, wanted)
    yield from resize(context, inner, last)
    yield from resize(context, wanted, inner)


def summed(context: Context, got: int, wanted: int) -> Iterator[Assignment]:
    """A size is the sum of those of two tensors that are put beside each other: one of them shrinks, or both."""
    axes = [(name, spec, axis) for name, spec in context.arguments.leaves() if len(spec.shape) > 1
            for axis in {1, len(spec.shape) - 1}]
    pairs = [(one, two) for one, two in itertools.combinations(axes, 2)
             if one[0] != two[0] and one[1].shape[one[2]] + two[1].shape[two[2]] == got]
    for one, two in pairs[:MOST_PAIRS]:
        first, second = one[1].shape[one[2]], two[1].shape[two[2]]
        for parts in ((wanted - second, second), (first, wanted - first), (wanted // 2, wanted - wanted // 2)):
            if min(parts) > 0:
                changed = context.arguments
                for (name, spec, axis), size in zip((one, two), parts, strict=True):
                    changed = changed.put(name, spec.resize((*spec.shape[:axis], size, *spec.shape[axis + 1:])))
                yield changed


def flattened(context: Context, got: int, wanted: int) -> Iterator[Assignment]:
    """A product of sizes is off: images and sequences are scaled, then usual sizes tried."""
    for name, spec in context.arguments.leaves():
        if len(spec.shape) < 3:
            continue
        spatial = len(spec.shape) - 2 if len(spec.shape) > 3 else 1
        size = spec.shape[-1]
        scaled = size * (wanted / got) ** (1 / spatial) if got else size
        near = [round(scaled), math.ceil(scaled), math.floor(scaled), round(scaled) + 1, round(scaled) + 2]
        for value in dict.fromkeys([*near, *(IMAGES if spatial > 1 else (16, 32, 64, 4, 128, 100))]):
            if 0 < value <= 512 and value != size:
                yield context.arguments.put(name, spec.resize(spec.shape[:-spatial] + (value,) * spatial))


def view_sizes(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """`view` or `reshape` to fixed sizes: the product must divide."""
    sizes = [int(item) for item in match[1].split(",") if item.strip().lstrip("-").isdigit()]
    total = int(match[2])
    fixed = math.prod(size for size in sizes if size > 0)
    direct, blamed = context.untouched(), set(context.blamed())
    for name, spec in context.arguments.leaves():
        if name in blamed and len(spec.shape) == 3 < len(sizes) and min(sizes) > 0:  # its middle size is to be split
            yield context.arguments.put(name, spec.resize((sizes[0], math.prod(sizes[1:-1]), sizes[-1])))
        if name in direct and spec.shape:  # its last size is to be split
            for size in dict.fromkeys(size for size in sizes[1:] if size > 1):
                yield context.arguments.put(name, spec.resize((*spec.shape[:-1], spec.shape[-1] * size)))
            if len(sizes) > 2 and min(sizes[:-1]) > 0:
                yield context.arguments.put(name, spec.resize((*sizes[:-2], sizes[-2] * spec.shape[-1])))
    for size in sizes:
        for name, spec in context.arguments.leaves():
            if size > 0 and spec.shape and size not in spec.shape:
                yield context.arguments.put(name, spec.resize((*spec.shape[:-1], size)))
                if len(spec.shape) > 1:
                    yield context.arguments.put(name, spec.resize((spec.shape[0], size, *spec.shape[2:])))
    yield from flattened(context, total, fixed if -1 not in sizes else max(total // max(fixed, 1), 1) * fixed)
    for name, spec in context.arguments.leaves():
        if fixed > 0 and len(spec.shape) > 1:
            yield context.arguments.put(name, spec.resize((*spec.shape[:-1], fixed)))


def grow(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The input is too small for the kernels or pools: more pixels, more steps, a bigger batch."""
    for name, spec in context.arguments.leaves():
        if len(spec.shape) >= 4:
            for size in (128, 224, 256):
                if size > spec.shape[-1]:
                    yield context.arguments.put(name, spec.resize((*spec.shape[:-2], size, size)))
        elif len(spec.shape) == 3:
            steps = min(16 * spec.shape[-1], LONGEST) if re.search(r"per channel: \(\d+\)", context.text) else 32
            for size in dict.fromkeys((32, 128, 512, steps)):
                yield context.arguments.put(name, spec.resize((*spec.shape[:-1], size)))
                yield context.arguments.put(name, spec.resize((spec.shape[0], size, spec.shape[2])))
        elif spec.shape:
            yield context.arguments.put(name, spec.resize((8, *spec.shape[1:])))


def halved_often(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Images are put beside others that were made smaller and larger again: their sizes must be halved evenly."""
    for name, spec in context.arguments.leaves():
        if len(spec.shape) >= 4:
            for size in (64, 128, 256):
                if spec.shape[-2:] != (size, size):
                    yield context.arguments.put(name, spec.resize((*spec.shape[:-2], size, size)))


def exact_shape(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The error states the shape that is wanted and the shape that there is."""
    shapes = [_shape(text) for text in re.findall(r"[\[(]([\d, ]*\d[\d, ]*)[\])]", context.text)]
    shapes = [shape for shape in shapes if shape]
    present = {spec.shape for _, spec in context.arguments.leaves()}
    wanted = [shape for shape in shapes if shape not in present]
    for name, spec in context.arguments.leaves():
        if spec.shape in shapes:
            for shape in wanted:
                yield context.arguments.put(name, spec.resize(shape))
    for one in shapes:
        for two in shapes:
            if len(one) == len(two) and one != two:
                for old, new in zip(one, two, strict=True):
                    yield from resize(context, old, new)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(",") if item.strip().isdigit())


def normalized(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A layer norm states its sizes."""
    wanted = _shape(match[1])
    for name, spec in context.arguments.leaves():
        if name in context.blamed() and len(spec.shape) >= len(wanted):
            yield context.arguments.put(name, spec.resize((*spec.shape[: -len(wanted)], *wanted)))
    got = _shape(match[2])
    if got and wanted:
        yield from resize(context, got[-1], wanted[-1])
    yield from by_ranks(context, 1)


# Ranks

def rank(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """The number of dimensions is wrong: the text names the right ones."""
    pairs = re.findall(r"(?:^|[^\d])(\d)-?(?:[dD]\b| ?dim)|len\(dims\) = (\d)", context.text)
    wanted = [int(one or two) for one, two in pairs] or [int(item) for item in match.groups() if item]
    different = re.search(r"input\.dim\(\) = (\d) is not equal to len\(dims\) = (\d)", context.text)
    if different:  # inside the code, where an argument may have gained or lost some
        yield from by_ranks(context, int(different[2]) - int(different[1]))
    for value in reversed(wanted):
        yield from with_rank(context, value)


def by_ranks(context: Context, more: int) -> Iterator[Assignment]:
    """Each tensor with so many more dimensions, those that the failing statement depends on first."""
    order = context.involved()
    for name, spec in sorted(context.arguments.leaves(), key=lambda pair: order.index(pair[0])):
        if spec.shape and len(spec.shape) + more > 0:
            for shape in itertools.islice(reshaped(spec.shape, len(spec.shape) + more), 1):
                yield context.arguments.put(name, spec.resize(shape))


def with_rank(context: Context, wanted: int) -> Iterator[Assignment]:
    """Tensor arguments with another number of dimensions, the blamed ones first."""
    if not 0 < wanted <= 6:
        return
    blamed = context.blamed()
    group = [(name, spec) for name, spec in context.arguments.leaves() if name in blamed]
    for name, spec in group:
        for shape in reshaped(spec.shape, wanted):
            yield context.arguments.put(name, spec.resize(shape))
    if len(group) > 1:
        changed = context.arguments
        for name, spec in group:
            changed = changed.put(name, spec.resize(next(iter(reshaped(spec.shape, wanted)), spec.shape)))
        yield changed


def reshaped(shape: tuple[int, ...], wanted: int) -> Iterator[tuple[int, ...]]:
    """Shapes of another rank that keep the batch and the last or second size."""
    have = len(shape)
    if have == wanted or not shape:
        if not shape:
            yield (2,) * wanted
        return
    if wanted < have:
        yield (*shape[: wanted - 1], shape[-1]) if wanted > 1 else (shape[-1],)
        yield shape[:wanted]
        return
    if wanted >= 4 and have <= 3:
        channels = shape[1] if have >= 2 else shape[-1]
        yield (2, channels, *(names.IMAGE,) * (wanted - 2))
        yield (2, shape[-1], *(names.IMAGE // 2,) * (wanted - 2))
    if have == 1:
        yield (2, *(8,) * (wanted - 2), shape[-1])
    else:
        yield (*shape[:-1], *(8,) * (wanted - have), shape[-1])
    yield (*shape, *(8,) * (wanted - have))
    yield (*(1,) * (wanted - have), *shape)


def unpacking(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Too few or too many values: of a shape, or of a tuple that was passed."""
    wanted = int(match[1])
    blamed = context.blamed()
    for name in blamed:
        spec = context.arguments.get(name)
        if isinstance(spec, Tensor):
            for shape in reshaped(spec.shape, wanted):
                yield context.arguments.put(name, spec.resize(shape))
            yield context.arguments.put(name, Seq((spec,) * wanted, tuple))
            if spec.shape:
                yield context.arguments.put(name, spec.resize((wanted, *spec.shape[1:])))
        elif isinstance(spec, Seq) and spec.items:
            yield context.arguments.put(name, Seq((spec.items[0],) * wanted, spec.box))
        elif isinstance(spec, Const):
            yield context.arguments.put(name, Seq((spec,) * wanted, tuple))


def index_rank(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """An index and what it indexes have different ranks."""
    ranks = {len(spec.shape) for _, spec in context.arguments.leaves()}
    for wanted in sorted(ranks, reverse=True):
        yield from with_rank(context, wanted)


def ranks_differ(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """Two tensors that are put beside each other have different ranks: the lower one gets that of the other."""
    low, high = sorted((int(match[1]), int(match[2])))
    for old, new in ((low, high), (high, low)):
        for name, spec in context.arguments.leaves():
            if len(spec.shape) == old:
                for shape in reshaped(spec.shape, new):
                    yield context.arguments.put(name, spec.resize(shape))


def rank_by_one(context: Context, match: re.Match[str]) -> Iterator[Assignment]:
    """A dimension that is not there was asked for: one more, two more, one less."""
    blamed = [(name, spec) for name, spec in context.arguments.leaves() if name in context.blamed()]
    order = context.involved()
    blamed.sort(key=lambda pair: order.index(pair[0]))
    forms = [(name, spec, list(reshaped(spec.shape, len(spec.shape) + more))) for more in (1, 2, -1)
             for name, spec in blamed if len(spec.shape) + more > 0]
    for position in range(3):
        for name, spec, shapes in forms:
            if position < len(shapes):
                yield context.arguments.put(name, spec.resize(shapes[position]))
