"""Bytes and elements that went into and came out of operators, added up by the graph itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.counting import EVERY, OpCount
from pecan_ray.engines.tensorflow.columns import Tensor
from pecan_ray.plan.operators import ElementOp

OpPassage = tuple[str, Mapping[str, Any], Tensor, Callable[[], Tensor]]
"""An operator, the columns that it was given, and the number and bytes of the elements that it made of them."""


class Sums:
    """One row of four sums for each operator: elements in and out, bytes in and out; no Python runs for an element."""

    def __init__(self, ops: Sequence[ElementOp]) -> None:
        self._names = [op.name for op in ops]
        with tf.device("/CPU:0"):
            self._sums = tf.Variable(tf.zeros([len(ops), 4], tf.int64), trainable=False)
            # A variable and no constant: it is switched between stretches without tracing functions anew.
            self._counting = tf.Variable(False, trainable=False)

    def switch(self, on: bool) -> None:
        """Count from now on, or no longer."""
        with tf.device("/CPU:0"):
            self._counting.assign(on)

    def add(self, row: Tensor, passages: Sequence[OpPassage]) -> tf.Operation:
        """Add what became of an element, if it is one of those that are counted."""
        counted = tf.logical_and(self._counting, tf.equal((row[meta.SPLIT] + row[meta.ELEMENT]) % EVERY, 0))

        def add() -> Tensor:
            places = [[self._names.index(name)] for name, *_ in passages]
            rows = [
                tf.stack([tf.constant(1, tf.int64), tf.cast(count, tf.int64), columns_bytes(columns), made()])
                for name, columns, count, made in passages
            ]
            self._sums.scatter_nd_add(places, tf.stack(rows))
            return tf.constant(True)

        # The operation alone: rows wait for it by a control dependency, and nobody needs its value.
        return tf.cond(counted, add, lambda: tf.constant(False)).op

    def snapshot(self) -> dict[str, OpCount]:
        """Return the sums so far of the operators that were counted."""
        found = zip(self._names, self._sums.numpy().tolist(), strict=True)
        return {name: OpCount(*sums) for name, sums in found if sums[0]}


def columns_bytes(columns: Mapping[str, Any]) -> Tensor:
    """Return the bytes of an element's columns."""
    return tf.add_n([tensor_bytes(value) for value in columns.values()]) if columns else tf.constant(0, tf.int64)


def tensor_bytes(value: Any) -> Tensor:
    """Return the bytes of a tensor; strings count by their lengths."""
    if isinstance(value, tf.RaggedTensor):
        value = value.flat_values
    value = tf.convert_to_tensor(value)
    if value.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(value), tf.int64))
    return tf.size(value, tf.int64) * value.dtype.size
