"""Distributions of torch.distributions: densities and reparametrised samples carry the graph of their parameters.

`sample()` draws without a graph (torch/distributions/distribution.py), `rsample()` with one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchlint.model import tensors
from torchlint.model.values import UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from torchlint.model.interp import Run

Keywords = dict[str, Value]
PACKAGE = "torch.distributions."
DIFFERENTIABLE = {"log_prob", "entropy", "rsample", "cdf", "icdf", "perplexity"}
PLAIN = {Kind.NUMBER, Kind.STRING, Kind.NONE, Kind.SIZE, Kind.DEVICE, Kind.DTYPE}
DRAWN = {"sample", "sample_n", "enumerate_support"}


def call(run: Run, node: ast.Call, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """A new distribution, or the divergence of two; None for everything else in the package."""
    tail = name.rpartition(".")[2]
    if tail == "kl_divergence":
        return tensors.result(run, node, tuple(parameters(args)), name=name)
    if not tail[:1].isupper():
        return None
    return Value(Kind.INSTANCE, name=name, ident=node, site=node, elements=(*args, *keywords.values()))


def method(run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """Methods of a distribution; None for those of other objects."""
    if not base.name.startswith(PACKAGE) or base.cls is not None:
        return None
    operands = tuple(parameters([base, *args]))
    if name in DIFFERENTIABLE:
        return tensors.result(run, node, operands, name=f"{PACKAGE}Distribution.{name}")
    if name in DRAWN:
        return tensors.constant(run, node, name=f"{PACKAGE}Distribution.{name}", likely=operands)
    return base if name == "expand" else None


def parameters(values: Iterable[Value]) -> Iterator[Value]:
    """Tensors, and what may hold some, among some values and what their distributions were made of."""
    for value in values:
        if value.kind is Kind.INSTANCE and value.name.startswith(PACKAGE):
            yield from parameters(value.elements or ())
        elif value.kind not in PLAIN:
            yield value if value.is_tensor else UNKNOWN  # a transform may have parameters of its own
