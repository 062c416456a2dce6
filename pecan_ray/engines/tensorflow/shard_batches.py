"""A shard of a user's own tf.data pipeline, read several elements at a time.

One by one, elements cost more Python than most of TensorFlow's functions take for them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pecan_ray.engines.reading import Run
from pecan_ray.engines.tensorflow.chunks import CHUNK_BYTES, CHUNK_ROWS
from pecan_ray.engines.tensorflow.columns import as_column
from pecan_ray.engines.tensorflow.native import OpenShard, next_columns, open_shard
from pecan_ray.plan.operators import Filter, FixedSizeBatchingOp, Map, Plan, Prefetch, Repeat, Shuffle
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource


class NotInBatchesError(Exception):
    """What is to be read cannot be read in batches: it has to go through the engine's graph, element by element."""


def is_rest_of_shard(lease: Lease) -> bool:
    """Tell whether a lease asks for all elements of a shard from one of them on.

    A lease of some elements is read one by one.  Of a batch some may have been delivered, and one beside them may be
    what has killed a worker.
    """
    return len(lease.spans) == 1 and lease.spans[0][1] == END and lease.spans[0][0] % (1 << OUTPUT_BITS) == 0


def open_in_batches(
    source: TfDataSource, threads: int, lease: Lease, size: int, batched: Callable[[Any], Any]
) -> OpenShard:
    """Open a shard in batches of `size` elements, which `batched` makes; `threads`: of the engine.

    Raises `NotInBatchesError` for a lease of some elements only, and where batches of tensors would not be arrays.
    """
    if not is_rest_of_shard(lease):
        raise NotInBatchesError

    def checked(data: Any) -> Any:
        # Ragged and sparse tensors have no rows that NumPy could join, or the graph's feed could cut.
        specs = tf.nest.flatten(data.element_spec)
        if not specs or not all(map(_is_plain, specs)):
            raise NotInBatchesError
        return batched(data)

    return open_shard(source, threads, lease, checked, rows=size)


def batches_of(shard: OpenShard, size: int) -> Iterator[Run]:
    """Yield what a shard that was opened in batches of `size` elements holds."""
    number = shard.first
    while (columns := next_columns(shard, number, rows=size)) is not None:
        arrays = {name: as_column(value) for name, value in columns.items()}
        run = Run(shard.lease, number, len(next(iter(arrays.values()))), arrays, shard.lease.spans)
        yield run
        number += run.rows


def elements_of_first_batch(plan: Plan) -> int:
    """Return how many elements of a user's dataset the first batch takes at least."""
    if not isinstance(plan.head, TfDataSource) or plan_shape(plan, order=False).serial:
        return 1
    for op in plan.ops:
        if isinstance(op, FixedSizeBatchingOp):
            return op.size
        if not isinstance(op, (Map, Filter, Shuffle, Repeat, Prefetch)):
            break
    return 1


def read_in_runs(source: TfDataSource, threads: int, lease: Lease, size: int) -> Iterator[Run]:
    """Yield the elements of a shard in runs of at most `size`.

    Raises `NotInBatchesError`, or TensorFlow's error, at what cannot be read so.
    """

    def batched(data: Any) -> Any:
        specs = tf.nest.flatten(data.element_spec)
        if not all(spec.shape.is_fully_defined() for spec in specs):
            raise NotInBatchesError  # elements that differ in shape may be as many as those that do not
        nbytes = sum(spec.dtype.size * math.prod(spec.shape) for spec in specs if spec.dtype != tf.string)
        rows = min(size, CHUNK_ROWS, CHUNK_BYTES // max(nbytes, 1))
        if rows < 2:
            raise NotInBatchesError
        return data.batch(rows)

    with contextlib.closing(open_in_batches(source, threads, lease, size, batched)) as shard:
        yield from batches_of(shard, size)


def _is_plain(spec: Any) -> bool:
    """Tell whether rows of a tensor are rows of an array of NumPy's, which a batch of elements is, too."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return False
    kind = spec.dtype
    return not kind.is_quantized and (kind.is_floating or kind.is_integer or kind.is_bool or kind == tf.string)
