"""A pipeline as a `tf.data.Dataset`."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from pecan_ray.engines.contract import is_plain
from pecan_ray.errors import PlanError, join_names
from pecan_ray.integrations.passes import Passes, PassesState
from pecan_ray.integrations.tf_structure import Structure
from pecan_ray.plan.grouping import GroupingOp
from pecan_ray.plan.operators import Batch, PaddedBatch, Plan
from pecan_ray.plan.shape import yields_batches
from pecan_ray.plan.splits import Element

NUMBERS = "biufc"
"""Kinds of dtypes among which one is cast to another one."""
CASTS: dict[bool, Literal["safe", "same_kind"]] = {True: "safe", False: "same_kind"}
"""What may be cast, by whether the user has not asked for the dtype."""


class TfBatches(tf.data.Dataset, tf.train.experimental.PythonState):  # type: ignore[misc]  # TensorFlow has no types
    """The batches of one job: each iteration is a pass; the job ends when nobody has it, or what was made of it.

    ``tf.train.Checkpoint(data=...)`` saves and restores where it stands, as `state_dict` and `load_state_dict` do: what
    TensorFlow has taken counts as used, so save between two steps, with no `prefetch` behind it.
    """

    def __init__(self, passes: Passes, data: Any, length: int | None) -> None:
        """`data`: one pass; `length`: its batches, if they are known."""
        self._passes, self._pass, self._length = passes, data, length
        counted = data if length is None else data.apply(tf.data.experimental.assert_cardinality(length))
        super().__init__(tf.data.experimental.to_variant(counted))

    def _inputs(self) -> list[Any]:
        return [self._pass]

    @property
    def element_spec(self) -> Any:
        """What a batch is."""
        return self._pass.element_spec

    def cardinality(self) -> Any:
        """Return the batches of a pass, or what TensorFlow has for an unknown number."""
        return super().cardinality() if self._length is None else tf.constant(self._length, tf.int64)

    def state_dict(self) -> dict[str, Any]:
        """Return where the passes stand, as plain values: what TensorFlow has taken counts as used."""
        return self._passes.state_dict()

    def load_state_dict(self, state: PassesState) -> None:
        """Go on where a state was taken, with the next iteration; call it before other data sets are made of this."""
        self._passes.load_state_dict(state)
        # What is left of a pass has fewer batches than TensorFlow has been promised.
        self._variant_tensor_attr = tf.data.experimental.to_variant(self._pass)

    def serialize(self) -> str:
        """Return the state for a checkpoint."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: bytes) -> None:
        """Go on from the state of a checkpoint."""
        self.load_state_dict(json.loads(string_value))

    def close(self) -> None:
        """End the job; the next iteration begins another one."""
        self._passes.close()


def tf_dataset(
    passes: Passes,
    spec: Mapping[str, Any],
    *,
    inferred: bool = False,
    length: int | None = None,
    structure: Structure | None = None,
    shards_itself: bool = False,
) -> TfBatches:
    """Return a dataset of which each iteration is a pass, of `length` batches if that is known.

    Columns are cast to the dtypes of a spec that the user has given, within their kind, and never where they would lose
    anything against an `inferred` one.  Raises PlanError for a spec that is none.
    TensorFlow takes the memory of a column as it is where that is aligned as it wants it, and copies it otherwise.

    Args:
        passes: yield dicts of columns.
        spec: by column; with a `structure`, what the batches have in its places.
        inferred: whether the spec is of the first batches.
        length: batches of a pass.
        structure: in which the columns are given.
        shards_itself: whether each process of a `tf.distribute.Strategy` has batches of its own.
    """
    check_tensor_specs(spec)
    # TensorFlow keeps functions of Python for ever; whoever has the data set keeps the job.
    held = weakref.ref(passes)

    def elements() -> Iterator[Any]:
        for batch in _held_passes(held):
            check_compatible(batch, spec, inferred)
            columns = {name: batch[name] for name in spec}
            yield columns if structure is None else structure.packed(columns)

    signature = dict(spec) if structure is None else structure.packed(spec)
    return _as_dataset(passes, elements, signature, length, shards_itself)


