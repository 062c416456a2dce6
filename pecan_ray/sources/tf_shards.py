"""What a shard's tf.data.Dataset does that means another thing than for the whole: no end, remainders, random numbers.

A dataset tells what it was made of by attributes that tf.data does not document; a dataset without them is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pecan_ray.errors import PlanError

INFINITE = -1
"""The cardinality of a `tf.data.Dataset` without an end."""
UNKNOWN = -2
"""The cardinality of a `tf.data.Dataset` whose length TensorFlow does not know."""
CUTS = ("_TakeDataset", "_TakeWhileDataset")
"""Datasets that may end though their input does not."""
BATCHES = ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_WindowDataset")
SEEDED = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "StatelessMultinomial",
    "TruncatedNormal",
)
"""Operations that draw from a sequence of their own, which is the same wherever it begins if a seed is given."""
STATEFUL = ("RngReadAndSkip", "RngSkip", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""Operations that move a generator on, or a variable: of `tf.random.Generator`, and of layers of Keras."""


def check_shard(data: Any, name: str, num_shards: int) -> None:
    """Raise `PlanError` for one shard of several, if most of the data would not be read, or its remainder is lost."""
    if num_shards < 2:
        return
    if _endless(data):
        raise PlanError(
            f"from_tf_data: a shard of {name} has no end, so that a worker would never come to another one of the "
            f"{num_shards} shards. Leave .repeat() out, and pass epochs=... (None: no end) to iter_batches."
        )
    for one in _chain(data):
        if type(one).__name__ in BATCHES and _loses_remainder(one):
            raise PlanError(
                f"from_tf_data: {name} drops a remainder of each of its {num_shards} shards (drop_remainder=True), up "
                f"to {num_shards} times what tf.data drops of the whole. Let {name} return the elements without that "
                "batch, and write from_tf_data(...).batch(size, drop_remainder=True), which drops one remainder; or "
                "batch without drop_remainder."
            )


def restarting_randomness(data: Any) -> tuple[str, ...]:
    """Return the operations in a dataset whose random numbers begin anew wherever the dataset is made."""
    found = dict.fromkeys(
        node.op for one in _chain(data) for graph in _graphs(one) for node in _nodes(graph) if _restarts(node)
    )
    return tuple(found)


def _endless(data: Any) -> bool:
    """Tell whether a dataset is sure to have no end."""
    count = int(data.cardinality())
    if count != UNKNOWN:
        return count == INFINITE
    kind, inputs = type(data).__name__, _inputs(data)
    if kind in CUTS or not inputs:
        return False
    return all(map(_endless, inputs)) if kind == "_ZipDataset" else any(map(_endless, inputs))


def _loses_remainder(data: Any) -> bool:
    """Tell whether a batch of a dataset may leave elements out at its end."""
    if not bool(getattr(data, "_drop_remainder", False)):
        return False
    size, (given,) = int(getattr(data, "_size", getattr(data, "_batch_size", 1))), _inputs(data)
    if int(getattr(data, "_shift", size)) < size:
        return False  # windows that overlap: what the last ones lack was in others
    count = int(given.cardinality())
    return count == UNKNOWN or (count >= 0 and count % size != 0)


def _chain(data: Any) -> Iterator[Any]:
    """Yield a dataset and all that it is made of, but for what only chooses among others."""
    yield data
    chooses = type(data).__name__ == "_DirectedInterleaveDataset"
    for given in _inputs(data)[1 if chooses else 0 :]:
        yield from _chain(given)


def _inputs(data: Any) -> list[Any]:
    inputs = getattr(data, "_inputs", None)
    return [] if inputs is None else list(inputs())


def _graphs(data: Any) -> Iterator[Any]:
    """Yield the graphs of the functions that a dataset calls."""
    functions = getattr(data, "_functions", None)
    for one in [] if functions is None else functions():
        yield one.function.graph.as_graph_def()


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _restarts(node: Any) -> bool:
    if node.op in STATEFUL:
        return True
    return node.op in SEEDED and bool(node.attr["seed"].i or node.attr["seed2"].i)
