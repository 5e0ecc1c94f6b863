"""Candidate inputs for `forward` and for functions on tensors, best first.

Shapes come from the layers that a built module hands the input to, from shape annotations, einops
patterns and docstrings, and from names; then the usual forms (sequence, image, matrix, tokens) follow
in turn.
"""
from __future__ import annotations

import collections.abc
import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from torch import nn

from runtime_check import graph_inputs, names
from runtime_check.entries import STEPS, Entry, entry_of, member
from runtime_check.guess import NOTHING, Asked, Guesser
from runtime_check.hinted import PLAIN, hinted, is_structure, record
from runtime_check.roles import (
    AXES,
    CONDITIONS,
    CONTEXT_SIZES,
    CONTEXTS,
    HEAD_SIZES,
    HEADS,
    IMAGE_SIZES,
    IMAGES,
    LENGTHS,
    MASKS,
    ROTARY,
    SHAPES,
    STATES,
    STEPPED,
    TENSORS_OF_OBJECTS,
    TIMES,
    TOKENS,
    WIDTHS,
)
from runtime_check.specs import OMIT, Assignment, Const, Seq, Spec, Tensor
from runtime_check.usage import Usage


def usable(spec: Spec) -> bool:
    """Whether a recipe is made of plain values; one from a layer that was made with lists is not."""
    try:
        hash(spec)
    except TypeError:
        return False
    return True


