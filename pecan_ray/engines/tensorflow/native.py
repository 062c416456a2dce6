"""A user's own tf.data pipeline with nothing behind it: iterated as it is, no Python between its elements."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import tensorflow as tf

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.slots import into_slot
from pecan_ray.engines.tensorflow.checks import check_columns
from pecan_ray.engines.tensorflow.columns import as_column
from pecan_ray.engines.tensorflow.iterating import Elements, pool_size
from pecan_ray.engines.tensorflow.prefetch_shards import PrefetchedShards
from pecan_ray.engines.under_way import Recognize, ThreadActivity
from pecan_ray.errors import OpError, describe_error
from pecan_ray.plan.splits import OUTPUT_BITS, AtWork, Lease, origin_of
from pecan_ray.sources.tf_data import TfDataSource, columns_of
from pecan_ray.sources.tf_random_state import calls_python, is_independent

END_OF_SHARD = object()
"""No element: that may be None."""


def run_native(
    source: TfDataSource, leases: Leases, options: EngineOptions, slots: Slots
) -> Generator[Produced, None, None]:
    """Yield each element of each shard as it comes out of the user's graph."""
    with contextlib.closing(PrefetchedShards(leases, functools.partial(open_shard, source, options.threads))) as shards:
        while (shard := shards.take()) is not None:
            with contextlib.closing(shard):
                yield from _read(shard, leases, options, slots)


@dataclass(frozen=True)
class OpenShard:
    """A shard of the user's dataset, of which the elements of a lease are to be read."""

    source: TfDataSource
    lease: Lease
    first: int
    """The number of its first element."""
    elements: Elements
    may_prefetch_next: bool

    def close(self) -> None:
        """Give it up."""
        self.elements.close()


def open_shard(
    source: TfDataSource,
    threads: int,
    lease: Lease,
    batched: Callable[[Any], Any] = lambda data: data,
    *,
    rows: int = 1,
) -> OpenShard:
    """Open a shard, and begin to compute its first elements, if they may be computed beside others.

    `threads`: of the engine; `batched`: makes batches of `rows` elements.
    """
    first = lease.spans[0][0] >> OUTPUT_BITS
    with tf.device("/CPU:0"):
        # `skip` computes what it leaves out: the elements of a user's dataset have no places that could be
        # sought.
        of_lease = source.of_lease(lease)
        data = batched(of_lease.build_dataset(lease.split).skip(first))
        data = data.prefetch(tf.data.AUTOTUNE) if of_lease.reads_ahead else data
        check_columns(
            _name(source), columns_of(data.element_spec), {}, ragged=True, sparse=True, where="it leaves the graph"
        )
        data = _in_pool(data, threads)
        shard = OpenShard(source, lease, first, Elements(data), not calls_python(data))
        if is_independent(data):
            _start_shard(shard.elements, source, lease, first, rows)
    return shard


def _in_pool(data: Any, threads: int) -> Any:
    """Give a dataset a pool of threads that is large enough, unless its user has chosen one."""
    if data.options().threading.private_threadpool_size:
        return data
    options = tf.data.Options()
    options.threading.private_threadpool_size = pool_size(threads)
    return data.with_options(options)


def _start_shard(elements: Elements, source: TfDataSource, lease: Lease, number: int, rows: int) -> None:
    """Compute the first element, or the first ones."""
    # `native_computing` finds these in this frame by their names.
    elements.draw()


def _read(shard: OpenShard, leases: Leases, options: EngineOptions, slots: Slots) -> Generator[Produced, None, None]:
    source, lease, number = shard.source, shard.lease, shard.first
    stop = lease.spans[-1][1]
    while number << OUTPUT_BITS < stop:
        begin, end = number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS
        parts = [(max(a, begin), min(b, end)) for a, b in lease.spans if a < end and b > begin]
        try:
            columns = next_columns(shard, number)
        except tf.errors.OpError as error:
            yield _failed(source, lease, number, parts, error, options)
        else:
            if columns is None:
                leases.ended(lease, number)  # also of a lease that asks for some only, which may lie behind the end
                return
            if parts:
                yield _produced(columns, lease, parts, slots)
        number += 1


def next_columns(shard: OpenShard, number: int, rows: int = 1) -> dict[str, Any] | None:
    """Return the next element, which is the one of this number, or so many as `rows`; None at the end."""
    return _computed(shard.elements, shard.source, shard.lease, number, rows)


def _computed(elements: Elements, source: TfDataSource, lease: Lease, number: int, rows: int) -> dict[str, Any] | None:
    # `native_computing` finds these in this frame by their names.
    found = next(elements, END_OF_SHARD)
    return None if found is END_OF_SHARD else columns_of(found)


def native_computing() -> dict[CodeType, Recognize]:
    """Return the functions by which a stack shows that an element of a user's dataset is being computed."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadActivity | None:
        source, lease, number = local["source"], local["lease"], local["number"]
        text = f"{_name(source)} has yielded nothing for {{seconds}}, since before {lease.split.where(number)}"
        # Of several elements in a batch it is not known which one is computed.
        at = AtWork(_name(source), origin_of(lease, number) if local["rows"] == 1 else None, reads=True)
        return ThreadActivity((lease.epoch, lease.key, number), text, at)

    return {_computed.__code__: inspect_locals, _start_shard.__code__: inspect_locals}


def _name(source: TfDataSource) -> str:
    return getattr(source.make_dataset, "__name__", "dataset")


def _produced(columns: dict[str, Any], lease: Lease, parts: list[tuple[int, int]], slots: Slots) -> Produced:
    arrays, slot, layout = into_slot({name: as_column(value) for name, value in columns.items()}, slots)
    return Produced(arrays, {lease.key: parts}, 1, lease.epoch, slot=slot, layout=layout)


def _failed(
    source: TfDataSource,
    lease: Lease,
    number: int,
    parts: list[tuple[int, int]],
    error: Exception,
    options: EngineOptions,
) -> Produced:
    """Raise what an element's graph raised, or return the positions that it stands for as bad."""
    name = _name(source)
    where = lease.split.where(number)
    text = f"{name} failed on {where}: {describe_error(error)}"
    if options.on_error == "raise":
        raise OpError(text, op=name, file=lease.split.path, element=lease.split.number_of(number)) from error
    bad = [BadElement(name, where, describe_error(error), first=origin_of(lease, number))]
    return Produced({}, {lease.key: parts}, 0, lease.epoch, bad=bad)
