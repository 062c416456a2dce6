"""Two jobs with one pipeline, one cache and trainers of unequal speed (Cachew §6.6, Figure 11), live.

    python -m benchmarks.two_jobs [--rows 1600] [--epochs 4]

Three nodes of a local Ray cluster with one cache folder; the operator before the autocache point and the trainers wait
instead of computing, so that two cores stand for many.  The second job's trainer is twice as fast, and begins when the
first job has had one epoch.  For each epoch: its seconds, the share of them in which the trainer waits, the share of
its elements that came out of the cache, and the workers that made its batches.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import pecan_ray as pecan
from benchmarks.placement_live import three_nodes
from tests.ray.waiting_transforms import BATCH

ELEMENT_S = 0.020
STEPS_S = {"first": 0.050, "second": 0.025}
MOST_LOCAL, MOST_REMOTE = 2, 4


@dataclass
class EpochSeen:
    """One epoch of a job, as its trainer has seen it."""

    started: float
    ended: float = 0.0
    waited_s: float = 0.0
    workers: set[str] = field(default_factory=set)
    elements: int = 0
    kept: int = 0
    """Elements that had been made before the epoch began."""


def made(i: Any) -> Any:
    """Return 64 KiB that say when they were made."""
    time.sleep(ELEMENT_S)
    found = np.zeros(8192)
    found[:2] = i, time.time()
    return found


def pipeline(rows: int, folder: Path) -> pecan.PecanPipeline:
    """Return what both jobs run."""
    config = pecan.Config(
        ring_bytes=1 << 20, threads_per_worker=1, order_folder="", cache=pecan.Cache(folder, max_bytes=4 << 30)
    )
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=16)
    pipe = pecan.PecanPipeline(source, name="two-jobs", config=config).autocache(name="read")
    return pipe.map(made, on="i").autocache(name="end").batch(BATCH)


def train(pipe: pecan.PecanPipeline, job: str, epochs: int, after: Callable[[int], None]) -> list[EpochSeen]:
    """Train; `after` is called with the number of each epoch that begins."""
    workers = pecan.AutoWorkers(max_local=MOST_LOCAL, max_remote=MOST_REMOTE, window_batches=40, window_s=2.0)
    seen: list[EpochSeen] = []
    with pipe.iter_batches(epochs=epochs, workers=workers, job=job, prefetch_bytes=1 << 20) as batches:
        asked = time.time()
        for batch in batches:
            came = time.time()
            assert batches.provenance is not None
            if batches.provenance.epoch == len(seen):
                seen.append(EpochSeen(asked))
                after(len(seen) - 1)
            epoch = seen[-1]
            epoch.waited_s += came - asked
            epoch.workers.add(batches.provenance.worker)
            epoch.elements += len(batch["i"])
            epoch.kept += int((batch["i"][:, 1] < epoch.started).sum())
            time.sleep(STEPS_S[job])
            epoch.ended = asked = time.time()
    return seen


def main() -> None:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=4)
    asked = parser.parse_args()
    seen: dict[str, list[EpochSeen]] = {}
    second = threading.Event()
    with tempfile.TemporaryDirectory(prefix="pecan-two-jobs-") as folder, three_nodes():
        pipe = pipeline(asked.rows, Path(folder))

        def run_second() -> None:
            second.wait()
            seen["second"] = train(pipe, "second", asked.epochs, lambda _: None)

        beside = threading.Thread(target=run_second)
        beside.start()
        try:
            seen["first"] = train(pipe, "first", asked.epochs, lambda epoch: second.set() if epoch else None)
        finally:
            second.set()
            beside.join()
    print(f"{'job':8s} {'step':>6s} {'epoch':>5s} {'seconds':>8s} {'waiting':>8s} {'kept':>6s} {'workers':>8s}")
    for job in STEPS_S:
        for number, epoch in enumerate(seen[job], 1):
            seconds = epoch.ended - epoch.started
            print(
                f"{job:8s} {STEPS_S[job] * 1e3:4.0f}ms {number:5d} {seconds:8.1f} {epoch.waited_s / seconds:8.1%} "
                f"{epoch.kept / epoch.elements:6.0%} {len(epoch.workers):8d}"
            )


if __name__ == "__main__":
    main()
