"""What jobs that run one after the other in one program leave in its process.

    python -m benchmarks.many_jobs [--jobs 64]

Every second job has a pipeline of its own, and the one behind it begins in its processes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import ray

import pecan_ray as pecan

ROWS, BATCH = 40, 20
SETTLE_S = 2.0
"""Ray's threads let go of what a job had within this time."""


def pipe_of(number: int) -> pecan.PecanPipeline:
    """Return a short pipeline."""
    config = pecan.Config(progress=False, reorder="off", report_folder="")
    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=BATCH)
    return pecan.PecanPipeline(source, name=f"short{number}", config=config).batch(BATCH)


def look(jobs: int) -> None:
    """Print what this process holds."""
    gc.collect()
    time.sleep(SETTLE_S)
    gc.collect()
    process = psutil.Process()
    mib, objects = process.memory_full_info().uss / (1 << 20), len(gc.get_objects())
    files, threads = process.num_fds(), process.num_threads()
    print(f"{jobs} jobs: {mib:.1f} MiB, {files} descriptors, {threads} threads, {objects} objects", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    jobs = parser.parse_args().jobs
    local: dict[str, Any] = {"address": "local", "num_cpus": 4, "object_store_memory": 100 << 20}
    ray.init(namespace="pecan", log_to_driver=False, include_dashboard=False, **local)
    pipe = pipe_of(0)
    for number in range(1, jobs + 1):
        pipe = pipe_of(number) if number % 2 else pipe
        with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
            rows = sum(len(batch["i"]) for batch in batches)
        assert rows == ROWS, f"job {number} gave {rows} rows of {ROWS}"
        del batches
        if number == 4 or number % 16 == 0:
            look(number)


if __name__ == "__main__":
    main()