def tf_dataset_of(
    passes: Passes, structure: Structure, *, length: int | None = None, shards_itself: bool = False
) -> TfBatches:
    """Return a dataset of an existing dataset's own elements, with its `element_spec`; arguments as of `tf_dataset`."""
    held = weakref.ref(passes)

    def elements() -> Iterator[Any]:
        for batch in _held_passes(held):
            tensors = structure.tensors(batch)
            yield tuple(tf.nest.flatten(tensors)) if structure.has_objects else tensors

    if not structure.has_objects:
        return _as_dataset(passes, elements, structure.spec, length, shards_itself)

    def pack(*flat: Any) -> Any:
        return tf.nest.pack_sequence_as(structure.spec, flat)

    # `from_generator` takes no objects, which a map may return.
    signature = tuple(tf.nest.flatten(structure.spec))
    return _as_dataset(passes, elements, signature, length, shards_itself, pack)


def _held_passes(held: weakref.ref[Passes]) -> Passes:
    passes = held()
    if passes is None:
        raise PlanError(
            "to_tf_dataset: nobody has the data set any more, so its job is over. Keep it while it is used."
        )
    return passes


def _as_dataset(
    passes: Passes,
    elements: Callable[[], Iterator[Any]],
    signature: Any,
    length: int | None,
    shards_itself: bool,
    pack: Callable[..., Any] | None = None,
) -> TfBatches:
    data = tf.data.Dataset.from_generator(elements, output_signature=signature)
    data = data if pack is None else data.map(pack)
    options = tf.data.Options()
    # A state would lose what was taken ahead.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    if shards_itself:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return TfBatches(passes, data.with_options(options), length)


def check_tensor_specs(spec: Any) -> None:
    """Raise PlanError, naming the column, for what does not say of columns what tensors they are."""
    if not isinstance(spec, Mapping) or not spec:
        raise PlanError(f"to_tf_dataset(spec=...) needs a dict with a tf.TensorSpec for each column, but got {spec!r}.")
    for name, want in spec.items():
        if not isinstance(want, tf.TensorSpec):
            raise PlanError(f"to_tf_dataset(spec=...): column {name!r} needs a tf.TensorSpec, but got {want!r}.")


def check_compatible(batch: Element, spec: Mapping[str, Any], inferred: bool = False) -> None:
    """Raise PlanError, naming the column, for a batch that is not as the dataset says."""
    for name, want in spec.items():
        if name not in batch:
            raise PlanError(f"to_tf_dataset: the batch has no column {name!r}; it has {join_names(batch)}.")
        shape = np.shape(batch[name])
        if not want.shape.is_compatible_with(shape):
            raise PlanError(
                f"to_tf_dataset: column {name!r} is {list(shape)} in this batch, but the dataset says {want.shape}, as "
                f"the first batches were. Pass spec={{{name!r}: tf.TensorSpec(shape, dtype)}} with None for lengths "
                "that vary, for this column and all others."
            )
        has, wants = np.asarray(batch[name]).dtype, np.dtype(want.dtype.as_numpy_dtype)
        if has.kind in NUMBERS and wants.kind in NUMBERS and not np.can_cast(has, wants, CASTS[inferred]):
            message = "as the first batches were" if inferred else "as spec=... says"
            raise PlanError(
                f"to_tf_dataset: column {name!r} is {has} in this batch, and would lose something as {wants}, "
                f"{message}. "
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
    """Return what gives the elements of a plan whose batches have unequal shapes; None if they are all equal."""
    for place, op in reversed(list(enumerate(plan.ops))):
        if isinstance(op, (PaddedBatch, GroupingOp)):
            return Plan(head=plan.head, ops=plan.ops[:place])
        if isinstance(op, Batch):
            return None
    return None


def _shapes_as_rows(name: str, elements: Sequence[Element], batch: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes that elements have in a column, as if they were batches; none if they do not fit into one."""
    inner = [np.shape(element[name]) for element in elements if name in element]
    if any(len(shape) != len(batch) - 1 for shape in inner):
        return []
    return [(batch[0], *shape) for shape in inner]  # as rows of a batch, whose length they do not tell


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
    shapes += _shapes_as_rows(name, elements, shapes[0])
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
