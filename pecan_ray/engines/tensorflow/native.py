"""A user's own tf.data pipeline with nothing behind it: iterated as it is, no Python between its elements."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from types import CodeType
from typing import Any

import tensorflow as tf

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.slots import into_slot
from pecan_ray.engines.tensorflow.checks import check_columns
from pecan_ray.engines.tensorflow.columns import as_column
from pecan_ray.engines.tensorflow.iterating import Elements
from pecan_ray.engines.under_way import Recognize, ThreadActivity
from pecan_ray.errors import OpError, told
from pecan_ray.plan.splits import OUTPUT_BITS, AtWork, Lease, origin_of
from pecan_ray.sources.tf_data import TfDataSource, columns_of


def run_native(
    source: TfDataSource, leases: Leases, options: EngineOptions, slots: Slots
) -> Generator[Produced, None, None]:
    """Yield each element of each shard as it comes out of the user's graph."""
    while (lease := leases.take()) is not None:
        yield from _shard(source, lease, leases, options, slots)


def _shard(
    source: TfDataSource, lease: Lease, leases: Leases, options: EngineOptions, slots: Slots
) -> Generator[Produced, None, None]:
    number = lease.spans[0][0] >> OUTPUT_BITS
    with tf.device("/CPU:0"):
        data = source.of_lease(lease).made(lease.split).skip(number).prefetch(tf.data.AUTOTUNE)
    spec = columns_of(data.element_spec)
    check_columns(_name(source), spec, {}, ragged=True, sparse=True, where="it leaves the graph")
    with contextlib.closing(Elements(data)) as elements:
        yield from _iterated(elements, number, source, lease, leases, options, slots)


def _iterated(
    elements: Elements,
    number: int,
    source: TfDataSource,
    lease: Lease,
    leases: Leases,
    options: EngineOptions,
    slots: Slots,
) -> Generator[Produced, None, None]:
    stop = lease.spans[-1][1]
    while number << OUTPUT_BITS < stop:
        begin, end = number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS
        parts = [(max(a, begin), min(b, end)) for a, b in lease.spans if a < end and b > begin]
        try:
            columns = _computed(elements, source, lease, number)
        except StopIteration:
            leases.ended(
                lease, number
            )  # also of a lease that asks for some elements only, which may lie behind the end
            return
        except tf.errors.OpError as error:
            yield _failed(source, lease, number, parts, error, options)
        else:
            if parts:
                yield _produced(columns, lease, parts, slots)
        number += 1


def _computed(elements: Elements, source: TfDataSource, lease: Lease, number: int) -> dict[str, Any]:
    """Return the next element, which is the one of this number."""
    # `native_computing` finds `source`, `lease` and `number` in this frame by their names.
    return columns_of(next(elements))


def native_computing() -> dict[CodeType, Recognize]:
    """Return the function by which a stack shows that an element of a user's dataset is being computed."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadActivity | None:
        source, lease, number = local["source"], local["lease"], local["number"]
        text = f"{_name(source)} has yielded nothing for {{seconds}}, since before {lease.split.where(number)}"
        at = AtWork(_name(source), origin_of(lease, number), reads=True)
        return ThreadActivity((lease.epoch, lease.key, number), text, at)

    return {_computed.__code__: inspect_locals}


def _name(source: TfDataSource) -> str:
    return getattr(source.make_dataset, "__name__", "dataset")


def _produced(columns: dict[str, Any], lease: Lease, parts: list[tuple[int, int]], slots: Slots) -> Produced:
    arrays, slot = into_slot({name: as_column(value) for name, value in columns.items()}, slots)
    return Produced(arrays, {lease.key: parts}, 1, lease.epoch, slot=slot)


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
    text = f"{name} failed on {where}: {told(error)}"
    if options.on_error == "raise":
        raise OpError(text, op=name, file=lease.split.path, element=number) from error
    bad = [BadElement(name, where, told(error), first=origin_of(lease, number))]
    return Produced({}, {lease.key: parts}, 0, lease.epoch, bad=bad)
