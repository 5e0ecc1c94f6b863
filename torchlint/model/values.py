"""Abstract values: what the model believes an expression evaluates to.

UNKNOWN is an answer. A value says how sure it is, and a finding is as sure as its weakest fact.
"""
from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchlint.findings import Confidence

if TYPE_CHECKING:
    from torchlint.model.classes import ClassInfo
    from torchlint.model.functions import FunctionInfo


class Kind(enum.Enum):
    """What a value is."""

    UNKNOWN = "unknown"
    TENSOR = "tensor"
    MODULE = "module"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"
    LOADER = "loader"
    DATASET = "dataset"
    SAMPLER = "sampler"
    CTX = "ctx"  # the context argument of an autograd Function
    DEVICE = "device"
    DTYPE = "dtype"
    RNG = "rng"
    NDARRAY = "ndarray"
    NUMBER = "number"  # int, float, bool, complex
    STRING = "string"
    SIZE = "size"
    NONE = "none"
    PARAMETERS = "parameters"  # an iterator over parameters: usable once
    LIST = "list"  # also deque and other growing sequences
    TUPLE = "tuple"
    DICT = "dict"
    SET = "set"
    STATE_DICT = "state_dict"
    HANDLE = "handle"  # of a registered hook
    WORK = "work"  # of an asynchronous collective
    CLASS = "class"
    FUNCTION = "function"
    NAMESPACE = "namespace"  # a Python module
    CONTEXT = "context"  # a context manager such as torch.no_grad()
    INSTANCE = "instance"  # of some other class

    __hash__ = object.__hash__  # members are single objects; the hash that enums write is Python code

    def __repr__(self) -> str:
        return self.name


class Grad(enum.Enum):
    """Whether a tensor carries an autograd graph (or is a leaf that requires grad)."""

    NO = "detached"
    YES = "attached"
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return self.name


MAYBE = frozenset({"frozen"})  # facts that count where they may hold
CONTAINERS = {Kind.LIST, Kind.TUPLE, Kind.DICT, Kind.SET}
MUTABLE_CONTAINERS = {Kind.LIST, Kind.DICT, Kind.SET}


