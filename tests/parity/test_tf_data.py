"""Existing tf.data pipelines beside tf.data: values, types, structure and element_spec, whole and in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from tests.unit.engines.engine_leases import ListedLeases

tf: Any = pytest.importorskip("tensorflow")

from pecan_ray.engines.tensorflow.columns import as_column  # noqa: E402  # TensorFlow may be missing
from pecan_ray.engines.tensorflow.own_seed import without_global_seed  # noqa: E402
from pecan_ray.sources.tf_data import columns_of  # noqa: E402
from tests.parity.tf_pipelines import PIPELINES, RANDOM  # noqa: E402
from tests.unit.engines.tensorflow_rig import run  # noqa: E402

ROWS = 10


class Single(NamedTuple):
    parts: Any


def rows(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(ROWS).shard(num_shards, index)


def alike(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs) or isinstance(ours, tf.Tensor)
    tf.nest.assert_same_structure(ours, theirs, expand_composites=True)
    for a, b in zip(*(tf.nest.flatten(one, expand_composites=True) for one in (ours, theirs)), strict=True):
        if b is None:
            assert a is None
            continue
        assert a.dtype == b.dtype
        assert np.array_equal(a.numpy(), b.numpy())


def ours(make: Callable[..., Any], shards: int) -> pecan.PecanPipeline:
    return pecan.PecanPipeline.from_tf_data(make, num_shards=shards)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_yields_what_tf_data_yields(name: str) -> None:
    def make(num_shards: int, index: int) -> Any:
        return PIPELINES[name](rows(num_shards, index))

    plain, pipe = make(1, 0), ours(make, 1)
    whole = list(plain)
    for one, other in zip(pipe.iter_batches(format="tf", debug=True), whole, strict=True):
        alike(one, other)
    data = pipe.to_tf_dataset(debug=True)
    if name != "slices of a ragged tensor":  # rows of it have a ragged spec, and are plain tensors
        assert data.element_spec == plain.element_spec
    assert int(data.cardinality()) == int(plain.cardinality())
    for one, other in zip(data, whole, strict=True):
        alike(one, other)


def parts(pipe: pecan.PecanPipeline, split: Split, first: int = 0) -> list[dict[str, Any]]:
    """Return the elements of a split from number `first` on, as a worker that is given the rest of it makes them."""
    lease = Lease(0, split, spans=((first << OUTPUT_BITS, END),))
    return [batch.columns for batch in run(pipe, ListedLeases([lease]))]


@pytest.mark.parametrize("name", [*PIPELINES, *RANDOM])
def test_each_of_two_workers_yields_its_shard_and_another_one_goes_on_in_its_middle(name: str) -> None:
    made = {**PIPELINES, **RANDOM}[name]

    def make(num_shards: int, index: int) -> Any:
        return made(rows(num_shards, index))

    pipes = [ours(make, 2) for _ in range(2)]
    (source,) = pipes[0].plan.sources()
    for pipe, split in zip(pipes, source.splits(), strict=True):
        wanted = parts(pipe, split)
        if name in PIPELINES or split.index == 0:
            with without_global_seed():
                theirs = [columns_of(element) for element in make(2, split.index)]
            same(wanted, [{name: as_column(value) for name, value in element.items()} for element in theirs])
        middle = (len(wanted) + 1) // 2
        same(parts(pipes[1 - split.index], split, middle), wanted[middle:])


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [canonical_text(columns) for columns in ours] == [canonical_text(columns) for columns in theirs]


def test_batches_behind_a_dataset_have_its_structure() -> None:
    pipe = ours(lambda: rows(1, 0).map(lambda n: ({"a": n}, n)), 1).batch(4)
    assert len(pipe) == 3 and len(ours(rows, 3).batch(4)) == 3
    data = pipe.to_tf_dataset(debug=True)
    assert data.element_spec == ({"a": tf.TensorSpec([None], tf.int64)}, tf.TensorSpec([None], tf.int64))
    assert [len(targets) for _, targets in data] == [4, 4, 2]
    inputs, targets = pipe.to_keras("0", "1", debug=True)[0]
    assert inputs.keys() == {"a"} and np.array_equal(inputs["a"], targets)
    changed = pipe.map(lambda batch: {"x": batch["1"]}).to_tf_dataset(debug=True)
    assert changed.element_spec == {"x": tf.TensorSpec([None], tf.int64)}


NESTED: dict[str, Callable[[Any], Any]] = {
    "one tensor": lambda n: n,
    "a tuple of one": lambda n: (n,),
    "a tuple of one dict": lambda n: ({"a": n, "b": -n},),
    "a tuple of one tuple": lambda n: ((n, -n),),
    "a NamedTuple of one dict": lambda n: Single({"a": n}),
    "a dict of a tuple": lambda n: {"a": ({"b": n},)},
}


@pytest.mark.parametrize("kind", NESTED)
def test_operators_behind_a_dataset_leave_its_structure(kind: str) -> None:
    def make() -> Any:
        return rows(1, 0).map(NESTED[kind])

    for pipe, theirs in (
        (ours(make, 1).take(3), make().take(3)),
        (ours(make, 1).filter(any_row).batch(4), make().batch(4)),
    ):
        for one, other in zip(pipe.iter_batches(format="tf", debug=True), theirs, strict=True):
            alike(one, other)
        data = pipe.to_tf_dataset(debug=True)
        assert data.element_spec == theirs.element_spec
        for one, other in zip(data, theirs, strict=True):
            alike(one, other)


def any_row(columns: dict[str, Any]) -> bool:
    return len(columns) > 0


@pytest.mark.parametrize("name", ["ragged batches", "sparse batches", "composites", "slices of a sparse tensor"])
@pytest.mark.parametrize("behind", ["shuffle", "batch"])
def test_operators_behind_a_dataset_refuse_parts_that_are_no_tensors(name: str, behind: str) -> None:
    pipe = ours(lambda: PIPELINES[name](rows(1, 0)), 1)
    pipe = pipe.shuffle(3) if behind == "shuffle" else pipe.batch(2)
    with pytest.raises(pecan.errors.PlanError, match=r"part '.*' of an element of .* is (Ragged|Sparse)TensorSpec"):
        next(pipe.iter_batches(debug=True))


def test_a_tensor_alone_goes_through_operators_though_a_ragged_one_would_not() -> None:
    pipe = ours(lambda: PIPELINES["ragged batches"](rows(1, 0)).unbatch(), 1).padded_batch(2)
    assert [list(batch["0"].shape) for batch in pipe.iter_batches(debug=True)] == [[2, n] for n in (1, 3, 5, 7, 9)]
    whole = ours(lambda: rows(1, 0).map(lambda n: (n, None)), 1)
    with pytest.raises(pecan.errors.PlanError, match=r"part '1' of an element of .* is NoneTensorSpec"):
        next(whole.shuffle(3).iter_batches(debug=True))


@pytest.mark.parametrize("size", [4, 5, 11])
def test_rows_of_elements_are_taken_apart(size: int) -> None:
    pipe = ours(lambda: tf.data.Dataset.range(44).map(lambda k: {"k": k}).batch(size), 1).unbatch()
    assert [int(row["k"]) for row in pipe.iter_batches(debug=True)] == list(range(44))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rows(1, 0).map(lambda n: {"a": {"b": n}, "a/b": -n}), "two parts .* have the column name 'a/b'"),
        (lambda: rows(1, 0).window(2), "column '0' is a DatasetV2 where it leaves the graph"),
    ],
)
def test_what_no_column_can_be_is_refused_by_name(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(pecan.errors.PecanError, match=words):
        next(ours(make, 1).iter_batches(debug=True))
