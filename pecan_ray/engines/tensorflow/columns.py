"""Tensors as the NumPy columns of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Tensor: TypeAlias = Any
"""TensorFlow has no type for what is a tensor in a graph and outside of one."""
TensorColumns: TypeAlias = dict[str, Tensor]
"""An element, or a batch."""


def is_none(spec: Any) -> bool:
    """Tell whether a part of an `element_spec` stands for None; TensorFlow has no public name for its type."""
    return type(spec).__name__ == "NoneTensorSpec"


def as_column(value: Any) -> Any:
    """Return a tensor as a NumPy array without a copy; strings as objects, ragged tensors as an object per row.

    A sparse tensor is a dict of its three parts.
    """
    if isinstance(value, tf.RaggedTensor):
        column = np.empty(int(value.nrows()), object)
        column[:] = [as_column(row) for row in value]
        return column
    if isinstance(value, tf.SparseTensor):
        return {part: np.asarray(getattr(value, part)) for part in ("indices", "values", "dense_shape")}
    if isinstance(value, tf.Tensor) and value.dtype.is_floating and value.ndim == 0:
        value = value.numpy()  # NumPy cannot ask a tensor for one bfloat16
    array = np.asarray(value)
    # A single text is bytes, as in the python engine, and no array without dimensions.
    return array.item() if array.dtype.hasobject and array.ndim == 0 else array


def stacked(elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return elements of one kind, made of such columns, as a batch."""
    return {name: _stacked([element[name] for element in elements]) for name in elements[0]}


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {part: _stacked([value[part] for value in values]) for part in values[0]}
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    # `np.array` would make numbers, or more dimensions, of them.
    return np.fromiter(values, object, len(values))