@dataclass(slots=True, unsafe_hash=True)
class Value:
    """One abstract value. Values are never changed once made; `but(...)` makes a changed copy.

    Not declared frozen only because a frozen dataclass takes four times as long to make, and the
    analysis makes hundreds of them for every page of code.
    """

    kind: Kind = Kind.UNKNOWN
    sure: Confidence = Confidence.SURE
    # The dotted name of the class, function or namespace; for tensors the operation that made it.
    name: str = ""
    # Which object it is: two values with the same `ident` are the same object (within one iteration).
    ident: Hashable = None
    grad: Grad = Grad.UNKNOWN
    # "parameter", "buffer", "leaf" (requires grad, made by a factory), "input" of forward, or "".
    role: str = ""
    site: ast.AST | None = None  # the expression that made it
    cls: ClassInfo | None = None  # the project class of an instance or class value
    func: FunctionInfo | None = None  # the project function of a function value
    bound: Value | None = None  # the receiver of a bound method
    elements: tuple[Value, ...] | None = None  # of a tuple or list whose members are known
    item: Value | None = None  # what iterating or indexing gives
    fields: tuple[tuple[Hashable, Value], ...] = ()  # of a dict literal
    const: Any = None  # the Python value of a literal
    # What a squashing function left: "softmax", "log_softmax", "sigmoid", "logsigmoid"; kept by reshapes.
    squash: str = ""
    storage: Hashable = None  # views of one tensor share it
    source: Hashable = None  # the module or function call it came from
    carried: frozenset[ast.AST] = frozenset()  # loops whose earlier iteration made part of its graph
    # What its autograd graph holds: the nodes of operations (those of a helper as (call, node), those of an
    # earlier iteration as ("earlier", node)), and leaves as ("leaf", ident).
    graph: frozenset[Hashable] = frozenset()
    optional: bool = False  # may also be None
    facts: frozenset[str] = frozenset()  # small further truths, see `Fact` names where they are set

    def __eq__(self, other: object) -> bool:
        # What differs most often comes first; the one that dataclasses write makes two tuples of all fields.
        if not isinstance(other, Value):
            return NotImplemented
        return (
            self.kind is other.kind
            and self.site is other.site
            and self.ident == other.ident
            and self.name == other.name
            and self.const == other.const
            and self.grad is other.grad
            and self.sure is other.sure
            and self.cls is other.cls
            and self.func is other.func
            and self.storage == other.storage
            and self.source == other.source
            and self.role == other.role
            and self.squash == other.squash
            and self.optional is other.optional
            and self.facts == other.facts
            and self.carried == other.carried
            and self.graph == other.graph
            and self.bound == other.bound
            and self.item == other.item
            and self.elements == other.elements
            and self.fields == other.fields
        )

    def but(self, **changes: Any) -> Value:
        """A copy with some fields changed."""
        # Spelled out: copying is most of what an analysis does, and a loop over names takes three times as long.
        new = _bare(Value)
        new.kind = self.kind
        new.sure = self.sure
        new.name = self.name
        new.ident = self.ident
        new.grad = self.grad
        new.role = self.role
        new.site = self.site
        new.cls = self.cls
        new.func = self.func
        new.bound = self.bound
        new.elements = self.elements
        new.item = self.item
        new.fields = self.fields
        new.const = self.const
        new.squash = self.squash
        new.storage = self.storage
        new.source = self.source
        new.carried = self.carried
        new.graph = self.graph
        new.optional = self.optional
        new.facts = self.facts
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    @property
    def is_tensor(self) -> bool:
        """A tensor, parameters and buffers included."""
        return self.kind is Kind.TENSOR

    @property
    def attached(self) -> bool:
        """A tensor that surely carries a graph."""
        return self.kind is Kind.TENSOR and self.grad is Grad.YES

    @property
    def known(self) -> bool:
        """Whether anything is known at all."""
        return self.kind is not Kind.UNKNOWN

    def field(self, key: Hashable) -> Value | None:
        """The member of a dict literal."""
        for name, value in self.fields:
            if name == key:
                return value
        return None

    def attached_parts(self) -> list[Value]:
        """This value, or the members of this container (two levels deep), that are attached."""
        if self.attached:
            return [self]
        found: list[Value] = []
        for part in self.parts():
            found.extend([part] if part.attached else [p for p in part.parts() if p.attached])
        return found

    def parts(self) -> list[Value]:
        """The known members of a container."""
        found = list(self.elements or ())
        found.extend(value for _, value in self.fields)
        if self.item is not None:
            found.append(self.item)
        return found


_bare = object.__new__

UNKNOWN = Value()
NONE = Value(Kind.NONE)
NUMBER = Value(Kind.NUMBER)
LIKELY_NUMBER = Value(Kind.NUMBER, sure=Confidence.LIKELY)
STRING = Value(Kind.STRING)


def promised(value: Value) -> Value:
    """A value, and what it holds, as no more than likely."""
    if not value.known:
        return value
    return value.but(
        sure=min(value.sure, Confidence.LIKELY), item=None if value.item is None else promised(value.item),
        elements=None if value.elements is None else tuple(promised(part) for part in value.elements))


def literal(node: ast.Constant) -> Value:
    """The value of a literal."""
    return _literal(node.value)


@functools.lru_cache(maxsize=4096, typed=True)
def _literal(const: Hashable) -> Value:
    """One object for all that are alike: most comparisons of values then end at `is`."""
    match const:
        case None:
            return NONE
        case str():
            return Value(Kind.STRING, const=const)
        case bool() | int() | float() | complex():
            return Value(Kind.NUMBER, const=const)
    return UNKNOWN


def unsure(value: Value) -> Value:
    """A value as no more than likely."""
    return value.but(sure=min(value.sure, Confidence.LIKELY)) if value.known else value


def number_from(*values: Value) -> Value:
    """What arithmetic with numbers gives; no surer than they are."""
    return NUMBER if all(value.sure is Confidence.SURE for value in values) else LIKELY_NUMBER


def members_anew(value: Value, copy: ast.Call) -> Value:
    """A container with copies of what is in it, which a call makes."""
    def anew(part: Value) -> Value:
        storage = (copy, part.storage) if part.storage is not None else None
        return members_anew(part, copy).but(ident=(copy, part.ident), storage=storage)

    return value.but(
        elements=tuple(anew(part) for part in value.elements) if value.elements is not None else None,
        item=anew(value.item) if value.item is not None else None,
        fields=tuple((key, anew(part)) for key, part in value.fields),
    )


