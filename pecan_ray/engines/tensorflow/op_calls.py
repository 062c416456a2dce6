"""Functions of operators, called in a graph or eagerly: on columns and a row, whose errors name the operator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import pecan_ray.engines.tensorflow.checks as checks
import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.tensorflow.columns import Tensor, TensorColumns
from pecan_ray.engines.tensorflow.control_flow import with_control_flow
from pecan_ray.engines.tensorflow.epochs import of_first_epoch
from pecan_ray.errors import ColumnError, OpError, OutputTypeError, PecanError, describe_error, is_interrupt
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap, Map, Subset, wants_rng
from pecan_ray.sampling.subsets import is_member

_SCOPE = "operator_"
"""Begins the names of what an operator's function adds to a graph; its own name follows, byte by byte."""


def call(op: ElementOp, columns: TensorColumns, row: Tensor) -> Any:
    """Call an operator's function, in a graph or eagerly, on one element or batch."""
    if isinstance(op, Subset):
        return _membership(op, row)
    argument = columns if op.on is None else _column(op.name, columns, op.on)
    known = of_first_epoch(op)
    if not wants_rng(op.fn):
        return _called(op.name, op.fn, argument, **known)
    # A batch draws by its first element.
    first = row if row.shape.rank == 1 else row[0]
    # By the operator's name and not its place: an element draws the same numbers in every order of operators.
    seed = tf.bitwise.bitwise_xor(first[meta.KEY : meta.KEY_HIGH + 1], tf.constant(meta.op_key(op.name), tf.int64))
    return _called(op.name, op.fn, argument, rng=seed, **known)


def _membership(op: Subset, row: Tensor) -> Tensor:
    """Return whether an element belongs to a part of its source."""

    def found(split: Any, element: Any) -> Any:
        return np.bool_(is_member(op, int(split), int(element)))

    return tf.reshape(tf.numpy_function(found, [row[meta.SPLIT], row[meta.ELEMENT]], tf.bool, stateful=False), [])


def filter_result(op: Filter, columns: TensorColumns, row: Tensor) -> Tensor:
    """Return whether a filter keeps an element, or batch."""
    return checks.as_bool(op.name, call(op, columns, row))


def length_of(op: BucketByLength, columns: TensorColumns) -> Tensor:
    """Return the length by which an element finds its bucket."""
    if callable(op.length):
        return checks.length(op.name, _called(op.name, op.length, columns))
    return tf.shape(_column(op.name, columns, op.length))[0]


def _called(name: str, fn: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call an operator's function; in a graph whatever it raises is an error by name."""
    # Eagerly an error is the user's own, as it was raised.
    if tf.executing_eagerly():
        return fn(*args, **keywords)
    in_graph = with_control_flow(fn)
    try:
        # In hex, because scopes allow few characters. TensorFlow's errors name the scope, and so the
        # operator.
        with tf.name_scope(_SCOPE + name.encode().hex()):
            return in_graph(*args, **keywords)
    except PecanError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise OpError(
            f"{name} cannot be compiled into a TensorFlow graph: {describe_error(error)}\nThe tensorflow "
            'engine calls it once with symbolic tensors; use TensorFlow operations in it, or engine="python".',
            op=name,
        ) from error


def op_named_in(message: str) -> str:
    """Return the operator whose part of a graph an error of TensorFlow's names; empty if it names none."""
    found = re.search(rf"{_SCOPE}((?:[0-9a-f]{{2}})+)", message)
    return bytes.fromhex(found[1]).decode(errors="replace") if found else ""


def apply_map(op: Map, columns: TensorColumns, row: Tensor) -> TensorColumns:
    """Return the columns after a map."""
    result = call(op, columns, row)
    if op.on is not None:
        if result is None or isinstance(result, np.ma.MaskedArray):
            raise _wrong_type(op, result, "a tensor")
        return {**columns, op.on: result}
    if not isinstance(result, dict):
        raise _wrong_type(op, result, "a dict from column name to tensor")
    for name, value in result.items():
        if value is None or isinstance(value, np.ma.MaskedArray):
            raise _wrong_type(op, value, f"a tensor in column {name!r}")
    return result


def apply_flat_map(op: FlatMap, columns: TensorColumns, row: Tensor) -> TensorColumns:
    """Return the columns of all outputs, with a leading dimension."""
    result = call(op, columns, row)
    if op.on is not None:
        made = checks.same_rows(op.name, {op.on: tf.convert_to_tensor(result)})
        count = checks.count_of(made[op.on])
        rest = {name: tf.repeat(value[tf.newaxis], count, axis=0) for name, value in columns.items() if name != op.on}
        return {**rest, **made}
    if not isinstance(result, dict) or not result:
        raise _wrong_type(op, result, "a dict of tensors whose first dimension counts the outputs")
    return checks.same_rows(op.name, {name: tf.convert_to_tensor(value) for name, value in result.items()})


def _column(op: str, columns: TensorColumns, name: str) -> Tensor:
    if name not in columns:
        raise ColumnError(f"{op}: there is no column {name!r}; there are {sorted(columns)}.", op=op, column=name)
    return columns[name]


def _wrong_type(op: ElementOp, result: Any, wanted: str) -> OutputTypeError:
    return OutputTypeError(
        f"{op.name} returned {type(result).__name__}, but it must return {wanted}. To change one column by a function "
        'of its value, pass on="column".',
        op=op.name,
    )
