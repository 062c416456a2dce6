"""Existing tf.data pipelines beside tf.data: values, types, structure and element_spec, whole and in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pecan_ray as pecan

tf: Any = pytest.importorskip("tensorflow")

ROWS = 10


class Pair(NamedTuple):
    u: Any
    v: Any


def rows(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(ROWS).shard(num_shards, index)


def images(n: Any) -> Any:
    return {"image": tf.cast(tf.fill([2, 3, 3], n), tf.uint8), "label": tf.strings.as_string(n)}


def nested(n: Any) -> Any:
    return {"z": {"q": (n, {"w": -n})}, "t": Pair(n, tf.strings.as_string(n)), "c": n}


def types(n: Any) -> Any:
    found = {
        name: tf.cast(n, name) for name in ("bool", "int8", "uint16", "uint64", "float16", "bfloat16", "complex64")
    }
    return {**found, "none": None, "text": "text", "quantized": tf.bitcast(tf.cast([n, 2], tf.int32), tf.qint32)}


def composites(n: Any) -> Any:
    uneven = tf.ragged.constant([[[1, 2], [3]], []], tf.float32) + tf.cast(n, tf.float32)
    texts = tf.strings.split([tf.strings.as_string(n), "a b"])
    return {"rows": tf.ragged.range([n, 2]), "deep": uneven, "texts": texts, "sparse": tf.sparse.from_dense([n, 0])}


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda data: data,
    "tuples": lambda data: data.map(lambda n: ({"a": n, "b": tf.cast(n, tf.float32)}, -n)),
    "nested": lambda data: data.map(nested),
    "types": lambda data: data.map(types),
    "composites": lambda data: data.map(composites),
    "images in batches": lambda data: data.map(images).batch(4),
    "composites in batches": lambda data: data.map(lambda n: {"r": tf.ragged.range([n, 2])}).batch(4),
    "sparse in batches": lambda data: data.map(lambda n: tf.sparse.from_dense([n, 0])).batch(4),
    "padded": lambda data: data.map(lambda n: {"x": tf.range(n)}).padded_batch(3),
    "ragged batches": lambda data: data.map(tf.range).ragged_batch(3),
    "buckets": lambda data: data.map(tf.range).bucket_by_sequence_length(tf.size, [4, 8], [2, 2, 2]),
    "filter": lambda data: data.filter(lambda n: n % 3 > 0),
    "flat_map": lambda data: data.flat_map(lambda n: tf.data.Dataset.range(n % 3)),
    "interleave": lambda data: data.interleave(tf.data.Dataset.range, cycle_length=2, block_length=2),
    "windows": lambda data: data.window(3, shift=2).flat_map(lambda window: window.batch(3)),
    "unbatch": lambda data: data.batch(4).unbatch().map(lambda n: {"n": n}),
    "enumerate": lambda data: data.enumerate(),
    "zip": lambda data: tf.data.Dataset.zip(data, {"again": data}),
    "concatenate": lambda data: data.concatenate(data.map(lambda n: -n)),
    "scan": lambda data: data.scan(tf.constant(0, tf.int64), lambda total, n: (total + n, total)),
    "group_by_window": lambda data: data.group_by_window(lambda n: n % 2, lambda _, part: part.batch(8), window_size=8),
    "unique": lambda data: data.map(lambda n: n // 2).unique(),
    "sorted by python": lambda data: data.map(lambda n: tf.numpy_function(np.negative, [n], tf.int64)),
    "generator": lambda data: tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec),
    "shuffled once": lambda data: data.shuffle(10, seed=1, reshuffle_each_iteration=False),
    "cached and prefetched": lambda data: data.cache().prefetch(2).map(lambda n: n + 1, num_parallel_calls=4),
    "nothing": lambda data: data.filter(lambda n: n < 0),
}


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

    whole, shards = list(make(1, 0)), [element for index in range(2) for element in make(2, index)]
    for count, wanted in ((1, whole), (2, shards)):
        for one, other in zip(ours(make, count).iter_batches(format="tf", debug=True), wanted, strict=True):
            alike(one, other)
    data = ours(make, 1).to_tf_dataset(debug=True)
    assert data.element_spec == make(1, 0).element_spec
    assert int(data.cardinality()) == int(make(1, 0).cardinality())
    for one, other in zip(data, whole, strict=True):
        alike(one, other)


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
