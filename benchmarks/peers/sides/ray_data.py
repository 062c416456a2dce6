"""Ray Data: rows by `map`, fused into the reading tasks, and `iter_batches` without a local shuffle."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import ray

from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe

STORE_BYTES = 2 << 30
ROWS = 1 << 20
BLOCK_ROWS = 8192
"""Rows that a task makes: few enough that batches flow, enough that starting it does not count."""
PREFETCH = 4


def prepare(**_options: Any) -> None:
    """Start Ray."""
    ray.init(num_cpus=CPUS, object_store_memory=STORE_BYTES, include_dashboard=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


_local = threading.local()


def _rng() -> np.random.Generator:
    if not hasattr(_local, "rng"):
        import cv2

        cv2.setNumThreads(1)
        _local.rng = np.random.default_rng()
    rng: np.random.Generator = _local.rng
    return rng


def batches(recipe: Recipe) -> BatchIterator:
    """Yield batches without end."""
    items, element = recipe.items, recipe.element

    def row(numbered: dict[str, Any]) -> dict[str, Any]:
        return element(items[numbered["id"] % len(items)], _rng())

    while True:
        data = ray.data.range(ROWS, override_num_blocks=ROWS // BLOCK_ROWS).map(row)
        yield from data.iter_batches(
            batch_size=recipe.batch, prefetch_batches=PREFETCH, batch_format="numpy", drop_last=True
        )