def join(left: Value, right: Value) -> Value:
    """What is known when either of two values may be the case."""
    if left is right or left == right:
        return left
    if (left.kind is Kind.NONE) is not (right.kind is Kind.NONE):
        none, other = (left, right) if left.kind is Kind.NONE else (right, left)
        if other.optional and other.sure <= none.sure:
            return other
        return other.but(optional=True, sure=min(none.sure, other.sure))
    numbers = {Kind.NUMBER, Kind.TENSOR}
    if left.kind is not right.kind:
        if {left.kind, right.kind} == {Kind.UNKNOWN, Kind.TENSOR}:
            other, tensor = (left, right) if right.is_tensor else (right, left)
            if "output" in other.facts:
                # Two ways to call a model, one of which cannot be seen.
                grad = tensor.grad if tensor.grad is other.grad else Grad.UNKNOWN
                return tensor.but(sure=Confidence.LIKELY, grad=grad, squash="", ident=None)
        if {left.kind, right.kind} == numbers:
            # An accumulator: a number before the first iteration, a tensor after it.
            tensor = left if left.is_tensor else right
            return tensor.but(facts=tensor.facts | {"maybe_number"}, sure=min(tensor.sure, Confidence.LIKELY))
        return UNKNOWN
    cls = left.cls
    sure = min(left.sure, right.sure)
    if cls is not right.cls:
        cls = common_class(left, right)
        sure = sure if cls is None else min(sure, Confidence.LIKELY)
    return Value(
        kind=left.kind,
        sure=sure,
        name=left.name if left.name == right.name else cls.dotted if cls is not None else _common_base(left, right),
        ident=left.ident if left.ident == right.ident else None,
        grad=left.grad if left.grad is right.grad else Grad.UNKNOWN,
        role=left.role if left.role == right.role else "",
        site=left.site if left.site is right.site else None,
        cls=cls,
        func=left.func if left.func is right.func else None,
        bound=left.bound if left.bound == right.bound else None,
        elements=join_elements(left.elements, right.elements),
        item=join_optional(left.item, right.item),
        fields=join_fields(left, right),
        const=left.const if left.const == right.const and type(left.const) is type(right.const) else None,
        squash=left.squash if left.squash == right.squash else "",
        storage=left.storage if left.storage == right.storage else None,
        source=left.source if left.source == right.source else None,
        carried=left.carried | right.carried,
        graph=left.graph | right.graph,
        optional=left.optional or right.optional,
        facts=left.facts & right.facts | (left.facts | right.facts) & MAYBE,
    )


OPTIMIZERS = "torch.optim"


def _common_base(left: Value, right: Value) -> str:
    """What two optimizer classes of torch have in common, of which a program takes one by name; "" for others."""
    both = left.kind is Kind.CLASS and all(name.rpartition(".")[0] == OPTIMIZERS for name in (left.name, right.name))
    return f"{OPTIMIZERS}.Optimizer" if both else ""


def common_class(left: Value, right: Value) -> ClassInfo | None:
    """The nearest project class that two objects, or two classes, both are."""
    if left.cls is None or right.cls is None or left.kind not in (Kind.CLASS, Kind.INSTANCE):
        return None
    return next((cls for cls in left.cls.project_mro if cls in right.cls.mro), None)


def join_elements(
    left: tuple[Value, ...] | None, right: tuple[Value, ...] | None
) -> tuple[Value, ...] | None:
    """Member by member, where both have the same number of members."""
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(join(a, b) for a, b in zip(left, right, strict=True))


def join_optional(left: Value | None, right: Value | None) -> Value | None:
    """An empty container says nothing about what the other one holds."""
    if left is None or right is None:
        return left or right
    return join(left, right)


def join_fields(left: Value, right: Value) -> tuple[tuple[Hashable, Value], ...]:
    """The keys that both sides have."""
    if not left.fields or not right.fields:
        return ()
    found = []
    for key, value in left.fields:
        other = right.field(key)
        if other is not None:
            found.append((key, join(value, other)))
    return tuple(found)


def join_all(values: list[Value]) -> Value:
    """The join of several values; UNKNOWN for none."""
    if not values:
        return UNKNOWN
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result
