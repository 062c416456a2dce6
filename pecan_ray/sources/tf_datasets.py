"""What a tf.data.Dataset was made of.

A dataset tells it by attributes that tf.data does not document; one without them was made of nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any


def inputs_of(data: Any) -> list[Any]:
    """Return the datasets that a dataset reads from."""
    inputs = getattr(data, "_inputs", None)
    return [] if inputs is None else list(inputs())


def selector_of(data: Any) -> list[Any]:
    """Return the dataset by which one chooses among its other inputs, if it does."""
    return inputs_of(data)[:1] if type(data).__name__ == "_DirectedInterleaveDataset" else []


def upstream(data: Any) -> list[Any]:
    """Return a dataset and all that it is made of, each once."""
    found: dict[int, Any] = {}
    todo = [data]
    while todo:
        one = todo.pop()
        if id(one) not in found:
            found[id(one)] = one
            todo += inputs_of(one)
    return list(found.values())


def chain(data: Any) -> list[Any]:
    """Return a dataset and all that it is made of, but for what only chooses among others."""
    found = [data]
    for given in inputs_of(data)[len(selector_of(data)) :]:
        found += chain(given)
    return found


def is_shard(data: Any) -> bool:
    """Tell whether a dataset was made by `.shard()`."""
    return type(data).__name__ == "_ShardDataset"


def functions_of(data: Any) -> list[Any]:
    """Return the functions that a dataset calls, as TensorFlow has traced them."""
    functions = getattr(data, "_functions", None)
    return [] if functions is None else [one.function for one in functions()]


def nodes_called(function: Any) -> list[Any]:
    """Return the operations of a traced function and of those that it calls; they are looked up once."""
    found = _nodes.get(function)
    if found is None:
        nodes = getattr(function, "nodes", None)
        found = _nodes[function] = list(_graph_nodes(function.graph.as_graph_def()) if nodes is None else nodes())
    return found


_nodes: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _graph_nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
