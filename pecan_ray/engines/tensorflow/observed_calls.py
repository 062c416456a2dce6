"""Calls of functions in a graph that are watched: what went in and did not come out has failed, or was not needed.

Bad elements are found by their positions, which a graph has taken in and not given out.  That says nothing about
functions on whole batches, nor about plans of which a part is taken: there each call is noted, with its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.tensorflow.checks import RowCheck
from pecan_ray.engines.tensorflow.columns import Tensor
from pecan_ray.plan.operators import Op


@dataclass(frozen=True)
class ObservedCall:
    """A call that has begun and has not ended."""

    ops: Sequence[Op | RowCheck]
    rows: meta.Rows
    values: Sequence[Any]
    spec: Any

    @property
    def columns(self) -> dict[str, Any]:
        """What the functions were given."""
        tensors = [tf.constant(value) for value in self.values]
        columns: dict[str, Any] = tf.nest.pack_sequence_as(self.spec, tensors, expand_composites=True)
        return columns


class ObservedCalls:
    """The calls of one stretch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards what is under way: graphs call from many threads."""
        self._under_way: dict[tuple[str, bytes], ObservedCall] = {}

    def observe(self, run: Callable[..., Any], ops: Sequence[Op | RowCheck]) -> Callable[..., Any]:
        """Return a function of columns and row that does what `run` does, and is watched."""
        name = "/".join(op.name for op in ops)

        def observed(columns: dict[str, Any], row: Tensor) -> Any:
            tensors = tf.nest.flatten(columns, expand_composites=True)

            def begin(rows: Any, *values: Any) -> Any:
                with self._lock:
                    # By the rows, which name elements and outputs: no two calls of an operator have the same.
                    self._under_way[name, rows.tobytes()] = ObservedCall(ops, rows, values, columns)
                return np.False_

            def end(rows: Any) -> Any:
                with self._lock:
                    self._under_way.pop((name, rows.tobytes()), None)
                return np.False_

            # Whatever the function is made of waits for the note that it has begun.
            with tf.control_dependencies([tf.numpy_function(begin, [row, *tensors], tf.bool)]):
                given = tf.nest.pack_sequence_as(columns, list(map(tf.identity, tensors)), expand_composites=True)
                result = run(given, tf.identity(row))
            made = tf.nest.flatten(result, expand_composites=True)
            # The end is noted only once all results are there, or a call that fails late would look finished.
            with tf.control_dependencies(made):
                ended = tf.numpy_function(end, [row], tf.bool)
            with tf.control_dependencies([ended]):
                return tf.nest.pack_sequence_as(result, list(map(tf.identity, made)), expand_composites=True)

        return observed

    def take(self) -> list[ObservedCall]:
        """Return and forget the calls that have not ended."""
        with self._lock:
            calls, self._under_way = list(self._under_way.values()), {}
        return calls
