"""What means another thing for a shard's tf.data.Dataset than for the whole: no end, and remainders."""

from __future__ import annotations

from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.sources.tf_datasets import chain, inputs_of, is_shard, selector_of

INFINITE = -1
"""The cardinality of a `tf.data.Dataset` without an end."""
UNKNOWN = -2
"""The cardinality of a `tf.data.Dataset` whose length TensorFlow does not know."""
CUTS = ("_TakeDataset", "_TakeWhileDataset")
"""Datasets that may end though their input does not."""
COUNTING = {"_TakeDataset": "take", "_SkipDataset": "skip"}
"""Datasets that leave elements out by their number, by the method that makes them."""
PLAIN_BATCHES = ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset")
BATCHES = (*PLAIN_BATCHES, "_WindowDataset")
ONE_EACH = ("_PrefetchDataset", "_MapDataset", "_ParallelMapDataset", "_OptionsDataset")
"""Datasets that yield one element for each that they read."""


def check_shard(data: Any, name: str, num_shards: int) -> None:
    """Raise `PlanError` for one shard of several, if some of the data would not be read."""
    if num_shards < 2:
        return
    if _endless(data):
        raise PlanError(
            f"from_tf_data: a shard of {name} has no end, so that a worker would never come to another one of the "
            f"{num_shards} shards. Leave .repeat() out, and pass epochs=... (None: no end) to iter_batches."
        )
    for one in chain(data):
        if type(one).__name__ in BATCHES and _may_drop_remainder(one):
            raise PlanError(
                f"from_tf_data: {name} drops a remainder of each of its {num_shards} shards (drop_remainder=True), up "
                f"to {num_shards} times what tf.data drops of the whole. Let {name} return the elements without that "
                "batch, and write from_tf_data(...).batch(size, drop_remainder=True), which drops one remainder; or "
                "batch without drop_remainder."
            )


def index_filters(data: Any) -> tuple[str, ...]:
    """Return the methods that leave elements out by their number, but for those in front of `.shard()`."""
    kind, inputs = type(data).__name__, inputs_of(data)
    if is_shard(data):
        return ()
    mine = (COUNTING[kind],) if kind in COUNTING else ()
    return tuple(dict.fromkeys((*mine, *(name for given in inputs for name in index_filters(given)))))


def smaller_batches(data: Any) -> int:
    """Return the size of the batches that a shard consists of, if its last one may be smaller; else 0."""
    while type(data).__name__ in ONE_EACH:
        (data,) = inputs_of(data)
    if type(data).__name__ not in PLAIN_BATCHES:
        return 0
    (given,) = inputs_of(data)
    size, count = int(data._batch_size), int(given.cardinality())
    return size if count == UNKNOWN or count % size else 0


def _endless(data: Any) -> bool:
    """Tell whether a dataset is sure to have no end."""
    count = int(data.cardinality())
    if count != UNKNOWN:
        return count == INFINITE
    kind, inputs = type(data).__name__, inputs_of(data)[len(selector_of(data)) :]
    if kind in CUTS or not inputs:
        return False
    # A zip ends with its first input that does, and so may an interleaving.
    ends_with_one = kind == "_ZipDataset" or bool(getattr(data, "_stop_on_empty_dataset", False))
    return all(map(_endless, inputs)) if ends_with_one else any(map(_endless, inputs))


def _may_drop_remainder(data: Any) -> bool:
    """Tell whether a batch of a dataset may leave elements out at its end."""
    if not bool(getattr(data, "_drop_remainder", False)):
        return False
    size, (given,) = int(getattr(data, "_size", getattr(data, "_batch_size", 1))), inputs_of(data)
    if int(getattr(data, "_shift", size)) < size:
        return False  # windows that overlap: what the last ones lack was in others
    count = int(given.cardinality())
    return count == UNKNOWN or (count >= 0 and count % size != 0)