def wants_code(hint: Any) -> bool:
    """Whether an annotation states a function or a layer."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return all(part is types.NoneType or wants_code(part) for part in typing.get_args(hint))
    called = collections.abc.Callable in (hint, origin)
    return called or (isinstance(hint, type) and issubclass(hint, nn.Module))


class InputGuesser(Guesser):
    """Candidates for the arguments of `forward` of a built module, or of a function (module None)."""

    def __init__(self, function: Any, module: nn.Module | None = None, owner: type | None = None) -> None:
        super().__init__(function, type(module) if module is not None else owner)
        self.module = module
        texts = (inspect.getdoc(function), inspect.getdoc(self.owner) if self.owner else "")
        self.doc = " ".join(text for text in texts if text)
        self.width = self._width()
        self.edges = graph_inputs.on_graphs(self.signature.parameters, self.owner)

    def _width(self) -> int:
        """The size of features that the module most likely takes."""
        entry = entry_of(self.module) if self.module is not None else None
        if entry is not None and entry.kind == "float":
            shape = entry.shapes[0]
            return shape[1] if len(shape) >= 2 and len(shape) != 3 else shape[-1]
        for name in WIDTHS:
            value = getattr(self.module, name, None)
            if isinstance(value, int) and 0 < value <= 4096:
                return value
        return names.WIDTH

    def inputs(self, asked: Asked) -> list[Spec]:
        """Candidates for one argument of a call on tensors."""
        found: list[Spec] = []
        if not asked.required:
            found.append(OMIT)
            if asked.default is not None:
                return found if asked.hint is not bool else [*found, Const(not asked.default)]
        found += self._required(asked)
        return list(dict.fromkeys(spec for spec in found if usable(spec)))

    def _required(self, asked: Asked) -> Iterator[Spec]:
        text, use = names.snake(asked.name), asked.use
        if isinstance(asked.hint, type) and asked.hint in (bool, int, float, str):
            yield from self.by_class(asked.hint, asked)
            return
        if wants_code(asked.hint):
            yield from self.by_hint(asked.hint, asked)
        if ROTARY.search(text):
            yield from self._rotary(text)
        if is_structure(asked.hint):
            yield from hinted(asked.hint, asked, self._required)
            if asked.hint in PLAIN:
                return
        shaped = list(self._written_shapes(asked))
        yield from shaped
        if not shaped:
            yield from self._by_kind(text, asked)
        if use.keys:
            yield self.tensor_table(use)
        if use.is_object and not use.is_tensor and not self._says_tensor(asked):
            if use.attributes.keys() & TENSORS_OF_OBJECTS and not names.CONFIGS.search(text):
                self.edges = self.edges or "edge_index" in use.attributes
                yield from filter(None, [record(asked, self._required)])
            yield from self.by_use(asked)
        if self._is_sequence(asked):
            yield from self._lists(asked)
        yield from self.tensors(asked)
        if names.is_flag(text) or (use.truth and not use.is_tensor):
            yield from (Const(False), Const(True))
        if not self._says_tensor(asked):
            yield from self._lists(asked)
            yield from self.by_use(asked)
            yield Const(1)

    def _says_tensor(self, asked: Asked) -> bool:
        return "Tensor" in str(asked.hint) and "ist" not in str(asked.hint)

    def _is_sequence(self, asked: Asked) -> bool:
        text = str(asked.hint)
        if re.search(r"[Ll]ist|[Tt]uple|Sequence|Iterable", text) and not text.startswith("typing.Union"):
            return True
        return asked.use.element is not None and not asked.use.is_tensor and asked.use.length

    def _by_kind(self, text: str, asked: Asked) -> Iterator[Spec]:
        """Candidates that the name alone suggests."""
        b, t = names.BATCH, STEPS
        graph = list(graph_inputs.values(text, self.module, self._feature_width(asked))) if self.edges else []
        if graph:
            yield from graph
        elif graph_inputs.INDEX.search(text):
            yield Tensor((2, graph_inputs.EDGES), "long", graph_inputs.NODES)
        elif MASKS.search(text):
            if not asked.required or asked.use.can_be_none:
                yield Const(None)
            for shape in ((b, t), (t, t), (b, 1, t, t), (b, 1, 1, t), (t,)):
                yield Tensor(shape, "bool")
            yield Tensor((b, t))
        elif TIMES.search(text):
            yield from (Tensor((b,), "long", 8), Tensor((b,), "unit"), Tensor((b, 1), "unit"), Tensor((b, self.width)))
        elif CONTEXTS.search(text) and (size := self._attribute(CONTEXT_SIZES)):
            yield Tensor((b, t, size))
        elif CONDITIONS.search(text):
            yield from (Tensor((b, self.width)), Tensor((b, t, self.width)))
        elif SHAPES.search(text):
            yield from (Seq((Const(b), Const(w)), tuple) for w in (self.width, t))
        elif LENGTHS.search(text) and not asked.use.layers:
            yield from (Tensor((b,), "long", 0 + STEPS), Const(STEPS), Const([STEPS] * b))
        elif STATES.search(text) and not text.endswith("hidden_states"):
            if asked.use.can_be_none:
                yield Const(None)
            yield from self._states(asked)
        elif text.endswith(("hidden_states", "_embeds")) and self._takes_tokens():
            yield Tensor((b, t, self.width))  # what stands for tokens, or was made of them elsewhere
        elif TOKENS.search(text) and not self._float_entry(asked):
            high = self._vocabulary(asked)
            yield from (Tensor((b, t), "long", high), Tensor((b,), "long", high))
        elif IMAGES.search(text):
            yield from (Tensor(shape) for shape in self._entries(asked) if len(shape) == 4)
            side = names.IMAGE
            yield from map(Tensor, ((b, 3, side, side), (b, 1, 28, 28), (b, 3, 224, 224)))

    def _is_steps(self, text: str, entry: Entry | None) -> bool:
        """Whether a tensor is a sequence, by its name or because the module attends to its parts."""
        if entry is not None and (entry.kind != "float" or all(len(shape) != 3 for shape in entry.shapes)):
            return False
        parts = [self.module, *self.module.children()] if self.module is not None else []
        return bool(STEPPED.search(text)) or any(name in vars(part) for part in parts for name in HEADS)

    def _quick_first(self, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
        """Small images first where every pixel is compared with every other one and no size is laid down."""
        large = len(shapes[0]) == 4 and self._attribute(HEADS) and not self._attribute(IMAGE_SIZES)
        return sorted(shapes, key=lambda shape: shape[-1] != 32) if large else list(shapes)

    def _attribute(self, wanted: tuple[str, ...]) -> int:
        """The first size that a part of the module keeps under one of these names; 0 if none does."""
        parts = self.module.modules() if self.module is not None else ()
        found = (vars(part).get(name) for part in parts for name in wanted)
        return next((value for value in found if type(value) is int and value > 0), 0)

    def _rotary(self, text: str) -> Iterator[Spec]:
        """Cosines and sines of positions, of the size of one attention head."""
        size = self._attribute(HEAD_SIZES) or names.WIDTH // names.HEADS
        flat, batched = Tensor((STEPS, size)), Tensor((names.BATCH, STEPS, size))
        for one in (batched, flat) if text == "position_embeddings" else (flat, batched):
            yield one if text in ("cos", "sin") else Seq((one, one), tuple)
        if size % 2 == 0:
            yield Tensor((STEPS, size // 2), "complex")

    def _feature_width(self, asked: Asked) -> int:
        entry = self._entry(asked)
        if entry is not None and entry.kind == "float":
            return entry.shapes[0][1] if len(entry.shapes[0]) > 1 else self.width
        value = getattr(self.module, "in_channels", None)
        return value if isinstance(value, int) and value > 0 else self.width

    def _vocabulary(self, asked: Asked) -> int:
        entry = self._entry(asked)
        if entry is not None and entry.kind == "long":
            return entry.high
        parts = self.module.modules() if self.module is not None else ()
        return min((item.num_embeddings for item in parts if isinstance(item, nn.Embedding)), default=4)

    def _float_entry(self, asked: Asked) -> bool:
        entry = self._entry(asked)
        return entry is not None and entry.kind == "float" and bool(asked.use.layers)

    def _takes_tokens(self) -> bool:
        """Whether the first layer of the module looks up numbers."""
        entry = entry_of(self.module) if self.module is not None else None
        return entry is not None and entry.kind == "long"

    def _states(self, asked: Asked) -> Iterator[Spec]:
        """Hidden states: of the recurrent layer that the module holds, else of the module's width."""
        b = names.BATCH
        for item in self.module.modules() if self.module is not None else ():
            if isinstance(item, nn.RNNBase):
                layers = item.num_layers * (2 if item.bidirectional else 1)
                state = Tensor((layers, b, item.hidden_size))
                pair = Seq((state, state), tuple)
                yield from (pair, state) if isinstance(item, nn.LSTM) else (state, pair)
            elif isinstance(item, nn.RNNCellBase):
                state = Tensor((b, item.hidden_size))
                pair = Seq((state, state), tuple)
                yield from (pair, state) if isinstance(item, nn.LSTMCell) else (state, pair)
        yield from (Tensor((b, STEPS, self.width)), Tensor((b, self.width)), Tensor((1, b, self.width)))

    def _entry(self, asked: Asked) -> Entry | None:
        """What the layer wants that the argument is handed to; for an only argument, the module's first layer."""
        if self.module is None:
            return None
        for path in asked.use.layers:
            found = entry_of(member(self.module, path))
            if found is not None:
                return found
        return None

    def _entries(self, asked: Asked) -> list[tuple[int, ...]]:
        entry = self._entry(asked) or (entry_of(self.module) if self.module is not None else None)
        return list(entry.shapes) if entry is not None and entry.kind == "float" else []

    def tensors(self, asked: Asked) -> Iterator[Tensor]:
        """Tensor candidates: what the layers want, then the usual forms; a known rank comes first."""
        b, t, w, image = names.BATCH, STEPS, self.width, names.IMAGE
        entry = self._entry(asked)
        if entry is None and self.module is not None:
            entry = entry_of(self.module)
        found: list[Tensor] = []
        if entry is not None:
            found += [Tensor(shape, entry.kind, entry.high) for shape in self._quick_first(entry.shapes)]
        found += [
            Tensor((b, t, w)), Tensor((b, w)), Tensor((b, w, image, image)), Tensor((b, 3, image, image)),
            Tensor((b, w, image)), Tensor((b, t), "long", self._vocabulary(asked)),
            Tensor((b, names.HEADS, t, names.WIDTH // names.HEADS)),
            Tensor((b, w, 8, 8, 8)), Tensor((t, w)), Tensor((b, t, w, w)), Tensor((w, w)), Tensor((b, 1, 28, 28)),
            Tensor((b, 3, 224, 224)), Tensor((b,), "long", 2), Tensor((b,)), Tensor((w,)), Tensor(()),
        ]
        rank = asked.use.shape_unpacked or (3 if self._is_steps(names.snake(asked.name), entry) else 0)
        if rank:
            found.sort(key=lambda spec: len(spec.shape) != rank)
            if all(len(spec.shape) != rank for spec in found):
                found.insert(0, Tensor((b, w, *(8,) * (rank - 2))))
        yield from found

    def _lists(self, asked: Asked) -> Iterator[Spec]:
        """Lists and tuples of tensors."""
        inner = list(itertools.islice(self.tensors(Asked(asked.name, None, asked.use.element or Usage())), 4))
        count = asked.use.unpacked or 2
        for item in inner:
            yield Seq((item,) * count, tuple if asked.use.unpacked else list)
        for item in inner[:2]:
            for more in (3, 4, 1):
                yield Seq((item,) * more, list)

    def tensor_table(self, use: Usage) -> Spec:
        """A dictionary of tensors with the keys that the code reads."""
        from runtime_check.specs import Table

        parts = []
        for key, inner in use.keys.items():
            parts.append((key, next(iter(self._required(Asked(key, None, inner))), Tensor((names.BATCH, self.width)))))
        return Table(tuple(parts))

    # Shapes that people wrote down

    def _written_shapes(self, asked: Asked) -> Iterator[Spec]:
        """Shapes from jaxtyping annotations, einops patterns and docstrings."""
        dims = getattr(asked.hint, "dim_str", None)
        if isinstance(dims, str):
            kind = "long" if any("int" in str(item) for item in getattr(asked.hint, "dtypes", ())) else "float"
            yield from self._from_axes(dims.split(), kind)
        for pattern in asked.use.patterns:
            left = pattern.partition("->")[0]
            yield from self._from_axes(re.findall(r"\([^)]*\)|[\w.]+", left), "float")
        for part in asked.use.subscripts:
            letters = part.split() if " " in part else list(part)
            if letters and "." not in part:
                yield Tensor(tuple(names.BATCH if item == "b" else 4 for item in letters))
        for text in self._documented(asked.name):
            yield from self._from_axes([item for item in re.split(r"[,x×*\s]+", text) if item], "float")

    def _documented(self, name: str) -> Iterator[str]:
        quoted = re.escape(name)
        for match in re.finditer(rf"\b{quoted}\b[^\n]{{0,60}}?[(\[]([A-Za-z0-9_ ,×*]+)[)\]]", self.doc):
            parts = [item for item in re.split(r"[,x×*\s]+", match[1]) if item]
            other = re.search(r"optional|default|Tensor|bool|int|float|str|torch", match[1])
            short = 1 < len(parts) <= 5 and all(len(item) <= 14 for item in parts)
            if short and not other and re.search("[,×]", match[1]):
                yield match[1]

    def _from_axes(self, axes: list[str], kind: str) -> Iterator[Spec]:
        numbered = [(position, item.strip("()")) for position, item in enumerate(axes) if item != "..."]
        sizes = [self._axis(item, position, len(axes)) for position, item in numbered]
        if "..." in axes:
            sizes = [names.BATCH, *sizes] if axes[0] == "..." else sizes
        if sizes and all(sizes):
            yield Tensor(tuple(sizes), kind, 8)

    def _axis(self, name: str, position: int, count: int) -> int:
        if " " in name:  # a group such as "h p1"
            product = 1
            for part in name.split():
                product *= 4 if re.match(r"^(p\d?|h|w|heads?)$", part) else self._axis(part, position, count)
            return product
        if name.isdigit():
            return int(name)
        value = getattr(self.module, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        for pattern, size in AXES:
            if re.match(pattern, name.lower()):
                return STEPS if size == names.IMAGE and count < 4 else size
        if position == 0:
            return names.BATCH
        return self.width

    def starts(self) -> tuple[list[Assignment], dict[str, list[Spec]]]:
        """First assignments to try, best first, and the candidates for every parameter."""
        candidates: dict[str, list[Spec]] = {}
        positional: set[str] = set()
        spread = ""
        for item in self.parameters():
            if item.kind is item.VAR_KEYWORD:
                continue
            asked = self.asked(item)
            if item.kind is item.VAR_POSITIONAL:
                spread = item.name
                inner = list(itertools.islice(self.tensors(Asked(item.name, None, asked.use.element or Usage())), 8))
                several: list[Spec] = [Seq((one,) * n) for n in (1, 2) for one in inner]
                # Where other parameters have to be given, more of them is an option.
                candidates[item.name] = [Seq(()), *several] if positional else several
            else:
                candidates[item.name] = self.inputs(asked)
            if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) and (item.default is NOTHING or spread):
                positional.add(item.name)
        firsts = tuple((name, options[0]) for name, options in candidates.items())
        base = Assignment(firsts, frozenset(positional), spread)
        return list(variations(base, candidates)), candidates


def variations(base: Assignment, candidates: dict[str, list[Spec]]) -> Iterator[Assignment]:
    """The base, then all tensors changed together to the same form, then the next candidate of each parameter."""
    yield base
    wanted = [name for name in candidates if isinstance(base.get(name), Tensor)]
    forms = [item for item in candidates[wanted[0]] if isinstance(item, Tensor)] if wanted else []
    for form in forms[1:]:
        changed = base
        for name in wanted:
            changed = changed.put(name, _like(form, [item for item in candidates[name] if isinstance(item, Tensor)]))
        yield changed
    for index in range(1, max(map(len, candidates.values()), default=0)):
        for name, options in candidates.items():
            if index < len(options):
                yield base.put(name, options[index])


def _like(form: Tensor, options: list[Tensor]) -> Tensor:
    """The option of the same shape as `form`, else of the same rank, else the first."""
    same = [item for item in options if item.shape == form.shape and item.kind == form.kind]
    near = [item for item in options if len(item.shape) == len(form.shape)]
    return [*same, *near, *options][0]
