"""torch DataLoader: a process per CPU that stays, default collation into shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe

PREFETCH = 4


class EndlessDataset(Dataset[Any]):
    """The items over and over."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, number: int) -> Any:
        if self._rng is None:
            worker = get_worker_info()
            self._rng = np.random.default_rng(worker.id if worker else 0)
        return self._recipe.element(self._recipe.items[number % len(self._recipe.items)], self._rng)


def _pinned(_worker: int) -> None:
    import cv2

    cv2.setNumThreads(1)


def batches(recipe: Recipe, in_order: bool = True) -> BatchIterator:
    """Yield batches without end."""
    loader: DataLoader[Any] = DataLoader(
        EndlessDataset(recipe),
        batch_size=recipe.batch,
        num_workers=CPUS,
        persistent_workers=True,
        prefetch_factor=PREFETCH,
        worker_init_fn=_pinned,
        in_order=in_order,
    )
    for batch in loader:
        yield {name: column.numpy() for name, column in batch.items()}


def prepare(**_options: Any) -> None:
    """Keep torch's own threads out of the way of the worker processes, as its documentation recommends."""
    torch.set_num_threads(1)
