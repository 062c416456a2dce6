"""A side of the benchmarks that does not last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.peers.recipe import BatchColumns, Recipe


def few_batches(recipe: Recipe) -> Iterator[BatchColumns]:
    """Yield three batches and end."""
    for _ in range(3):
        yield {"image": np.zeros((recipe.batch, 1024), np.uint8)}
