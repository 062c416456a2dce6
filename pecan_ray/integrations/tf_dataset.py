"""A pipeline as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from pecan_ray.engines.contract import is_plain
from pecan_ray.errors import PlanError, listed
from pecan_ray.plan.operators import Batch, BucketByLength, PaddedBatch, Plan
from pecan_ray.plan.shape import yields_batches
from pecan_ray.plan.splits import Element

NUMBERS = "biufc"
"""Kinds of dtypes among which one is cast to another one."""
CASTS: dict[bool, Literal["safe", "same_kind"]] = {True: "safe", False: "same_kind"}
"""What may be cast, by whether the user has not asked for the dtype."""


def tf_dataset(
    passes: Iterable[Element], spec: Mapping[str, Any], *, inferred: bool = False, length: int | None = None
) -> Any:
    """Return a dataset of which each iteration is a pass, of `length` batches if that is known.

    Columns are cast to the dtypes of a spec that the user has given, within their kind, and never where they would lose
    anything against an `inferred` one.  Raises PlanError for a spec that is none.
    TensorFlow takes the memory of a column as it is where that is aligned as it wants it, and copies it otherwise.
    """

    must_be_spec(spec)

    def elements() -> Iterator[dict[str, Any]]:
        for batch in passes:
            must_fit(batch, spec, inferred)
            yield {name: batch[name] for name in spec}

    found = tf.data.Dataset.from_generator(elements, output_signature=dict(spec))
    return found if length is None else found.apply(tf.data.experimental.assert_cardinality(length))


def must_be_spec(spec: Any) -> None:
    """Raise PlanError, naming the column, for what does not say of columns what tensors they are."""
    if not isinstance(spec, Mapping) or not spec:
        raise PlanError(f"to_tf_dataset(spec=...) needs a dict with a tf.TensorSpec for each column, but got {spec!r}.")
    for name, want in spec.items():
        if not isinstance(want, tf.TensorSpec):
            raise PlanError(f"to_tf_dataset(spec=...): column {name!r} needs a tf.TensorSpec, but got {want!r}.")


def must_fit(batch: Element, spec: Mapping[str, Any], inferred: bool = False) -> None:
    """Raise PlanError, naming the column, for a batch that is not as the dataset says."""
    for name, want in spec.items():
        if name not in batch:
            raise PlanError(f"to_tf_dataset: the batch has no column {name!r}; it has {listed(batch)}.")
        shape = np.shape(batch[name])
        if not want.shape.is_compatible_with(shape):
            raise PlanError(
                f"to_tf_dataset: column {name!r} is {list(shape)} in this batch, but the dataset says {want.shape}, as "
                f"the first batches were. Pass spec={{{name!r}: tf.TensorSpec(shape, dtype)}} with None for lengths "
                "that vary, for this column and all others."
            )
        has, wants = np.asarray(batch[name]).dtype, np.dtype(want.dtype.as_numpy_dtype)
        if has.kind in NUMBERS and wants.kind in NUMBERS and not np.can_cast(has, wants, CASTS[inferred]):
            said = "as the first batches were" if inferred else "as spec=... says"
            raise PlanError(
                f"to_tf_dataset: column {name!r} is {has} in this batch, and would lose something as {wants}, {said}. "
                f"Cast it in the pipeline, or pass spec={{{name!r}: tf.TensorSpec(shape, dtype)}} with the dtype that "
                "is meant, for this column and all others."
            )


def spec_of(plan: Plan, batches: Sequence[Element], elements: Sequence[Element]) -> dict[str, Any]:
    """Return what the batches of a plan look like, given the first ones, and some elements in front of padding.

    Lengths that vary among either are None, and so is the number of rows.
    """
    rows = yields_batches(plan)
    return {name: _column_spec(name, [batch[name] for batch in batches], elements, rows) for name in batches[0]}


def before_padding(plan: Plan) -> Plan | None:
    """Return what gives the elements that a plan pads; None if it pads none."""
    for place, op in reversed(list(enumerate(plan.ops))):
        if isinstance(op, (PaddedBatch, BucketByLength)):
            return Plan(head=plan.head, ops=plan.ops[:place])
        if isinstance(op, Batch):
            return None
    return None


def _column_spec(name: str, values: Sequence[Any], elements: Sequence[Element], rows: bool) -> Any:
    if isinstance(values[0], (dict, tuple)):
        raise PlanError(
            f"to_tf_dataset: column {name!r} is a {type(values[0]).__name__} of columns: make columns of them, or drop "
            "them, in a .map of the pipeline."
        )
    shapes = [np.shape(value) for value in values]
    dtype = _dtype(name, values[0])
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        return tf.TensorSpec(None, dtype)
    inner = [np.shape(element[name]) for element in elements if name in element]
    if all(len(shape) == len(shapes[0]) - 1 for shape in inner):
        shapes += [(shapes[0][0], *shape) for shape in inner]  # as rows of a batch, whose length they do not tell
    seen = [set(lengths) for lengths in zip(*shapes, strict=True)]
    lengths = [one.pop() if len(one) == 1 else None for one in seen]
    return tf.TensorSpec([None, *lengths[1:]] if rows and lengths else lengths, dtype)


def _dtype(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if is_plain(array.dtype) and array.dtype.kind not in "mMSU":
        return tf.as_dtype(array.dtype)
    if array.dtype.kind in "SU" or (array.dtype == object and all(isinstance(one, (bytes, str)) for one in array.flat)):
        return tf.string
    raise PlanError(
        f"to_tf_dataset: column {name!r} holds {array.dtype} values, of which TensorFlow makes no tensors. Convert or "
        "drop it in a .map of the pipeline."
    )
