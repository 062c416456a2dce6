"""Elements of an existing tf.data pipeline as they were before they became flat columns.

Workers send columns by name: "0/a" is the part "a" of the first part of a tuple.  TensorFlow's users get the tuples,
dicts, ragged and sparse tensors that their dataset has, as its element_spec says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pecan_ray.plan.operators import Autocache, Filter, Plan, Prefetch, Repeat, Shuffle, Skip, Subset, Take
from pecan_ray.plan.splits import Element
from pecan_ray.sources.tf_data import TfDataSource, parts_of

KEEPS_ELEMENTS = (Autocache, Filter, Prefetch, Repeat, Shuffle, Skip, Subset, Take)
"""Operators behind which an element is as it was."""


class Structure:
    """What a dataset's elements are made of."""

    def __init__(self, spec: Any) -> None:
        """`spec`: the dataset's `element_spec`."""
        self.spec = spec = tf.nest.map_structure(_of_row, spec)
        self._leaves: dict[str, Any] = dict(zip(tf.nest.flatten(_named("", spec)), tf.nest.flatten(spec), strict=True))

    @property
    def has_objects(self) -> bool:
        """Return whether parts are objects of the user's classes, and not only in dicts and tuples."""
        return _has_objects(self.spec)

    def matches(self, columns: Mapping[str, Any]) -> bool:
        """Tell whether a batch has the dataset's columns."""
        return columns.keys() == self._leaves.keys()

    def packed(self, values: Mapping[str, Any]) -> Any:
        """Return values by column, or specs, in the places that they have in the dataset."""
        return tf.nest.pack_sequence_as(self.spec, [values[name] for name in self._leaves])

    def tensors(self, columns: Element) -> Any:
        """Return a batch as the dataset's own tensors."""
        return self.packed({name: _tensor(columns[name], leaf) for name, leaf in self._leaves.items()})


def structure_of(plan: Plan) -> Structure | None:
    """Return the structure of the existing dataset that a plan reads, of which one shard is made; None: it has none."""
    if not isinstance(plan.head, TfDataSource):
        return None
    # In the trainer's process: names of columns tell neither a NamedTuple's class nor a quantized type
    # (docs/decisions/tensorflow-engine.md#138-datasets-keep-their-structure).
    return Structure(plan.head.build_dataset(next(plan.head.splits())).element_spec)


def keeps_elements(plan: Plan) -> bool:
    """Tell whether a plan gives the elements of its source as they are."""
    return all(isinstance(op, KEEPS_ELEMENTS) for op in plan.ops)


def _named(prefix: str, spec: Any) -> Any:
    """Return the names of columns in the order in which `tf.nest` flattens a spec."""
    parts = parts_of(spec)
    if parts is None:
        return prefix or "0"
    before = f"{prefix}/" if prefix else ""
    named = [_named(f"{before}{name}", part) for name, part in parts]
    # A dict is flattened by its sorted keys, which are no texts if the user's are not.
    return dict(zip(spec, named, strict=True)) if isinstance(spec, dict) else tuple(named)


def _has_objects(spec: Any) -> bool:
    parts = parts_of(spec)
    return parts is not None and (
        not isinstance(spec, (dict, tuple, list)) or any(_has_objects(part) for _, part in parts)
    )


def _of_row(spec: Any) -> Any:
    """Return the spec of a plain tensor for a row of a ragged one, which is plain."""
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 0:
        return tf.TensorSpec(spec.shape, spec.dtype)
    return spec


def _tensor(value: Any, spec: Any) -> Any:
    if value is None:
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        return _ragged(value, spec)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(**value)
    if isinstance(value, np.bytes_):
        value = bytes(value)  # TensorFlow makes an array of it, without the zeros at its end
    found = tf.convert_to_tensor(value)
    quantized = isinstance(spec, tf.TensorSpec) and spec.dtype.is_quantized and found.dtype.is_integer
    return tf.bitcast(found, spec.dtype) if quantized else found


def _ragged(rows: Any, spec: Any) -> Any:
    """Return rows of unequal lengths as a ragged tensor."""
    splits = []
    for depth in range(spec.ragged_rank):
        rows = rows if depth == 0 else [part for row in rows for part in row]
        splits.append(np.cumsum([0, *map(len, rows)]))
    dtype, inner = spec.dtype.as_numpy_dtype, spec.shape[spec.ragged_rank + 1 :]
    values = np.concatenate([*rows]) if len(rows) else np.zeros([0, *(length or 0 for length in inner)], dtype)
    kept = [tf.constant(split, spec.row_splits_dtype) for split in splits]
    return tf.RaggedTensor.from_nested_row_splits(tf.constant(values, spec.dtype), kept)
