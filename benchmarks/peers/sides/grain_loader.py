"""Grain: random access, a generator per element, batches made in reading threads or in processes."""

from __future__ import annotations

import sys
from typing import Any

import grain
import numpy as np

from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe

BUFFER = 4
"""Batches that the threads keep ready."""


class EndlessSource:
    """The items over and over, as a random access data source."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return sys.maxsize >> 8

    def __getitem__(self, number: Any) -> int:
        return int(number) % self._count


def _dataset(recipe: Recipe) -> Any:
    def work(number: int, rng: np.random.Generator) -> Any:
        return recipe.element(recipe.items[number], rng)

    source: Any = EndlessSource(len(recipe.items))
    return grain.MapDataset.source(source).seed(0).random_map(work).batch(recipe.batch, drop_remainder=True)


def batches(recipe: Recipe) -> BatchIterator:
    """Yield batches without end; reading threads share the trainer's process."""
    import cv2

    cv2.setNumThreads(1)
    options = grain.ReadOptions(num_threads=CPUS, prefetch_buffer_size=BUFFER)
    yield from _dataset(recipe).to_iter_dataset(options)


def processes(recipe: Recipe) -> BatchIterator:
    """Yield batches without end; a process per CPU, each with one reading thread."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    workers = grain.MultiprocessingOptions(num_workers=CPUS, per_worker_buffer_size=2)
    yield from _dataset(recipe).to_iter_dataset(options).mp_prefetch(workers)
