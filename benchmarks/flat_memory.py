"""Memory of trainer, workers, controller and journal while very many batches go through small rings.

    python -m benchmarks.flat_memory [--batches N] [--ring-kib K]
    python -m benchmarks.flat_memory --minutes 60 [--step-ms 10]

The second one is a soak: steps of so long for so many minutes.  Rows must come in the order of the source, each once in
each epoch.  Prints, at every tenth of the batches or of the time, the resident memory of each process in MiB, its open
files, the objects of pecan_ray's types that the trainer holds, and the bytes of the journal.  After the first two
tenths, in which buffers fill, they should stay.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan

TITLES = {"worker": "ray::PreprocessingWorker", "controller": "ray::AutoPlacementController"}
PARTS = 10
ROWS, BATCH = 20_000, 8
FLOATS = 256
"""Of an element: a kilobyte."""
QUEUE_BYTES = 256 << 10


@dataclass(frozen=True)
class Footprint:
    """What a job holds at one time."""

    batches: int
    resident_mib: dict[str, float]
    """By what a process is; of several workers the largest."""
    files: dict[str, int]
    """Open ones, likewise."""
    objects: int
    """Of our types, in the trainer."""
    journal_bytes: int


def flat_pipeline(journal: Path, ring_bytes: int) -> pecan.PecanPipeline:
    """Return a pipeline of small batches without end."""
    source = pecan.sources.Arrays(i=np.arange(ROWS), x=np.zeros((ROWS, FLOATS), np.float32), split_rows=500)
    config = pecan.Config(ring_bytes=ring_bytes, journal=journal, progress=False)
    return pecan.PecanPipeline(source, name="flat", config=config).map(_same, on="x").batch(BATCH)


def flat_batches(pipe: pecan.PecanPipeline) -> Any:
    """Return its batches, of which few wait for the trainer, from a worker on each side."""
    return pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1, remote=1), prefetch_bytes=QUEUE_BYTES)


def _same(x: Any) -> Any:
    return x


def footprints(batches: Any, journal: Path, count: int, parts: int = PARTS) -> Iterator[Footprint]:
    """Take so many batches, and tell of each part of them what is held behind it."""
    for part in range(1, parts + 1):
        taken = sum(1 for _ in islice(batches, count // parts))
        assert taken == count // parts, "the job has ended"
        yield footprint(part * taken, journal)


def soaked(batches: Any, journal: Path, seconds: float, step_s: float, parts: int = PARTS) -> Iterator[Footprint]:
    """Take batches for so long, one a step, and tell of each part of that time what is held behind it."""
    began, taken = time.monotonic(), 0
    for part in range(1, parts + 1):
        while time.monotonic() < began + part * seconds / parts:
            next(batches)
            taken += 1
            time.sleep(step_s)
        yield footprint(taken, journal)


def in_order(batches: Iterator[Any]) -> Iterator[Any]:
    """Pass batches on, and raise AssertionError at the first that lacks, repeats or moves a row."""
    expected = 0
    for number, batch in enumerate(batches):
        rows = np.arange(expected, expected + len(batch["i"])) % ROWS
        assert np.array_equal(batch["i"], rows), f"batch {number} has the rows {batch['i']}, not {rows}"
        expected = int(rows[-1] + 1) % ROWS
        yield batch


def footprint(batches: int, journal: Path) -> Footprint:
    """Look at the processes that this one has started, and at this one."""
    found: dict[str, list[tuple[float, int]]] = {"trainer": [_held(psutil.Process())]}
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
            for name, begin in TITLES.items():
                if title.startswith(begin):
                    found.setdefault(name, []).append(_held(process))
        except psutil.Error:
            continue  # it has ended
    gc.collect()
    objects = sum(str(type(one).__module__).startswith("pecan_ray") for one in gc.get_objects())
    written = sum(file.stat().st_size for file in journal.rglob("*") if file.is_file())
    resident = {name: max(mib for mib, _ in some) for name, some in found.items()}
    return Footprint(
        batches, resident, {name: max(n for _, n in some) for name, some in found.items()}, objects, written
    )


def _held(process: psutil.Process) -> tuple[float, int]:
    return process.memory_info().rss / 2**20, process.num_fds()


def main() -> None:
    """Run it on a cluster of two nodes on this machine, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flat_memory")
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, help="of a soak, in place of --batches")
    parser.add_argument("--step-ms", type=float, default=10.0, help="of a soak: how long the trainer computes for each")
    parser.add_argument("--ring-kib", type=int, default=1024)
    given = parser.parse_args()
    nodes: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes.add_node(num_cpus=2)
    ray.init(address=nodes.address, namespace="pecan", log_to_driver=False)
    names = ("trainer", *TITLES)
    sys.stdout.write(f"| batches | {' | '.join(f'{name} MiB (files)' for name in names)} | objects | journal KiB |\n")
    sys.stdout.write(f"|{' ---: |' * (len(names) + 3)}\n")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pipe = flat_pipeline(Path(folder), given.ring_kib << 10)
        with flat_batches(pipe) as batches:
            checked = in_order(batches)
            told = (
                soaked(checked, Path(folder), given.minutes * 60, given.step_ms / 1000)
                if given.minutes
                else footprints(checked, Path(folder), given.batches)
            )
            for one in told:
                held = " | ".join(f"{one.resident_mib[name]:.0f} ({one.files[name]})" for name in names)
                sys.stdout.write(f"| {one.batches:,} | {held} | {one.objects:,} | {one.journal_bytes / 1024:,.0f} |\n")
                sys.stdout.flush()
    sys.stdout.write(f"{one.batches / (time.monotonic() - began):,.0f} batches per second\n")
    leave: Any = ray.shutdown
    leave()
    nodes.shutdown()


if __name__ == "__main__":
    main()
