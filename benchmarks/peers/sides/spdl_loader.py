"""SPDL: a thread per CPU runs the functions, results are aggregated and stacked, in the order of completion."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe, stacked

SINK = 3
NOTE = "batches in the order of completion"


def batches(recipe: Recipe) -> BatchIterator:
    """Yield batches without end."""
    import cv2

    cv2.setNumThreads(1)
    local = threading.local()

    def work(number: int) -> Any:
        if not hasattr(local, "rng"):
            local.rng = np.random.default_rng(threading.get_ident())
        return recipe.element(recipe.items[number % len(recipe.items)], local.rng)

    builder: Any = PipelineBuilder()  # typed for its first source, before it has one
    pipeline = (
        builder.add_source(itertools.count())
        .pipe(work, concurrency=CPUS)
        .aggregate(recipe.batch)
        .pipe(stacked, concurrency=1)
        .add_sink(SINK)
        .build(num_threads=CPUS + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline
