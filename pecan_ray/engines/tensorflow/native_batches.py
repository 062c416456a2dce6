"""A user's own tf.data pipeline with a batch behind it: TensorFlow makes the batches, which go on from shard to shard.

A shard's last, smaller batch is joined to rows of the next shard.  Elements do not pass through Python one by one,
which costs five times as much as to hash the words of a line.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pecan_ray.engines.contract import EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.positions import Part, join, merge
from pecan_ray.engines.slots import into_slot
from pecan_ray.engines.tensorflow.native import OpenShard
from pecan_ray.engines.tensorflow.prefetch_shards import PrefetchedShards
from pecan_ray.engines.tensorflow.shard_batches import NotInBatchesError, batches_of, open_in_batches
from pecan_ray.plan.operators import Batch, Plan
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource


def reads_batches(plan: Plan, options: EngineOptions) -> bool:
    """Tell whether a plan is a user's dataset with a batch behind it, whose elements nobody asks about one by one."""
    # Nothing between: an operator on elements needs each of them with its row
    # (docs/decisions/tensorflow-engine.md#178-batches-behind-a-dataset).
    batches = len(plan.ops) == 1 and isinstance(plan.ops[0], Batch)
    return batches and isinstance(plan.head, TfDataSource) and options.on_error == "raise" and options.order != "strict"


def run_batches(
    source: TfDataSource, size: int, leases: Leases, threads: int, slots: Slots
) -> Generator[Produced, None, None]:
    """Yield batches of `size` elements, and what is left at the end, marked as partial.

    Raises `NotInBatchesError`, or TensorFlow's error, at what cannot be read so; what was not yielded is to be read
    again.
    """
    rest = ShardRows()
    with contextlib.closing(PrefetchedShards(leases, functools.partial(_opened, source, threads, size))) as shards:
        while (shard := shards.take()) is not None:
            with contextlib.closing(shard):
                for rows in _rows(shard, size, leases):
                    full, rest = rest.joined(rows).cut(size)
                    if full is not None:
                        yield full.produced(slots)
    if rest.count:
        yield rest.produced(slots, partial=True)


@dataclass(frozen=True)
class ShardRows:
    """Rows of one batch or less, and where they are from."""

    columns: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    parts: tuple[tuple[Lease, int, int], ...] = ()
    """Of each lease, its first element and the one behind its last."""

    def joined(self, more: ShardRows) -> ShardRows:
        """Return these rows and more; raises `NotInBatchesError` where they have other shapes."""
        if not self.count:
            return more
        # One batch of TensorFlow's would refuse these by name; the engine's graph, which reads them again,
        # does so.
        if any(column.shape[1:] != more.columns[name].shape[1:] for name, column in self.columns.items()):
            raise NotInBatchesError
        columns = {name: np.concatenate([column, more.columns[name]]) for name, column in self.columns.items()}
        return ShardRows(columns, self.count + more.count, self.parts + more.parts)

    def cut(self, size: int) -> tuple[ShardRows | None, ShardRows]:
        """Return a batch of `size` rows, if there are so many, and the rows behind it."""
        if self.count < size:
            return None, self
        if self.count == size:
            return self, ShardRows()
        lease, first, stop = self.parts[-1]
        middle = stop - (self.count - size)  # a batch has at most `size` rows, so that it ends in the last part
        front, behind = ({name: column[part] for name, column in self.columns.items()} for part in _split_at(size))
        parts = (*self.parts[:-1], (lease, first, middle))
        return ShardRows(front, size, parts), ShardRows(behind, self.count - size, ((lease, middle, stop),))

    def produced(self, slots: Slots, *, partial: bool = False) -> Produced:
        """Return them as a batch."""
        parts: list[Part] = []
        join(parts, [(lease.key, first << OUTPUT_BITS, stop << OUTPUT_BITS) for lease, first, stop in self.parts])
        epoch = max(lease.epoch for lease, _, _ in self.parts)
        arrays, slot, layout = into_slot(self.columns, slots)
        return Produced(arrays, merge(parts), self.count, epoch, partial, slot=slot, layout=layout)


def _split_at(size: int) -> tuple[slice, slice]:
    return slice(None, size), slice(size, None)


def _opened(source: TfDataSource, threads: int, size: int, lease: Lease) -> OpenShard:
    return open_in_batches(source, threads, lease, size, lambda data: data.batch(size))


def _rows(shard: OpenShard, size: int, leases: Leases) -> Iterator[ShardRows]:
    number = shard.first
    for run in batches_of(shard, size):
        number = run.first + run.rows
        yield ShardRows(dict(run.columns), run.rows, ((run.lease, run.first, number),))
    leases.ended(shard.lease, number)
