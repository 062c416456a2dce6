"""Which element made a graph fail: elements in progress are run again, one at a time and op by op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.positions import Part
from pecan_ray.engines.tensorflow.checks import RowCheck, settled
from pecan_ray.engines.tensorflow.chunks import Read, convert
from pecan_ray.engines.tensorflow.feed import GraphFeed
from pecan_ray.engines.tensorflow.meta import OUTPUTS, rows_of
from pecan_ray.engines.tensorflow.observed_calls import ObservedCall
from pecan_ray.engines.tensorflow.op_calls import apply_flat_map, apply_map, filter_result, length_of, op_named_in
from pecan_ray.errors import (
    MOST_MESSAGE,
    MOST_TEXT,
    BatchShapeError,
    ElementError,
    OpError,
    cut_text,
    describe_error,
    is_interrupt,
)
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import Batch, BatchingOp, Filter, FlatMap, Map, Op, Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.plan.splits import OUTPUT_BITS, origin_of

# Elements in progress that are run again: a graph with a large shuffle buffer holds many, and the job waits
# for the answer.
MOST_TRIED = 10_000

RunOp: TypeAlias = Callable[[Op | RowCheck, dict[str, Any], Any], Any]
"""Runs an operator on the columns and the row of an element, or batch."""


def eagerly(op: Op | RowCheck, value: dict[str, Any], row: Any) -> Any:
    """Return what an operator makes of an element, or batch: in Python, or in the graph that is being traced."""
    if isinstance(op, RowCheck):
        return op.checked(value, row)
    if isinstance(op, BucketByLength):
        return length_of(op, value)
    if isinstance(op, Filter):
        return filter_result(op, value, row)
    if isinstance(op, FlatMap):
        return apply_flat_map(op, value, row)
    assert isinstance(op, Map)
    return settled(op.name, apply_map(op, value, row), {})


class InGraph:
    """Runs operators as graphs of their own: what a function returns is held to what it has said only in a graph."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def __call__(self, op: Op | RowCheck, value: dict[str, Any], row: Any) -> Any:
        """Return what an operator makes of an element."""
        function = self._functions.get(op.name)
        if function is None:
            run = functools.partial(eagerly, op)
            function = self._functions[op.name] = tf.function(run, autograph=False, reduce_retracing=True)
        return function(value, row)


def failing_element(plan: Plan, feeds: Sequence[GraphFeed], seed: int) -> ElementError | None:
    """Return the exception that names op, file and element, if one of those in a graph fails when it is run alone."""
    shapes: dict[str, tuple[Any, Read]] = {}
    # Eagerly first, because that traces nothing. What breaks a graph's own rules fails in a graph only.
    for run in (eagerly, InGraph()):
        for feed in feeds:
            ops = _ops_from(plan, feeds.index(feed))
            # All that went in and did not come out: TensorFlow's error names an operation, and no element.
            for read in _inside(feed):
                found, values = run_alone(read, feed, ops, seed, run)
                if found is not None:
                    return found
                for value in values:
                    different = _shape_mismatch(value, read, shapes, plan)
                    if different is not None:
                        return different
    return None


def graph_failure(error: Exception, feeds: Sequence[GraphFeed]) -> OpError:
    """Return the exception for an error that came out of a graph where no element fails alone."""
    tried = sum(1 for feed in feeds for _ in _inside(feed))
    op = op_named_in(str(error))
    return OpError(
        f"{op or 'the TensorFlow graph'} failed: {describe_error(error)}\nNone of the {tried} elements in "
        "progress fails when it is run alone; a function on whole batches may be the cause.",
        op=op,
    )


def find_bad_elements(part: Part, plan: Plan, feed: GraphFeed, in_graph: RunOp, *, sure: bool) -> Iterator[BadElement]:
    """Yield those elements of an interval that fail when they are run alone, with their reasons.

    `sure`: nothing but a failure can have kept them, so that one that does not fail again is told as well.
    """
    ops, seed, keep = _ops_from(plan, feed.branch), feed.options.seed, feed.options.on_error == "quarantine"
    key, start, stop = part
    for number in range(start >> OUTPUT_BITS, ((stop - 1) >> OUTPUT_BITS) + 1):
        read = feed.reload(key, number)
        found, _ = run_alone(read, feed, ops, seed)
        # Only if it has surely failed: a graph of its own is traced for each operator.
        if found is None and sure:
            found, _ = run_alone(read, feed, ops, seed, in_graph)
        where, kept = read.lease.split.where(number), read.value if keep else None
        if found is not None:
            # What was meant for the process, such as sys.exit(), is no bad element.
            if found.fields.get("ends_job"):
                raise found
            reason = found.message.splitlines()[0]
            yield BadElement(str(found.op), where, reason, kept, origin_of(read.lease, number))
        elif sure:
            names = "/".join(op.name for op in ops) or "the TensorFlow graph"
            reason = f"{names} failed on {where} in the graph, and not when it was run alone: it fails now and then"
            yield BadElement(names, where, reason, kept, origin_of(read.lease, number))


def failed_call(call: ObservedCall, feed: GraphFeed, *, keep: bool, sure: bool) -> BadElement | None:
    """Return what failed in a call that did not end, by running it again; None if it does not fail then.

    `sure`: it has failed, so that something is returned in any case.
    """
    read, found = error_of(call, feed)
    where, origin = read.lease.split.where(read.number), origin_of(read.lease, read.number)
    if found is None and not sure:
        return None
    if found is not None and found.fields.get("ends_job"):
        raise found
    names = "/".join(op.name for op in call.ops)
    error = f"{names} failed on {where}, and not when it was run again" if found is None else found.message
    op, reason = names if found is None else str(found.fields.get("op", names)), error.splitlines()[0]
    if call.rows.ndim == 1:
        return BadElement(op, where, reason, read.value if keep else None, origin)
    return BadElement(op, where, reason, first=origin, elements_left_out=len(call.rows))


