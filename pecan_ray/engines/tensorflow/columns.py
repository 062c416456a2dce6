"""Tensors as the NumPy columns of a batch."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Tensor: TypeAlias = Any
"""TensorFlow has no type for what is a tensor in a graph and outside of one."""
TensorColumns: TypeAlias = dict[str, Tensor]
"""An element, or a batch."""


def as_column(value: Any) -> Any:
    """Return a tensor as a NumPy array without a copy; strings as objects, ragged tensors as an object per row."""
    if isinstance(value, tf.RaggedTensor):
        column = np.empty(int(value.nrows()), object)
        column[:] = [as_column(row) for row in value]
        return column
    array = np.asarray(value)
    return array.item() if array.dtype.hasobject and array.ndim == 0 else array
