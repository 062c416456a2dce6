"""What memory a worker takes beside its data: of numbers, and of photographs.

    python -m benchmarks.worker_memory

One local worker on a Ray cluster of this machine, behind 60 batches: what is resident in its process, what of it is its
own alone, and how much of it are mapped files (libraries, which processes share) and slots of batches.  Linux only.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import ray

import pecan_ray as pecan
from examples.photographs import derived_photographs
from pecan_ray import images

BATCHES = 60
SLOTS = ("/dev/shm", "/memfd")
"""Where slots are mapped from."""


def as_number(element: Any) -> Any:
    """Make a column of an element."""
    return {"x": np.float32(element["item"])}


def numbers() -> pecan.PecanPipeline:
    """Return the pipeline of numbers."""
    return pecan.PecanPipeline(pecan.sources.Items(list(range(20_000))), name="numbers").map(as_number).batch(100)


def photographs() -> pecan.PecanPipeline:
    """Return the pipeline of photographs."""
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(derived_photographs(256)), name="photographs")
    for op in (images.Decode(), images.RandomCrop(), images.Resize(224, 224)):
        pipe = pipe.map(op, on="image")
    return pipe.batch(64)


def the_worker() -> psutil.Process:
    """Return the process of the one worker among the children of this one's cluster."""
    found = [p for p in psutil.Process().children(recursive=True) if "PreprocessingWorker" in " ".join(p.cmdline())]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} workers were found, not one")
    return found[0]


def show(pipe: pecan.PecanPipeline) -> None:
    """Run a pipeline, and print what its worker takes."""
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1)) as batches:
        for _ in range(BATCHES):
            next(batches)
        worker = the_worker()
        whole, maps = worker.memory_full_info(), worker.memory_maps()
    slots = sum(one.rss for one in maps if one.path.startswith(SLOTS))
    files = sum(one.rss for one in maps if one.path.startswith("/") and not one.path.startswith(SLOTS))
    told = {"resident": whole.rss, "its own": whole.uss, "mapped files": files, "slots": slots}
    print(f"{pipe.name}: " + ", ".join(f"{name} {nbytes / 1e6:.0f} MB" for name, nbytes in told.items()), flush=True)


def main() -> None:
    """Measure and print."""
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for pipe in (numbers(), photographs()):
        show(pipe)


if __name__ == "__main__":
    main()
