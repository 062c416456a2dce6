"""Pipelines of tf.data's guide and tf.data service's users, as functions of a dataset of numbers.

Most read the numbers that they are given; those of files read the files of `FOLDER`, of which each shard has its own.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import attr
import numpy as np
import tensorflow as tf

FOLDER = Path(tempfile.mkdtemp(prefix="pecan-parity-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
TUNE: Any = tf.data.AUTOTUNE


class Pair(NamedTuple):
    u: Any
    v: Any


@attr.s
class Row:
    u: Any = attr.ib()
    v: Any = attr.ib()


@dataclass
class Named:
    """A dataclass that tells `tf.nest` which of its fields are tensors."""

    name: str
    values: Any

    def __tf_flatten__(self) -> tuple[tuple[str], tuple[Any]]:
        return (self.name,), (self.values,)

    @classmethod
    def __tf_unflatten__(cls, fields: tuple[str], parts: tuple[Any]) -> Named:
        return cls(*fields, *parts)


def images(n: Any) -> Any:
    return {"image": tf.cast(tf.fill([2, 3, 3], n), tf.uint8), "label": tf.strings.as_string(n)}


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


def loops(n: Any) -> Any:
    total = n
    for step in tf.range(n % 3):
        if step > 0:
            total += step
    return total


def example(n: int) -> bytes:
    """Return a serialized tf.train.Example with one number, some numbers and some texts."""

    def ints(values: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    texts = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"%d" % k for k in range(n % 3)]))
    features = tf.train.Features(feature={"n": ints([n]), "some": ints(range(n % 4)), "texts": texts})
    return bytes(tf.train.Example(features=features).SerializeToString())


FEATURES: dict[str, Any] = {
    "n": tf.io.FixedLenFeature([], tf.int64),
    "some": tf.io.VarLenFeature(tf.int64),
    "texts": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
}


def files(data: Any, kind: str) -> list[str]:
    """Write the numbers of a dataset into two files; return their paths."""
    folder = FOLDER / kind
    folder.mkdir(exist_ok=True)
    values = [int(n) for n in data]
    paths = [folder / f"{'-'.join(map(str, part))}.{kind}" for part in (values[::2], values[1::2])]
    for path, part in zip(paths, (values[::2], values[1::2]), strict=True):
        if kind == "tfrecord":
            with tf.io.TFRecordWriter(str(path)) as writer:
                for n in part:
                    writer.write(example(n))
        elif kind == "bin":
            path.write_bytes(np.array(part, np.int32).tobytes())
        else:
            path.write_text("".join(f"{n},{n / 2},t{n}\n" for n in part))
    return [str(path) for path in paths]


def place(data: Any, kind: str) -> str:
    """Return a path of its own for each content."""
    return str(FOLDER / f"{kind}-{'-'.join(str(int(n)) for n in data)}")


def saved(data: Any) -> Any:
    path = place(data, "saved")
    data.map(lambda n: {"n": n}).save(path)
    return tf.data.Dataset.load(path)


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


def optional(n: Any) -> Any:
    found = tf.experimental.Optional.from_value({"n": n})
    return tf.where(found.has_value(), found.get_value()["n"], -1)


PIPELINES: dict[str, Callable[[Any], Any]] = {
    # elements
    "numbers": lambda data: data,
    "tuples": lambda data: data.map(lambda n: ({"a": n, "b": tf.cast(n, tf.float32)}, -n)),
    "nested": lambda data: data.map(nested),
    "ordered": lambda data: data.map(lambda n: OrderedDict([("z", n), ("a", OrderedDict(y=-n))])),
    "attrs": lambda data: data.map(lambda n: {"row": Row(n, Row((n, -n), "text"))}),
    "dataclass": lambda data: data.map(lambda n: (Named("a", {"z": n, "b": -n}), n)),
    "integer keys and empty parts": lambda data: data.map(lambda n: {10: (n, ()), 9: {8: -n, 7: {}}}),
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
    "images in batches": lambda data: data.map(images).batch(4),
    "composites in batches": lambda data: data.map(lambda n: {"r": tf.ragged.range([n, 2])}).batch(4),
    "nested in batches": lambda data: data.map(nested).batch(3),
    "padded": lambda data: data.map(lambda n: {"x": tf.range(n)}).padded_batch(3),
    "padded to shapes": lambda data: data.map(lambda n: (tf.range(n), n)).padded_batch(
        3, ([12], []), (tf.constant(-1, tf.int64), tf.constant(0, tf.int64))
    ),
    "ragged batches": lambda data: data.map(tf.range).ragged_batch(3),
    "sparse batches": lambda data: data.map(tf.range).apply(tf.data.experimental.dense_to_sparse_batch(3, [12])),
    "buckets to their ends": lambda data: data.map(tf.range).bucket_by_sequence_length(
        tf.size, [4, 11], [2, 2, 2], pad_to_bucket_boundary=True
    ),
    "unbatch": lambda data: data.batch(4).unbatch().map(lambda n: {"n": n}),
    # operators
    "filter": lambda data: data.filter(lambda n: n % 3 > 0),
    "take while": lambda data: data.take_while(lambda n: n < 7),
    "flat_map": lambda data: data.flat_map(lambda n: tf.data.Dataset.range(n % 3)),
    "interleave": lambda data: data.interleave(tf.data.Dataset.range, cycle_length=2, block_length=2),
    "interleave of strings": lambda data: data.interleave(
        lambda n: tf.data.Dataset.from_tensors(n).repeat(2).map(tf.strings.as_string), num_parallel_calls=TUNE
    ),
    "windows": lambda data: data.window(3, shift=2).flat_map(lambda window: window.batch(3)),
    "windows of dicts": lambda data: (
        data.map(lambda n: {"a": n, "b": -n})
        .window(2)
        .flat_map(lambda window: tf.data.Dataset.zip({name: part.batch(2) for name, part in window.items()}))
    ),
    "enumerate": lambda data: data.enumerate(start=5),
    "zip": lambda data: tf.data.Dataset.zip(data, {"again": data}),
    "concatenate": lambda data: data.concatenate(data.map(lambda n: -n)),
    "scan": lambda data: data.scan(tf.constant(0, tf.int64), lambda total, n: (total + n, total)),
    "group_by_window": lambda data: data.group_by_window(lambda n: n % 2, lambda _, part: part.batch(8), window_size=8),
    "windows of sizes": lambda data: data.group_by_window(
        lambda n: n % 3, lambda key, part: part.map(lambda n: (key, n)), window_size_func=lambda key: key + 1
    ),
    "chosen": lambda data: tf.data.Dataset.choose_from_datasets(
        [data, data.map(lambda n: -n)], data.map(lambda n: n % 2), stop_on_empty_dataset=True
    ),
    "errors ignored": lambda data: data.map(lambda n: tf.debugging.check_numerics(1 / (n - 4), "")).ignore_errors(),
    "reduced within": lambda data: data.map(lambda n: tf.data.Dataset.range(n).reduce(n, lambda a, b: a + b)),
    "control flow": lambda data: data.map(loops),
    "optional within": lambda data: data.map(optional),
    "python on tensors": lambda data: data.map(lambda n: tf.py_function(lambda k: [k, -k], [n], [tf.int64] * 2)),
    "a table": looked_up,
    "a layer of Keras": vectorized,
    "a variable": counted,
    "shuffled once": lambda data: data.shuffle(10, seed=1, reshuffle_each_iteration=False),
    "options": with_options,
    "nothing": lambda data: data.filter(lambda n: n < 0),
    # sources
    "generator": lambda data: tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec),
    "generator with arguments": lambda data: tf.data.Dataset.from_generator(
        lambda top: (tf.ragged.constant([list(range(k)), [k]], tf.int64) for k in range(1, top)),
        args=[3],
        output_signature=tf.RaggedTensorSpec([2, None], tf.int64),
    ),
    "slices of a ragged tensor": lambda data: tf.data.Dataset.from_tensor_slices(
        {"a": [int(n) for n in data], "r": tf.ragged.range([int(n) for n in data])}
    ),
    "slices of a sparse tensor": lambda data: tf.data.Dataset.from_tensor_slices(
        tf.sparse.from_dense([[int(n), 0, 1] for n in data])
    ),
    "records": lambda data: tf.data.TFRecordDataset(files(data, "tfrecord")).map(
        lambda record: tf.io.parse_single_example(record, FEATURES)
    ),
    "records of files": lambda data: tf.data.Dataset.from_tensor_slices(files(data, "tfrecord")).interleave(
        lambda path: tf.data.TFRecordDataset(path), cycle_length=2, num_parallel_calls=TUNE
    ),
    "lines": lambda data: tf.data.Dataset.from_tensor_slices(files(data, "txt")).flat_map(tf.data.TextLineDataset),
    "records of a length": lambda data: tf.data.FixedLengthRecordDataset(files(data, "bin"), 4).map(
        lambda record: tf.io.decode_raw(record, tf.int32)
    ),
    "csv": lambda data: tf.data.experimental.CsvDataset(files(data, "csv"), [tf.int64, tf.float32, tf.string]),
    "a cache on disk": lambda data: data.map(lambda n: n + 1).cache(place(data, "cache")),
    "a snapshot": lambda data: data.map(lambda n: n + 1).snapshot(place(data, "snapshot")),
    "saved and loaded": saved,
}

RANDOM: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda data: data.shuffle(5, seed=1),
    "drawn": lambda data: data.map(lambda n: (n, tf.random.uniform([2], seed=1))),
    "drawn by state": lambda data: data.map(lambda n: tf.random.stateless_normal([2], [n, 1])),
    "sampled": lambda data: tf.data.Dataset.sample_from_datasets([data, data.map(lambda n: -n)], [0.7, 0.3], seed=2),
    "resampled": lambda data: data.rejection_resample(
        lambda n: tf.cast(n % 2, tf.int32), [0.8, 0.2], [0.5, 0.5], seed=3
    ),
    "zip with draws": lambda data: tf.data.Dataset.zip(data, tf.data.Dataset.random(seed=4)),
    "shuffled files": lambda data: (
        tf.data.Dataset.from_tensor_slices(files(data, "txt")).shuffle(2, seed=5).interleave(tf.data.TextLineDataset)
    ),
}
"""Pipelines of random numbers that have seeds: the first shard's are those of plain tf.data."""
