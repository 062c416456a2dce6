"""Several outputs of one element, each with a hidden row of its own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.tensorflow.columns import Tensor


def rows_of_outputs(row: Tensor, count: Tensor) -> Tensor:
    """Share an element's positions among its outputs; the last one takes what is left."""
    number = tf.range(count)
    step = (row[meta.END] - row[meta.BEGIN]) // tf.maximum(count, 1)
    begin = row[meta.BEGIN] + number * step
    end = tf.where(number == count - 1, row[meta.END], begin + step)
    # New keys from the element's own: functions behind draw differently for each output, and the same each
    # time.
    keys = tf.random.stateless_uniform([count, 2], row[meta.KEY : meta.KEY_HIGH + 1], None, None, tf.int64)
    same = tf.repeat(row[tf.newaxis], count, axis=0)
    columns = [same[:, : meta.BEGIN], begin[:, tf.newaxis], end[:, tf.newaxis]]
    columns += [same[:, meta.LOW : meta.HIGH + 1], keys, same[:, meta.SIZE :]]
    return tf.ensure_shape(tf.concat(columns, axis=1), [None, meta.WIDTH])


def new_outputs(data: Any) -> Any:
    """Return the outputs of elements that were not delivered before."""
    return data.filter(
        lambda columns, row: tf.logical_and(row[meta.BEGIN] < row[meta.HIGH], row[meta.END] > row[meta.LOW])
    )