def error_of(call: ObservedCall, feed: GraphFeed) -> tuple[Read, ElementError | None]:
    """Return the (first) element of a call that did not end, and what it raises when it is run again."""
    row = call.rows.reshape(-1, meta.WIDTH)[0]
    read = feed.reload((int(row[meta.BRANCH]), int(row[meta.REPETITION]), int(row[meta.SPLIT])), int(row[meta.ELEMENT]))
    return read, _retry([call.columns], call.ops, tf.constant(call.rows), read)


def _ops_from(plan: Plan, branch: int) -> list[Op]:
    """Return the operators with functions of one element, up to the one that finds its bucket."""
    batching = next((op for op in plan.ops if isinstance(op, BatchingOp)), None)
    measures = isinstance(batching, BucketByLength) and callable(batching.length)
    return [*element_ops_from(plan, branch), *([batching] if batching is not None and measures else [])]


def run_alone(
    read: Read, feed: GraphFeed, ops: Sequence[Op], seed: int, run: RunOp = eagerly
) -> tuple[ElementError | None, list[Any]]:
    """Run element operators on one element; return the error or the values that come out."""
    base = read.number << OUTPUT_BITS
    # All outputs are asked for: which of them failed is not known.
    row = tf.constant(rows_of(read.lease, read.number, [(read.lease.key, base, base + OUTPUTS)], seed)[0], tf.int64)
    values = [{name: tf.constant(value) for name, value in convert(read, feed.signature or {}).items()}]
    found = _retry(values, ops, row, read, run)
    return (None, values) if found is None else (found, [])


def _retry(
    values: list[dict[str, Any]], ops: Sequence[Op | RowCheck], row: Any, read: Read, run: RunOp = eagerly
) -> ElementError | None:
    """Run operators on an element, or a batch that begins with it, which becomes the values that come out."""
    split = read.lease.split
    for op in ops:
        try:
            values[:] = [out for value in values for out in _behind(op, value, run(op, value, row))]
        except ElementError as error:
            first, *rest = error.message.split("\n", 1)
            text = "\n".join([f"{first} It was given {split.where(read.number)}.", *rest])
            place = {"file": split.file_of(read.number), "element": split.number_of(read.number)}
            return type(error)(text, **{**error.fields, **place})
        except BaseException as error:
            if is_interrupt(error):
                raise
            return OpError(
                f"{op.name} failed on {split.where(read.number)}: {_describe(error)}",
                op=op.name,
                file=split.file_of(read.number),
                element=split.number_of(read.number),
                column=getattr(op, "on", None),
                **({} if isinstance(error, Exception) else {"ends_job": True}),
            )
    return None


def _describe(error: BaseException) -> str:
    """Return an exception's type and text; of what failed in a graph without the places at which that was traced."""
    text = describe_error(error, most=MOST_MESSAGE)  # what is said stands behind the places
    if not isinstance(error, tf.errors.OpError) or "Graph execution error" not in text:
        return describe_error(error)
    lines = text.splitlines()
    # TensorFlow tells where each operation was traced, over dozens of lines, before what went wrong.
    traced = max((number for number, line in enumerate(lines) if line.startswith('  File "')), default=0)
    message = "\n".join(lines[traced + 1 :]).strip()
    return f"{type(error).__name__}: {cut_text(message, MOST_TEXT)}" if message else describe_error(error)


def _behind(op: Op | RowCheck, value: dict[str, Any], result: Any) -> list[dict[str, Any]]:
    """Return the elements that are behind an operator, by what it has made of one."""
    if isinstance(op, (BucketByLength, RowCheck)):
        return [value]
    if isinstance(op, Filter):
        return [value] if bool(np.asarray(result)) else []
    if isinstance(op, FlatMap):
        count = int(next(iter(result.values())).shape[0])
        return [{name: column[number] for name, column in result.items()} for number in range(count)]
    return [result]


def _inside(feed: GraphFeed) -> Iterator[Read]:
    """Yield the elements that went into the graph and did not come out."""
    tried = 0
    for key, start, stop in feed.outstanding.parts():
        for number in range(start >> OUTPUT_BITS, ((stop - 1) >> OUTPUT_BITS) + 1):
            if tried == MOST_TRIED:
                return
            tried += 1
            yield feed.reload(key, number)


def _shape_mismatch(
    value: dict[str, Any], read: Read, shapes: dict[str, tuple[Any, Read]], plan: Plan
) -> BatchShapeError | None:
    batching = next((op for op in plan.ops if isinstance(op, Batch)), None)
    if batching is None:
        return None
    for name, tensor in value.items():
        shape = tuple(tf.convert_to_tensor(tensor).shape)
        # If no element fails alone, two that no batch can hold are the usual reason.
        first, other = shapes.setdefault(name, (shape, read))
        if shape != first:
            return BatchShapeError(
                f"{batching.name}: column {name!r} of {read.lease.split.where(read.number)} has the shape "
                f"{list(shape)}, but that of {other.lease.split.where(other.number)} has {list(first)}. Bring elements "
                "to one shape before batch (resize, crop), or use padded_batch.",
                op=batching.name,
                file=read.lease.split.file_of(read.number),
                element=read.lease.split.number_of(read.number),
                column=name,
            )
    return None
