"""What operators may return in a graph, and what may be batched or leave it: anything else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pecan_ray.engines.tensorflow.columns import Tensor, TensorColumns, is_none
from pecan_ray.errors import OutputTypeError, describe_error

NO_COLUMN = (tf.variant, tf.resource)
"""Dtypes whose values live in a graph alone: datasets, hash tables, variables."""
LONGEST = (1 << 31) - 2
"""The longest length that tf.data compares with boundaries."""


def settled(op: str, columns: TensorColumns, makers: Mapping[str, str]) -> TensorColumns:
    """Return columns in which lists and tuples are tensors, which tf.data would take for several tensors each.

    `makers` says which operator has made a column, where it was not the last one.
    """
    return {
        name: _stacked(makers.get(name, op), name, value) if isinstance(value, (list, tuple)) else value
        for name, value in columns.items()
    }


def _stacked(op: str, name: str, value: Any) -> Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise OutputTypeError(
            f"{op} returned a {type(value).__name__} in column {name!r} of which no tensor can be made: "
            f"{describe_error(error)}\n"
            "Lists need one dtype, and one length in each dimension; tf.ragged.stack takes uneven ones.",
            op=op,
            column=name,
        ) from error


def _kind_of(column: Any) -> str:
    """Say what a column is, for an error."""
    if isinstance(column, tf.TensorSpec):
        return f"a tensor of {column.dtype.name}"
    return f"a {column.value_type.__name__ if isinstance(column, tf.TypeSpec) else type(column).__name__}"


def check_columns(
    op: str, spec: Mapping[str, Any], makers: Mapping[str, str], *, ragged: bool, where: str, sparse: bool = False
) -> None:
    """Raise `OutputTypeError` unless all columns are tensors, or ragged ones where these may be.

    `sparse`: sparse tensors and None may be there, too.
    """
    for name, column in spec.items():
        if isinstance(column, tf.TensorSpec) and column.dtype not in NO_COLUMN:
            continue
        if ragged and isinstance(column, tf.RaggedTensorSpec):
            continue
        if sparse and (isinstance(column, tf.SparseTensorSpec) or is_none(column)):
            continue
        found = _kind_of(column)
        made = f", which {makers[name]} made," if name in makers else ""
        may_be = "tensors and ragged tensors" if ragged else "tensors"
        raise OutputTypeError(
            f"{op}: column {name!r}{made} is {found} where {where}; only {may_be} may be "
            "there. Make it one by a map before (tf.sparse.to_dense, RaggedTensor.to_tensor), or give each part "
            "a column of its own.",
            op=makers.get(name, op),
            column=name,
        )


def check_ranks(op: str, spec: Mapping[str, Any]) -> None:
    """Raise `OutputTypeError` unless it is known how many dimensions each column has, which padding needs."""
    for name, column in spec.items():
        if column.shape.rank is None:
            raise OutputTypeError(
                f"{op}: it is not known how many dimensions column {name!r} has. Say so by a map before: "
                "tf.ensure_shape(value, [None, None]); tf.numpy_function and tf.py_function forget it.",
                op=op,
                column=name,
            )


def check_has_length(op: str, spec: Mapping[str, Any], name: str) -> None:
    """Raise `OutputTypeError` unless a column has a first dimension."""
    if name in spec and spec[name].shape.rank == 0:
        raise OutputTypeError(
            f"{op}: column {name!r} is one value, which has no length. If it is the length, pass "
            f"length=lambda element: element[{name!r}].",
            op=op,
            column=name,
        )


ROW_HINT = (
    " Where unbatch follows, the tensorflow engine needs a row for each element of the batch: make other rows by "
    'flat_map before batch, or use engine="python".'
)


@dataclass(frozen=True)
class RowCheck:
    """The question whether a batch has a row for each of its elements; with the name of what made the batch.

    An element that is no batch of ours needs equally many rows in its columns.
    """

    name: str

    def checked(self, columns: TensorColumns, row: Tensor) -> TensorColumns:
        """Return the columns."""
        return same_rows(self.name, columns, row if row.shape.rank == 2 else None)


def _known_lengths(op: str, columns: TensorColumns) -> dict[str, int]:
    """Return the rows of the columns whose shapes tell them; raises OutputTypeError for a column without rows."""
    for name, value in columns.items():
        if value.shape.rank == 0:
            raise OutputTypeError(f"{op}: column {name!r} is one value and has no rows.", op=op, column=name)
    return {name: value.shape[0] for name, value in columns.items() if value.shape.rank and value.shape[0] is not None}


def same_rows(op: str, columns: TensorColumns, elements: Tensor | None = None) -> TensorColumns:
    """Return columns of equally many rows; others are an error, at once where shapes are known or as the graph runs."""
    there = columns if elements is None else {**columns, "(elements of the batch)": elements}
    known = _known_lengths(op, there)
    if len(set(known.values())) > 1:
        hint = "" if elements is None else ROW_HINT
        raise OutputTypeError(f"{op} returned columns of unequal lengths: {known}.{hint}", op=op)
    if len(known) == len(there):
        return columns
    # Shapes that tracing does not know are compared while the graph runs.
    first, *others = map(count_of, there.values())
    hint = "" if elements is None else f".{ROW_HINT}"
    text = f"{op} returned columns of unequal lengths ({', '.join(map(repr, there))}){hint}"
    checks = [tf.debugging.assert_equal(other, first, text) for other in others]
    # None: eagerly a check is made at once. Identities, so that in a graph the columns wait for the checks.
    with tf.control_dependencies([check for check in checks if check is not None]):
        return {name: tf.identity(value) for name, value in columns.items()}


def count_of(value: Any) -> Tensor:
    """Return the first dimension of a tensor."""
    return tf.cast(value.nrows(), tf.int32) if isinstance(value, tf.RaggedTensor) else tf.shape(value)[0]


def as_bool(op: str, value: Any) -> Tensor:
    """Return what a filter returned as one bool; NaN is no answer."""
    found = _number(op, value, "whether to keep the element, one bool", "returned", bools=True)
    return tf.reshape(tf.cast(found, tf.bool), [])


def length(op: str, value: Any) -> Tensor:
    """Return what a function of length returned as one integer; NaN and infinity are none."""
    found = _number(op, value, "one number", "length returned", bools=False)
    if found.dtype.is_floating:
        # Before the cast, because a float beyond the range of integers becomes any number.
        # Half of the bound: the bound itself is rounded up in 32 bits, beyond what an int32 holds.
        found = tf.clip_by_value(found, -1.0, float(LONGEST // 2))
    return tf.reshape(tf.cast(tf.clip_by_value(tf.cast(found, tf.int64), -1, LONGEST), tf.int32), [])


def _number(op: str, value: Any, wanted: str, returned: str, *, bools: bool) -> Tensor:
    begin = f"{op}{'' if bools else ':'} {returned}"
    try:
        found = tf.convert_to_tensor(value)
        if not (found.dtype.is_integer or found.dtype.is_floating or (bools and found.dtype.is_bool)):
            raise TypeError(f"it is a tensor of {found.dtype.name}")
        # None: only the running graph knows.
        if found.shape.num_elements() not in (None, 1):
            raise TypeError(f"it is a tensor of the shape {found.shape}")
    except (TypeError, ValueError) as error:
        raise OutputTypeError(
            f"{begin} {type(value).__name__}, but it must return {wanted} ({describe_error(error)}).", op=op
        ) from error
    if not found.dtype.is_floating:
        return found
    wrong = tf.math.is_nan(found) if bools else tf.math.logical_not(tf.math.is_finite(found))
    text = f"{begin} {'NaN' if bools else 'NaN or infinity'}, but it must return {wanted}"
    check = tf.debugging.assert_equal(tf.reduce_any(wrong), False, text)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(found)
