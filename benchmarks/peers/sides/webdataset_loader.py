"""WebDataset: tar shards, read by a process per CPU, each of which makes whole batches."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset

from benchmarks.peers.cases import photographs
from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe, stacked

SHARDS = 8
PREFETCH = 4
NOTE = "shards in tar files, drawn again and again"


def prepare(**_options: Any) -> None:
    """Keep torch's own threads out of the way of the worker processes."""
    torch.set_num_threads(1)


def _write_shards(recipe: Recipe, folder: Path) -> list[str]:
    names = []
    for shard in range(SHARDS):
        name = folder / f"{shard:03d}.tar"
        with tarfile.open(name, "w") as tar:
            for number, (path, label) in enumerate(recipe.items[shard::SHARDS]):
                label_file = folder / "label"
                label_file.write_text(str(label))
                tar.add(path, f"{number:06d}.jpg")
                tar.add(label_file, f"{number:06d}.cls")
        names.append(str(name))
    return names


def batches(recipe: Recipe) -> BatchIterator:
    """Yield batches without end."""
    rng = np.random.default_rng()

    def work(sample: dict[str, Any]) -> Any:
        return photographs.from_bytes(sample["jpg"], int(sample["cls"]), rng)

    def quiet(_worker: int) -> None:
        import cv2

        cv2.setNumThreads(1)

    with tempfile.TemporaryDirectory() as folder:
        shards = _write_shards(recipe, Path(folder))
        data = webdataset.WebDataset(shards, resampled=True, shardshuffle=False).map(work)
        # Tensors travel between processes in shared memory, arrays would be pickled through a pipe.
        data = data.batched(recipe.batch, collation_fn=_tensors, partial=False)
        loader = webdataset.WebLoader(
            data,
            batch_size=None,
            num_workers=CPUS,
            persistent_workers=True,
            prefetch_factor=PREFETCH,
            worker_init_fn=quiet,
        )
        for batch in loader:
            yield {name: column.numpy() for name, column in batch.items()}


def _tensors(elements: list[Any]) -> dict[str, Any]:
    # WebDataset adds its own fields to what a function returns.
    kept = [{name: value for name, value in element.items() if not name.startswith("__")} for element in elements]
    return {name: torch.from_numpy(column) for name, column in stacked(kept).items()}
