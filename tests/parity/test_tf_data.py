"""Existing tf.data pipelines beside tf.data: values, types, structure and element_spec, whole and in shards.

What a function does within a graph is tf.data's own: pipelines differ in what leaves the graph, in what of TensorFlow
counts, draws or holds a state, and in how functions are traced.
"""

from __future__ import annotations

from collections import OrderedDict
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
from tests.unit.engines.tensorflow_rig import run  # noqa: E402

ROWS = 10
TUNE: Any = tf.data.AUTOTUNE


class Pair(NamedTuple):
    u: Any
    v: Any


def nested(n: Any) -> Any:
    return {"z": {"q": (n, {"w": -n})}, "t": Pair(n, tf.strings.as_string(n)), "c": n}


def types(n: Any) -> Any:
    names = ("bool", "int8", "uint16", "uint64", "float16", "bfloat16", "complex64", "complex128")
    found = {name: tf.cast(n, name) for name in names}
    return {**found, "none": None, "text": "text", "quantized": tf.bitcast(tf.cast([n, 2], tf.int32), tf.qint32)}


def composites(n: Any) -> Any:
    uneven = tf.ragged.constant([[[1, 2], [3]], []], tf.float32) + tf.cast(n, tf.float32)
    texts = tf.strings.split([tf.strings.as_string(n), "a b"])
    return {"rows": tf.ragged.range([n, 2]), "deep": uneven, "texts": texts, "sparse": tf.sparse.from_dense([n, 0])}


def with_options(data: Any) -> Any:
    options = tf.data.Options()
    options.autotune.enabled, options.autotune.ram_budget = True, 1 << 30
    options.threading.private_threadpool_size = 2
    options.deterministic = True
    options.experimental_optimization.map_and_batch_fusion = True
    return data.map(lambda n: n * 2, num_parallel_calls=TUNE).batch(4).with_options(options)


def looked_up(data: Any) -> Any:
    keys = tf.strings.as_string(tf.range(10))
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.range(10, 20)), -1)
    return data.map(lambda n: table.lookup(tf.strings.as_string(n * 2)))


def vectorized(data: Any) -> Any:
    layer = tf.keras.layers.TextVectorization(vocabulary=["one", "two"], output_sequence_length=3)
    return data.map(lambda n: layer(tf.where(n % 2 == 0, "one two", "two three")))


def counted(data: Any) -> Any:
    counts = tf.Variable(0, dtype=tf.int64)
    return data.map(lambda n: n + counts.assign_add(1))


PIPELINES: dict[str, Callable[[Any], Any]] = {
    # elements
    "numbers": lambda data: data,
    "tuples": lambda data: data.map(lambda n: ({"a": n, "b": tf.cast(n, tf.float32)}, -n)),
    "nested": lambda data: data.map(nested),
    "ordered": lambda data: data.map(lambda n: OrderedDict([("z", n), ("a", OrderedDict(y=-n))])),
    "types": lambda data: data.map(types),
    "strings": lambda data: data.map(lambda n: tf.stack(["", "\0", "ä", tf.strings.as_string(n)])),
    "composites": lambda data: data.map(composites),
    "ragged within": lambda data: data.map(
        lambda n: tf.RaggedTensor.from_uniform_row_length(tf.ragged.range([n, 2]), 2)
    ),
    "empty tensors": lambda data: data.map(lambda n: (tf.zeros([0, 3]), tf.zeros([n % 2, 0]), n)),
    "unknown rank": lambda data: data.map(
        lambda n: tf.numpy_function(lambda k: np.zeros([k % 3] * 2), [n], tf.float64)
    ),
    # batches
    "composites in batches": lambda data: data.map(lambda n: {"r": tf.ragged.range([n, 2])}).batch(4),
    "padded": lambda data: data.map(lambda n: {"x": tf.range(n)}).padded_batch(3),
    # operators
    "filter": lambda data: data.filter(lambda n: n % 3 > 0),
    "flat_map": lambda data: data.flat_map(lambda n: tf.data.Dataset.range(n % 3)),
    "group_by_window": lambda data: data.group_by_window(lambda n: n % 2, lambda _, part: part.batch(8), window_size=8),
    "python on tensors": lambda data: data.map(lambda n: tf.py_function(lambda k: [k, -k], [n], [tf.int64] * 2)),
    "a table": looked_up,
    "a layer of Keras": vectorized,
    "a variable": counted,
    "options": with_options,
    "nothing": lambda data: data.filter(lambda n: n < 0),
    # sources
    "generator": lambda data: tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec),
    "slices of a ragged tensor": lambda data: tf.data.Dataset.from_tensor_slices(
        {"a": [int(n) for n in data], "r": tf.ragged.range([int(n) for n in data])}
    ),
    "slices of a sparse tensor": lambda data: tf.data.Dataset.from_tensor_slices(
        tf.sparse.from_dense([[int(n), 0, 1] for n in data])
    ),
}

RANDOM: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda data: data.shuffle(5, seed=1),
    "drawn": lambda data: data.map(lambda n: (n, tf.random.uniform([2], seed=1))),
    "resampled": lambda data: data.rejection_resample(
        lambda n: tf.cast(n % 2, tf.int32), [0.8, 0.2], [0.5, 0.5], seed=3
    ),
}
"""Pipelines of random numbers that have seeds: the first shard's are those of plain tf.data."""

# --- beside tf.data -------------------------------------------------------------------------------------------


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

    whole = list(make(1, 0))
    for one, other in zip(ours(make, 1).iter_batches(format="tf", debug=True), whole, strict=True):
        alike(one, other)
    data = ours(make, 1).to_tf_dataset(debug=True)
    if name != "slices of a ragged tensor":  # rows of it have a ragged spec, and are plain tensors
        assert data.element_spec == make(1, 0).element_spec
    assert int(data.cardinality()) == int(make(1, 0).cardinality())
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
        same(parts(ours(make, 2), split, middle), wanted[middle:])


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
