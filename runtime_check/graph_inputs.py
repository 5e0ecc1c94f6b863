"""Inputs of layers on graphs, by the names that libraries for them share: nodes, edges, and values on both."""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from runtime_check.specs import Const, Spec, Tensor

NODES, EDGES, TYPES = 8, 12, 4
INDEX = re.compile(r"^(edge_index|edges?|edge_list|adj_t|adj|adjs|edge_label_index)$")
ENDS = re.compile(r"^(i|j|row|col|src|dst|source|target|idx_[ij])$")
EDGE_TYPES = re.compile(r"^(edge|rel|relation)s?_?(type|types|label|id|ids)$")
EDGE_VALUES = re.compile(r"^(edge_\w+|e|rbf|dist|distances?|[dfr]_ij|pseudo)$")
NODE_TYPES = re.compile(r"^(node_types?|z|atomic_num\w*|species)$")
NODE_VALUES = re.compile(r"^(x|xs|h|feat|feats|features|node_\w+|x_[0ij]|x0|src_feat)$")
POSITIONS = re.compile(r"^(pos|coords?|xyz|positions)$")
BATCHES = re.compile(r"^(batch|batch_\w+|x_batch)$")


def on_graphs(parameters: Iterable[str], owner: type | None) -> bool:
    """Whether a function with these parameters works on a graph: it takes edges, or belongs to a layer that does."""
    found = set(parameters)
    layer = any(cls.__name__ == "MessagePassing" for cls in owner.__mro__) if owner is not None else False
    return layer or bool(found & {"edge_index", "adj_t", "edge_list"}) or {"i", "j"} <= found or {"row", "col"} <= found


def values(text: str, module: Any, width: int) -> Iterator[Spec]:
    """Candidates for a parameter of this name; `width` is the size of features that its layers take."""
    if INDEX.search(text):
        yield Tensor((2, EDGES), "long", NODES)
    elif ENDS.search(text):
        yield Tensor((EDGES,), "long", NODES)
    elif EDGE_TYPES.search(text):
        yield Tensor((EDGES,), "long", size_of(module, ("num_relations", "num_edge_types"), TYPES))
    elif NODE_TYPES.search(text):
        yield Tensor((NODES,), "long", size_of(module, ("num_node_types", "num_types"), TYPES))
    elif EDGE_VALUES.search(text):
        features = Tensor((EDGES, size_of(module, ("edge_dim", "num_edge_features", "edge_channels"), width)))
        yield from (Tensor((EDGES,)), features) if "weight" in text else (features, Tensor((EDGES,)))
        yield Tensor((EDGES, 1))
    elif POSITIONS.search(text):
        yield from (Tensor((NODES, 3)), Tensor((NODES, 2)))
    elif BATCHES.search(text):
        yield Tensor((NODES,), "long", 1)
    elif NODE_VALUES.search(text):
        yield from (Tensor((NODES, width)), Tensor((NODES,), "long", NODES))
    elif text in ("num_nodes", "dim_size"):
        yield Const(NODES)


def size_of(module: Any, names: tuple[str, ...], default: int) -> int:
    """The first of these attributes that is a size."""
    found = (getattr(module, name, None) for name in names)
    return next((value for value in found if type(value) is int and value > 0), default)
