"""Which element made a graph fail: elements in progress are run again, one at a time and op by op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.positions import Part
from pecan_ray.engines.tensorflow.chunks import Read, convert
from pecan_ray.engines.tensorflow.feed import GraphFeed
from pecan_ray.engines.tensorflow.graph import apply_flat_map, apply_map, call
from pecan_ray.engines.tensorflow.meta import OUTPUTS, rows_of
from pecan_ray.errors import BatchShapeError, ElementError, OpError, is_interrupt, told
from pecan_ray.plan.operators import Batch, ElementOp, Filter, FlatMap, Map, Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.plan.splits import OUTPUT_BITS, origin_of

MOST_TRIED = 10_000


def locate_failure(error: Exception, plan: Plan, feeds: Sequence[GraphFeed], seed: int) -> ElementError:
    """Return the exception that names op, file and element for an error that came out of a graph."""
    shapes: dict[str, tuple[Any, Read]] = {}
    tried = 0
    for feed in feeds:
        for read in _inside(feed):
            tried += 1
            found, values = run_alone(read, feed, element_ops_from(plan, feeds.index(feed)), seed)
            if found is not None:
                return found
            for value in values:
                different = _disagrees(value, read, shapes, plan)
                if different is not None:
                    return different
    return OpError(
        f"the TensorFlow graph failed: {type(error).__name__}: {error}\nNone of the {tried} elements in progress "
        "fails when it is run alone; a function on whole batches may be the cause.",
        op="",
    )


def find_bad_elements(
    part: Part, plan: Plan, feed: GraphFeed, branch: int, seed: int, keep: bool
) -> Iterator[BadElement]:
    """Yield those elements of an interval that fail when they are run alone, with their reasons."""
    key, start, stop = part
    for number in range(start >> OUTPUT_BITS, ((stop - 1) >> OUTPUT_BITS) + 1):
        read = feed.read_again(key, number)
        found, _ = run_alone(read, feed, element_ops_from(plan, branch), seed)
        if found is not None:
            where = read.lease.split.where(number)
            reason = found.message.splitlines()[0]
            kept = read.value if keep else None
            yield BadElement(str(found.op), where, reason, kept, origin_of(read.lease, number))


def run_alone(
    read: Read, feed: GraphFeed, ops: Sequence[ElementOp], seed: int
) -> tuple[ElementError | None, list[Any]]:
    """Run element operators on one element, eagerly; return the error or the values that come out."""
    split = read.lease.split
    base = read.number << OUTPUT_BITS
    row = tf.constant(rows_of(read.lease, read.number, [(read.lease.key, base, base + OUTPUTS)], seed)[0], tf.int64)
    values = [{name: tf.constant(value) for name, value in convert(read, feed.signature or {}).items()}]
    for op in ops:
        try:
            values = [out for value in values for out in _apply(op, value, row)]
        except ElementError as error:
            error.fields.update(file=split.file_of(read.number), element=read.number)
            return error, []
        except BaseException as error:
            if is_interrupt(error):
                raise
            text = f"{op.name} failed on {split.where(read.number)}: {told(error)}"
            return OpError(text, op=op.name, file=split.file_of(read.number), element=read.number, column=op.on), []
    return None, values


def _apply(op: ElementOp, value: dict[str, Any], row: Any) -> list[dict[str, Any]]:
    if isinstance(op, Filter):
        return [value] if bool(np.asarray(call(op, value, row))) else []
    if isinstance(op, FlatMap):
        outputs = apply_flat_map(op, value, row)
        count = int(next(iter(outputs.values())).shape[0])
        return [{name: column[number] for name, column in outputs.items()} for number in range(count)]
    assert isinstance(op, Map)
    return [apply_map(op, value, row)]


def _inside(feed: GraphFeed) -> Iterator[Read]:
    """Yield the elements that went into the graph and did not come out."""
    tried = 0
    for key, start, stop in feed.outstanding.parts():
        for number in range(start >> OUTPUT_BITS, ((stop - 1) >> OUTPUT_BITS) + 1):
            if tried == MOST_TRIED:
                return
            tried += 1
            yield feed.read_again(key, number)


def _disagrees(
    value: dict[str, Any], read: Read, shapes: dict[str, tuple[Any, Read]], plan: Plan
) -> BatchShapeError | None:
    batching = next((op for op in plan.ops if isinstance(op, Batch)), None)
    if batching is None:
        return None
    for name, tensor in value.items():
        shape = tuple(tf.convert_to_tensor(tensor).shape)
        first, other = shapes.setdefault(name, (shape, read))
        if shape != first:
            return BatchShapeError(
                f"{batching.name}: column {name!r} of {read.lease.split.where(read.number)} has the shape "
                f"{list(shape)}, but that of {other.lease.split.where(other.number)} has {list(first)}. Bring elements "
                "to one shape before batch (resize, crop), or use padded_batch.",
                op=batching.name,
                file=read.lease.split.file_of(read.number),
                element=read.number,
                column=name,
            )
    return None
