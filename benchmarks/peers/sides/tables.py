"""Every loader's recommended way from Parquet rows to batches of columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from pyarrow import parquet

from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe


def _read(files: tuple[str, ...], size: int) -> Iterator[dict[str, Any]]:
    """Batches of columns by PyArrow alone, file after file, without end."""
    for path in itertools.cycle(files):
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(size):
            if batch.num_rows == size:
                yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}


def by_pyarrow(recipe: Recipe) -> BatchIterator:
    """PyArrow in this process: one thread that makes batches, its own threads that decode columns."""
    return _read(recipe.files, recipe.batch)


def by_torch(recipe: Recipe) -> BatchIterator:
    """An iterable data set of whole batches, each process with its share of the files."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    torch.set_num_threads(1)

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            mine = recipe.files if worker is None else recipe.files[worker.id :: worker.num_workers]
            for batch in _read(mine, recipe.batch):
                # PyArrow's memory is read-only; torch wants its own.
                yield {name: torch.from_numpy(column.copy()) for name, column in batch.items()}

    loader: DataLoader[Any] = DataLoader(
        Rows(), batch_size=None, num_workers=CPUS, persistent_workers=True, prefetch_factor=4
    )
    for batch in loader:
        yield {name: column.numpy() for name, column in batch.items()}


def by_ray_data(recipe: Recipe) -> BatchIterator:
    """Ray Data's reader of Parquet."""
    import ray

    from benchmarks.peers.sides import ray_data

    ray_data.prepare()
    while True:
        # A list of the same files many times over, so that passes do not begin anew too often.
        data = ray.data.read_parquet(list(recipe.files) * 50)
        yield from data.iter_batches(batch_size=recipe.batch, prefetch_batches=4, batch_format="numpy", drop_last=True)


def by_tf_data(recipe: Recipe) -> BatchIterator:
    """tf.data over a generator of PyArrow's batches: TensorFlow itself does not read Parquet."""
    from benchmarks.peers.sides import tf_data

    tf = tf_data.tensorflow()
    first = next(_read(recipe.files, recipe.batch))
    kinds = {name: tf.TensorSpec([recipe.batch], np.asarray(column).dtype) for name, column in first.items()}
    data = tf.data.Dataset.from_generator(lambda: _read(recipe.files, recipe.batch), output_signature=kinds)
    return tf_data.arrays(data.prefetch(tf.data.AUTOTUNE))
